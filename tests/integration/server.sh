#!/bin/bash
# rnbd-server as a program: how it says that it is ready, takes sockets over, leaves, and which
# status it leaves with.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# raw ARGUMENTS...: Python with raw_peer.
raw() {
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - "$@"
}

exit_statuses() {
  status_of 0 "$server_program" --help
  says said '^Examples:'
  status_of 0 "$server_program" --version
  says said '^rnbd-server [0-9]+\.[0-9]+'
  status_of 2 "$server_program" --exprot a=memory:1M
  says said 'did you mean --export'
  status_of 2 "$server_program" --export a=memory:1M --queue-depth none
  status_of 2 "$server_program"
  status_of 2 "$server_program" --listen tcp:127.0.0.1:0 --export "a=$PWD"
  says said "$PWD.*directory"
  echo 'nonsense' >wrong.conf
  status_of 2 "$server_program" --config wrong.conf
  says said 'wrong\.conf:1:'
  status_of 1 "$server_program" --config missing.conf
  says said 'missing\.conf: No such file'
  status_of 1 "$server_program" --listen tcp:127.0.0.1:0 --export a=memory:1M --state-directory /proc/x
}
it "exit status: 0 for help, 1 for what may get better, 2 for a wrong command line or file" exit_statuses

check_config() {
  truncate -s 1M "a,b.img"
  cat >good.conf <<'TOML'
[server]
listen = "tcp:127.0.0.1:1"
[export.odd]
path = "a,b.img"
read-only = true
[export.scratch]
storage = "memory:2M"
TOML
  status_of 0 "$server_program" --config good.conf --check-config
  says said 'correct, exporting odd \(1 MiB, read-only\), scratch \(2 MiB\)'
  rm "a,b.img"
  status_of 1 "$server_program" --config good.conf --check-config
  says said "good\.conf:3: export 'odd': .*a,b\.img: there is no such file"
  status_of 1 "$server_program" --config "$PWD" --check-config
  says said 'Is a directory'
  mkdir srv
  printf '[server]\nsearch-path = "%s/srv"\nstate-directory = "%s/srv/state"\n' "$PWD" "$PWD" >below.conf
  status_of 1 "$server_program" --config below.conf --check-config
  says said 'srv/state lies below the search path'
  printf '[server]\nsearch-path = "/srv"\n[search]\npath = "/srv/rnbd"\n' >two.conf
  status_of 2 "$server_program" --config two.conf --check-config
  says said 'two\.conf:4:[0-9]+: search\.path: names another directory'
  status_of 0 "$server_program" --config "$source_dir/contrib/systemd/rnbd-server.conf" --check-config
}
it "--check-config opens everything, listens nowhere, and the shipped example passes" check_config

many_mistakes() {
  printf '[server]\nqueue_depth = 1\nreactors = "x"\n[export.a]\nfile = "/a"\n' >wrong.conf
  status_of 2 "$server_program" --config wrong.conf
  says said "wrong\.conf:2:1: unknown key 'queue_depth' in \[server\]; did you mean 'queue-depth'"
  says said 'wrong\.conf:3:12: reactors:'
  says said "wrong\.conf:5:1: unknown key 'file' in \[export\.a\]"
}
it "configuration: every mistake of a file is told at once" many_mistakes

all_mistakes() {
  truncate -s 1M image
  mkdir directory
  cat >wrong.conf <<END
[export.z]
path = "$PWD/missing"
[export.y]
path = "$PWD/image"
read_only = true
[export.x]
path = "$PWD/directory"
[export.w]
path = "$PWD/image"
[server]
heartbeat = "soon"
[export.v]
path = "$PWD/lost"
read-only = true
END
  status_of 2 "$server_program" --config wrong.conf --check-config
  grep -o 'wrong.conf:[0-9]*' said | uniq >places
  printf 'wrong.conf:%s\n' 1 5 6 11 12 | diff - places
  ! grep -q correct said || fail "it is correct"
}
it "--check-config tells all that is wrong, with keys and with storage, in the order of the file" all_mistakes

# A TOML table has no order, so the user could not change it either.
two_names() {
  truncate -s 1M image
  cat >config <<END
[export.archive]
path = "$PWD/image"
read-only = true
[export.disk0]
path = "$PWD/image"
END
  "$server_program" --config config --check-config 2>&1 | tee said
  says said 'archive .*read-only.*, disk0 \(1 MiB\)'
  "$server_program" --export "a=$PWD/image,ro" --export "b=$PWD/image" --check-config
}
it "configuration: a file may be exported read-only and writable, in whatever order" two_names

