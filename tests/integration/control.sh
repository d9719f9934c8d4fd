#!/bin/bash
# The control socket: paths come, go and are seen while a session works, and what else is said to it.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

# ---- Helpers --------------------------------------------------------------------------------------

ctl() { limited "${ctl_command[@]}" "$control" "$@"; }

# attach_controlled DEVICE [PARAMETERS...]: the same as attach, with the control socket $control.
attach_controlled() {
  control=$case_dir/control
  attach "$1" "control=$control" "heartbeat=$((100 * slow))ms" reconnect-min=20ms \
    reconnect-max=200ms "${@:2}"
  eventually 20 listens # nbdkit says that it is ready a moment before
}
listens() { ctl help >/dev/null 2>&1; }

# status_has EXPRESSION: true of `rnbd-ctl --json status`, in Python; `s` is all of it, `path(ADDRESS)`
# a path, `paths` their addresses.
status_has() {
  ctl --json status >status.json || fail "no status"
  /usr/bin/python3 -c '
import json, sys
s = json.load(open("status.json"))
paths = [p["address"] for p in s["paths"]]
def path(address):
    return next(p for p in s["paths"] if p["address"] == address)
sys.exit(not eval(sys.argv[1]))
' "$1" 2>status.err
}
is_so() { status_has "$1" || fail "not so: $1: $(<status.json) $(<status.err)"; }
becomes() { eventually 20 status_has "$1"; }

# refused ERROR COMMAND...: the answer is this error, with a sentence.
refused() {
  local error=$1 rc=0
  shift
  ctl --json "$@" >refused.json || rc=$?
  cat refused.json
  ((rc == 1)) || fail "status $rc: $*"
  grep -qE "^\{\"error\":\"$error\",\"message\":\"[^\"]{10,}" refused.json || fail "not $error: $*"
}

# serve_two: a server, and the addresses of two paths to it, $one and $two.
serve_two() {
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  one=tcp:127.0.0.1:$port
  two=tcp:127.0.0.2@127.0.0.1:$port
}

# ---- Nobody is there ----------------------------------------------------------------------------------

nobody_there() {
  requires_python nbd
  serve_two
  stop server
  one=tcp:127.0.0.3@127.0.0.1:$port
  # With its identity known, other paths than the one in the URI may find the server.
  attach_controlled disk0 "path=$one" "path=$two" server-id=0123456789abcdef connect-timeout=3600s
  spawn client /usr/bin/python3 -m nbd -u "$uri"
  becomes "all(path(p)['state'] == 'connecting' and 'refused' in path(p)['trouble'] for p in ['$one', '$two'])"
  local log=nbdkit.log # of either face
  says "$log" "path $one: .*: Connection refused .*tried again until 3600 s have passed"
  says "$log" "path $two: .*: Connection refused .*tried again until 3600 s have passed"
  kill_hard client
  becomes "path('$one')['state'] == 'idle' and not s['trouble'] and 'refused' in path('$one')['trouble']"
}
it "while a client waits for servers that are not there, status and log say why of each path" nobody_there

may_only_join() {
  requires_python nbd
  serve_two
  stop server
  two=tcp:127.0.0.2:$port # another address: without its identity it may join only what the first one found
  attach_controlled disk0 "path=$two" connect-timeout=3600s
  spawn client /usr/bin/python3 -m nbd -u "$uri"
  becomes "'refused' in path('$one')['trouble'] and 'can join' in path('$two')['trouble']"
  kill_hard client
  becomes "path('$one')['state'] == 'idle' and 'can join' in path('$two')['trouble']"
}
it_plugin "status tells of a path that is not tried what it waits for" may_only_join

found_dead() {
  serve_two
  attach_controlled disk0 path=tcp:127.0.0.1:1 connect=now
  is_so "path('$one')['trouble'] == '' and 'refused' in path('tcp:127.0.0.1:1')['trouble']"
}
it_plugin "status tells of a path that was found dead at the start, while there is no session" found_dead

# ---- Paths under load ---------------------------------------------------------------------------------

