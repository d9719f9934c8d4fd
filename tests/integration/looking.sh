#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Looking at a disk is not writing to it: who lists, asks and reads keeps nobody from writing.
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/two_hosts.sh"

here=$(realpath "${BASH_SOURCE[0]%/*}")

# ---- Helpers --------------------------------------------------------------------------------------

# use_disk NAME: somebody writes to disk0 through $uri, and stays until there is a file NAME.end.
use_disk() {
  requires_python nbd
  spawn "$1" /usr/bin/python3 -B -c '
import os, sys, time, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"used" * 1024, 0)
open(sys.argv[2] + ".there", "x").close()
while not os.path.exists(sys.argv[2] + ".end"):
    time.sleep(0.05)
h.pwrite(b"done" * 1024, 0)
' "$uri" "$1"
  eventually 20 test -e "$1.there"
}
# leave_disk NAME: without an error.
leave_disk() {
  touch "$1.end"
  wait_end "$1" $((20 * slow)) || fail "$1 does not end"
  cat "$1.log"
  ((status == 0)) || fail "$1 ended with status $status"
}
answered() { [[ $(od -An -t u8 -N 8 "acked.$1" 2>/dev/null | tr -d ' ') -ge $2 ]]; }

# face_of_all NAME [FLAGS...]: a client program in front of all disks of the server, at $uri and $socket.
face_of_all() {
  local nbdkit_name=$1 nbdkit_flags=("${@:2}")
  attach_to "rnbd+tcp://$address" dynamic-export=true
}
is_json() { /usr/bin/python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$1"; }

# ---- A disk in use ----------------------------------------------------------------------------------

listed_in_use() {
  start_server --export disk0=memory:4M,description=mine --export disk1=memory:8M
  nbdkit_name=owner attach disk0
  use_disk user
  face_of_all looker
  nbdinfo --list "$uri" | tee list
  says list 'export="disk0"'
  says list 'export="disk1"'
  says list 'description: mine \(in use\)'
  nbdinfo --list --json "$uri" >list.json
  is_json list.json
  nbdsh "nbd+unix:///disk0?socket=$socket" <<'PY'
other = nbd.NBD()
other.set_opt_mode(True)
other.connect_uri(h.get_uri())
told = {}
other.opt_list(lambda name, about: told.update({name: about}))
other.opt_abort()
assert told == {"disk0": "mine (in use)", "disk1": ""}, told
PY
  leave_disk user
}
it "a list shows a disk that is in use and says so, also as JSON, and its user notices nothing" listed_in_use

looked_at_in_use() {
  requires qemu-img
  start_server --export disk0=memory:4M
  nbdkit_name=owner attach disk0
  use_disk user
  nbdkit_name=looker attach disk0
  [[ $(nbdinfo --size "$uri") == 4194304 ]]
  nbdinfo --json "$uri" >info.json
  is_json info.json
  says info.json '"is_read_only": true'
  says info.json 'another client writes to it'
  qemu-img info "$uri" | tee said
  says said 'virtual size: 4 MiB'
  nbdcopy "$uri" copy
  [[ $(head -c 4 copy) == used ]]
  leave_disk user
  ! grep -q 'another client' owner.log || fail "the user was disturbed"
}
it "size, qemu-img info and a copy of a disk in use work, and its user notices nothing" looked_at_in_use

info_only() {
  start_server --export disk0=memory:4M
  nbdkit_name=looker attach disk0
  nbdsh <<'PY'
looker = nbd.NBD()
looker.set_opt_mode(True)
looker.connect_uri(h.get_uri())
looker.set_export_name("disk0")
looker.opt_info()
assert looker.get_size() == 4194304 and not looker.is_read_only()
h.pread(4096, 0)
looker.opt_abort()
PY
  ! grep -q "): claimed" server.log || fail "somebody has claimed what he only looked at"
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
  eventually 5 grep -q "claimed 'disk0'" server.log
}
it "asking, reading and flushing reserves nothing; the first write does" info_only

# ---- Two writers --------------------------------------------------------------------------------------

second_writer() {
  requires qemu-io
  start_server --export disk0=memory:4M
  nbdkit_name=owner attach disk0
  use_disk user
  nbdkit_name=second attach disk0
  fails qemu-io -f raw -c 'write 0 4k' "$uri"
  says fails.out 'Permission denied|write permission|[Rr]ead.only'
  says second.log "'disk0': another client writes to it, so this one may only read"
  leave_disk user
  qemu-io -f raw -c 'write 0 4k' "$uri"
}
it "who attaches a disk that another one writes to hears of it at once, and may have it afterwards" second_writer

# Both look before anybody writes.
both_look() {
  requires_python nbd
  start_server --export disk0=memory:4M
  nbdkit_name=first attach disk0
  first=$uri
  nbdkit_name=second attach disk0
  first=$first nbdsh <<'PY'
first = nbd.NBD()
first.connect_uri(os.environ["first"])
assert first.pread(512, 0) == h.pread(512, 0) == bytes(512)
assert not first.is_read_only() and not h.is_read_only()
first.pwrite(b"1" * 512, 0)
try:
    h.pwrite(b"2" * 512, 0)
except nbd.Error as error:
    print("refused:", error)
else:
    raise AssertionError("both write")
first.pwrite(b"3" * 512, 512)
first.shutdown()
try:
    h.pwrite(b"2" * 512, 0)
except nbd.Error as error:
    print("refused:", error)
else:
    raise AssertionError("it writes over what it has not seen")
assert h.pread(512, 0) == b"1" * 512
PY
  says second.log "does not let 'disk0' be changed from here: another client"
  says server.log "refused to let it write to 'disk0'"
  nbdsh <<<'h.pwrite(b"2" * 512, 0)'
}
it "of two who have a disk open the first to write has it; the other is refused with a sentence until it connects anew" \
  both_look

all_at_once() {
  requires_python nbd
  start_server --export disk0=memory:4M
  attach disk0
  nbdsh <<'PY'
import threading
h.shutdown()
failures = []
def use(number, all_there):
    try:
        user = nbd.NBD()
        user.connect_uri(h.get_uri())
        user.pwrite(bytes([number]) * 512, 512 * number)
        all_there.wait(60)  # so that all have it open at the same time
        user.shutdown()
    except Exception as error:
        failures.append(f"round {turn}, client {number}: {error}")
        all_there.abort()
for turn in range(60):
    all_there = threading.Barrier(8)
    users = [threading.Thread(target=use, args=(n, all_there)) for n in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not failures, failures
PY
}
it "of eight clients of one program that attach a disk at once each may write, 60 times" all_at_once

asked_for() {
  start_server --export disk0=memory:4M
  attach disk0 access=rw
  nbdsh <<<'h.pread(512, 0)'
  says server.log "opened 'disk0' rw$"
}
it_plugin "access=rw reserves a disk when it is opened" asked_for

# ---- Hand-over ------------------------------------------------------------------------------------------

handed_over() {
  requires_python nbd
  start_server --export disk0=memory:4M
  nbdkit_name=a attach disk0 "$@"
  a=$uri
  nbdkit_name=b attach disk0 "$@"
  a=$a nbdsh <<'PY'
h.shutdown()
uris = [os.environ["a"], h.get_uri()]
for n in range(100):
    user = nbd.NBD()
    user.connect_uri(uris[n % 2])
    if n > 0:
        assert user.pread(512, 0) == b"%512d" % (n - 1), n
    user.pwrite(b"%512d" % n, 0)
    user.shutdown()
PY
}
it_plugin "a disk that one client has detached is another one's at once, 100 times" handed_over
it_plugin "... also where it is reserved when it is opened" handed_over access=rw

# ---- An outage ------------------------------------------------------------------------------------------

# Two cables between owner and server; who looks is beside the server.
looked_at_in_outage() {
  requires_python nbd
  two_hosts
  local at_far=(ip netns exec "$far") i
  truncate -s 16M image
  start_server --listen tcp:10.99.0.1:0 --export "disk0=$PWD/image" --export other=memory:1M
  local first=
  first=$(logged server.log '10\.99\.0\.1:[0-9]+')
  nbdkit_name=owner attach_to "rnbd+tcp://$first/disk0" no-path-timeout=60s
  spawn writer0 /usr/bin/python3 -B "$here/stamps.py" write "$uri" 0 65536
  eventually 20 answered 0 20
  ip -n "$far" link set cable0 down
  eventually 20 grep -qE 'path to .* is lost|does not answer heartbeats' owner.log
  nbdkit_command=("${at_far[@]}" nbdkit)
  bridge_command=("${at_far[@]}" "$bridge_program")
  face_of_all looker
  # The server has noticed, too, or does in this time.
  for i in 1 2 3; do
    nbdinfo --list "$uri" >list
    says list 'export="disk0"'
    nbdinfo --size "nbd+unix:///disk0?socket=$socket"
  done
  eventually 20 grep -q 'heartbeats' server.log
  nbdinfo --list "$uri" >list
  ip -n "$far" link set cable0 up
  local count
  count=$(od -An -t u8 -N 8 acked.0 | tr -d ' ')
  eventually 20 answered 0 $((count + 20))
  touch enough
  wait_end writer0 $((30 * slow)) || fail "the writer still waits"
  cat writer0.log
  ((status == 0)) || fail "the writer ended with status $status"
  "$here/stamps.py" check image
}
it_plugin "a list, a size and a look in an outage cost the writer who rides it out nothing" looked_at_in_outage

# killed_before_answer [taken]: the server is killed when it has recorded who writes, and has not told
# him; with `taken` another client writes then, and the server is killed once more.
killed_before_answer() {
  local what=${1:-done} answers_read asks_write asks answers first
  requires_python nbd
  truncate -s 1M image
  start_server --export "disk0=$PWD/image"
  pipe asks asks_write
  pipe answers_read answers
  spawn client /usr/bin/python3 -B "$here/lost_claim.py" "$port" "$PWD/image" \
    "$STATE_DIRECTORY/writers" "$asks_write" "$answers_read"
  exec {asks_write}>&- {answers_read}<&-
  await_line "$asks" 20
  nbdkit_name=first attach_to "rnbd+tcp://127.0.0.1:$line/disk0"
  first=$socket
  nbdkit_name=second attach_to "rnbd+tcp://$address/disk0"
  echo "$first $socket" >&"$answers"
  kill_server_when_asked
  echo "$what" >&"$answers"
  if [[ $what == taken ]]; then
    kill_server_when_asked
    echo "done" >&"$answers"
  fi
  wait_end client $((60 * slow)) || fail "the first client still waits"
  cat client.log
  ((status == 0)) || fail "it left with $status"
}
kill_server_when_asked() {
  await_line "$asks" 20
  [[ $line == kill ]] || fail "it says: $line"
  kill_hard server
  server_port=$port start_server --export "disk0=$PWD/image"
}
it_plugin "a server that is killed before it answers a first write costs the writer nothing" killed_before_answer
it_plugin "but another client that wrote after that is not written over" killed_before_answer taken

finish
