#!/bin/bash
# What a mirror survives: servers, disks and clients of it that die, stand still, or fail.
# KILLS=N: see mirror_members.sh. FULL=1: also the case that waits longest.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/mirror_members.sh"

# small_disk NAME [TAKEN]: a file system of its own for a copy, in which not all of the disk has room.
small_disk() {
  mkdir "$1"
  mount -t tmpfs -o size=8M tmpfs "$1" 2>/dev/null || skip "cannot mount tmpfs here"
  at_end umount "$PWD/$1"
  truncate -s "$disk_size" "$1/disk"
  fallocate --length "${2:-2M}" "$1/other"
  ln -s "$1/disk" "$1.img"
}
# begin_on_small_disks [QUERY]: a mirror of both, in step.
begin_on_small_disks() {
  start_members a b
  mirror+=${1-}
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
  eventually 120 all_in_step
}
# For nbdsh: writes until there is no room. `written` is how many MiB that were.
until_full='MIB = 1 << 20
written = 0
try:
    while True:
        h.pwrite(b"x" * MIB, written * MIB)
        written += 1
except nbd.Error as error:
    assert error.errnum == errno.ENOSPC, error
assert written < 8, written'
all_full() {
  ((EUID == 0)) || skip "only root can mount a small file system"
  small_disk a
  small_disk b
  begin_on_small_disks
  nbdsh <<PYTHON
$until_full
for place in 10, 11, 12:
    fails_with(errno.ENOSPC, h.pwrite, b"y" * MIB, place * MIB)
assert h.pread(MIB, 0) == b"x" * MIB
assert set(h.pread(MIB, 11 * MIB)) <= {0, ord("y")}
h.pwrite(b"z" * 4096, 4096)
h.flush()
PYTHON
  [[ $(mirror_says .losses) == 0 ]] || fail "a server was lost: $(mirror_says .)"
  attached || fail "the mirror is not attached: $(mirror_says .)"
  rm a/other b/other
  nbdsh <<<'h.pwrite(b"w" * (1 << 20), 10 << 20, nbd.CMD_FLAG_FUA)'
  eventually 60 all_in_step
  copies_are_same a b
}
it_plugin "when the disks of all servers are full, a write fails, and no server is lost" all_full

# The mirror needs both, so the one with less room decides, and its data are those that count.
needed_one_full() {
  ((EUID == 0)) || skip "only root can mount a small file system"
  small_disk a 1500K
  small_disk b 1900K
  begin_on_small_disks "?degraded=quorum"
  nbdsh <<PYTHON
$until_full
assert set(h.pread(MIB, written * MIB)) <= {0, ord("x")}
h.flush()
PYTHON
  [[ $(mirror_says .losses) == 0 ]] || fail "a server was lost: $(mirror_says .)"
  eventually 60 all_in_step
  copies_are_same a b
}
it_plugin "a server that the mirror needs has less room than the other, and is not lost" needed_one_full

# Writes of others are held up until then. What has hung comes back with all that it missed.
lost_for_hanging() {
  [[ $(mirror_says .losses) == 1 ]] &&
    [[ $(mirror_says '.members[1].trouble') == *"has left a request without an answer"* ]]
}
disk_hangs_for_long() {
  member_fault[b]="delay:hold-file=$PWD/hold,hold=40s:"
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  touch hold
  nbdsh <<<'h.pwrite(b"y" * 65536, 0, nbd.CMD_FLAG_FUA); h.pwrite(b"z" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 5 lost_for_hanging
  eventually 120 all_in_step
  copies_are_same a b
}
it_plugin "a server whose disk hangs for half a minute is done without, and taken back later" \
  disk_hangs_for_long

disk_fails_again() {
  member_fault[b]=fault:read-eio=1:
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * (4 << 20), 0)'
  eventually 120 all_in_step
  eventually 120 failure_is_told
  eventually 10 is_away 1 # the reason is told first
  eventually 10 lost_twice
  kill_hard a # nobody waits for the minute now that b may be needed
  eventually 20 waits 1
  start_member a
  eventually 60 attached
}
lost_twice() { [[ $(mirror_says .losses) == 2 ]]; }
failure_is_told() {
  nbdsh <<<'assert h.pread(4 << 20, 0) == b"x" * (4 << 20)'
  [[ $(mirror_says '.members[1].trouble') == *"fails again and again"*"tried again after 1 min"* ]]
}
it_plugin "a server whose disk fails again and again is tried ever more seldom" disk_fails_again

