#!/bin/bash
# rnbd-bridge as a program: its command line, the sockets that it listens on, how it says that it is
# ready, and how it leaves.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

peer() {
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - "$@"
}

# ---- The command line -------------------------------------------------------------------------------

# rejects REGEX ARGUMENTS...: status 2, and a message that says what to do.
rejects() {
  local regex=$1
  shift
  status_of 2 "$bridge_program" "$@"
  says said "$regex"
}

bad_arguments() {
  rejects 'no server is named; write e\.g\. rnbd-bridge rnbd\+tcp://storage/disk0'
  rejects 'one URI only' rnbd+tcp://127.0.0.1/a rnbd+tcp://127.0.0.1/b
  rejects 'rnbd\+tcp://' http://127.0.0.1/disk0
  rejects 'port' rnbd+tcp://127.0.0.1:99999/disk0
  rejects 'did you mean --listen' --lisen unix:x rnbd+tcp://127.0.0.1/disk0
  rejects '--access: .*migration' --access write rnbd+tcp://127.0.0.1/disk0
  rejects '--no-path-timeout: .*soon' --no-path-timeout soon rnbd+tcp://127.0.0.1/disk0
  rejects '--lanes: ' --lanes many rnbd+tcp://127.0.0.1/disk0
  rejects '--path' --path '' rnbd+tcp://127.0.0.1/disk0
  rejects 'max-connections' --max-connections 0 rnbd+tcp://127.0.0.1/disk0
  rejects 'log-level' --log-level loud rnbd+tcp://127.0.0.1/disk0
  rejects 'device' --device other rnbd+tcp://127.0.0.1/disk0
  rejects 'ready-fd' --ready-fd -2 rnbd+tcp://127.0.0.1/disk0
}
it "wrong arguments: status 2, and the message says what is right" bad_arguments

# Which a path over RDMA needs, unless its user may lock as much as he likes.
locked_memory() {
  ulimit -Sl 64
  if ((EUID == 0)); then
    requires setpriv
    bridge_command=(setpriv --bounding-set=-ipc_lock "${bridge_command[@]}")
  fi
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  local soft hard
  read -r soft hard < <(awk '/^Max locked memory/ { print $4, $5 }' "/proc/${pid[bridge]}/limits")
  [[ $soft == "$hard" ]] || fail "the limit is still $soft"
}
it "the soft limit of locked memory is raised to the hard one" locked_memory

# ---- A limit of threads ------------------------------------------------------------------------------

# few_threads COUNT: a bridge of somebody who has no other process. 1 = it has left with $status.
few_threads() {
  local user=$((1000000000 + $$))
  rm -f few.out
  spawn few setpriv "--reuid=$user" "--regid=$user" --clear-groups prlimit "--nproc=$1" \
    "$PWD/bridge" --listen "unix:$PWD/few.sock" --ready-fd 1 --connect now "rnbd+tcp://$address/disk0"
  eventually 20 ready_or_gone && [[ -s few.out ]]
}
ready_or_gone() { [[ -s few.out ]] || wait_end few 0.1; }

too_few_threads() {
  local least
  ((EUID == 0)) || skip "only root can become a user who has no other process"
  requires setpriv
  cp "$bridge_program" bridge
  chmod 755 "$work_dir" bridge
  chmod 777 "$case_dir"
  start_server --export disk0=memory:1M
  for ((least = 2; least < 20; least++)); do
    if few_threads "$least"; then break; fi
    [[ $status == 1 ]] || fail "with $least threads it was not ready, and left with $status"
    says few.log 'Resource temporarily unavailable'
  done
  echo "it starts with $least threads"
  stop few
  few_threads $((least + 2)) # for the session, and one handshake
  peer "$PWD/few.sock" <<'PY'
import sys, time
from nbd_peer import *
h = Client(sys.argv[1])
for attempt in range(100):
    try:
        haggler = Haggler(sys.argv[1])
        break
    except Closed:  # turned away: the thread of the first handshake is still ending
        time.sleep(0.05)
haggler.ask_structured()
assert h.write(100, b"y" * 10) == 0
assert h.read(96, 18) == (0, bytes(4) + b"y" * 10 + bytes(4))
haggler.close()
h.leave()
PY
  stop few
}
it "too few threads to start are said; with just enough every client is served, one call after the other" \
  too_few_threads

