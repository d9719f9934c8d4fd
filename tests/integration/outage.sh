#!/bin/bash
# Ends that die or hang, and cables that go dead, with the default heartbeats: how long it takes until
# the other end has noticed and is rid of it. FULL=1 lets servers hang for up to 60 s,
# and cables go dead 100 times; or ROUNDS.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/two_hosts.sh"

here=$(realpath "${BASH_SOURCE[0]%/*}")
# Seconds until a silent peer counts as dead: 5 to 6 times 500 ms, and some for the machine.
noticed=3.5 noticed_at_least=2
# Seconds until requests of a path that falls silent are answered over another one.
moved=1

# ---- Helpers --------------------------------------------------------------------------------------

# since TIME: seconds, in $took; at_most SECONDS.
since() { took=$(awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }'); }
at_most() { awk -v a="$took" -v b="$1" -v slow="$slow" 'BEGIN { exit !(a <= b * slow) }'; }
at_least() { awk -v a="$took" -v b="$1" 'BEGIN { exit !(a >= b) }'; }

# writer NAME: durable writes to $uri until there is a file `enough`; see stamps.py.
writer() {
  spawn "$1" /usr/bin/python3 -B "$here/stamps.py" write "$uri" "${1//[!0-9]/}" 65536
  eventually 20 answered "${1//[!0-9]/}" 20
}
answers() { od -An -t u8 -N 8 "acked.$1" 2>/dev/null | tr -d ' '; }
answered() {
  local count
  count=$(answers "$1")
  ((${count:-0} >= $2))
}
# writer_ends NAME: without an error; its longest write is in $took.
writer_ends() {
  local count
  wait_end "$1" $((30 * slow)) || fail "$1 still waits"
  cat "$1.log"
  ((status == 0)) || fail "$1 ended with status $status"
  read -r count took <"$1.out"
  echo "$1: $count writes, the longest took $took s"
}

# ---- The client dies or hangs ----------------------------------------------------------------------

# There is room for five sessions only, in number and in memory: five others need all of theirs. What all
# five take at a server that is free is in $needed, and in $before what memory the server has then.
start_small_server() {
  local i exports=()
  for i in {1..5}; do exports+=(--export "disk$i=memory:4M"); done
  start_server "${exports[@]}" --max-sessions 5 --queue-depth 64 --memory-limit 14M
  start_five old
  start_five new # which connect when somebody uses them
  at=$EPOCHREALTIME
  use_five old
  since "$at"
  needed=$took
  before=$(rss server)
}
start_five() {
  local i
  for i in {1..5}; do nbdkit_name=$1$i attach "disk$i" lanes=1; done
}
# use_five NAME: users of all five at once. Each tries until it has written, keeps the device open, and
# notes in took.NAME how many seconds after $at that was.
use_five() {
  local i
  for i in {1..5}; do
    spawn "user of $1$i" /usr/bin/python3 -c '
import os, signal, sys, time, nbd
while True:
    try:
        h = nbd.NBD()
        h.connect_uri(sys.argv[1])
        h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)
        break
    except nbd.Error:
        time.sleep(0.05)
took = time.time() - float(sys.argv[2])
with open(sys.argv[3] + ".new", "w") as file:
    print(f"{took:.2f}", file=file)
os.rename(sys.argv[3] + ".new", sys.argv[3])
signal.pause()
' "nbd+unix:///?socket=$case_dir/$1$i.sock" "$at" "took.$1$i"
  done
  for i in {1..5}; do eventually 30 test -e "took.$1$i"; done
}

