#!/bin/bash
# How cost grows: what a session, a path, an export and a client take is counted exactly, and the CPU time
# of an operation does not grow with those that wait.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

load=$build_dir/bin/nbdload

# cpu NAME: seconds of a process so far.
cpu() { awk -v ticks="$(getconf CLK_TCK)" '{ print ($14 + $15) / ticks }' "/proc/${pid[$1]}/stat"; }
# holds NAME DESCRIPTORS THREADS: more than it had in $before and $before_threads.
holds() {
  local more=$(($(descriptors "$1") - before)) threads=$(($(threads "$1") - before_threads))
  ((more == $2 && threads == $3)) || fail "$1 has $more descriptors and $threads threads more, not $2 and $3"
}
# note NAME: what it has now.
note() {
  before=$(descriptors "$1")
  before_threads=$(threads "$1")
}

counts() {
  local before before_threads i
  for i in 1 2 3; do truncate -s 1M "image$i"; done
  start_server --reactors 2 --export a="$PWD/image1" --control "$PWD/control"
  note server
  kill_hard server
  start_server --reactors 2 --export a="$PWD/image1" --export b="$PWD/image2" --export c="$PWD/image3" \
    --control "$PWD/control"
  echo "an export: a descriptor for each reactor, and one"
  holds server $((2 * 3)) 0
  # The first session makes what is there once.
  for i in 0 1 2 3; do
    bridge_name=bridge$i start_bridge "rnbd+tcp://$address" --lanes 2 --connect now
    nbdinfo --size "${uri/\/\/\//\/\/\/a}" >size
    ((i > 0)) || note server
  done
  echo "a session with 2 lanes: a connection for each, and one to control it"
  eventually 10 has_descriptors server $((before + 3 * 3))
  holds server 9 0
  note server
  note_bridge=$(descriptors bridge3)
  spawn clients /usr/bin/python3 -c '
import nbd, signal, sys
handles = []
for _ in range(20):
    handles.append(nbd.NBD())
    handles[-1].connect_uri(sys.argv[1])
print("there", flush=True)
signal.pause()' "${uri/\/\/\//\/\/\/a}"
  wait_for_line clients.out there
  echo "an NBD client: a descriptor at the bridge, nothing at the server"
  (($(descriptors bridge3) == note_bridge + 20)) ||
    fail "20 clients take $(($(descriptors bridge3) - note_bridge)) descriptors of the bridge"
  holds server 0 0
  kill_hard clients
}
it "descriptors and threads are what each session, export and client needs" counts