moves() {
  requires_python nbd
  serve_two
  attach_controlled disk0
  start_writers
  is_so "paths == ['$one'] and path('$one')['in_use']"

  ctl add-path "$two"
  becomes "path('$two')['state'] == 'connected' and path('$two')['in_use']"
  progress 20
  is_so "path('$one')['requests'] > 0 and path('$two')['requests'] > 0"
  is_so "path('$two')['access'] == 'optimized' and path('$two')['trouble'] == ''"

  ctl remove-path "$one"
  is_so "paths == ['$two']"
  progress 20
  is_so "path('$two')['in_flight'] <= s['queue_depth']"

  local policy
  ctl add-path "$one"
  becomes "path('$one')['in_use']"
  for policy in round-robin min-latency min-inflight; do
    ctl policy "$policy"
    is_so "s['policy'] == '$policy'"
    progress 20
  done

  ctl disconnect "$two"
  is_so "path('$two')['state'] == 'disconnected' and not path('$two')['in_use']"
  is_so "'command' in path('$two')['trouble'] and path('$one')['in_use']"
  progress 20
  is_so "path('$two')['in_flight'] == 0"
  ctl reconnect "$two"
  becomes "path('$two')['in_use'] and path('$two')['trouble'] == ''"
  progress 20
  end_writers
  # Measured by then; and nobody waits for anything.
  becomes "path('$one')['latency_us'] and path('$one')['in_flight'] + path('$two')['in_flight'] == 0"
}
it "paths come and go under load, the policy changes, and status says so" moves

preferred() {
  requires_python nbd
  serve_two
  attach_controlled disk0 settle-time=0
  start_writers
  progress 5
  ctl add-path "$two,preference=-1"
  is_so "path('$one')['in_use'] and path('$one')['preference'] == 0"
  becomes "path('$two')['state'] == 'connected'"
  is_so "not path('$two')['in_use'] and path('$two')['preference'] == -1"
  ctl disconnect "$one"
  becomes "path('$two')['in_use']"
  progress 20
  ctl reconnect "$one"
  becomes "path('$one')['in_use'] and not path('$two')['in_use']"
  ctl remove-path "$two"
  ctl add-path "$two,preference=1"
  becomes "path('$two')['in_use'] and not path('$one')['in_use']"
  progress 20
  end_writers
  refused EINVAL add-path "$two,preference=10"
}
it_plugin "a path with a lower preference is a spare one" preferred

back_and_forth() {
  requires_python nbd
  serve_two
  attach_controlled disk0 policy=round-robin
  start_writers
  local i used=$one spare=$two keep
  for i in {1..10}; do
    ctl add-path "$spare"
    becomes "path('$spare')['in_use']"
    ctl remove-path "$used"
    progress 5
    keep=$used used=$spare spare=$keep
  done
  end_writers
  is_so "paths == ['$used']"
}
it_plugin "a session moves between two paths ten times, and no write is lost" back_and_forth

without_extension() {
  requires_python nbd
  serve_two
  attach_controlled disk0 extensions=no
  start_writers
  local i used=$one spare=$two keep
  for i in {1..3}; do
    ctl add-path "$spare"
    becomes "path('$spare')['in_use']"
    ctl remove-path "$used"
    becomes "paths == ['$spare']"
    progress 5
    keep=$used used=$spare spare=$keep
  done
  end_writers
}
it_plugin "the same with a server that cannot tell a copy from a new write" without_extension

# ---- Without a working path ----------------------------------------------------------------------------

# Three paths fit into the server's memory. One dies ten times over a read that hangs, each time with all
# of its chunks in use shortly before.
storage_hangs() {
  requires_python nbd
  start_server --export disk0=delay:read=3600s:memory:16M --export other=memory:1M --queue-depth 64 \
    --memory-limit 9M --control server.sock
  attach_controlled disk0 lanes=1
  local one=tcp:127.0.0.1:$port i before
  spawn reader /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pread(65536, 0)' "$uri"
  for i in {1..10}; do
    becomes "path('$one')['state'] == 'connected' and path('$one')['in_flight'] > 0"
    nbdsh <<'PY'
all = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"x" * 262144)), at << 18) for at in range(60)]
while all:
    h.poll(-1)
    all = [cookie for cookie in all if not h.aio_command_completed(cookie)]
PY
    [[ -n ${before:-} ]] || before=$(rss server)
    ctl disconnect "$one"
    ctl reconnect "$one"
  done
  limited "${ctl_command[@]}" server.sock --json status >server.json
  /usr/bin/python3 -c '