# others_come SECONDS: five clients, each of which needs what an old one had. Each has so long, counted
# from $at, the end of the old ones. One second of that is for connecting and writing; more only when the
# machine is so busy that the old ones needed more.
others_come() {
  local i allowed
  allowed=$(awk -v limit="$1" -v needed="$needed" -v slow="$slow" \
    'BEGIN { print limit + (needed > slow ? needed / slow - 1 : 0) }')
  use_five new
  for i in {1..5}; do
    took=$(<"took.new$i")
    echo "the new client of disk$i writes after $took s, and may need $allowed s"
    at_most "$allowed" || fail "the new client of disk$i writes after $took s, not within $allowed s"
  done
  [[ -n $sanitizer ]] || (($(rss server) < before + 1024)) ||
    fail "the server grew from $before to $(rss server) kB"
  for i in {1..5}; do kill_hard "user of new$i"; done
}
# signal_five SIGNAL: to the old ones at once, at $at.
signal_five() {
  local i old=()
  for i in {1..5}; do old+=("${pid[old$i]}"); done
  at=$EPOCHREALTIME
  kill "-$1" "${old[@]}"
}
bury_five() {
  local i
  for i in {1..5}; do
    kill -KILL "${pid[old$i]}" 2>/dev/null || true # it may be dead already
    wait_end "old$i" 10 || fail "old$i survived SIGKILL"
    kill_hard "user of old$i"
  done
}

clients_killed() {
  requires_python nbd
  local at before needed
  start_small_server
  signal_five KILL
  others_come 5 # their sockets tell, not heartbeats
  bury_five
}
it_plugin "five killed clients: sessions, read-write access and memory are free within 5 s, for each of five others" \
  clients_killed

clients_stopped() {
  requires_python nbd
  local at before needed
  start_small_server
  signal_five STOP
  others_come 8
  bury_five
}
it_plugin "five stopped clients: they are free within the heartbeat limit and 5 s, for each of five others" clients_stopped

# ---- The server hangs -------------------------------------------------------------------------------

server_hangs() {
  requires_python nbd
  local seconds=$1 at
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  attach disk0 no-path-timeout=120s
  writer writer0
  at=$EPOCHREALTIME
  freeze server
  if ((seconds > noticed_at_least)); then
    eventually 10 grep -q 'does not answer heartbeats' nbdkit.log
    since "$at"
    echo "noticed after $took s"
    at_most "$noticed" || fail "that was too late"
  fi
  eventually $((seconds + 10)) older_than "$at" "$seconds"
  thaw server
  if ((seconds < noticed_at_least)); then
    ! grep -q 'does not answer' nbdkit.log || fail "given up after $seconds s"
  fi
  local count
  count=$(answers 0)
  eventually 20 answered 0 $((count + 20))
  since "$at"
  echo "in service again $took s after it was stopped"
  touch enough
  writer_ends writer0
  at_most $((seconds + over)) || fail "the server was away for $seconds s, a write for $took s"
  "$here/stamps.py" check image
}
# Seconds. What runs beside it may hold it up; where nothing does, a second is enough.
over=3
[[ -z ${FULL:-} ]] || over=1
older_than() {
  since "$1"
  at_least "$2"
}
it_plugin "a server that hangs for 1 s costs 1 s" server_hangs 1
it_plugin "a server that hangs for 5 s is noticed within $noticed s, and costs no error" server_hangs 5
if [[ -n ${FULL:-} ]]; then
  it "so is one that hangs for 20 s" server_hangs 20
  it "so is one that hangs for 60 s" server_hangs 60
fi

# hangs_for_long SECONDS: longer than requests wait.
hangs_for_long() {
  requires_python nbd
  start_server --export disk0=memory:4M
  attach disk0 no-path-timeout=5s
  local at=$EPOCHREALTIME
  server_pid=${pid[server]} nbdsh <<'PY'
h.pwrite(b"x" * 4096, 0)
freeze(int(os.environ["server_pid"]))
began = time.monotonic()
fails_with(errno.EIO, h.pwrite, b"y" * 4096, 0)
took = time.monotonic() - began
print(f"EIO after {took:.2f} s")
open("took", "w").write(f"{took:.2f}")
# The next one has nothing to wait for any more.
began = time.monotonic()
fails_with(errno.EIO, h.pread, 4096, 0)
assert time.monotonic() - began < 1
PY
  took=$(<took)
  at_least 5 || fail "it waited for $took s only"
  at_most 9 || fail "it waited for $took s, not 5 s and $noticed s"
  eventually $(($1 + 10)) older_than "$at" "$1"
  thaw server
  at=$EPOCHREALTIME
  eventually 20 writes
  since "$at"
  echo "in service again $took s after the server was"
  at_most 3 || fail "that was too late"
}
seconds=10
[[ -z ${FULL:-} ]] || seconds=20
it_plugin "a server that hangs for $seconds s, no-path-timeout=5s: an error on time, and service afterwards" \
  hangs_for_long "$seconds"