ready_line() {
  local r w
  pipe r w
  spawn server "$server_program" --listen tcp:127.0.0.1:0 --listen 'tcp:[::1]:0' \
    --export a=memory:1M --export b=memory:1536,ro --ready-fd "$w"
  exec {w}>&-
  await_line "$r" 10
  [[ $line =~ ^ready,\ listening\ on\ tcp:127\.0\.0\.1:[0-9]+,\ tcp:\[::1\]:[0-9]+$ ]] ||
    fail "the line is: $line"
  local ready=$line
  ! await_line "$r" 10 || fail "a second line: $line"
  grep -qE "^[0-9-]{10} [0-9:]{8}\.[0-9]{3} rnbd-server: " server.log || fail "no time before the line"
  grep -qF " rnbd-server: $ready, exporting a (1 MiB), b (1.5 KiB, read-only)" server.log ||
    fail "the log says: $(<server.log)"
}
it "ready: one line on --ready-fd, which is then closed, and the same on standard error" ready_line

by_name() {
  start_server --listen tcp:localhost:0 --export a=memory:1M
  says server.log 'ready'
  [[ $(grep -oE '127\.0\.0\.1:[0-9]+' server.log | sort -u | wc -l) == 2 ]] || fail "$(<server.log)"
  ! grep -q 'whoever reaches' server.log || fail "localhost is taken for an address of the network"
}
it "a host name to listen on is looked up" by_name

quiet() {
  start_server --export a=memory:1M --log-level error
  [[ ! -s server.log ]] || fail "the log says: $(<server.log)"
  start_bridge --log-level error "rnbd+tcp://$address/a"
  [[ ! -s bridge.log ]] || fail "the log of the bridge says: $(<bridge.log)"
}
it "ready: is no error, so the log level of errors does not show it" quiet

ready_nowhere() {
  local r w
  pipe r w
  exec {r}<&-
  spawn server "$server_program" --listen tcp:127.0.0.1:0 --export a=memory:1M --ready-fd "$w"
  expect_gone server 1
  says server.log 'ready-fd.*Broken pipe'
  exec {w}>&-
  status_of 2 "$server_program" --listen tcp:127.0.0.1:0 --export a=memory:1M --ready-fd 99
  says said 'ready-fd 99 is not open'
}
it "ready: a descriptor that nobody reads ends the start with a message" ready_nowhere

