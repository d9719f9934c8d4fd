#!/bin/bash
# Starting, stopping, dying: both sides leave in time, and leave nothing behind.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/../tools/held_storage.sh"

# load NAME: a spawned client that keeps reading and writing $uri until something fails; it says
# "running" to $load_says, and afterwards the errno that ended it.
load() {
  local read write
  pipe read write
  spawn "$1" /usr/bin/python3 -c '
import os, sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
say = lambda text: os.write(int(sys.argv[2]), text.encode() + b"\n")
data = os.urandom(65536)
try:
    for i in range(20):
        h.pwrite(data, i * 65536)
    say("running")
    while True:
        h.pwrite(data, 0)
        assert h.pread(65536, 0) == data
        h.flush()
except nbd.Error as error:
    say(f"errno {error.errno}")
' "$uri" "$write"
  exec {write}>&-
  load_says=$read
  await_line "$read" 20
  [[ $line == running ]] || fail "the load did not start: $line"
}

# The server's own descriptors are few; a session has at least two sockets.
no_session() {
  local sockets
  sockets=$(find "/proc/${pid[server]}/fd" -lname 'socket:*' | wc -l)
  ((sockets <= 1))
}

# ---- rnbd-server comes late -----------------------------------------------------------------------------

# come_late LOG: the server comes back when somebody has found nobody there.
come_late() {
  eventually 20 grep -qE "$address.*[Cc]onnection refused.*it is tried again" "$1"
  server_port=$port server_name=late start_server --export disk0=memory:2M
}
# starts_before_server PROGRAM
starts_before_server() {
  start_server --export disk0=memory:1M
  stop server
  case $1 in
    nbdkit) attach disk0 connect-timeout=60s ;;
    bridge) start_bridge "rnbd+tcp://$address/disk0" --connect-timeout 60s ;;
  esac
  spawn client nbdinfo --size "$uri"
  come_late "$1.log"
  wait_end client 20 || fail "the client still waits"
  cat client.log
  says client.out '^2097152$'
}
for program in nbdkit bridge; do
  it "a client of $program that comes before the server waits for it, up to connect-timeout" \
    starts_before_server "$program"
done

# waits_for_server PROGRAM
waits_for_server() {
  start_server --export disk0=memory:1M
  stop server
  local uri="nbd+unix:///?socket=$PWD/socket"
  case $1 in
    nbdkit)
      spawn nbdkit "${nbdkit_command[@]}" -f -U "$PWD/socket" "$plugin" "rnbd+tcp://$address/disk0" \
        connect=now connect-timeout=60s
      ;;
    bridge)
      spawn bridge "${bridge_command[@]}" --listen "unix:$PWD/socket" "rnbd+tcp://$address/disk0" \
        --connect now --connect-timeout 60s
      ;;
  esac
  come_late "$1.log"
  eventually 20 is_served
}
is_served() { [[ $(nbdinfo --size "$uri" 2>/dev/null) == 2097152 ]]; }
for program in nbdkit bridge; do
  it "$program with connect=now that comes before the server waits for it and starts" waits_for_server "$program"
done

# ---- rnbd-server leaves ---------------------------------------------------------------------------------

announced() {
  local read write
  pipe read write
  spawn server env NOTIFY_SOCKET="$PWD/notify" /usr/bin/python3 -c '
import os, socket, subprocess, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(os.environ["NOTIFY_SOCKET"])
s.settimeout(20)
p = subprocess.Popen(sys.argv[2:], pass_fds=[int(sys.argv[1])])
texts = []
while not any("READY=1" in text for text in texts):
    texts.append(s.recv(4096).decode())
p.terminate()
while not any("STOPPING=1" in text for text in texts):
    texts.append(s.recv(4096).decode())
print(texts)
sys.exit(p.wait())
' "$write" "${server_command[@]}" --listen tcp:127.0.0.1:0 --ready-fd "$write" --export a=memory:1M
  exec {write}>&-
  await_line "$read" 20
  wait_end server 20 || fail "still runs"
  ((status == 0)) || fail "status $status"
  says server.log '127\.0\.0\.1:[0-9]+'
}
it "readiness is announced on stderr, on the given descriptor and to sd_notify; so is the stop" announced