bad_addresses() {
  local long
  long=unix:/tmp/$(printf 'x%.0s' {1..110})
  rejects "--listen '127\.0\.0\.1': write e\.g\. unix:/.* or tcp:" -l 127.0.0.1 rnbd+tcp://127.0.0.1/a
  rejects "'unix:': the path is missing; write e\.g\." -l unix: rnbd+tcp://127.0.0.1/a
  rejects 'longer than 107 bytes' -l "$long" rnbd+tcp://127.0.0.1/a
  rejects 'bracket' -l 'tcp:[::1:10809' rnbd+tcp://127.0.0.1/a
  rejects 'brackets' -l tcp:::1:10809 rnbd+tcp://127.0.0.1/a
  rejects "port '99999'" -l tcp:127.0.0.1:99999 rnbd+tcp://127.0.0.1/a
  rejects "port ''" -l tcp:127.0.0.1: rnbd+tcp://127.0.0.1/a
  # Every address is not what somebody gets by forgetting one.
  rejects 'tcp:\*:10809' -l tcp: rnbd+tcp://127.0.0.1/a
  rejects 'tcp:\*:10809' -l tcp::10809 rnbd+tcp://127.0.0.1/a
}
it "wrong addresses to listen on: status 2, and the message shows a right one" bad_addresses

impossible_addresses() {
  status_of 1 "$bridge_program" -l "unix:$PWD/missing/socket" rnbd+tcp://127.0.0.1/a
  says said "missing/socket: No such file or directory; there is no directory $PWD/missing; create it"
  [[ ! -e missing ]] || fail "a directory was made for a wrong path"
  status_of 2 "$bridge_program" -l "unix:$PWD/socket" --ready-fd 99 rnbd+tcp://127.0.0.1/a
  says said 'ready-fd 99 is not open'
  status_of 1 "$bridge_program" -l "unix:$PWD/socket" --pid-file /proc/x/pid rnbd+tcp://127.0.0.1/a
  says said '/proc/x/pid'
  [[ ! -e socket ]] || fail "a socket file is left"
}
it "what cannot be listened on or written to: status 1, with the reason" impossible_addresses

late_control() {
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0" --control "$PWD/missing/control"
  says bridge.log "warning: control socket .*there is no directory $PWD/missing; create it .*tried again every second"
  [[ $(nbdinfo --size "$uri") == 1048576 ]] || fail "the disk is not served"
  [[ ! -e missing ]] || fail "a directory was made for a wrong path"
  mkdir missing
  eventually 20 test -S missing/control
  limited "${ctl_command[@]}" "$PWD/missing/control" status >said
  stop bridge
  [[ ! -e missing/control ]] || fail "the socket is still there"
}
it "a control socket whose directory is missing keeps no disk waiting, and comes when it is there" late_control

help() {
  status_of 0 "$bridge_program" --help
  says said '^Examples:'
  status_of 0 "$bridge_program" --version
  says said '^rnbd-bridge [0-9]+\.[0-9]+'
}
it "--help and --version: status 0" help

connect_now() {
  start_server --export disk0=memory:1M
  status_of 1 "$bridge_program" -l "unix:$PWD/socket" --connect now "rnbd+tcp://$address/missing"
  says said "'missing'"
  start_bridge --connect now "rnbd+tcp://$address/disk0"
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
  stop bridge
  stop server
  status_of 1 "$bridge_program" -l "unix:$PWD/socket" --connect now --connect-timeout 500ms "rnbd+tcp://$address/disk0"
  says said "warning: .*$address.*[Cc]onnection refused.*tried again until 0\.5 s have passed"
  says said "error: .*$address.*[Cc]onnection refused"
}
it "--connect now: no start without a server and its export" connect_now

connect_now_with_paths() {
  start_server --export disk0=memory:1M --export ro=memory:1M,ro
  local here=$address
  status_of 1 "$bridge_program" -l "unix:$PWD/socket" --connect now --access rw "rnbd+tcp://$here/ro"
  says said 'Read-only file system'
  start_bridge --connect now --path 127.0.0.1:1 "rnbd+tcp://$here/disk0"
  says bridge.log 'warning: the path to tcp:127\.0\.0\.1:1 does not work: .*refused'
  stop bridge
}
it "--connect now: the mode of --access and every path are tried" connect_now_with_paths

# ---- Sockets ----------------------------------------------------------------------------------------