# both_hang SECONDS: the server stands still, so much later its client as well, for longer than
# requests wait; both go on.
both_hang() {
  requires_python nbd
  start_server --export disk0=memory:4M
  attach disk0 no-path-timeout=5s
  server_pid=${pid[server]} face_pid=${pid[nbdkit]} later=$1 nbdsh <<'PY'
import threading
server, face = int(os.environ["server_pid"]), int(os.environ["face_pid"])
h.pwrite(b"x" * 4096, 0)
freeze(server)
def stand_still():
    time.sleep(float(os.environ["later"]))
    freeze(face)
    time.sleep(8)
    os.kill(server, signal.SIGCONT)
    time.sleep(0.2)
    os.kill(face, signal.SIGCONT)
thread = threading.Thread(target=stand_still)
thread.start()
h.pwrite(b"y" * 4096, 0)
thread.join()
PY
}
it_plugin "a client that stood still itself does not blame its path for it" both_hang 1.9
it_plugin "... nor does it count as time without a path" both_hang 3.6

# With a client that waits: nbdkit waits for those that it serves.
leaves_silence() {
  requires_python nbd
  start_server --export disk0=memory:4M
  attach disk0 no-path-timeout=0
  spawn client /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
open("connected", "x").close()
while True: h.pread(512, 0)
' "$uri"
  eventually 20 test -e connected
  freeze server
  stop nbdkit 5
  wait_end client 10 || fail "the client still waits"
  thaw server
}
it_plugin "SIGTERM of nbdkit while its server hangs and nobody has noticed: it leaves within 5 s" leaves_silence

# ---- Two cables ---------------------------------------------------------------------------------------

# carried CABLE: what has arrived at the server.
carried() { ip netns exec "$far" cat "/sys/class/net/cable$1/statistics/rx_bytes"; }
more_carried() { (($(carried "$1") > $2)); }

# cables_die ROUNDS SECONDS [tls]
cables_die() {
  requires_python nbd
  local near far i at there=rnbd+tcp://10.99.0.1/disk0 security=()
  two_hosts
  truncate -s 16M image
  if [[ -n ${3:-} ]]; then
    "${ctl_command[@]}" keygen host1 keys.psk
    there="rnbds+tcp://host1@10.99.0.1/disk0?tls-psk-file=$PWD/keys.psk"
    security=(--tls=require --tls-psk=keys.psk)
  fi
  start_server --listen tcp:0.0.0.0:1234 "${security[@]}" --export "disk0=$PWD/image${3:+,rw=host1}"
  attach_to "$there" path=10.99.1.1 policy=round-robin
  writer writer0
  writer writer1
  for ((i = 0; i < $1; i++)); do
    eventually 20 more_carried 0 $(($(carried 0) + 1000000))
    eventually 20 more_carried 1 $(($(carried 1) + 1000000))
    at=$EPOCHREALTIME
    # Its far end is down: nothing arrives, and nobody is told.
    ip -n "$far" link set "cable$((i % 2))" down
    eventually 10 lost_paths $((i + 1))
    since "$at"
    echo "cable $((i % 2)): noticed after $took s"
    eventually 20 older_than "$at" "$2"
    eventually 20 answered 0 $(($(answers 0) + 50))
    ip -n "$far" link set "cable$((i % 2))" up
    at=$EPOCHREALTIME
    eventually 20 more_carried $((i % 2)) $(($(carried $((i % 2))) + 1000000))
    since "$at"
    echo "cable $((i % 2)): back in use after $took s"
    at_most 3 || fail "that was too late"
  done
  touch enough
  for i in 0 1; do
    writer_ends "writer$i"
    at_most "$moved" || fail "a write took $took s, and one cable always worked"
  done
  "$here/stamps.py" check image
}
lost_paths() { (($(grep -c 'does not answer heartbeats' nbdkit.log) >= $1)); }
rounds=${ROUNDS:-2}
[[ -z ${FULL:-} ]] || rounds=${ROUNDS:-100}
it "of two cables one goes dead: no error, no write takes more than $moved s, back within 3 s" \
  cables_die "$rounds" 3.5
