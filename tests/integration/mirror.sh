#!/bin/bash
# A disk that two or three servers keep: that all copies are the same, how they become so, and what
# clients see of them.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/mirror_members.sh"

plain() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<'PYTHON'
assert h.get_size() == 16 << 20
h.pwrite(b"x" * 100000, 1234567, nbd.CMD_FLAG_FUA)
assert h.pread(100000, 1234567) == b"x" * 100000
assert h.pread(1, 1234566) == b"\0"
h.zero(4097, 1234567)
assert h.pread(4098, 1234567) == b"\0" * 4097 + b"x"
h.flush()
PYTHON
  eventually 120 all_in_step
  copies_are_same a b
  cmp -s a.img /dev/zero && fail "nothing was written"
  return 0
}
it "what is written and zeroed is on every server, and is read from each" plain

# Members are brought up to date also while no NBD client is there.
without_clients() {
  start_members a b
  bridge_name=lazy start_bridge "$mirror" --control "$PWD/control"
  [[ $(mirror_says .state) == 'idle: nobody has asked for the disk yet' ]] || fail "$(mirror_says .)"
  stop lazy
  start_bridge "$mirror" --connect now --control "$PWD/control"
  [[ $(mirror_says .state) == attached ]] || fail "$(mirror_says .)"
  eventually 120 all_in_step
  kill_hard b
  eventually 20 mirror_misses_one
  start_member b
  eventually 120 all_in_step
  if grep 'goodbye' a.log; then fail "it let go of a member"; fi
  stop bridge 10
  same a b
}
it "a bridge that attaches when it starts stays attached, and a lazy one says that it has not" without_clients

# kib NAME: that its copy takes of the storage.
kib() { du -k "$1.img" | cut -f 1; }
# map_of URI: the blocks as NBD clients see them, one line for each run.
map_of() { limited nbdinfo --json --map "$1" | jq -c '.[] | [.offset, .length, .type]'; }
# Also more than one order to a server clears.
trims() {
  disk_size=600M
  start_members a b
  face_of_mirror "control=$PWD/control"
  [[ $(limited nbdinfo --can trim "$uri" && limited nbdinfo --can fast-zero "$uri" && echo both) == both ]] ||
    fail "no trim is offered"
  nbdsh <<'PYTHON'
for mib in range(0, 600, 20):
    h.pwrite(b"x" * (2 << 20), mib << 20)
h.trim(400 << 20, 100 << 20)
h.trim((1 << 20) - 100, (20 << 20) + 50)
h.zero(3 << 20, 540 << 20)
h.flush()
assert h.pread(4 << 20, 99 << 20) == b"\0" * (4 << 20)
PYTHON
  eventually 120 all_in_step
  for name in a b; do
    limited nbdkit -r -U - file "$PWD/$name.img" --run "nbdinfo --json --map \$uri" |
      jq -c '.[] | [.offset, .length, .type]' >"map.$name"
  done
  map_of "$uri" >map.mirror
  (($(wc -l <map.mirror) > 2)) || fail "there are no holes: $(cat map.mirror)"
  if ! cmp map.mirror map.a || ! cmp map.mirror map.b; then
    fail "the maps differ: $(diff map.mirror map.a; diff map.a map.b)"
  fi
  copies_are_same a b
  (($(kib a) < 60000 && $(kib b) < 60000)) || fail "the copies take $(kib a) and $(kib b) KiB"
}
it "a trim frees room on every server, and clients see holes" trims

# While the mirror is used, and when nobody uses it.
one_named() {
  start_members a b
  face_of_mirror
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
  refuses_plain_client
  says said "'[^']+' \(127\.0\.0\.1:[0-9]+\) writes to it"
  stop nbdkit 10
  refuses_plain_client
}
refuses_plain_client() {
  refused_client "rnbd+tcp://127.0.0.1:${member_port[a]}/disk0" \
    "Operation not permitted; it is a member of a mirror .member 1 of 2 of the mirror group [^ ]*, with 16777216 bytes.*as rnbd-mirror.tcp://HOST,HOST/disk0"
  if grep -qE 'open it ro|migration' said; then fail "it says what does not help"; fi
}
it "who names one of the servers is told that the disk is a mirror's, and how to attach it" one_named

second_client() {
  start_members a b
  face_of_mirror
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
  refused_client "$mirror" "Operation not permitted.*'[^']+' \(127\.0\.0\.1:[0-9]+\) writes to it"
  if grep -q 'member of a mirror' said; then fail "it is told to do what it does"; fi
}
it "a mirror's second client is told who uses the mirror" second_client

