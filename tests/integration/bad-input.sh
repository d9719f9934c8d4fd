#!/bin/bash
# What people and networks do wrong: a clear message that says what to do, the right status or
# errno, and the server serves the next client as if nothing had been.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

raw() {
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - "$port"
}

# ---- rnbd-server's command line and configuration ----------------------------------------------------

# rejects REGEX ARGUMENTS...: rnbd-server ends with an error status and a message that matches.
rejects() {
  local regex=$1
  shift
  fails timeout 20 "$server_program" "$@"
  says fails.out "$regex"
}

bad_server_arguments() {
  random_file image 1M
  mkdir directory
  rejects 'nothing to export' --listen tcp:127.0.0.1:0
  rejects 'missing\.img.*no such file' --check-config --export "a=$PWD/missing.img"
  # A command that makes the mistyped file is none to follow at once.
  truncate -s 1M backup.img
  rejects "bakcup\.img: there is no such file; the most similar name beside it is 'backup.img'; if the path is right, and the file is to be created: 'truncate -s SIZE .*bakcup.img'" \
    --check-config --export "a=$PWD/bakcup.img"
  rejects 'directory' --listen tcp:127.0.0.1:0 --export "a=$PWD/directory"
  rejects 'NAME=' --listen tcp:127.0.0.1:0 --export "$PWD/image"
  rejects 'twice' --listen tcp:127.0.0.1:0 --export "a=$PWD/image" --export a=memory:1M
  rejects "leave ',rw' out" --listen tcp:127.0.0.1:0 --export "a=$PWD/image,rw"
  rejects '12Q' --listen tcp:127.0.0.1:0 --export a=memory:12Q
  rejects 'write-eoi' --listen tcp:127.0.0.1:0 --export a=fault:write-eoi=1:memory:1M
  rejects 'delay' --listen tcp:127.0.0.1:0 --export a=delay:read=fast:memory:1M
  rejects 'nbd' --check-config --export "a=nbd:nbd+unix:///?socket=$PWD/nobody"
  rejects 'no NBD URI' --listen tcp:127.0.0.1:0 --export a=nbd:somewhere
  rejects 'component' --listen tcp:127.0.0.1:0 --export "../a=$PWD/image"
}
it "rnbd-server: exports that cannot be are refused with the reason" bad_server_arguments

bad_server_options() {
  rejects 'no-such-option' --no-such-option --export a=memory:1M
  rejects 'queue-depth' --listen tcp:127.0.0.1:0 --export a=memory:1M --queue-depth many
  rejects '4096' --listen tcp:127.0.0.1:0 --export a=memory:1M --max-io-size 5000
  rejects 'memory.limit' --listen tcp:127.0.0.1:0 --export a=memory:1M --memory-limit 1M
  rejects 'at most 253 characters' --listen "tcp:$(printf 'a%.0s' {1..5000}):1" --export a=memory:1M
  rejects "host 'no-such-host.invalid'" --check-config --listen tcp:no-such-host.invalid:1 --export a=memory:1M
  ! grep correct fails.out || fail "it is correct, and nobody could connect"
  rejects 'tcp:' --listen udp:127.0.0.1:0 --export a=memory:1M
  rejects 'search' --check-config --search-path "$PWD/missing"
  rejects 'no-keys: No such file' --check-config --export a=memory:1M,rw=x --tls-psk "$PWD/no-keys"
  rejects 'search' --listen tcp:127.0.0.1:0 --search-path "$PWD/x%SESSNAME%"
  mkdir served
  rejects 'name another --state-directory' --listen tcp:127.0.0.1:0 --search-path "$PWD/served/%SESSNAME%" \
    --state-directory "$PWD/served/state"
  mkdir -p kept/failed-flushes
  rejects 'kept/failed-flushes: Is a directory' --listen tcp:127.0.0.1:0 --export a=memory:1M \
    --state-directory "$PWD/kept"
}
it "rnbd-server: options that cannot be are refused with the reason" bad_server_options