in_step() { grep -c "127.0.0.1:${member_port[$1]} is in step" nbdkit.log; }
# kill_member NAME: until the others go on, and it is back.
kill_member() {
  local before
  # Its first line comes after the first copy, and is not that of its return.
  wait_for_line nbdkit.log "127\.0\.0\.1:${member_port[$1]} is in step"
  before=$(in_step "$1")
  kill_hard "$1"
  go_on
  start_member "$1"
  eventually 120 came_back "$1" "$before"
}
came_back() { (($(in_step "$1") > $2)); }

verbose() {
  if [[ $face == bridge ]]; then face_of_mirror log-level=info; else
    nbdkit_flags=(-v)
    face_of_mirror
  fi
}

members_die() {
  local i victims=(b a c)
  start_members "$@"
  verbose
  start_writers
  for ((i = 0; i < kills; i++)); do kill_member "${victims[i % $#]}"; done
  end_writers
  compare "$@"
}
it "of two servers, one that is killed is done without, and brought up to date when it is back" \
  members_die a b
it_plugin "of three servers, each may be killed" members_die a b c

# Its requests come late, when it runs again.
member_freezes() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  start_writers
  eventually 120 all_in_step
  freeze b
  go_on
  thaw b
  eventually 60 told_in_step
  end_writers
  compare a b
}
it_plugin "a server that stands still is done without, and does no harm when it goes on" member_freezes

all_die() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  start_writers
  eventually 120 all_in_step
  kill_hard a
  kill_hard b
  start_member b
  start_member a
  go_on
  end_writers
  compare a b
}
it_plugin "when all servers are killed, requests wait until they are back" all_die

# The mirror has been there for longer than requests wait.
wait_begins_at_the_loss() {
  local limit=20 began=$SECONDS # the servers are back sooner, also on a busy machine
  start_members a b
  attach_to "$mirror" "no-path-timeout=${limit}s" reconnect-max=200ms "control=$PWD/control"
  spawn writer /usr/bin/python3 -c '
import os, sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
count = 0
while not os.path.exists("enough"):
    h.pwrite(b"x" * 65536, count % 200 << 16, nbd.CMD_FLAG_FUA)
    count += 1
    with open("acked.new", "w") as file:
        file.write(str(count))
    os.rename("acked.new", "acked.1")
' "$uri"
  eventually 120 all_in_step
  eventually $((limit + 10)) is_past $((began + limit + 1))
  kill_hard a
  writes_again
  kill_hard b
  eventually 20 detached
  start_member b
  start_member a
  writes_again
  touch enough
  wait_end writer 60 || fail "the writer does not end"
  ((status == 0)) || fail "a write fails: $(cat writer.log)"
  eventually 60 all_in_step
  copies_are_same a b
}
is_past() { ((SECONDS > $1)); }
writes_again() {
  local before
  before=$(cat acked.1 2>/dev/null || echo 0)
  eventually 60 answered 1 $((before + 2))
}
it_plugin "requests wait from the loss of the last server on, however long the mirror was there" \
  wait_begins_at_the_loss

# One client all the time: what it left on the servers itself is no other client's.
restarts() {
  local name
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 all_in_step
  kill_hard a
  kill_hard b
  eventually 20 detached
  start_member a
  start_member b
  eventually 60 all_in_step
  for name in b a; do
    kill_hard "$name"
    nbdsh <<<'h.pwrite(b"y" * 65536, 5 << 20, nbd.CMD_FLAG_FUA)'
    start_member "$name"
    eventually 60 all_in_step
  done
  nbdsh <<<'assert h.pread(65536, 5 << 20) == b"y" * 65536'
  copies_are_same a b
}
it "after all servers were killed, each of them may be killed again" restarts

both_die() {
  local i
  start_members a b
  face_of_mirror "control=$PWD/control"
  start_writers
  eventually 120 all_in_step
  for ((i = 0; i < kills; i++)); do
    kill_hard b
    ((i % 2 == 1)) || go_on # otherwise the client dies before it has gone on without b
    kill_hard nbdkit
    start_member b
    face_of_mirror "control=$PWD/control"
    go_on
    eventually 60 told_in_step
  done
  end_writers
  compare a b
}
it_plugin "a server and the client may be killed together" both_die