stale_socket() {
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  kill_hard bridge
  [[ -S $socket ]] || fail "SIGKILL removed the socket"
  start_bridge "rnbd+tcp://$address/disk0"
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
  status_of 1 "$bridge_program" -l "unix:$socket" "rnbd+tcp://$address/disk0"
  says said 'another program listens there'
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
  stop bridge
  [[ ! -e $socket ]] || fail "the socket is still there"
}
it "a Unix socket that nobody listens on is replaced, a live one is left alone, ours is removed" \
  stale_socket

other_files() {
  echo precious >file
  mkdir directory
  ln -s file link
  local name
  for name in file directory link; do
    status_of 1 "$bridge_program" -l "unix:$PWD/$name" rnbd+tcp://127.0.0.1/disk0
    says said "unix:$PWD/$name: .*; what is there is no socket, choose another path"
  done
  [[ $(<file) == precious && -d directory && -L link ]]
}
it "a file that is no socket is never replaced" other_files

busy_port() {
  start_server --export disk0=memory:1M
  status_of 1 "$bridge_program" -l "tcp:$address" rnbd+tcp://127.0.0.1/disk0
  says said "tcp:$address: .*choose another port"
}
it "a TCP port that is taken is named" busy_port

every_address() {
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  ! grep -q 'no authentication' bridge.log || fail "warned of a Unix socket"
  bridge_name=open start_bridge --listen 'tcp:*:0' "rnbd+tcp://$address/disk0"
  says open.log 'warning: there is no authentication: whoever reaches .*tcp:0\.0\.0\.0:'
  bridge_name=six start_bridge --listen 'tcp:[::1]:0' "rnbd+tcp://$address/disk0"
  ! grep -q 'no authentication' six.log || fail "warned of loopback"
  local port
  port=$(logged six.log '\[::1\]:[0-9]+')
  [[ $(nbdinfo --size "nbd://$port") == 1048576 ]]
}
it "listening where others can reach it earns a warning; IPv6 works" every_address

# Attaching takes the kernel's nbd module: that is in the lab.
stock_client() {
  requires nbd-client
  start_server --export first=memory:1M --export second=memory:1M
  start_bridge --listen tcp:127.0.0.1:0 "rnbd+tcp://$address"
  local port
  port=$(logged bridge.log 'tcp:127\.0\.0\.1:[0-9]+')
  nbd-client -l 127.0.0.1 "${port##*:}" | tee exports
  says exports '^first$'
  says exports '^second$'
}
it "the stock nbd-client lists the exports" stock_client

# activate KIND PROGRAM...: passes a listening socket as the service manager does.
activation_script='
import os, socket, sys
if sys.argv[1] == "unix":
    s = socket.socket(socket.AF_UNIX)
    s.bind("given.sock")
    s.listen()
else:
    s = socket.create_server(("127.0.0.1", 0))
    print(s.getsockname()[1], flush=True)
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
open("listens", "w").close()
environment = dict(os.environ, LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="x")
os.execve(sys.argv[2], sys.argv[2:], environment)
'
activation() {
  start_server --export disk0=memory:1M
  spawn bridge /usr/bin/python3 -c "$activation_script" "$1" "$bridge_program" \
    "rnbd+tcp://$address/disk0"
  eventually 10 test -e listens
  # No wait for readiness: the socket listens since before the bridge started.
  if [[ $1 == unix ]]; then
    uri="nbd+unix:///?socket=$PWD/given.sock"
  else
    uri="nbd://127.0.0.1:$(<bridge.out)"
  fi
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
  ! grep -q '10809' bridge.log || fail "listens at the default port, too"
  stop bridge
  [[ $1 != unix || -S given.sock ]] || fail "the socket belongs to the service manager"
}
it "socket activation: a Unix socket is taken over, and not removed" activation unix
it "socket activation: a TCP socket is taken over" activation tcp

# ---- Ready, and gone --------------------------------------------------------------------------------