links_in_state_directory() {
  local state=$PWD/state start=(--listen tcp:127.0.0.1:0 --export a=memory:1M --state-directory "$PWD/state")
  mkdir -p "$state/writers"
  echo precious >outside
  ln -s "$PWD/made" "$state/writers/.lock"
  rejects 'writers/.lock: is not a regular file' "${start[@]}"
  [[ ! -e made ]] || fail "what the link leads to was made"
  rm "$state/writers/.lock"
  ln -s "$PWD/outside" "$state/failed-flushes"
  rejects 'failed-flushes: is not a regular file' "${start[@]}"
  rm "$state/failed-flushes"
  mkfifo "$state/failed-flushes"
  rejects 'failed-flushes: is not a regular file' "${start[@]}"
  rm "$state/failed-flushes"
  rm -f "$state/writers/.lock" # which the starts above have made
  mkfifo "$state/writers/.lock"
  rejects 'writers/.lock: is not a regular file' "${start[@]}"
  rm "$state/writers/.lock"
  random_file image 1M
  start_server --export "disk0=$PWD/image" --state-directory "$state"
  raw <<'PY'
import sys
from raw_peer import *
session = Session(int(sys.argv[1]), features=USER_MESSAGES | EXACTLY_ONCE)
session.open(b"disk0")
PY
  local record
  record=$(find "$state/writers" -type f -size +0 ! -name '.*' -printf '%f\n')
  [[ -n $record ]] || fail "no record was made: $(ls -R "$state")"
  ln -s "$PWD/outside" "$state/writers/$record.new"
  raw <<'PY'
import errno, sys
from raw_peer import *
session = Session(int(sys.argv[1]), features=USER_MESSAGES | EXACTLY_ONCE)
try:
    session.open(b"disk0")
    raise AssertionError("the record could be written")
except OSError as error:
    assert error.errno == errno.EIO, error
PY
  [[ $(<outside) == precious ]] || fail "what the link leads to was overwritten"
}
it "rnbd-server: links and FIFOs in the state directory are not followed nor waited for" links_in_state_directory

shown_as_text() {
  printf '[export."\\u001b[2Jx\\nrnbd-server: forged"]\nstorage = "memory:1M"\n' >name.toml
  rejects 'x1b\[2Jx.x0arnbd-server: forged' --config "$PWD/name.toml" --check-config
  rejects 'x1b\[2J' --listen tcp:127.0.0.1:0 --export $'\e[2J=memory:1M'
  rejects 'xe2.x80.xae' --listen tcp:127.0.0.1:0 --export a=memory:1M --queue-depth $'1\u202e2'
  printf '[export.a]\npath = "/etc/passwd\\u0000.img"\n' >nul.toml
  rejects 'path: has a NUL inside' --config "$PWD/nul.toml" --check-config
  printf '[server]\nlisten = ["tcp:127.0.0.1:0\\u0000"]\n[export."a\\u0000"]\nstorage = "memory:1M"\n' >nuls.toml
  rejects 'listen: has a NUL inside' --config "$PWD/nuls.toml" --check-config
  says fails.out 'a key with a NUL inside'
}
it "rnbd-server: what configuration and command line bring is shown as text, NULs are refused" shown_as_text

too_large_limit() {
  "$server_program" --export a=memory:1M --memory-limit 1000T --check-config >check.out 2>&1
  says check.out 'warning: memory-limit is .* bytes, and this machine has'
  "$server_program" --export a=memory:1M --memory-limit 100M --check-config >check.out 2>&1
  ! grep 'warning: memory-limit' check.out || fail "a limit that fits is warned of"
}
it "rnbd-server: a memory limit beyond the machine's memory is warned of" too_large_limit

busy_port() {
  start_server --export a=memory:1M
  rejects "$port.*(in use|another)" --listen "tcp:127.0.0.1:$port" --export a=memory:1M
  attach a
  nbdinfo --size "$uri"
}
it "rnbd-server: a busy port is named, and its owner is not disturbed" busy_port