encrypted() {
  "${ctl_command[@]}" keygen host1 keys.psk --out host1.psk
  member_options=(--tls=require --tls-psk=keys.psk --pull "tls-psk-file=$PWD/host1.psk")
  start_members a b
  mirror="rnbds${mirror#rnbd}?tls-psk-file=$PWD/host1.psk"
  mirror="${mirror/127/host1@127}&read=near"
  face_of_mirror "control=$PWD/control"
  random_file image 16M
  nbdcopy --flush image "$uri"
  nbdcopy "$uri" copy
  cmp image copy
  "${ctl_command[@]}" "$PWD/control" status | tee status
  says status "127.0.0.1:${member_port[a]}.*tls13"
  says status "127.0.0.1:${member_port[b]}.*tls13"
  copies_are_same a b
  cmp image a.img
}
it_plugin "a whole disk is copied in and out over TLS, and is read from the nearest" encrypted

# Of a group that begins, the first member's content counts.
first_counts() {
  random_file a.img 16M
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'assert h.pread(65536, 1 << 20) == open("a.img", "rb").read()[1 << 20:(1 << 20) + 65536]'
  eventually 120 all_in_step
  copies_are_same a b
}
it_plugin "a new group gets the content of its first member" first_counts

# What the first server had, and `b` where it was written while the first one was away.
copy_interrupted() {
  random_file a.img 16M
  cp a.img before
  start_members a b
  mirror+="?resync-rate=4"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"a" * 4096, 0, nbd.CMD_FLAG_FUA)'
  spawn user /usr/bin/python3 -m nbd -u "$uri" -c 'import os, time, nbd
while not os.path.exists("go"): time.sleep(0.02)
h.pwrite(b"b" * 4096, 4096, nbd.CMD_FLAG_FUA)'
  "$1" a
  eventually 20 is_away 0
  touch go
  "$2" a
  wait_end user 60 || fail "the write is not answered, though the first server is back"
  ((status == 0)) || fail "the user: $(cat user.log)"
  eventually 120 all_in_step
  copies_are_same a b
  python3 -c 'assert open("a.img", "rb").read(8192) == b"a" * 4096 + b"b" * 4096'
  cmp --ignore-initial 8192 a.img before
}
it "the content of a disk survives when its server is killed during the first copy" \
  copy_interrupted kill_hard start_member
it_plugin "the content of a disk survives when its server stands still during the first copy" \
  copy_interrupted freeze thaw

pace_told() {
  random_file a.img 16M
  start_members a b
  mirror+="?resync-rate=1"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.get_size()'
  eventually 20 tells_pace
}
tells_pace() {
  [[ $(mirror_says '.members[1] | .mib_per_second > 0 and .seconds_left > 0') == true ]]
}
it_plugin "a copy under way tells its pace, and the time that is left" pace_told

# Reads of the first server fail now and then, and those of the first copy, too.
copy_unreadable() {
  random_file a.img 32M
  cp a.img before
  disk_size=32M
  member_fault[a]=fault:seed=7,read-eio=0.02:
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.get_size()'
  eventually 120 all_in_step
  wait_for_line nbdkit.log "bytes from byte .* cannot be read from any server in step"
  copies_are_same a b
  cmp a.img before
}
it_plugin "a failed read during the first copy destroys nothing" copy_unreadable

# A server that was named by mistake has the disk of somebody else, who goes on with it. The right
# URI is that of another group.
other_disk() {
  local a
  random_file a.img 16M
  random_file b.img 16M
  cp a.img right
  cp b.img wrong
  start_members a b
  a=127.0.0.1:${member_port[a]}
  refused_client "$mirror" "127.0.0.1:${member_port[b]}" "its disk is new in this mirror" "create=copy"
  cmp a.img right
  attach_to "rnbd+tcp://127.0.0.1:${member_port[b]}/disk0"
  nbdcopy "$uri" copy
  cmp copy wrong
  nbdsh <<<'h.pwrite(b"z" * 4096, 0, nbd.CMD_FLAG_FUA)'
  stop nbdkit 10
  start_member c
  mirror="rnbd-mirror+tcp://$a,127.0.0.1:${member_port[c]}/disk0"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pread(65536, 0)'
  eventually 120 all_in_step
  copies_are_same a c
  cmp a.img right
}
it_plugin "a server that is named by mistake keeps its disk, and its users go on" other_disk

may_be_copied() {
  random_file a.img 16M
  random_file b.img 16M
  cp a.img right
  start_members a b
  mirror+="?create=copy"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pread(65536, 0)'
  eventually 120 all_in_step
  copies_are_same a b
  cmp a.img right
}
it_plugin "the disk of a server that holds data is overwritten if the URI says so" may_be_copied