ready() {
  start_server --export disk0=memory:1M
  local r w
  pipe r w
  spawn bridge "$bridge_program" -l "unix:$PWD/a.sock" -l tcp:127.0.0.1:0 --ready-fd "$w" \
    --pid-file "$PWD/pid" "rnbd+tcp://$address/disk0"
  exec {w}>&-
  await_line "$r" 10
  [[ $line =~ ^ready,\ listening\ on\ unix:$PWD/a.sock,\ tcp:127\.0\.0\.1:[0-9]+$ ]] ||
    fail "the line is: $line"
  local said=$line
  [[ $(<pid) == "${pid[bridge]}" ]] || fail "the pid file says $(<pid)"
  ! await_line "$r" 10 || fail "a second line: $line"
  grep -qF " rnbd-bridge: $said, in front of rnbd+tcp://$address/disk0" bridge.log ||
    fail "the log says: $(<bridge.log)"
  stop bridge
  [[ ! -e pid && ! -e a.sock ]] || fail "files are left"
}
it "--ready-fd gets one line, --pid-file the process id; both sockets and the pid file go" ready

service_manager() {
  start_server --export disk0=memory:1M
  /usr/bin/python3 - "$PWD/notify" "$bridge_program" -l "unix:$PWD/a.sock" \
    "rnbd+tcp://$address/disk0" >told <<'PY'
import os, signal, socket, subprocess, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(60)
child = subprocess.Popen(sys.argv[2:], env=dict(os.environ, NOTIFY_SOCKET=sys.argv[1]))
told = ""
while "STOPPING=1" not in told:
    told = s.recv(4096).decode()
    print(told.replace("\n", "|"))
    if told.startswith("STATUS="):  # a message of its own, behind that of READY
        child.send_signal(signal.SIGTERM)
assert child.wait() in (0, 128 + signal.SIGTERM), child.returncode
PY
  says told '^READY=1\|'
  says told '^STATUS=in front of rnbd\+tcp://.*/disk0: not connected yet\|$'
  says told '^STOPPING=1\|$'
}
it "the service manager hears READY=1 and STOPPING=1" service_manager

manager_hears_of_paths() {
  requires_python nbd
  start_server --export disk0=memory:1M
  local lines
  mkfifo lines
  spawn manager /usr/bin/python3 -uc '
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
while True:
    print(s.recv(4096).decode())' "$PWD/notify"
  eventually 10 test -S notify
  bridge_command=(env "NOTIFY_SOCKET=$PWD/notify" "${bridge_command[@]}")
  start_bridge --path "127.0.0.2@$address" --path "127.0.0.3@$address" "rnbd+tcp://$address/disk0"
  spawn client /usr/bin/python3 -m nbd -u "$uri" -c 'import signal' -c 'signal.pause()'
  wait_for_line manager.out '^STATUS=in front of .*: 2 of 2 paths$'
  kill_hard server
  wait_for_line manager.out '^STATUS=in front of .*: no path for [0-9]+ s \(.*'"$port"
  kill_hard client
  kill_hard manager
}
it "the service manager hears how many paths work, and for how long none has" manager_hears_of_paths

limit_of_clients() {
  start_server --export disk0=memory:1M
  start_bridge --max-connections 4 "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
kept = [Client(sys.argv[1]) for _ in range(3)]
haggles = Haggler(sys.argv[1])
haggles = Haggler(sys.argv[1])  # the one before has not chosen its export, and makes room
kept.append(haggles)
assert isinstance(haggles.info(GO, b"disk0"), dict)
for _ in range(10):
    try:
        Haggler(sys.argv[1])
        raise AssertionError("a fifth client")
    except Closed:
        pass
kept.pop()
for client in kept:
    assert client.read(0, 512) == (0, bytes(512))
haggles.close()
while True:  # room comes back when the bridge has seen it go
    try:
        kept.append(Client(sys.argv[1]))
        break
    except Closed:
        pass
assert kept[-1].read(0, 512) == (0, bytes(512))
PY
  says bridge.log 'turned away: there are 4 already \(--max-connections\)'
}
it "--max-connections turns further clients away, and room comes back" limit_of_clients

parts_of_sectors() {
  start_server --export disk0=delay:read=20ms:memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import random
import sys
from nbd_peer import *
neighbour = Client(sys.argv[1])
data = random.Random(1).randbytes(1 << 20)
assert neighbour.write(0, data) == 0
clients = [Client(sys.argv[1]) for _ in range(4)]
wanted = [{c.start_request(READ, i * 4000 + 7, 100): i * 4000 + 7 for i in range(256)} for c in clients]
for start in (4096, 4097):
    assert neighbour.read(start, 512) == (0, data[start:start + 512])
for client, starts in zip(clients, wanted):
    while starts:
        cookie, error, piece = client.reply()
        start = starts.pop(cookie)
        assert (error, piece) == (0, data[start:start + 100]), start
PY
  echo "$(threads) threads"
  (($(threads) <= 4 * 16 + 1 + 20)) || fail "too many threads"
}
# They stay for some seconds after their work.
threads() { awk '/^Threads/ { print $2 }' "/proc/${pid[bridge]}/status"; }
it "parts of sectors, 256 at a time of four clients, take a few threads each" parts_of_sectors