bad_config() {
  rejects 'missing\.toml' --config "$PWD/missing.toml"
  rejects '/dev/zero: File too large' --config /dev/zero
  printf '[server]\nlisten = ["tcp:127.0.0.1:0"]\nqueue-dept = 3\n' >key.toml
  rejects 'key\.toml:3.*queue-dept' --config "$PWD/key.toml"
  printf '[server\nlisten = 1\n' >syntax.toml
  rejects 'syntax\.toml:1' --config "$PWD/syntax.toml"
  printf '[server]\nsearch-path = "/srv/rnbd\nqueue-depth = 64\n' >quote.toml
  rejects 'quote\.toml:2:15: .*no closing quote; end it with "' --config "$PWD/quote.toml"
  printf '[server]\nlisten = ["tcp:127.0.0.1:0"]\nmemory-limit = "much"\n' >value.toml
  rejects 'value\.toml:3.*memory-limit' --config "$PWD/value.toml"
}
it "rnbd-server: a configuration file's mistakes are named with file, line and key" bad_config

# ---- nbdkit rnbd's parameters ---------------------------------------------------------------------------

plugin_rejects() {
  local regex=$1
  shift
  fails timeout 20 "${nbdkit_command[@]}" -f -U - "$plugin" "$@" --run 'exit 0'
  says fails.out "$regex"
}

bad_plugin_parameters() {
  plugin_rejects 'no server is named'
  plugin_rejects "unknown parameter 'devise'" server=127.0.0.1 devise=disk0
  plugin_rejects 'no device is named' server=127.0.0.1
  plugin_rejects 'rnbd' uri=http://127.0.0.1/disk0
  plugin_rejects 'port' rnbd+tcp://127.0.0.1:99999/disk0
  plugin_rejects 'access.*write' rnbd+tcp://127.0.0.1/disk0 access=write
  plugin_rejects 'connect-timeout' rnbd+tcp://127.0.0.1/disk0 connect-timeout=soon
  plugin_rejects 'session' rnbd+tcp://127.0.0.1/disk0 session=a/b
  plugin_rejects 'not both' rnbd+tcp://127.0.0.1/disk0 server=127.0.0.1
}
it "nbdkit rnbd: parameters that cannot be are refused with the reason" bad_plugin_parameters

# ---- The plugin and peers that are no rnbd-server -----------------------------------------------------------

# client_fails REGEX DEVICE [PARAMETERS...]: an NBD client of $address is refused, nbdkit says why
# and lives on.
client_fails() {
  local regex=$1 device=$2
  shift 2
  attach "$device" connect-timeout=500ms "$@"
  fails nbdinfo "$uri"
  fails nbdinfo "$uri"
  says nbdkit.log "$regex"
  stop nbdkit
}

no_such_export() {
  start_server --export disk0=memory:1M
  client_fails "'disk1'.*search path: nbdkit -r -U - rnbd rnbd\\+tcp://$address dynamic-export=true" disk1
  attach disk0
  nbdinfo --size "$uri"
  # Each program says how itself shows the exports: not every machine has nbdkit.
  status_of 1 "$bridge_program" --listen "unix:$PWD/other" --connect now "rnbd+tcp://$address/disk1"
  says said "'disk1'.*search path: rnbd-ctl discover rnbd.tcp://"
}
it "no such export: the client is refused and nbdkit names the export" no_such_export

# Where no name server is there, it may come: until connect-timeout.
no_such_host() {
  status_of 1 "$bridge_program" --listen "unix:$PWD/other" --connect now --connect-timeout 2s \
    rnbd+tcp://no-such-host.invalid/disk0
  says said "error: .*host 'no-such-host.invalid'"
  fails "${nbdkit_command[@]}" -U - "$plugin" rnbd+tcp://no-such-host.invalid/disk0 connect=now connect-timeout=2s --run true
  says fails.out "error: .*host 'no-such-host.invalid'"
}
it "no such host: connect=now fails in time and names the host" no_such_host

nobody_listens() {
  start_server --export disk0=memory:1M
  stop server
  client_fails "$address.*[Cc]onnection refused" disk0
}
it "nobody listens: the client is refused and nbdkit says so" nobody_listens

# A listener on a free port; the Python in $1 handles each connection `c`.
start_stranger() {
  local read write
  pipe read write
  spawn stranger /usr/bin/python3 -c "
import os, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
s = socket.create_server(('127.0.0.1', 0))
os.write(int(sys.argv[1]), b'%d\n' % s.getsockname()[1])
kept = []
while True:
    c, _ = s.accept()
    kept.append(c)
    try:
        $1
    except OSError:
        pass
" "$write"
  exec {write}>&-
  await_line "$read" 10
  address=127.0.0.1:$line
}