it_plugin "... and the same with TLS on both" cables_die "$rounds" 3.5 tls

if [[ -n ${FULL:-} ]]; then it "the same, dead for 15 s" cables_die 2 15; fi

# address_of HOST CABLE: of its end of the cable, as Ethernet has it.
address_of() { ip netns exec "$1" cat "/sys/class/net/cable$2/address"; }
# lose HOST CABLE TO, carry HOST CABLE TO: whether what a host sends to an address gets there. Nobody is
# told if it does not.
lose() { ip -n "$1" neigh replace "$3" dev "cable$2" lladdr 02:00:00:00:00:01 nud permanent; }
carry() {
  local peer=$far
  [[ $1 == "$near" ]] || peer=$near
  ip -n "$1" neigh replace "$3" dev "cable$2" lladdr "$(address_of "$peer" "$2")" nud permanent
}
silences() { grep -c 'is silent for' nbdkit.log || true; }
more_silences() { (($(silences) > $1)); }
# goes_on COUNT: so many more writes of both writers.
goes_on() {
  eventually 20 answered 0 $(($(answers 0) + $1))
  eventually 20 answered 1 $(($(answers 1) + $1))
}
# ends_in_time: no write has waited, and no path was given up.
ends_in_time() {
  local i
  touch enough
  for i in 0 1; do
    writer_ends "writer$i"
    at_most "$moved" || fail "a write took $took s, and one path always worked"
  done
  "$here/stamps.py" check image
  grep 'is silent for\|answers again' nbdkit.log
  ! grep -q 'is lost' nbdkit.log || fail "a path was given up"
}

# cable_is_silent WAY ROUNDS: one cable after the other loses everything for 0.8 s, which is too short for
# heartbeats; WAY: to-server, to-client or both.
cable_is_silent() {
  requires_python nbd
  local near far i cable before
  two_hosts
  truncate -s 16M image
  start_server --listen tcp:0.0.0.0:1234 --export "disk0=$PWD/image"
  attach_to rnbd+tcp://10.99.0.1/disk0 path=10.99.1.1 policy=round-robin
  writer writer0
  writer writer1
  for ((i = 0; i < $2; i++)); do
    cable=$((i % 2)) before=$(silences)
    [[ $1 == to-client ]] || lose "$near" "$cable" "10.99.$cable.1"
    [[ $1 == to-server ]] || lose "$far" "$cable" "10.99.$cable.2"
    sleep 0.8
    carry "$near" "$cable" "10.99.$cable.1"
    carry "$far" "$cable" "10.99.$cable.2"
    more_silences "$before" || fail "nobody has noticed that cable $cable is silent"
    goes_on 50
    sleep 2 # TCP takes its time to send again
  done
  ends_in_time
}
for way in to-server to-client both; do
  it "of two cables one loses everything $way for 0.8 s: no write takes more than $moved s, no path is given up" \
    cable_is_silent "$way" "$rounds"
done