hanging_parts() {
  start_server --export slow=delay:read=3600s:memory:1M --export fast=memory:1M
  start_bridge --max-connections 13 "rnbd+tcp://$address"
  peer "$socket" "${pid[bridge]}" <<'PY'
import sys
import time
from nbd_peer import *
def threads():
    with open(f"/proc/{sys.argv[2]}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("Threads")).split()[1])
slow = [Client(sys.argv[1], b"slow") for _ in range(12)]
for client in slow:
    for i in range(30):
        client.start_request(READ, i * 1000 + 1, 100)
deadline = time.monotonic() + 30
while threads() < 12 + 128:
    assert time.monotonic() < deadline, f"only {threads()} threads"
    time.sleep(0.05)
fast = Client(sys.argv[1], b"fast")
for _ in range(3):
    cookies = {fast.start_request(READ, i * 1000 + 1, 100) for i in range(100)}
    while cookies:
        cookie, error, piece = fast.reply()
        cookies.remove(cookie)
        assert (error, piece) == (0, bytes(100))
assert threads() <= 13 + 128 + 20, f"{threads()} threads"
for client in slow:
    client.close()
kept = [fast]
while len(kept) < 13:  # room comes back when those that left are let go
    try:
        kept.append(Client(sys.argv[1], b"fast"))
    except Closed:
        assert time.monotonic() < deadline + 60, f"{len(kept)} clients"
        time.sleep(0.05)
for client in kept:
    assert client.read(1, 100) == (0, bytes(100))
PY
}
it "clients whose parts of sectors hang hold up nobody, and can leave" hanging_parts

interrupted() {
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  kill -INT "${pid[bridge]}"
  expect_gone bridge 0
}
it "SIGINT: leaves with status 0" interrupted

# A program that a signal ends does not answer the next request.
signals_that_end_nothing() {
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  local signal
  for signal in HUP USR1 USR2 HUP; do
    kill "-$signal" "${pid[server]}"
    [[ $signal == USR2 ]] || kill "-$signal" "${pid[bridge]}" # which it replaces: heir.sh
    [[ $(nbdinfo --size "$uri") == 1048576 ]] || fail "not after SIG$signal"
  done
  wait_for_line server.log 'reloaded: nothing has changed'
  wait_for_line bridge.log 'SIGHUP: going on'
  ! grep -q 'stopping' server.log bridge.log || fail "one of them stops"
}
it "SIGHUP and SIGUSR1 end neither server nor bridge, nor SIGUSR2 the server; SIGHUP is told" signals_that_end_nothing

not_hung_up() {
  trap '' HUP # as nohup
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  kill -HUP "${pid[bridge]}" "${pid[server]}"
  [[ $(nbdinfo --size "nbd+unix:///?socket=$socket") == 1048576 ]]
}
it "SIGHUP, when whoever started them ignores it: they go on" not_hung_up

second_signal() {
  start_server --export disk0=delay:read=3600s:memory:1M
  start_bridge --pid-file "$PWD/pid" "rnbd+tcp://$address/disk0"
  spawn client /usr/bin/python3 -c "
import sys
sys.path.insert(0, '$source_dir/tests/integration')
from nbd_peer import *
h = Client('$socket')
h.start_request(READ, 0, 512)
assert h.write(0, b'x' * 512) == 0
open('hangs', 'w').close()
h.expect_close()
"
  eventually 20 test -e hangs
  kill -TERM "${pid[bridge]}"
  wait_for_line bridge.log 'SIGTERM: stopping'
  kill -INT "${pid[bridge]}"
  expect_gone bridge 130
  expect_gone client 0
  [[ ! -e pid ]] || fail "the pid file is left"
  [[ ! -e $socket ]] || fail "the socket is left"
}
it "a second signal ends it at once" second_signal

finish