import json
memory = json.load(open("server.json"))["memory"]
assert memory <= 64 * 12288 + 8 * 262144 + 10 * 65536, memory'
  [[ -n $sanitizer ]] || (($(rss server) < before + 4096)) ||
    fail "the server grew from $before to $(rss server) kB"
  nbdkit_name=second attach other lanes=1
  writes || fail "nobody else is let in"
  kill_hard reader
}
it_plugin "paths that are lost while storage hangs leave the server's memory to others" storage_hangs

unreachable() {
  serve_two
  attach_controlled disk0
  nbdinfo --size "$uri"
  ctl add-path tcp:127.0.0.1:1
  becomes "path('tcp:127.0.0.1:1')['trouble'] != ''"
  is_so "path('tcp:127.0.0.1:1')['state'] in ('connecting', 'waiting')"
  is_so "path('tcp:127.0.0.1:1')['access'] is None and not path('tcp:127.0.0.1:1')['in_use']"
  ctl remove-path tcp:127.0.0.1:1
  is_so "paths == ['$one']"
}
it_plugin "a path that leads nowhere is shown with its trouble, and can be removed" unreachable

before_the_first() {
  serve_two
  address=127.0.0.1:1 attach_controlled disk0 connect-timeout=500ms
  is_so "s['session'] is None and s['devices'] == [] and path('tcp:127.0.0.1:1')['state'] == 'idle'"
  fails nbdinfo --size "$uri"
  becomes "s['session'] is None and s['trouble'] != ''"
  ctl add-path "$one"
  ctl remove-path tcp:127.0.0.1:1
  [[ $(nbdinfo --size "$uri") == 16777216 ]] || fail "another size"
  is_so "s['session'] and paths == ['$one'] and s['trouble'] == ''"
  ctl disconnect "$one"
  is_so "path('$one')['state'] == 'disconnected'"
}
it_plugin "what is changed before there is a session holds for the one to come" before_the_first

no_path_left() {
  requires_python nbd
  serve_two
  attach_controlled disk0
  start_writers
  is_so "s['trouble'] == ''"
  ctl disconnect "$one"
  becomes "s['session'] and s['trouble'].startswith('no path may carry I/O')"
  ctl reconnect "$one"
  becomes "s['trouble'] == ''"
  end_writers
}
it_plugin "while no path may carry I/O the session has its trouble, and not for longer" no_path_left

# ---- What is said --------------------------------------------------------------------------------------

people() {
  requires_python nbd
  serve_two
  attach_controlled disk0
  nbdsh <<PYTHON
import subprocess
text = subprocess.run(["$ctl_program", "$control", "status"], check=True, capture_output=True,
                      text=True, env={}).stdout if not "$sanitizer" else ""
print(text)
if text:
    rows = [line.split() for line in text.splitlines()]
    assert ["policy:", "min-inflight"] in rows, text
    assert rows[rows.index(next(r for r in rows if r[:1] == ["ADDRESS"])) + 1][:4] == \
        ["$one", "connected", "0", "yes"], text
    assert ["disk0", "16777216", "rw", "1", "-"] in [r[:3] + r[4:] for r in rows], text  # but for its UUID
PYTHON
  [[ -z $(ctl add-path "$two") ]] || fail "said something"
  ctl help | tee help.txt
  says help.txt '^add-path \[tcp:'
  status_of 1 "${ctl_command[@]}" "$control" remove-path tcp:127.0.0.9:9
  says said "^rnbd-ctl: there is no path tcp:127.0.0.9:9; there are $one, "
  status_of 1 "${ctl_command[@]}" "$control.not" status
  says said 'was the program started with a control socket there'
  status_of 2 "${ctl_command[@]}" "$control"
  status_of 2 "${ctl_command[@]}" --jsno "$control" status
  says said 'did you mean --json'
}
it "people read tables, and sentences that say what to do" people