stranger() {
  start_stranger "$1"
  client_fails "$2" disk0
}
it "a peer that closes at once" stranger 'c.close()' 'clos|reset'
it "a peer that says nothing" stranger 'pass' 'tim|answer'
it "a peer that speaks HTTP" stranger \
  'c.recv(4096); c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 500); c.close()' \
  'does not speak RTRS'
it "a peer that speaks SSH" stranger \
  'c.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n" + b"x" * 500)' 'does not speak RTRS'
it "a peer that sends back what it gets" stranger 'c.sendall(c.recv(76))' 'disk0|127.0.0.1'
it "a peer that sends random bytes" stranger 'c.sendall(os.urandom(4096))' \
  'does not speak RTRS'

an_nbd_server() {
  nbdkit_name=inner start_nbdkit memory 1M
  start_stranger "u = socket.socket(socket.AF_UNIX); u.connect('$socket'); c.sendall(u.recv(99)); u.close()"
  client_fails 'does not speak RTRS' disk0
}
it "a peer that is an NBD server" an_nbd_server

an_nbd_client() {
  start_server --export disk0=memory:1M --handshake-timeout 300ms
  fails limited nbdinfo "nbd://$address"
  says server.log 'no handshake \(it said nothing; so do NBD clients, which need nbdkit or rnbd-bridge'
}
it "a peer that is an NBD client" an_nbd_client

# ---- Crowds and stalls ------------------------------------------------------------------------------------

# raw: Python with raw_peer; $port is its first argument.
stalled_handshakes() {
  start_server --export disk0=memory:1M --handshake-timeout 300ms
  raw <<'PY'
import sys
from raw_peer import *
port = int(sys.argv[1])
silent = Wire(port)
half = Wire(port)
half.send(b"RTRS-TCP" + bytes(20))
accepted = Session(port, info=False)
lonely = Wire(port)
lonely.hello(connect_request(0, 8, session_uuid=b"lonely----------"))
assert lonely.hello_answer()["error"] == 0
silent.expect_close()
half.expect_close()
lonely.expect_close()
accepted.expect_close()
good = Session(port)
device, _ = good.open(b"disk0")
assert good.read(device, 0, 512)[0] == 0
PY
}
it "handshakes that stall, at any point, are closed at the deadline" stalled_handshakes

trickle() {
  start_server --export disk0=memory:1M --handshake-timeout 500ms
  raw <<'PY'
import sys, time
from raw_peer import *
wire = Wire(int(sys.argv[1]))
body = b"RTRS-TCP" + bytes(68)
try:
    while True:  # one byte now and then must not buy more time
        wire.send(body[:1])
        body = body[1:] or b"x"
        wire.socket.settimeout(0.05)
        try:
            if not wire.socket.recv(1):
                break
        except socket.timeout:
            pass
except (Closed, ConnectionResetError):
    pass
PY
  attach disk0
  nbdinfo --size "$uri"
}
it "a handshake that trickles in is closed at the deadline, too" trickle

too_many_connections() {
  start_server --export disk0=memory:1M --max-connections 8
  raw <<'PY'
import errno, sys
from raw_peer import *
port = int(sys.argv[1])
first = Session(port, cids=4)
device, _ = first.open(b"disk0")
crowd = [Wire(port) for _ in range(20)]
for wire in crowd[:16]:  # those that came first
    wire.expect_close()
half = [Session(port, cids=2, info=False) for _ in range(20)]
for session in half[:18]:
    session.expect_close()
second = Session(port, cids=4)
assert second.read(second.open(b"disk0", RO)[0], 0, 512)[0] == 0
try:
    Session(port)
    raise AssertionError("nobody is left who could make room")
except OSError as error:
    assert error.errno == errno.ENOMEM, error
assert first.read(device, 0, 512)[0] == 0
second.close()
# Room comes back when the server has seen them go.
for attempt in range(200):
    try:
        third = Session(port, cids=4)
        break
    except OSError as error:
        assert error.errno == errno.ENOMEM, error
assert third.read(third.open(b"disk0", RO)[0], 0, 512)[0] == 0
PY
}
it "beyond the limit the oldest connection makes room that has not introduced itself, and no other" \
  too_many_connections