# calls NAME THREADS SECONDS: the number of system calls of its threads of that name, in $called.
calls() {
  local traced=() task
  for task in "/proc/${pid[$1]}/task/"*; do
    [[ $(<"$task/comm") != "$2"* ]] || traced+=(-p "${task##*/}")
  done
  ((${#traced[@]} > 0)) || fail "$1 has no thread $2"
  timeout -s INT "$3" strace -qq -o "calls.$1" "${traced[@]}" 2>strace.err || true
  [[ -s calls.$1 ]] || skip "strace is not allowed to look: $(<strace.err)"
  called=$(grep -vc resumed "calls.$1")
}
# An end has a heartbeat to send or to answer twice a second, and what is cut at either end of the time.
idle_path() {
  requires strace
  requires_python nbd
  local seconds=20 end name threads called fewest round
  truncate -s 1M image
  start_server --reactors 1 --export a="$PWD/image"
  if [[ $1 == bridge ]]; then
    start_bridge "rnbd+tcp://$address" --lanes 2 --connect-timeout 2s
  else
    start_nbdkit "$plugin" "rnbd+tcp://$address/a" lanes=2 connect-timeout=2s
  fi
  spawn client /usr/bin/python3 -c '
import nbd, signal, sys
h = nbd.NBD()
h.set_export_name("a")
h.connect_unix(sys.argv[1])
h.pread(4096, 0)
print("there", flush=True)
signal.pause()' "$socket"
  wait_for_line client.out there
  sleep 4 # until nobody looks at what was used a moment ago, and connect-timeout has passed
  for end in "$1 rtrs-client" "server rtrs-0"; do
    read -r name threads <<<"$end"
    fewest=1000000
    for round in 1 2 3; do
      calls "$name" "$threads" "$seconds"
      ((called >= fewest)) || fewest=$called
      ((fewest > 8 * seconds + 10)) || break
    done
    echo "$name: $fewest system calls of an idle path in $seconds s"
    ((fewest <= 8 * seconds + 10)) || {
      grep -v resumed "calls.$name" | sed 's/(.*//' | sort | uniq -c
      fail "an idle path costs $name $fewest system calls in $seconds s"
    }
    ((fewest >= 2 * seconds)) || fail "$name: $fewest system calls are too few to be all of them"
  done
  kill_hard client
}
if [[ -z $sanitizer ]]; then
  it "an idle path costs the bridge and the server 8 system calls a second" idle_path bridge
  it "... and the plugin as few" idle_path nbdkit
fi

# The server looks at paths each 5 s: at most 3 times in 11 s.
idle_exports() {
  local exports=1500 looks=3 at_once=1000 i
  requires strace
  mkdir images
  for ((i = 0; i < exports; i++)); do
    truncate -s 1M "images/$i"
    printf '[export.d%d]\npath = "%s/images/%d"\n' "$i" "$PWD" "$i"
  done >exports.conf
  { echo "[server]" && cat exports.conf; } >server.conf
  start_server --config "$PWD/server.conf"
  timeout -s INT 11 strace -f -qq -o calls -e trace=stat,lstat,fstat,newfstatat,statx,statfs,fstatfs,ioctl,lseek \
    -p "${pid[server]}" 2>strace.err || true
  [[ -s calls ]] || skip "strace is not allowed to look: $(<strace.err)"
  i=$(grep -vc resumed calls)
  echo "$exports exports that nobody has open: $i looks at files and file systems in 11 s"
  ((i <= looks * (at_once + 20))) || fail "$exports exports cost $i looks in 11 s"
  ((i >= at_once)) || fail "$i looks are too few to be all of them"
}
it "the server looks at an export that nobody has open with one system call, and at 1,000 at a time" idle_exports

# reload_takes EXPORTS: $took is the server's CPU time for each, in microseconds; all wait, and are changed. It is the
# least of five.
reload_takes() {
  local round i
  for round in 0 1 2 3 4 5; do
    {
      echo "[server]"
      for ((i = 0; i < $1; i++)); do
        printf '[export.d%d]\npath = "%s/none%d/x"\ndescription = "%d"\n' "$i" "$PWD" "$i" "$round"
      done
    } >server.conf
    if ((round == 0)); then
      start_server --config "$PWD/server.conf" --control "$PWD/control"
      : >took.each
    else
      cpu_of "${pid[server]}" >before
      "${ctl_command[@]}" "$PWD/control" reload >reload.log 2>&1 || fail "no reload: $(head -c 500 reload.log)"
      cpu_of "${pid[server]}" | awk -v before="$(<before)" -v each="$1" '{ print 1e6 * ($1 - before) / each }' >>took.each
    fi
  done
  kill_hard server
  took=$(sort -g took.each | head -n 1)
}
cpu_of() { /usr/bin/python3 -c 'import sys, time; print(time.clock_gettime(~int(sys.argv[1]) << 3 | 2))' "$1"; }
waiting_exports() {
  local took few
  reload_takes 1000
  few=$took
  reload_takes 8000
  echo "a reload takes $few µs for each of 1,000 exports that wait, $took of 8,000"
  awk -v few="$few" -v many="$took" 'BEGIN { exit !(many <= 3 * few) }' || fail "that is a square"
}
it "a reload costs the same for each export that waits, however many do" waiting_exports

# A call without arguments is EFAULT or EINVAL where it is allowed.
has_uring() {
  /usr/bin/python3 -c '
import ctypes, errno
c = ctypes.CDLL(None, use_errno=True)
c.syscall(425, 0, 0)
raise SystemExit(ctypes.get_errno() in (errno.ENOSYS, errno.EPERM, errno.EACCES))'
}
# alone LEAST MOST [OPTION]: system calls of the bridge for 100 reads, one at a time.
alone() {
  requires strace
  requires_python nbd
  [[ $# -gt 2 ]] || has_uring || skip "io_uring is not to be had here"
  local reads=300 least=$1 most=$2 per_cent=1000 round now task orders tracer traced=()
  head -c 1M /dev/zero >image
  start_server --reactors 1 --export a="$PWD/image" "${@:3}"
  start_bridge "rnbd+tcp://$address" --lanes 1 "${@:3}"
  mkfifo orders
  spawn client /usr/bin/python3 -c '
import nbd, sys
h = nbd.NBD()
h.set_export_name("a")
h.connect_unix(sys.argv[1])
for order in open("orders"):
    for _ in range(int(order)):
        h.pread(4096, 0)
    print("done", order.strip(), flush=True)' "$socket"
  exec {orders}<>orders
  echo 100 >&"$orders" # until the worker knows that it is alone
  wait_for_line client.out "done 100"
  for task in "/proc/${pid[bridge]}/task/"*; do traced+=(-p "${task##*/}"); done
  for round in 1 2 3; do
    strace -o calls.alone "${traced[@]}" 2>strace.log &
    tracer=$!
    eventually 10 grep -q attached strace.log || skip "strace is not allowed to look: $(<strace.log)"
    echo "$((reads + round))" >&"$orders"
    wait_for_line client.out "done $((reads + round))"
    kill -INT "$tracer"
    wait "$tracer" || true
    now=$(($(grep -vc resumed calls.alone) * 100 / reads))
    ((now >= per_cent)) || per_cent=$now
    ((per_cent > most)) || break # a busy machine makes waits in vain
  done
  exec {orders}>&-
  echo "$per_cent system calls for 100 reads"
  ((per_cent >= least && per_cent <= most)) || {
    sed 's/(.*//; s/^[0-9]* *//' calls.alone | sort | uniq -c
    fail "$per_cent system calls for 100 reads"
  }
  kill_hard client
}
if [[ -z $sanitizer ]]; then
  it "the bridge sends and waits in one call for a client that is alone" alone 190 280
  it "... and in two without io_uring" alone 380 480 --no-uring
fi

# Each record is two waits for the disk when it is written alone.
first_writes() {
  local server_command=("${server_command[@]}") library=${RNBD_SLOW_SYNC:-$build_dir/tests/integration/libslow_sync.so}
  local disks=200 exports=() i
  [[ -z $sanitizer ]] || skip "a sanitizer wants to be the first library"
  requires_python nbd
  for ((i = 0; i < disks; i++)); do
    truncate -s 1M "disk$i"
    exports+=(--export "disk$i=$PWD/disk$i")
  done
  server_command=(env "LD_PRELOAD=$library" "RNBD_COUNT_SYNCS=$PWD/syncs" "${server_command[@]}")
  start_server "${exports[@]}" --state-directory "$PWD/state"
  start_bridge "rnbd+tcp://$address" --max-connections 300 --lanes 2 --connect now
  rm -f syncs
  limited /usr/bin/python3 -c '
import nbd, select, sys, time
socket, disks, pid = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def threads():
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads"))
clients, files, ended, order = [], {}, [], []
block = nbd.Buffer.from_bytearray(bytearray(4096))
granted = nbd.NBD()
granted.set_export_name("disk0")
granted.connect_unix(socket)
for i in range(disks - 1, -1, -1):
    client = nbd.NBD()
    client.set_export_name(f"disk{i}")
    client.connect_unix(socket)
    clients.append(client)
granted.pwrite(bytearray(4096), 0)
before = most = threads()
began = time.monotonic()
def end(error, i):
    assert error.value == 0, error.value
    ended.append(time.monotonic() - began)
    order.append(i)
    return 1
poll = select.poll()
for i, client in enumerate(clients):
    client.aio_pwrite(block, 0, lambda error, i=disks - 1 - i: end(error, i))
    files[client.aio_get_fd()] = client
    poll.register(client.aio_get_fd(), select.POLLIN)
while len(ended) < disks:
    for file, _ in poll.poll(20):
        files[file].aio_notify_read()
    most = max(most, threads())
print(f"{disks} first writes in {ended[-1]:.2f} s, {most - before} threads more at the bridge")
assert most - before <= 4, most - before
# Its disk may be changed already, so it asks nothing.
print(f"the granted one is number {order.index(0)}")
assert order.index(0) < disks / 2, order.index(0)' "$socket" "$disks" "${pid[bridge]}"
  local syncs
  syncs=$(stat -c %s syncs)
  echo "$syncs syncs of the directory"
  ((syncs <= disks / 4)) || fail "$disks first writes take $syncs syncs of the directory"
  # What was answered is there, and who comes again finds his right.
  kill_hard server
  server_port=${address##*:} start_server "${exports[@]}" --state-directory "$PWD/state"
  uri=${uri/\/\/\//\/\/\/disk7}
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
}
it "first writes of many disks wait for the disk together, and take no thread each" first_writes

# The server may hold back a question for its own disk. Where a lane has one permit, reads need it.
few_permits() {
  requires_python nbd
  truncate -s 1M disk0 disk1
  start_server --reactors 1 --queue-depth 2 --export "a=$PWD/disk0" --export "b=$PWD/disk1" \
    --state-directory "$PWD/state"
  start_bridge "rnbd+tcp://$address" --lanes 1 --connect now
  limited /usr/bin/python3 -c '
import fcntl, nbd, select, sys, time
def connect(name):
    client = nbd.NBD()
    client.set_export_name(name)
    client.connect_unix(sys.argv[1])
    return client
writer, reader = connect("a"), connect("b")
ended = []
def end(error):
    ended.append(error.value)
    return 1
with open(sys.argv[2], "r+b") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    writer.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(512)), 0, end)
    time.sleep(0.5)
    began = time.monotonic()
    reader.pread(512, 0)
    took = time.monotonic() - began
    assert not ended, ended
poll = select.poll()
poll.register(writer.aio_get_fd(), select.POLLIN)
while not ended:
    poll.poll(20)
    writer.aio_notify_read()
print(f"a read took {took:.3f} s beside a question that hung, which ended with {ended}")
assert took < 2 and ended == [0], (took, ended)' "$socket" "$PWD/state/writers/.lock"
}
it "a first write that hangs takes no permit that reads need" few_permits

# each_takes DEPTH...: microseconds of the bridge's CPU time for an operation of 32 connections, in $took.
each_takes() {
  local operations began
  began=$(cpu bridge)
  limited "$load" --unix "$socket" --export a --connections 32 --depth "$1" --mode "$2" --block 4096 \
    --warm-up 0 --seconds 2 >load.json
  operations=$(tail -n 1 load.json | grep -oP '"operations":\K[0-9]+')
  took=$(awk -v cpu="$(cpu bridge)" -v began="$began" -v n="$operations" \
    'BEGIN { printf "%.2f", (cpu - began) * 1e6 / n }')
}
# no_square MODE FEW MANY: three rounds, of which the best of each counts.
no_square() {
  local few=1000000 many=1000000 round
  for round in 1 2 3; do
    each_takes "$2" "$1"
    few=$(awk -v a="$few" -v b="$took" 'BEGIN { print (a < b ? a : b) }')
    each_takes "$3" "$1"
    many=$(awk -v a="$many" -v b="$took" 'BEGIN { print (a < b ? a : b) }')
  done
  echo "$1: $few us with $((32 * $2)) at a time, $many us with $((32 * $3))"
  awk -v few="$few" -v many="$many" 'BEGIN { exit !(many <= 2 * few) }' ||
    fail "an operation costs $many us where $((32 * $3)) wait, and $few us where $((32 * $2)) do"
}

plain_disk() {
  start_server --reactors 1 --export a=null:64G
  start_bridge "rnbd+tcp://$address/a" --lanes 1
  no_square randwrite 8 256
}
mirrored_disk() {
  truncate -s 64M image1 image2
  server_name=one start_server --reactors 1 --export a="$PWD/image1" --state-directory "$PWD/one"
  local first=$address
  mkdir -p one two
  server_name=two start_server --reactors 1 --export a="$PWD/image2" --state-directory "$PWD/two"
  start_bridge "rnbd-mirror+tcp://$first,$address/a" --connect now
  no_square randwrite 1 128
}
# The disks of a bridge are connections, most of which do nothing.
idle_disks() {
  requires_python nbd
  start_server --reactors 1 --export a=null:64G
  start_bridge "rnbd+tcp://$address" --lanes 1 --max-connections 700
  local alone=1000000 beside=1000000 round
  for round in 1 2 3; do
    each_takes 1 randwrite
    alone=$(awk -v a="$alone" -v b="$took" 'BEGIN { print (a < b ? a : b) }')
  done
  spawn clients /usr/bin/python3 -c '
import nbd, signal, sys
clients = [nbd.NBD() for _ in range(600)]
for client in clients:
    client.set_export_name("a")
    client.connect_unix(sys.argv[1])
print("there", flush=True)
signal.pause()' "$socket"
  wait_for_line clients.out there
  for round in 1 2 3; do
    each_takes 1 randwrite
    beside=$(awk -v a="$beside" -v b="$took" 'BEGIN { print (a < b ? a : b) }')
  done
  kill_hard clients
  echo "$alone us alone, $beside us beside 600 idle clients"
  awk -v alone="$alone" -v beside="$beside" 'BEGIN { exit !(beside <= 1.5 * alone) }' ||
    fail "an operation costs $beside us beside 600 idle clients, and $alone us without them"
}
if [[ -z $sanitizer ]]; then
  it "an operation costs no more beside many clients that do nothing" idle_disks
  it "an operation costs no more where 8,192 are under way than where 256 are" plain_disk
  it "... nor one of a mirror where 4,096 are, against 32" mirrored_disk
fi

# ---- Memory over TCP ------------------------------------------------------------------------------------

# busy URI...: each disk is written with 64 requests of 256 KiB at once, and read in the same way, three
# times.
busy() {
  timeout $((30 * slow)) /usr/bin/python3 -c '
import hashlib, nbd, sys, threading
size, count = 256 << 10, 64
wrong = []
def block(disk, i, turn):
    return bytearray(hashlib.sha256(f"{disk} {i} {turn}".encode()).digest() * (size // 32))
def client(disk, uri):
    h = nbd.NBD()
    h.connect_uri(uri)
    def ended(error):
        if error.value: wrong.append((disk, error.value))
        return 1
    def wait():
        while h.aio_in_flight() > 0: h.poll(-1)
    for turn in range(3):
        for i in range(count):
            h.aio_pwrite(nbd.Buffer.from_bytearray(block(disk, i, turn)), i * size, ended)
        wait()
        buffers = [nbd.Buffer(size) for _ in range(count)]
        for i in range(count): h.aio_pread(buffers[i], i * size, ended)
        wait()
        wrong.extend((disk, i, turn) for i in range(count)
                     if buffers[i].to_bytearray() != block(disk, i, turn))
    h.shutdown()
threads = [threading.Thread(target=client, args=each) for each in enumerate(sys.argv[1:])]
for each in threads: each.start()
for each in threads: each.join()
assert not wrong, wrong[:10]' "$@"
}
# start_crowd: eight clients of a server that has 5 MiB for each of 9, and 7 MiB to lend. They are idle,
# and $before is its memory. Their disks are $uris.
start_crowd() {
  local i exports=()
  uris=()
  for i in {1..8}; do
    truncate -s 16M "image$i"
    exports+=(--export "disk$i=delay:read=3ms,write=3ms:$PWD/image$i")
  done
  exports+=(--export "hung=delay:read=3600s,write=3600s:memory:32M" --export late=memory:1M)
  start_server "${exports[@]}" --memory-limit 60M --control "$PWD/control"
  for i in {1..8}; do
    bridge_name=bridge$i start_bridge "rnbd+tcp://$address/disk$i" --lanes 2 --connect now
    nbdinfo --size "$uri"
    uris+=("$uri")
  done
  before=$(rss server)
}
# memory NAME: a figure of status.
memory() {
  limited "${ctl_command[@]}" --json "$PWD/control" status | grep -oP "\"$1\":\K[0-9]+" | head -n 1
}
nothing_is_lent() { (($(memory memory_lent) == 0)); }
no_path_was_lost() {
  ! grep -hE 'heartbeat|is lost:' server.log bridge*.log ||
    fail "a path was lost"
}
most_ever() { awk '/^VmHWM/ { print $2 }' "/proc/${pid[server]}/status"; }

# Besides the 60 MiB: 64 KiB in front of each connection, and what threads keep.
lent() {
  requires_python nbd
  local before uris
  start_crowd
  busy "${uris[@]}"
  echo "request memory: $(memory memory) bytes, $(memory memory_lent) of them lent; $(memory memory_waits) waits"
  (($(memory memory_waits) > 0)) || fail "no request has waited for memory"
  says server.log 'requests wait for memory: .*--memory-limit'
  if [[ -z $sanitizer ]]; then
    echo "resident: $before KiB before, $(most_ever) KiB at most"
    (($(most_ever) - before < (60 + 16) * 1024)) || fail "that is more than the limit"
  fi
  eventually 10 nothing_is_lent
  [[ -n $sanitizer ]] || eventually 10 given_back
  no_path_was_lost
}
given_back() { (($(rss server) - before < 16 * 1024)); }
it "clients that are busy at once wait for memory: nothing fails, and the limit holds" lent

# The others go on with what they have of their own, and a path that comes finds room. Requests wait for
# longer than heartbeats may be missed.
one_hangs() {
  requires_python nbd
  local before uris each
  start_crowd
  bridge_name=hung start_bridge "rnbd+tcp://$address/hung" --lanes 2 --connect now
  spawn reader /usr/bin/python3 -c '
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
size = 256 << 10
for i in range(64):
    if sys.argv[2] == "read": h.aio_pread(nbd.Buffer(size), i * size)
    else: h.aio_pwrite(nbd.Buffer(size), i * size)
while True: h.poll(-1)' "$uri" "$1"
  eventually 10 all_is_lent
  busy "${uris[@]}"
  local ticks
  ticks=$(ticks_of server)
  sleep 4
  ticks=$(($(ticks_of server) - ticks))
  echo "the server took $ticks ticks in 4 s"
  [[ -n $sanitizer ]] || ((ticks < 20)) || fail "it looks for memory all the time"
  busy "${uris[@]}"
  bridge_name=late start_bridge "rnbd+tcp://$address/late" --lanes 2
  nbdinfo --size "$uri"
  no_path_was_lost
  ! grep -hE 'heartbeat|is lost:' hung.log || fail "the client that hangs has lost its path"
  for each in reader hung server; do kill_hard "$each"; done
}
all_is_lent() { (($(memory memory_lent) >= 7 << 20)); }
ticks_of() { awk '{ print $14 + $15 }' "/proc/${pid[$1]}/stat"; }
it "reads that hang use what is lent, and other clients go on" one_hangs read
it "... and so do writes, of which the next is not read for long" one_hangs write

# All requests of a bridge go over the same path.
small_beside_hung() {
  requires_python nbd
  start_server --export hung=delay:read=3600s:memory:32M --export fine=memory:1M --memory-limit 15M \
    --control "$PWD/control"
  start_bridge "rnbd+tcp://$address" --lanes 2
  limited /usr/bin/python3 -c '
import nbd, sys, time
def disk(name):
    h = nbd.NBD()
    h.connect_uri(sys.argv[1].replace(":///", f":///{name}"))
    return h
hung, fine = disk("hung"), disk("fine")
for i in range(100): hung.aio_pread(nbd.Buffer(256 << 10), i * (256 << 10))
until = time.monotonic() + 1
while time.monotonic() < until: hung.poll(100)
for i in range(100):
    fine.pwrite(bytes([i]) * 4096, i * 4096)
    assert fine.pread(4096, i * 4096) == bytes([i]) * 4096
print("small requests took", time.monotonic() - until, "s")' "$uri"
  (($(memory memory_waits) > 0)) || fail "no request has waited for memory"
  no_path_was_lost
  kill_hard bridge
  kill_hard server
}
it "small requests go on beside large ones of the same path that wait for memory" small_beside_hung

finish