# Where the server was, somebody takes connections and ends them: each is an attempt.
away_for_long() {
  start_members a b
  face_of_mirror connect-timeout=1s "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"1" * 65536, 0, nbd.CMD_FLAG_FUA)'
  kill_hard b
  spawn nobody /usr/bin/python3 -c '
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
for attempt in range(1, 1 << 30):
    server.accept()[0].close()
    if attempt == 40:
        open("often", "w").close()' "${member_port[b]}"
  eventually 60 test -e often
  kill_hard nobody
  start_member b
  eventually 60 all_in_step
  stop nbdkit 10
  grep "member 127.0.0.1:${member_port[b]}: " nbdkit.log >about_b
  cat about_b
  if grep "it is tried again until" about_b; then fail "each attempt to reach it is told"; fi
  [[ -z $(sort about_b | uniq -d) ]] || fail "a reason is told twice"
  says about_b "path to 127.0.0.1:${member_port[b]} is up"
  same a b
}
it_plugin "a server that is away for long is told once, and so is its return" away_for_long

# The first client stands still, another one writes, and the first one goes on.
superseded() {
  start_members a b
  nbdkit_name=old face_of_mirror
  old=$uri
  nbdsh "$old" <<<'h.pwrite(b"1" * 65536, 0, nbd.CMD_FLAG_FUA)'
  spawn reader /usr/bin/python3 -m nbd -u "$old" -c 'import os, time, nbd
h.pwrite(b"2" * 65536, 65536, nbd.CMD_FLAG_FUA)
open("begun", "w").close()
while not os.path.exists("go"): time.sleep(0.02)
try:
    h.pwrite(b"3" * 65536, 0, nbd.CMD_FLAG_FUA)
except nbd.Error as error:
    print("refused", error)
'
  eventually 20 test -e begun
  freeze old
  face_of_mirror
  nbdsh <<<'h.pwrite(b"4" * 65536, 0, nbd.CMD_FLAG_FUA)'
  thaw old
  touch go
  stop nbdkit 10
  wait_end reader 60 || fail "the old client's user still waits"
  grep -q refused reader.out || fail "the old client still writes"
  stop old 10
  same a b
  [[ $(head -c 1 a.img) == 4 ]] || fail "the old client has undone what the new one wrote"
}
it "a client that was taken over writes no more" superseded

# The first client stands still while another one goes on without c, which the first one still reaches.
stood_still() {
  local group="group=11111111-2222-3333-4444-555555555555"
  start_members a b c
  mirror+="?$group"
  nbdkit_name=old face_of_mirror "control=$PWD/old"
  nbdsh <<<'h.pwrite(b"o" * (1 << 20), 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step_of old 3
  spawn reader /usr/bin/python3 -m nbd -u "$uri" -c 'import os, time, nbd
open("begun", "w").close()
while not os.path.exists("go"): time.sleep(0.002)
shown = [nbd.Buffer(512) for _ in range(32)]
reads = [h.aio_pread(buffer, place << 15) for place, buffer in enumerate(shown)]
for read, buffer in zip(reads, shown):
    try:
        while not h.aio_command_completed(read): h.poll(-1)
        print("shows", buffer.to_bytearray()[:1].decode())
    except nbd.Error as error:
        print("refused", error)
'
  eventually 20 test -e begun
  freeze old
  mirror="rnbd-mirror+tcp://127.0.0.1:${member_port[a]},127.0.0.1:${member_port[b]},127.0.0.1:1/disk0?$group"
  face_of_mirror connect-timeout=60s
  nbdsh <<<'h.pwrite(b"N" * (1 << 20), 0, nbd.CMD_FLAG_FUA)'
  touch go
  thaw old
  wait_for_line old.log "too few members are left"
  stop nbdkit 10
  wait_end reader 60 || fail "the old client's user still waits"
  sort reader.out | uniq -c
  if grep "shows o" reader.out; then fail "old data are read behind newer ones that were answered"; fi
}
it "a client that stood still shows no old data of a server that another one does without" stood_still

# Users that stay, and get EIO, keep nobody out: neither new users of that client nor others.
lets_in() {
  local old
  start_members a b
  nbdkit_name=old face_of_mirror
  old=$uri
  spawn user /usr/bin/python3 -m nbd -u "$old" -c 'import os, time, nbd
h.pwrite(b"1" * 65536, 0, nbd.CMD_FLAG_FUA)
open("begun", "w").close()
while not os.path.exists("go"): time.sleep(0.02)
try:
    h.pread(512, 0)
except nbd.Error as error:
    open("refused", "w").close()
while not os.path.exists("enough"): time.sleep(0.02)
'
  eventually 20 test -e begun
  freeze old
  face_of_mirror
  nbdsh <<<'h.pwrite(b"2" * 65536, 0, nbd.CMD_FLAG_FUA)'
  stop nbdkit 10
  thaw old
  touch go
  eventually 60 test -e refused
  wait_for_line old.log "another client has taken the mirror over" # until then it has no new users
  face_of_mirror
  nbdsh <<<'assert h.pread(1, 0) == b"2"'
  stop nbdkit 10
  nbdsh "$old" <<<'assert h.pread(1, 0) == b"2"'
  touch enough
  wait_end user 20 || fail "the user still waits"
  ((status == 0)) || fail "the user: $(cat user.log)"
}
it "a client that was taken over lets others in, though users of it stay" lets_in