full_of_connections() {
  requires_python nbd
  start_server --export disk0=memory:1M --max-connections 6
  attach disk0 lanes=4
  spawn holder /usr/bin/python3 -u -c '
import nbd, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
print("held")
signal.pause()' "$uri"
  wait_for_line holder.out held
  local i
  for ((i = 0; i < 3; ++i)); do
    refused_client "rnbd+tcp://$address/disk0" 'it is full: .*--max-connections'
  done
  says server.log 'refused: its [0-9]+ connections are too many beside 5 others .--max-connections.'
  kill_hard holder
}
it "a client for whose connections there is no room hears the name of the limit" full_of_connections

memory_limit() {
  # One session takes 16 x (64K + 4K) = 1088K: there is room for two.
  start_server --export disk0=memory:1M --queue-depth 16 --max-io-size 64K --memory-limit 2200K
  raw <<'PY'
import errno, sys
from raw_peer import *
port = int(sys.argv[1])
one, two = Session(port), Session(port)
for _ in range(20):
    try:
        Session(port)
        raise AssertionError("a third session fits into the limit")
    except OSError as error:
        assert error.errno == errno.ENOMEM, error
assert one.read(one.open(b"disk0")[0], 0, 512)[0] == 0
two.close()
for attempt in range(1000):
    try:
        three = Session(port)
        break
    except OSError as error:
        assert error.errno == errno.ENOMEM, error
assert three.read(three.open(b"disk0", RO)[0], 0, 512)[0] == 0
PY
}
it "the memory limit refuses a session with ENOMEM, and admits it when another has left" memory_limit

# What a stranger can know who has seen the uuids of a client on the wire.
only_hellos() {
  start_server --export disk0=memory:1M --queue-depth 16 --max-io-size 64K --memory-limit 2200K
  raw <<'PY'
import sys
from raw_peer import *
port = int(sys.argv[1])
first = Session(port, features=USER_MESSAGES | EXACTLY_ONCE)
device, _ = first.open(b"disk0")
crowd = [Session(port, info=False) for _ in range(100)]
for again in range(100):
    wire = Wire(port)
    wire.hello(first.request(0, 2, USER_MESSAGES | EXACTLY_ONCE, reconnect=again))
    assert wire.hello_answer()["error"] == 0
    crowd.append(wire)
second = Session(port)
assert second.read(second.open(b"disk0", RO)[0], 0, 512)[0] == 0
assert first.read(device, 0, 512)[0] == 0
PY
}
it "200 that say hello and no more take no room and close nobody's path" only_hellos

idle_crowd() {
  [[ -z $sanitizer ]] || skip "a sanitizer's own memory hides the server's"
  start_server --export disk0=memory:1M --max-sessions 64
  attach disk0
  nbdinfo --size "$uri"
  local before after
  before=$(rss server)
  raw <<'PY'
import sys
from raw_peer import *
crowd = []
for i in range(500):
    wire = Wire(int(sys.argv[1]))
    try:
        if i % 2:
            wire.hello(connect_request(0, 4, session_uuid=os.urandom(16)))
        else:
            wire.send(b"RTRS")
    except Closed:
        pass
    crowd.append(wire)
PY
  after=$(rss server)
  echo "resident: $before KiB before, $after KiB after"
  ((after - before < 16 * 1024)) || fail "handshakes that were never finished cost $((after - before)) KiB"
  nbdinfo --size "$uri"
}
it "500 clients that never finish their handshake cost less than 16 MiB" idle_crowd

# nbdkit's syslog keeps what its plugin says for weeks.
reads_in_vain() {
  start_server --export disk0=fault:read-eio=1:memory:1M
  attach disk0
  nbdsh <<'PY'
for i in range(500): fails_with(errno.EIO, h.pread, 512, 0)
PY
  says nbdkit.log "read of 512 bytes at 0: Input/output error"
  (($(grep -c "read of 512 bytes" nbdkit.log) <= 20 + SECONDS / 10 + 1)) || fail "each failure is logged"
}
it "nbdkit: a client that asks in vain all the time does not fill the log" reads_in_vain

finish