socket_activation() {
  requires_python nbd
  spawn activator /usr/bin/python3 -c '
import os, socket, sys
s = socket.create_server(("127.0.0.1", 0))
open("port", "w").write(str(s.getsockname()[1]))
os.set_inheritable(s.fileno(), True)
if s.fileno() != 3:
    os.dup2(s.fileno(), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.rename("port", "port.ready")
os.execv(sys.argv[1], sys.argv[1:])
' "$server_program" --export disk0=memory:1M
  eventually 10 test -e port.ready
  address=127.0.0.1:$(<port.ready)
  # No wait for readiness: the socket listens since before the server started.
  attach disk0
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
}
it "socket activation: a client that comes before the server is ready is served" socket_activation

idle() {
  start_server --export disk0=memory:4M
  attach disk0
  nbdinfo --size "$uri"
  stop server
}
it "SIGTERM with an idle client: the server leaves with 0 within 5 s" idle

under_load() {
  requires_python nbd
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  attach disk0 no-path-timeout=1s
  load client
  stop server
  await_line "$load_says" 20 || fail "the client still waits"
  [[ $line == "errno EIO" || $line == "errno ESHUTDOWN" ]] || fail "the client got $line"
  wait_end client 10 || fail "the client still runs"
}
it "SIGTERM under load: the server leaves with 0 within 5 s, the client gets EIO in the end" under_load

hanging_backend() {
  requires_python nbd
  start_server --export disk0=delay:read=600s:memory:4M
  attach disk0 no-path-timeout=1s
  spawn client /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
open("asked", "w").close()
try:
    h.pread(512, 0)
except nbd.Error as error:
    print(error.errno)
' "$uri"
  eventually 20 test -e asked
  stop server
  wait_end client 20 || fail "the client still waits"
  says client.out '^(EIO|ESHUTDOWN)$'
}
it "SIGTERM while a backend hangs: the server leaves with 0 within 5 s, the client gets EIO" hanging_backend

killed_server() {
  requires_python nbd
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  attach disk0 no-path-timeout=1s
  load client
  kill_hard server
  await_line "$load_says" 20 || fail "the client still waits"
  [[ $line == "errno EIO" ]] || fail "the client got $line"
  wait_end client 10
  server_port=$port server_name=second start_server --export "disk0=$PWD/image"
  eventually 20 writes
  load again
  kill -KILL "${pid[again]}"
  wait_end again 10
}
it "SIGKILL of the server under load: EIO; the same nbdkit works with the next server" killed_server

frozen_server() {
  requires_python nbd
  start_server --export disk0=memory:4M
  attach disk0 heartbeat=100ms no-path-timeout=1s
  load client
  freeze server
  await_line "$load_says" 20 || fail "the client still waits"
  [[ $line == "errno EIO" ]] || fail "the client got $line"
  wait_end client 10
  thaw server
  eventually 20 writes
  load again
  kill -KILL "${pid[again]}"
  wait_end again 10
}
it "a server that stops answering is noticed by its silence, and welcome when it is back" frozen_server

# ---- nbdkit leaves ------------------------------------------------------------------------------------------

killed_nbdkit() {
  requires_python nbd
  # One reactor: each opens descriptors of its own when it is first used.
  start_server --reactors 1 --export disk0=memory:4M
  nbdkit_name=first attach disk0
  /usr/bin/python3 -m nbd -u "$uri" -c "h.pwrite(bytes(512), 0)" # what writers need is opened for the first one
  stop first
  eventually 20 no_session
  local before i
  before=$(descriptors server)
  for i in 1 2 3; do
    nbdkit_name=victim attach disk0
    load "client$i"
    kill_hard victim
    wait_end "client$i" 20 || fail "the client still waits"
  done
  eventually 20 has_descriptors server "$before"
  attach disk0
  nbdinfo --size "$uri"
}
it "SIGKILL of nbdkit under load: the server closes everything and lets the next writer in" killed_nbdkit

nbdkit_under_load() {
  requires_python nbd
  start_server --export disk0=memory:4M
  attach disk0
  load client
  stop nbdkit
  wait_end client 20 || fail "the client still waits"
  nbdkit_name=second attach disk0
  nbdinfo --size "$uri"
}
it "SIGTERM of nbdkit under load: it leaves within 5 s and the server takes the next one" nbdkit_under_load

nbdkit_while_backend_hangs() {
  start_server --export disk0=delay:read=600s:memory:4M
  attach disk0
  spawn client /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
open("asked", "w").close()
h.pread(512, 0)
' "$uri"
  eventually 20 test -e asked
  stop nbdkit
  wait_end client 20 || fail "the client still waits"
}
it "SIGTERM of nbdkit while a backend hangs: it leaves within 5 s" nbdkit_while_backend_hangs

nbdkit_while_server_is_silent() {
  requires_python nbd
  start_server --export disk0=memory:4M
  freeze server
  attach disk0 connect-timeout=600s
  spawn client /usr/bin/python3 -c '
import sys, nbd
open("asked", "w").close()
h = nbd.NBD()
h.connect_uri(sys.argv[1])
' "$uri"
  eventually 20 test -e asked
  stop nbdkit
  wait_end client 20 || fail "the client still waits"
  thaw server
}
it "SIGTERM of nbdkit while it connects to a silent server: it leaves within 5 s" \
  nbdkit_while_server_is_silent

# One request per client: nbdkit 1.32.5 may abort ("raw_send_socket: Assertion `sock >= 0'", with any
# plugin) when a client goes while several of its requests end with an error.
client_hangs_up() {
  requires_python nbd
  start_server --export disk0=delay:read=600s:memory:4M
  attach disk0
  local i
  for i in {1..8}; do
    rm -f asked
    spawn "client$i" /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
open("asked", "w").close()
h.pread(512, 0)
' "$uri"
    eventually 20 test -e asked
    kill_hard "client$i"
  done
  nbdsh <<'PY'
h.pwrite(b"x" * 512, 0)
h.flush()
PY
  eventually 20 threads_at_most nbdkit 40
}
it "clients that hang up while the backend hangs do not hold nbdkit's threads" client_hangs_up

# A client is killed while its write hangs in the backend. What the next client writes must stay.
ghost_write() {
  requires_python nbd
  truncate -s 1M image
  start_server --export "disk0=delay:hold-file=$PWD/hold,hold=2s:$PWD/image"
  attach disk0
  nbdinfo "$uri"
  local idle
  idle=$(threads nbdkit)
  touch hold
  spawn client /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"old!" * 128, 0)
' "$uri"
  eventually 20 test ! -e hold
  kill_hard client
  eventually 20 threads_at_most nbdkit "$idle"
  nbdsh <<'PY'
h.pwrite(b"new!" * 128, 0)
h.flush()
PY
  stop nbdkit
  stop server
  cmp -n 512 image <(yes 'new!' | tr -d '\n' | head -c 512)
}
it "a write that a killed client left behind does not land on top of the next client's" ghost_write