client_dies() {
  local i
  start_members a b
  face_of_mirror "control=$PWD/control"
  start_writers
  for ((i = 0; i < kills; i++)); do
    kill_hard nbdkit
    face_of_mirror "control=$PWD/control"
    go_on
  done
  end_writers
  eventually 120 all_in_step
  compare a b
}
it "a client that is killed leaves nothing half written for the next one" client_dies

# A trim inside a sector is answered at once, which a thread that is about to sleep must not miss.
trims_beside_returns() {
  local i
  start_members a b
  face_of_mirror "control=$PWD/control"
  spawn user /usr/bin/python3 -m nbd -u "$uri" -c 'import os
h.set_strict_mode(0)
while not os.path.exists("enough"):
    h.pwrite(b"y" * 384, 4416)
    h.trim(512, 4416)
    try:
        h.flush()
    except nbd.Error:
        pass'
  for ((i = 0; i < 5; i++)); do
    eventually 20 told_in_step
    kill_hard a
    kill_hard b
    start_member a
    start_member b
    sleep 1
  done
  touch enough
  wait_end user 20 || fail "the user still waits"
  ((status == 0)) || fail "the user: $(cat user.log)"
}
it "no trim waits for ever that is answered at once while servers come back" trims_beside_returns

# grown_half KILLED...: the client, or also a server, dies at any moment of it.
grown_half() {
  local i mib=16 before name
  start_members a b
  for ((i = 1; i <= 3 * kills; i++)); do
    face_of_mirror "control=$PWD/control"
    nbdsh <<<'h.pread(1, 0)'
    before=$mib
    mib=$((mib + 1 + RANDOM % 3))
    # Before a has room, so that nothing is made equal there yet.
    head -c 64K /dev/urandom | dd of=b.img bs=1M seek="$before" conv=notrunc status=none
    enlarge "${mib}M" a b
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    for name; do kill_hard "$name"; done
    for name; do [[ $name == nbdkit ]] || start_member "$name"; done
    [[ " $* " != *" nbdkit "* ]] || face_of_mirror "control=$PWD/control"
    nbdsh <<PYTHON
assert h.get_size() >> 20 in ($before, $mib), h.get_size()
print("the next client sees", h.get_size() >> 20, "of", $mib, "MiB")
PYTHON
    eventually 60 has_size $((mib << 20))
    tail_works $((mib << 20))
    eventually 120 all_in_step
    copies_are_same a b
  done
}
it "the client dies while its mirror grows" grown_half nbdkit
it_plugin "a server dies while its mirror grows" grown_half b
it_plugin "the client and a server die while a mirror grows" grown_half nbdkit b

# The state directories have no room for a larger record.
grows_without_room() {
  local size=$((16 << 20)) larger=$((32 << 20)) name
  ((EUID == 0)) || skip "only root can mount a small file system"
  for name in a b; do
    mkdir "state-$name"
    mount -t tmpfs -o size=4M tmpfs "state-$name" 2>/dev/null || skip "cannot mount tmpfs here"
    at_end umount -l "$PWD/state-$name"
  done
  start_members a b
  face_of_mirror "control=$PWD/control"
  start_writers
  eventually 120 all_in_step
  fill state-a
  fill state-b
  enlarge 32M a b
  eventually 20 growth_waits "cannot record a larger one"
  has_size "$size" || fail "it has grown: $(mirror_says .)"
  wait_for_line nbdkit.log "it keeps its size of $size bytes: 127.0.0.1:[0-9]* cannot record a larger one"
  wait_for_line b.log "make room in the state directory, and it grows by itself"
  go_on
  [[ $(mirror_says .losses) == 0 ]] || fail "a server was lost: $(mirror_says .)"
  rm state-[ab]/other
  eventually 60 has_size "$larger"
  [[ -z $(mirror_says .growth) ]] || fail "$(mirror_says .)"
  go_on
  end_writers
  tail_works "$larger"
  eventually 120 all_in_step
  [[ $(mirror_says .losses) == 0 ]] || fail "a server was lost: $(mirror_says .)"
  compare a b
}
fill() { dd if=/dev/zero of="$1/other" bs=1K status=none 2>full || says full "No space left"; }
it "a mirror keeps its size while state directories are full, and grows when they have room" grows_without_room