service_manager() {
  local r w
  pipe r w
  # A service manager: prints what it is told, and sends SIGTERM once it has heard READY=1.
  cat >manager.py <<'PY'
import os, signal, socket, subprocess, sys
path = sys.argv[1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(path)
s.settimeout(60)
child = subprocess.Popen(sys.argv[2:], env=dict(os.environ, NOTIFY_SOCKET=path.replace("\0", "@")))
first = s.recv(4096).decode()
print(first.replace("\n", "|"))
child.send_signal(signal.SIGTERM)
print(s.recv(4096).decode().replace("\n", "|"))
sys.exit(child.wait())
PY
  /usr/bin/python3 manager.py "$PWD/notify" "$server_program" --listen tcp:127.0.0.1:0 \
    --export a=memory:1M >told
  says told '^READY=1\|STATUS=exporting a \(1 MiB\)\|$'
  says told '^STOPPING=1\|$'
  exec {r}<&- {w}>&-
}
it "systemd: READY=1 with a status when ready, STOPPING=1 after SIGTERM" service_manager

socket_activation() {
  # The socket listens before the server runs, on descriptor 3, as systemd passes it.
  cat >activate.py <<'PY'
import os, socket, sys
s = socket.create_server(("127.0.0.1", 0)) if sys.argv[1] == "listen" else socket.socket()
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
print(s.getsockname()[1], flush=True)
environment = dict(os.environ, LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="x")
os.execve(sys.argv[2], sys.argv[2:], environment)
PY
  spawn server /usr/bin/python3 activate.py listen "$server_program" --export a=memory:1M
  wait_for_line server.log 'ready, listening on'
  local own
  own=$(<server.out)
  says server.log "listening on tcp:127\.0\.0\.1:$own, "
  raw "$own" <<'PY'
import sys
from raw_peer import *
session = Session(int(sys.argv[1]))
assert session.open(b"a") == (0, 2048)
PY
  stop server
  status_of 1 /usr/bin/python3 activate.py silent "$server_program" --export a=memory:1M
  says said 'descriptor 3 .* is not a listening TCP socket'
}
it "systemd: takes a listening socket over and listens nowhere else" socket_activation

journal() {
  : >journal
  local stream
  stream=$(stat -c '%d:%i' journal)
  JOURNAL_STREAM=$stream "$server_program" --export "a=$PWD" 2>journal && fail
  says journal "^<3>export 'a':"
  JOURNAL_STREAM=1:1 "$server_program" --export "a=$PWD" 2>journal && fail
  says journal ' rnbd-server: error: '
}
it "systemd: lines for the journal carry their priority, others the program's name" journal

pid_file() {
  start_server --export a=memory:1M --pid-file "$PWD/server.pid"
  [[ $(<server.pid) == "${pid[server]}" ]] || fail "the pid file says $(<server.pid)"
  stop server
  [[ ! -e server.pid ]] || fail "the pid file is still there"
  status_of 1 "$server_program" --listen tcp:127.0.0.1:0 --export a=memory:1M --pid-file /proc/x/pid
  says said '/proc/x/pid'
}
it "--pid-file holds the process id while the server runs" pid_file

descriptors() {
  ulimit -Sn 64
  start_server --export a=memory:1M
  local soft hard
  read -r soft hard < <(awk '/^Max open files/ { print $4, $5 }' "/proc/${pid[server]}/limits")
  [[ $soft == "$hard" ]] || fail "the limit is still $soft"
}
it "the soft limit of open files is raised to the hard one" descriptors

# Sets file: where it is kept who did.
changes() { nbdsh <<<'h.pwrite(b"x" * 512, 0)'; }
somebody_wrote() {
  random_file image 1M
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/kept"
  attach disk0
  changes
  stop nbdkit
  stop server
  file=$(echo "$PWD/kept/writers/"*)
}

damaged_turn() {
  local file
  somebody_wrote
  truncate -s 7 "$file"
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/kept"
  attach disk0
  fails changes
  says server.log "disk0.*cannot record who writes to it: $file: is damaged"
  rm "$file"
  changes
}
it "a device is not opened for writing if it cannot be read who wrote to it last" damaged_turn

hanging_turn() {
  local file library=${RNBD_HANGING_OPEN:-$build_dir/tests/integration/libhanging_open.so}
  [[ -e $library ]] || skip "there is no $library"
  [[ -z $sanitizer ]] || skip "the sanitizer's library would have to be loaded first"
  somebody_wrote
  server_command=(env "LD_PRELOAD=$library" "${server_command[@]}")
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/kept"
  attach disk0
  touch "$file.new.hangs" # what the record is written to first
  fails changes
  says server.log 'the state directory does not answer'
  says nbdkit.log 'something hangs that this takes'
  rm "$file.new.hangs"
  eventually 20 changes
}
it "a state directory that hangs is told, and whoever opens a device is refused until it answers" hanging_turn

# A request that hangs for an hour; `hang.log` says when it is on its way.
hang() {
  spawn hang /usr/bin/python3 -c "
import signal, sys
sys.path.insert(0, '$source_dir/tests/integration')
from raw_peer import *
session = Session($port)
device, _ = session.open(b'disk0')
session.start_read(session.io(device, READ_IO, 0, 512), 512)
session.call(session.io(device, FLUSH), cid=0, buffer=1)
print('hanging', file=sys.stderr, flush=True)
session.expect_close()
"
  wait_for_line hang.log hanging
}

leaves_in_time() {
  start_server --export disk0=delay:read=3600s:memory:1M --pid-file "$PWD/server.pid"
  hang
  kill -TERM "${pid[server]}"
  expect_gone server 0
  expect_gone hang 0
  says server.log 'hangs in a backend'
  [[ ! -e server.pid ]] || fail "the pid file is still there"
}
it "SIGTERM: a backend that hangs cannot keep the server for five seconds" leaves_in_time

second_signal() {
  start_server --export disk0=delay:read=3600s:memory:1M
  hang
  kill -TERM "${pid[server]}"
  wait_for_line server.log 'SIGTERM: stopping'
  kill -INT "${pid[server]}"
  expect_gone server 130
  expect_gone hang 0
}
it "SIGTERM: a second signal ends the server at once" second_signal

drains() {
  start_server --export disk0=delay:write=1s:memory:1M
  spawn writer /usr/bin/python3 -c "
import sys
sys.path.insert(0, '$source_dir/tests/integration')
from raw_peer import *
session = Session($port)
device, _ = session.open(b'disk0')
session.start_write(session.io(device, WRITE_IO, 0, 512), bytes(512))
session.call(session.io(device, FLUSH), cid=0, buffer=1)
print('writing', file=sys.stderr, flush=True)
assert session.answer_of()[0] == 0
"
  wait_for_line writer.log writing
  kill -TERM "${pid[server]}"
  expect_gone writer 0
  expect_gone server 0
}
it "SIGTERM: a running write is finished and answered" drains

interrupt() {
  start_server --export a=memory:1M
  kill -INT "${pid[server]}"
  expect_gone server 0
  says server.log 'SIGINT: stopping'
}
it "SIGINT: leaves with status 0 as well" interrupt

broken_stderr() {
  local r w port_read port_write
  pipe r w
  pipe port_read port_write
  "$server_program" --listen tcp:127.0.0.1:0 --export a=memory:1M --log-level debug \
    --ready-fd "$port_write" 2>&"$w" &
  local server=$!
  await_line "$port_read" 10
  exec {r}<&- {w}>&- # from here on every line of the log is a SIGPIPE
  raw "${line##*:}" <<'PY'
import sys
from raw_peer import *
for _ in range(3):
    session = Session(int(sys.argv[1]))
    session.open(b"a")
    session.close()
PY
  kill -TERM "$server"
  wait "$server"
}
it "SIGPIPE: a log that nobody reads any more does not end the server" broken_stderr

# The first file that a program opens gets the number of a standard stream that is closed.
closed_stderr() {
  truncate -s 1M image
  # shellcheck disable=SC2016 # expanded by that shell
  server_command=(bash -c 'exec "$@" 2>&-' bash "${server_command[@]}")
  start_server --export "disk0=$PWD/image" --log-level debug
  attach disk0
  nbdcopy "$uri" copy
  stop nbdkit
  stop server
  cmp -n 1048576 image /dev/zero
  cmp -n 1048576 copy /dev/zero
}
it "a server whose standard error is closed does not write its log into a disk" closed_stderr

strangers() {
  start_server --export a=memory:1M
  ! grep -q 'no authentication' server.log || fail "warned of loopback"
  stop server
  spawn open "$server_program" --listen tcp:0.0.0.0:0 --export a=memory:1M
  wait_for_line open.log 'ready, listening'
  says open.log 'warning: there is no authentication'
}
it "listening where others can reach it earns a warning" strangers

# ---- Storage that somebody else has ---------------------------------------------------------------------

# hold FILE: a program has it locked, until it is ended with kill_hard.
hold() {
  spawn holder /usr/bin/python3 -c '
import fcntl, signal, sys
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
signal.pause()
' "$1"
  wait_for_line holder.out held
}

# opens DEVICE: 0, or the errno that an OPEN is answered with, is in `opened`.
opens() {
  raw "$port" "$1" >opened <<'PY'
import sys
from raw_peer import *
try:
    Session(int(sys.argv[1])).open(sys.argv[2].encode())
    print(0)
except OSError as error:
    print(error.errno)
PY
}
opens_with() { opens "$1" && [[ $(<opened) == "$2" ]]; }

waits() {
  requires_python nbd
  truncate -s 1M image
  hold image
  start_server --export "disk0=$PWD/image" --export disk1=memory:2M --export "iso=$PWD/image,ro" \
    --control "$PWD/control"
  says server.log "warning: export 'disk0': $PWD/image: it is in use by another process .*fuser.*; waiting for it"
  wait_for_line server.log "warning: export 'disk0' is not served yet.*: $PWD/image: it is in use by another process"
  says server.log 'ready, .* exporting disk0 \(waiting for its storage\), disk1 \(2 MiB\), iso \(waiting'
  opens_with disk0 16 || fail "OPEN of what waits: $(<opened), not EBUSY"
  opens_with iso 16 || fail "OPEN of what waits along: $(<opened), not EBUSY"
  opens_with disk1 0 || fail "OPEN of what is free: $(<opened)"
  start_nbdkit "$plugin" "server=$address" dynamic-export=true
  limited /usr/bin/python3 - "$socket" >list <<'PY'
import nbd, sys
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(sys.argv[1])
h.opt_list(lambda name, description: print(name))
h.opt_abort()
PY
  echo disk1 | diff - list # what waits is left out
  stop nbdkit
  "${ctl_command[@]}" "$PWD/control" status | tee status
  says status '^disk0 +waiting +- +no +.*in use by another process'
  says status '^disk1 +open +2097152 +no +- +- +[0-9a-f-]{36} +-$'

  kill_hard holder
  eventually 10 grep -q " rnbd-server: export 'disk0' is served now" server.log
  eventually 10 grep -q "rnbd-server: export 'iso' is served now" server.log
  opens_with disk0 0 || fail "OPEN of what is free now: $(<opened)"
  "${ctl_command[@]}" "$PWD/control" status | tee status
  says status '^disk0 +open +1048576 +no +- +- +[0-9a-f-]{36} +-$'
  says status '^iso +open +1048576 +yes +- +- +[0-9a-f-]{36} +-$'
  [[ $(grep -c "warning: export 'disk0'.*in use" server.log) == 2 ]] || fail "it is told again and again"
}
it "in use: the server comes up without that export, which is busy until its storage is free" waits

waits_shortly() {
  truncate -s 1M image
  hold image
  : >server.log
  spawn free bash -c "until grep -q 'waiting for it' server.log; do sleep 0.02; done
    kill -KILL ${pid[holder]}"
  start_server --export "disk0=$PWD/image"
  says server.log "'disk0'.*in use.*waiting for it"
  says server.log 'ready, .* exporting disk0 \(1 MiB\)$'
  ! grep -q 'not served yet' server.log || fail "it did not wait"
  expect_gone free 0
  wait_end holder 10
}
it "in use: what is free soon is waited for before clients are let in" waits_shortly

leaves_waiting() {
  truncate -s 1M image
  hold image
  start_server --export "disk0=$PWD/image"
  stop server 2
  spawn server "${server_command[@]}" --listen tcp:127.0.0.1:0 --export "disk0=$PWD/image"
  wait_for_line server.log 'waiting for it'
  stop server 2
  kill_hard holder
}
it "in use: SIGTERM ends the waiting" leaves_waiting

waits_and_wrong() {
  truncate -s 1M image
  hold image
  status_of 2 "$server_program" --listen tcp:127.0.0.1:0 --export "a=$PWD/image" \
    --export "b=$PWD" --export c=memory:12Q
  says said "'b'.*directory"
  says said "'c'.*12Q"
  status_of 1 "$server_program" --check-config --export "a=$PWD/image" --export "b=$PWD/missing"
  says said "error: export 'b': .*there is no such file"
  status_of 0 "$server_program" --check-config --export "a=$PWD/image" --export b=memory:1M
  says said "warning: export 'a': .*in use by another process"
  says said 'correct, exporting a \(waiting for its storage\), b \(1 MiB\)'
  kill_hard holder
}
it "in use: what is asked for wrongly ends the start and is told completely, and --check-config tells" waits_and_wrong

manager_hears() {
  truncate -s 1M image
  cat >manager.py <<'PY'
import fcntl, os, signal, socket, subprocess, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(60)
image = open("image", "r+b")
fcntl.flock(image, fcntl.LOCK_EX)
child = subprocess.Popen(sys.argv[2:], env=dict(os.environ, NOTIFY_SOCKET=sys.argv[1]))
print(s.recv(4096).decode().replace("\n", "|"))
image.close()
print(s.recv(4096).decode().replace("\n", "|"))
child.send_signal(signal.SIGTERM)
print(s.recv(4096).decode().replace("\n", "|"))
sys.exit(child.wait())
PY
  /usr/bin/python3 manager.py "$PWD/notify" "${server_command[@]}" --listen tcp:127.0.0.1:0 \
    --export "a=$PWD/image" --export b=memory:1M >told
  printf '%s\n' 'READY=1|STATUS=exporting a (waiting for its storage), b (1 MiB)|' \
    'STATUS=exporting a (1 MiB), b (1 MiB)|' 'STOPPING=1|' | diff - told
}
it "systemd: READY=1 when it listens, the status tells what waits, and that it is there" manager_hears

finish