other_disk_added() {
  local b d
  start_members a b
  b=127.0.0.1:${member_port[b]}
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 3 << 20, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  status_of 0 "${ctl_command[@]}" "$PWD/control" mirror discard "$b"
  random_file d.img 16M
  cp d.img wrong
  start_member d
  d=127.0.0.1:${member_port[d]}
  status_of 0 "${ctl_command[@]}" "$PWD/control" mirror add "$d"
  eventually 20 holds_data 1
  nbdsh <<<'h.pwrite(b"y" * 65536, 5 << 20, nbd.CMD_FLAG_FUA)'
  cmp d.img wrong
  status_of 0 "${ctl_command[@]}" "$PWD/control" mirror discard "$d"
  status_of 0 "${ctl_command[@]}" "$PWD/control" mirror add "$d" --force
  eventually 120 all_in_step
  copies_are_same a d
}
holds_data() { [[ $(mirror_says ".members[$1] | .state + .trouble") == "waitingits disk is new"* ]]; }
it "a server that holds data is added only if its operator insists" other_disk_added

told() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 told_in_step
  [[ $(mirror_says .attached) == true ]] || fail "it is not attached"
  kill_hard b
  nbdsh <<<'h.pwrite(b"y" * 65536, 5 << 20, nbd.CMD_FLAG_FUA)'
  eventually 20 is_away 1
  [[ $(mirror_says '.members[1].trouble') != "" ]] || fail "nobody says why b is away"
  start_member b
  eventually 60 told_in_step
  [[ $(mirror_says .losses) == 1 ]] || fail "the loss was not counted"
  copies_are_same a b
}
it "a loss and a return are told at the control socket" told

# lag NAME: it misses 8 MiB, and is back.
lag() {
  kill_hard "$1"
  nbdsh <<<'h.pwrite(b"y" * (8 << 20), 1 << 20); h.flush()'
  start_member "$1"
  eventually 60 told_in_step
}
pulls() {
  member_options=(--pull on)
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 told_in_step
  lag b
  says b.log "copying from rnbd.tcp://127.0.0.1:${member_port[a]}/disk0: connected"
  copies_are_same a b
  if grep "was set back" nbdkit.log; then fail "nothing was set back"; fi
}
it "a server that was away copies what it missed from another one" pulls

# got NAME: bytes that were written to it since it was started.
got() {
  "${ctl_command[@]}" "$PWD/control-$1" metrics |
    awk '/^rnbd_export_bytes_total.*op="(write|write_zeroes)"/ { all += $NF } END { print all + 0 }'
}
# A change of 64 KiB is a part of a region. The logs are emptied every 5 s.
missed() {
  disk_size=64M
  random_file a.img 64M
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pread(1, 0)'
  eventually 120 all_in_step
  sleep 12
  kill_hard b
  eventually 20 is_away 1
  nbdsh <<<'[h.pwrite(b"y" * 65536, (3 * i << 20) + 4096 * i) for i in range(20)]; h.flush()'
  start_member b
  eventually 60 told_in_step
  (($(got b) >= 20 * 65536 && $(got b) <= 30 * 65536)) || fail "b got $(got b) bytes for $((20 * 65536)) changed ones"
  copies_are_same a b
}
it_plugin "a server that was away gets what was changed, and no whole regions" missed