# A write hangs at b when the mirror is about to grow. Others do not wait for it.
grows_while_b_hangs() {
  member_fault[b]="delay:hold-file=$PWD/hold,hold=15s:"
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  touch hold
  nbdsh <<PYTHON
import time, os
held = h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"held" * 1024)), 1 << 20)
while pathlib.Path("hold").exists():
    h.poll(10)
for name in "ab":
    os.truncate(name + ".img", 20 << 20)
longest = requests = 0
end = time.monotonic() + 8
while time.monotonic() < end:
    begin = time.monotonic()
    h.pwrite(b"far!" * 1024, 8 << 20)
    h.pread(4096, 4 << 20)
    longest = max(longest, time.monotonic() - begin)
    requests += 1
print("longest", longest, "s of", requests)
assert h.aio_in_flight() == 1, "nothing hangs any more"
assert longest < 1.5 * $slow, longest
while h.aio_in_flight() > 0:
    h.poll(-1)
PYTHON
  wait_for_line nbdkit.log "requests were under way for a second"
  eventually 60 has_size $((20 << 20))
  tail_works $((20 << 20))
  [[ $(mirror_says .losses) == 0 ]] || fail "a server was lost: $(mirror_says .)"
  eventually 120 all_in_step
  copies_are_same a b
}
it "no request waits for one that hangs when a mirror is about to grow" grows_while_b_hangs

# Each discard and each return makes a view, and ends a session that all threads of the client use.
often_discarded() {
  local i writers=4
  start_members a b
  local b=127.0.0.1:${member_port[b]}
  face_of_mirror lanes=4 "control=$PWD/control"
  start_writers
  eventually 120 all_in_step
  for ((i = 0; i < 10 * kills; i++)); do
    "${ctl_command[@]}" "$PWD/control" mirror discard "$b"
    sleep "0.0$((RANDOM % 10))"
    "${ctl_command[@]}" "$PWD/control" mirror add "$b" >/dev/null
    eventually 60 all_in_step # perhaps by the report of before
  done
  sleep 1
  eventually 60 all_in_step
  end_writers
  compare a b
}
it "four clients at once keep their data while one of two servers comes and goes" often_discarded

# Requests are given up while a server takes its time, and with the last user of a thread its lanes go.
users_leave() {
  local i losses
  member_fault[b]=delay:write=3s,flush=5s:
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pread(512, 0)'
  eventually 120 all_in_step
  losses=$(mirror_says .losses)
  for i in 1 2; do
    spawn "leaver$i" /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.aio_zero(1 << 20, 2 << 20)
h.aio_flush()
h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"left" * 1024)), 5 << 20)
while h.aio_in_flight() > 0:
    h.poll(100)' "$uri"
  done
  sleep 0.5
  kill_hard leaver1
  kill_hard leaver2
  nbdsh <<'PYTHON'
h.pwrite(b"stay" * 1024, 5 << 20)
h.flush()
assert h.pread(4096, 5 << 20) == b"stay" * 1024
PYTHON
  eventually 60 all_in_step
  [[ $(mirror_says .losses) == "$losses" ]] || fail "a server that is slow was lost: $(mirror_says .)"
  copies_are_same a b
}
[[ -z ${FULL:-} ]] || it "users may leave while a server takes its time for their requests" users_leave

zeroed_by() {
  "${ctl_command[@]}" "$PWD/control-$1" metrics |
    awk '/^rnbd_export_bytes_total.*op="write_zeroes"/ { all += $NF } END { print all + 0 }'
}
# The only client of a thread leaves, so that the thread's lanes end, too. The server goes on with
# what it was sent, and others wait for nothing of it.
last_user_leaves() {
  local before
  member_fault[b]=delay:zero=3s:
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"first" * 1024, 10 << 20)'
  eventually 120 all_in_step
  before=$(zeroed_by b)
  spawn leaver /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.aio_zero(2 << 20, 2 << 20)
while h.aio_in_flight() > 0:
    h.poll(100)' "$uri"
  sleep 0.5
  kill_hard leaver
  sleep 0.5
  nbdsh <<'PYTHON'
import time
begin = time.monotonic()
h.pwrite(b"stay" * 1024, 10 << 20)
took = time.monotonic() - begin
print("a write beside that took", took, "s")
assert took < 1
PYTHON
  sleep 6
  (($(zeroed_by b) == before + (2 << 20))) || fail "b has zeroed $(($(zeroed_by b) - before)) bytes"
  copies_are_same a b
}
it "the last user of a thread may leave, and what it began is done once" last_user_leaves

finish