refusals() {
  serve_two
  attach_controlled disk0
  nbdinfo --size "$uri"
  refused EEXIST add-path "$one"
  refused EBUSY remove-path "$one"
  refused ENOENT remove-path "$two"
  refused ENOENT disconnect "$two"
  refused ENOENT reconnect "$two"
  refused EINVAL add-path 'x y'
  refused EINVAL add-path ::1
  refused EINVAL add-path
  refused EINVAL policy fastest
  refused EINVAL frobnicate
  refused EINVAL status now
  local i
  for i in {1..7}; do ctl add-path "tcp:127.0.0.1:$i"; done
  refused ENOSPC add-path "$two"
  refused EINVAL "$(printf '\xff\x01')"
  is_so "len(paths) == 8 and path('$one')['in_use']"
}
it "what makes no sense is refused with an errno and a sentence" refusals

# ---- The socket ------------------------------------------------------------------------------------------

socket_file() {
  start_server --export disk0=memory:1M
  attach_controlled disk0
  [[ $(stat -c %a:%F "$control") == 600:socket ]] || fail "the socket is $(stat -c %a:%F "$control")"
  kill_hard nbdkit
  [[ -S $control ]] || fail "where did it go?"
  nbdkit_name=second attach_controlled disk0
  nbdinfo --size "$uri"
  is_so "s['session']"
  stop second
  [[ ! -e $control ]] || fail "the socket is still there"
}
it "the socket is its owner's, replaces one that was left behind, and goes with the program" socket_file

occupied() {
  start_server --export disk0=memory:1M
  attach_controlled disk0
  local first=$uri
  nbdkit_name=other bridge_name=other attach_to "rnbd+tcp://$address/disk0" "control=$control"
  says other.log "control socket $control: .*another program listens there.*; it is tried again"
  [[ $(nbdinfo --size "$uri") == 1048576 ]] || fail "the disk is not served"
  [[ $(nbdinfo --size "$first") == 1048576 ]]
  is_so "s['session']"
}
it "a socket that another program listens on is left alone, and the disk is served" occupied

no_place() {
  echo text >file
  status_of 1 "${server_command[@]}" --listen tcp:127.0.0.1:0 --export disk0=memory:1M --state-directory "$PWD/state" --control "$PWD/file"
  says said 'control socket .*/file: what is there is no socket, choose another path'
  [[ $(<file) == text ]] || fail "the file is not what it was"
}
it_plugin "a control socket where a file is, which no waiting mends, ends the program at its start" no_place

no_socket() {
  echo text >file
  control=$PWD/file
  status_of 1 "${ctl_command[@]}" "$control" status
  says said "file: this is no socket; name what the program was given as --control"
  control=$PWD/nothing
  status_of 1 "${ctl_command[@]}" "$control" status
  says said 'No such file or directory; was the program started with a control socket there'
}
it_plugin "rnbd-ctl says of a file that it is no socket" no_socket

# As of a command that a program refuses.
nobody_as_json() {
  touch plain
  local socket
  for socket in nobody.control plain; do
    status_of 1 "${ctl_command[@]}" --json "$PWD/$socket" status
    python3 -c '
import json, sys
answer = json.load(open("said"))
assert answer["error"] in ("ENOENT", "ECONNREFUSED"), answer
assert answer["message"].startswith(sys.argv[1] + ": "), answer' "$PWD/$socket"
  done
}
it_plugin "with --json also a program that is not there is told in JSON" nobody_as_json

hostile() {
  start_server --export disk0=memory:1M
  attach_controlled disk0
  nbdinfo --size "$uri"
  limited /usr/bin/python3 - "$control" <<'PYTHON'
import json, os, random, socket, sys
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    return s
dice = random.Random(1)
for _ in range(200):
    s = connect()
    try:
        s.sendall(bytes(dice.randrange(256) for _ in range(dice.randrange(6000))) + b"\n")
        if dice.random() < .5:
            answer = json.loads(s.makefile("rb").readline())
            assert "error" in answer, answer
    except (ConnectionResetError, BrokenPipeError):
        pass
    s.close()
hogs = [connect() for _ in range(40)]
for hog in hogs[:16]:
    hog.send(b"sta")
deaf = [connect() for _ in range(8)]
for s in hogs:
    s.close()
for s in deaf:
    s.setblocking(False)
    try:
        while True:
            s.send(b"status\n" * 100)
    except OSError:
        pass
PYTHON
  nbdinfo --size "$uri"
  becomes "s['session'] and len(paths) == 1"
}
it "garbage, hogs and peers that do not read harm nobody" hostile

finish