# Cables of 0.5 MB/s each, on which a block of 256 KiB takes longer than silence is allowed to.
cables_are_slow() {
  requires_python nbd
  local near far i host
  two_hosts
  requires tc
  truncate -s 16M image
  start_server --listen tcp:0.0.0.0:1234 --export "disk0=$PWD/image"
  attach_to rnbd+tcp://10.99.0.1/disk0 path=10.99.1.1 policy=round-robin
  for host in "$near" "$far"; do
    for i in 0 1; do
      tc -n "$host" qdisc add dev "cable$i" root tbf rate 4mbit burst 16k limit 8m 2>error ||
        skip "no rates here: $(<error)"
    done
  done
  SECONDS=0
  limit=60 nbdsh <<'PY'
size = 256 * 1024
for i in range(4):
    h.pwrite(bytes([i + 1]) * size, i * size)
    assert h.pread(size, i * size) == bytes([i + 1]) * size
PY
  ! grep 'is silent for' nbdkit.log || fail "a path whose bytes move was found silent"
  # Many at a time wait for each other in the queue of the cable, also on connections that are silent then.
  limit=60 nbdsh <<'PY'
size = 256 * 1024
blocks = [bytes([i + 1]) * size for i in range(8)]


def all_at_once(start):
    under_way = [start(i) for i in range(8)]
    while under_way:
        under_way = [cookie for cookie in under_way if not h.aio_command_completed(cookie)]
        if under_way:
            h.poll(-1)


all_at_once(lambda i: h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(blocks[i])), i * size))
read = [nbd.Buffer(size) for _ in blocks]
all_at_once(lambda i: h.aio_pread(read[i], i * size))
assert [bytes(buffer.to_bytearray()) for buffer in read] == blocks
PY
  echo "6 MB in $SECONDS s"
  ((SECONDS <= 15 * slow)) || fail "that was too slow for two cables of 0.5 MB/s"
}
it "on two slow cables large requests take their time, and are not sent to and fro" cables_are_slow

# Eight addresses of the server on one cable.
seven_are_silent() {
  requires_python nbd
  local near far i paths=()
  two_hosts
  truncate -s 16M image
  start_server --listen tcp:0.0.0.0:1234 --export "disk0=$PWD/image"
  for i in {11..17}; do
    ip -n "$far" addr add "10.99.0.$i/24" dev cable0
    paths+=("path=10.99.0.$i")
  done
  attach_to rnbd+tcp://10.99.0.1/disk0 "${paths[@]}" policy=round-robin
  writer writer0
  writer writer1
  for i in {11..17}; do lose "$near" 0 "10.99.0.$i"; done
  sleep 0.8
  for i in {11..17}; do carry "$near" 0 "10.99.0.$i"; done
  more_silences 0 || fail "nobody has noticed that seven paths are silent"
  goes_on 50
  ends_in_time
}
it "seven of eight paths fall silent together: writes wait no longer than for one" seven_are_silent

# Each path has 16 x 12K + 8 x 64K = 704K: there is room for six, and four clients want eight.
# has_paths CLIENT COUNT: so many have come, as the server's log says.
has_paths() { (($(grep -c "'vm$1' from .* connected" server.log) >= $2)); }
paths_are_short() {
  requires_python nbd
  local i round uris=() arguments=()
  for i in {1..4}; do arguments+=(--export "disk$i=memory:1M"); done
  arguments+=(--queue-depth 16 --max-io-size 64K --memory-limit 4300K --listen tcp:127.0.0.2:0)
  start_server "${arguments[@]}"
  local second
  second=$(grep -ohE '127\.0\.0\.2:[0-9]+' server.log | head -n 1)
  for i in {1..4}; do
    nbdkit_name=client$i attach "disk$i" "path=$second" lanes=1 "session=vm$i" no-path-timeout=10s
    uris+=("$uri")
    # All before it have both of their paths when the next one comes.
    uri=${uris[-1]} writes || fail "client $i has no path"
    ((i > 3)) || eventually 20 has_paths "$i" 2
  done
  says server.log "vm[1-3].*memory is short, and a session that needs a path"
  for round in 1 2 3; do
    kill_hard server
    server_port=$port start_server "${arguments[@]/%127.0.0.2:0/$second}"
    for uri in "${uris[@]}"; do eventually 10 writes; done
    sleep 1 # for the second paths, which come in any order
    for uri in "${uris[@]}"; do writes || fail "a client has no path after restart $round"; done
  done
}
it_plugin "where memory is short, no client waits for its only path while others have two" paths_are_short

finish