# The same with a client that has several connections, as nbd-client -C has: one dies, and what was under way there is
# sent again over another one, which is there already or comes now.
ghost_of_a_connection() {
  requires_python nbd
  truncate -s 1M image
  start_server --export "disk0=delay:hold-file=$PWD/hold,hold=2s:$PWD/image"
  local program=$2
  case $program in
    nbdkit) attach disk0 ;;
    bridge) start_bridge "rnbd+tcp://$address/disk0" ;;
  esac
  /usr/bin/python3 - "$uri" "$1" <<'PY'
import pathlib
import sys
import nbd

def connect():
    h = nbd.NBD()
    h.connect_uri(sys.argv[1])
    return h

first, second = connect(), connect()
pathlib.Path("hold").touch()
old = nbd.Buffer.from_bytearray(bytearray(b"old!" * 128))
first.aio_pwrite(old, 0)
while pathlib.Path("hold").exists():
    first.poll(10)
del first
heir = second if sys.argv[2] == "there" else connect()
heir.pwrite(b"old!" * 128, 0)
heir.pwrite(b"new!" * 128, 0)
heir.flush()
PY
  stop "$program"
  stop server
  cmp -n 512 image <(yes 'new!' | tr -d '\n' | head -c 512)
}
for program in nbdkit bridge; do
  it "$program: what a dead connection left behind does not land on top of what its client's other one wrote" \
    ghost_of_a_connection there "$program"
  it "$program: nor on top of what a new one wrote, while another one has the device" ghost_of_a_connection new "$program"
done

# inside_a_sector leaves|stays PROGRAM: the first client's write inside a sector hangs, and it hangs up or goes on
# waiting. The other one writes to other sectors, and inside the same one.
inside_a_sector() {
  requires_python nbd
  held_storage "$PWD"
  # Its programs leak, and would fail for that under a sanitizer.
  local sanitized=("${nbdkit_command[@]}")
  nbdkit_command=(nbdkit)
  nbdkit_name=storage start_nbdkit "${held_storage[@]}"
  nbdkit_command=("${sanitized[@]}")
  start_server --export "disk0=$uri"
  local program=$2
  case $program in
    nbdkit) attach disk0 ;;
    bridge) start_bridge "rnbd+tcp://$address/disk0" ;;
  esac
  spawn clients /usr/bin/python3 - "$uri" "$1" <<'PY'