# At b the name of a's machine leads to b itself. What b copies must be what the client means.
pulls_astray() {
  unshare --mount true 2>/dev/null || skip "no mount namespaces here"
  local usual=("${server_command[@]}")
  random_file a.img 16M
  { echo "127.0.0.2 localhost" && grep -v localhost /etc/hosts; } >hosts || true
  member_options=(--pull on)
  start_member a
  member_options+=(--listen "tcp:127.0.0.2:${member_port[a]}")
  # shellcheck disable=SC2016 # expanded by that shell
  server_command=(unshare --mount sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' "$PWD/hosts" "${usual[@]}")
  start_member b
  mirror="rnbd-mirror+tcp://localhost:${member_port[a]},127.0.0.1:${member_port[b]}/disk0"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  lag b
  copies_are_same a b
  says b.log "copying from rnbd.tcp://localhost:${member_port[a]}/disk0: .*another disk"
}
it "a server copies nothing from another one than the client means, wherever its name leads" pulls_astray

sparse() {
  member_options=("$@")
  disk_size=128M
  truncate -s "$disk_size" a.img
  random_file data 4M
  dd if=data of=a.img bs=1M seek=32 conv=notrunc status=none
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pread(65536, 0)'
  eventually 120 all_in_step
  kill_hard b
  nbdsh <<<'h.pwrite(bytes(16 << 20), 64 << 20); h.flush()'
  (($(kib a) >= 16384)) || fail "the zeroes were not written to a"
  start_member b
  eventually 60 told_in_step
  (($(kib b) <= 8192)) || fail "b takes $(kib b) KiB for 4 MiB of data"
  copies_are_same a b
  cmp data <(dd if=b.img bs=1M skip=32 count=4 status=none)
}
it_plugin "zeroes take no room on the servers that they are copied to" sparse
it_plugin "zeroes that a server copies from another one take no room" sparse --pull on

unreadable() {
  random_file a.img 16M
  member_fault[b]=fault:read-eio=1:
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.get_size()'
  eventually 120 all_in_step
  nbdsh <<<'h.pread(1 << 20, 0)'
  nbdcopy "$uri" copy
  cmp a.img copy
  wait_for_line nbdkit.log "127.0.0.1:${member_port[b]} is lost.*: see its log, Input/output error"
  eventually 120 told_in_step # the copy was read from it, too
  stop nbdkit 10
  cmp a.img b.img
}
it "what a server cannot read is read from another one" unreadable

# third_is_new SIZE: the third server lacks its record, has an empty disk, and answers first.
third_is_new() {
  start_members a b c
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, (16 << 20) - 65536, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  stop nbdkit 10
  stop a 10
  stop b 10
  stop c 10
  rm -r state-c c.img
  disk_size=$1 start_member c
  face_of_mirror "control=$PWD/control" connect-timeout=120s
  nbdsh <<<'assert h.get_size() == 16 << 20; assert h.pread(9, (16 << 20) - 9) == b"x" * 9' &
  local user=$!
  eventually 20 third_says .state waiting
  start_member a
  start_member b
  wait "$user" || fail "nobody gets the disk: $(mirror_says .)"
}
third_says() { mirror_says ".members[2]$1" | grep -q "$2"; }
larger_one_is_new() {
  third_is_new 32M
  eventually 120 all_in_step
  stop nbdkit 10
  cmp -n 16777216 a.img c.img
}
it "a server that lost its record may have a larger disk, and answer first" larger_one_is_new
smaller_one_is_new() {
  third_is_new 8M
  eventually 20 third_says .trouble 'smaller than the mirror, which has 16777216 bytes'
  copies_are_same a b
}
it "a new disk that is too small keeps nobody from the mirror" smaller_one_is_new

part_hangs() {
  member_fault[b]="delay:hold-file=$PWD/hold,hold=6s:"
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
  eventually 120 all_in_step # so that no copy is held in the place of the write
  nbdsh <<'PYTHON'
pathlib.Path("hold").touch()
held = nbd.Buffer.from_bytearray(bytearray(b"held" * 25))
h.aio_pwrite(held, 100)
while pathlib.Path("hold").exists():
    h.poll(10)
h.pwrite(b"far!" * 128, 8 << 20)
h.pwrite(b"part" * 25, (9 << 20) + 100)
assert h.aio_in_flight() == 1, "they have waited for the write that hangs"
h.pwrite(b"new!" * 10, 120)
while h.aio_in_flight() > 0:
    h.poll(-1)
assert h.pread(24, 100) == b"held" * 5 + b"new!"
h.flush()
PYTHON
  copies_are_same a b
}
it "a write inside a sector that hangs at a server holds up no change of another sector" part_hangs

refused() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  stop nbdkit
  # In another order it is another group.
  refused_client "rnbd-mirror+tcp://127.0.0.1:${member_port[b]},127.0.0.1:${member_port[a]}/disk0" \
    "another mirror group" "group="
  says b.log "its record says member 2 of 2 of the mirror group .*, and the client says member 1 of 2 of the mirror group"
  kill_hard b
  refused_client "$mirror" "too few members" "127.0.0.1:${member_port[b]}"
}
it_plugin "members of another group are refused, and so is a mirror that misses too many" refused

# One server by two names has one copy.
twice() {
  start_members a
  refused_client "rnbd-mirror+tcp://127.0.0.1:$port,localhost:$port/disk0" \
    "it is the same server as [^ ]*:$port, where it would have the same copy"
}
it_plugin "a server that is named twice is no mirror, and is told so" twice

# What is under way to another NBD server might arrive late, when a member has long been done without.
upstream() {
  nbdkit_name=inner start_nbdkit memory 16M
  server_name=a start_server --state-directory "$PWD/state-a" --export "disk0=nbd:$uri"
  member_port[a]=$port
  start_member b
  mirror="rnbd-mirror+tcp://127.0.0.1:${member_port[a]},127.0.0.1:${member_port[b]}/disk0"
  face_of_mirror "control=$PWD/control" connect-timeout=60s
  spawn user nbdinfo "$uri"
  wait_for_line a.log "it is another server's"
  eventually 60 told_why
  stop nbdkit 10
  wait_end user 20 || fail "the user still waits"
}
told_why() { [[ $(mirror_says '.members[0].trouble') == *state-directory* ]]; }
it_plugin "a server that passes its requests on to an NBD server is no member" upstream

finish