import pathlib
import sys
import nbd

def connect():
    h = nbd.NBD()
    h.connect_uri(sys.argv[1])
    h.pwrite(b"x" * 512, 512 * 7)  # it has the disk for writing
    return h

def write_elsewhere():
    second.pwrite(b"far!" * 128, 512 * 1000)
    second.pwrite(b"part" * 25, 512 * 2000 + 100)

first, second = connect(), connect()
pathlib.Path("hold").touch()
old = nbd.Buffer.from_bytearray(bytearray(b"old!" * 25))
first.aio_pwrite(old, 100)
while pathlib.Path("hold").exists():
    first.poll(10)
if sys.argv[2] == "stays":
    write_elsewhere()
    pathlib.Path("written").touch()
    while first.aio_in_flight() > 0:
        first.poll(-1)
del first
second.pwrite(b"new!" * 10, 120)
write_elsewhere()
second.flush()
PY
  case $1 in
    stays) eventually 20 test -e written ;;
    leaves) eventually 20 grep -q "changes of a device wait until the server has ended an older one" "$program.log" ;;
  esac
  echo go >release
  wait_end clients 20 || fail "the clients do not end"
  cat clients.log
  ((status == 0)) || fail "a write failed"
  stop "$program"
  stop server
  local offset there
  there=$(for offset in 116 120 $((512 * 1000)) $((512 * 2000 + 100)); do
    dd if=image bs=1 skip="$offset" count=4 status=none
  done)
  [[ $there == 'old!new!far!part' ]] || fail "the disk has $there"
}
for program in nbdkit bridge; do
  it "$program: a client that hangs up while its write inside a sector hangs fails no change of another one" \
    inside_a_sector leaves "$program"
  it "$program: a write inside a sector that hangs holds up no change of another sector" inside_a_sector stays "$program"
done

# ---- Captive nbdkit -----------------------------------------------------------------------------------------

captive_dead_server() {
  start_server --export disk0=memory:1M
  stop server
  # shellcheck disable=SC2016 # nbdkit expands $uri
  fails limited "${nbdkit_command[@]}" -U - "$plugin" "rnbd+tcp://$address/disk0" "$@" \
    --run 'env -u LD_PRELOAD nbdinfo "$uri"'
  says fails.out "$address"
}
it "captive nbdkit with a dead server ends with an error" captive_dead_server
it "captive nbdkit with a dead server and connect=now ends with an error" captive_dead_server connect=now

# ---- Nothing stays ------------------------------------------------------------------------------------------

come_and_go() {
  requires_python nbd
  truncate -s 16M image
  start_server --reactors 1 --export "disk0=$PWD/image" --export "other=$PWD/image,ro"
  local before_fd before_kb after_kb i
  for i in {1..30}; do
    if ((i == 6)); then
      before_fd=$(descriptors server)
      before_kb=$(rss server)
    fi
    attach disk0
    nbdsh <<'PY'
data = os.urandom(1 << 20)
h.pwrite(data, 0)
assert h.pread(1 << 20, 0) == data
PY
    stop nbdkit
    eventually 10 no_session
  done
  after_kb=$(rss server)
  eventually 20 has_descriptors server "$before_fd"
  echo "resident: $before_kb KiB after 5 clients, $after_kb KiB after 30"
  [[ -n $sanitizer ]] || ((after_kb - before_kb < 8192)) || fail "the server grew"
}
it "30 clients that come and go leave no descriptor and no memory behind" come_and_go

many_opens() {
  requires_python nbd
  start_server --export disk0=memory:1M
  attach disk0
  limited /usr/bin/python3 - "$uri" "${pid[nbdkit]}" <<'PY'
import os, sys, nbd
def resident():
    with open(f"/proc/{sys.argv[2]}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
for i in range(400):
    h = nbd.NBD()
    h.connect_uri(sys.argv[1])
    h.pwrite(bytes([i % 256]) * 4096, 0)
    h.shutdown()
    if i == 100:
        before = resident()
print(before, resident())
assert os.environ.get("RNBD_SANITIZE") or resident() - before < 8192
PY
}
it "400 NBD connections to one nbdkit, one after the other, leave no memory behind" many_opens

finish
