#!/bin/bash
# A disk that two or three servers keep: what it survives, and that all copies are the same afterwards.
# KILLS=N: how often a member or the client is killed in each case about that.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

writer_program=$(realpath "${BASH_SOURCE[0]%/*}")/mirror_writer.py
kills=${KILLS:-${FULL:+100}}
kills=${kills:-2}
declare -A member_port

# start_member NAME: the server of a copy, at the same port as before.
member_options=()
disk_size=16M
declare -A member_fault # "fault:...:" in front of its storage
start_member() {
  local rights=
  [[ ${member_options[*]-} != *--tls* ]] || rights=",rw=*"
  [[ -e $1.img ]] || truncate -s "$disk_size" "$1.img"
  server_name=$1 server_port=${member_port[$1]:-0} start_server \
    --state-directory "$PWD/state-$1" --control "$PWD/control-$1" --export "disk0=${member_fault[$1]-}$PWD/$1.img$rights" \
    "${member_options[@]+"${member_options[@]}"}"
  member_port[$1]=$port
}

# start_members NAME...: sets $mirror, their URI.
start_members() {
  local name list=
  for name; do
    start_member "$name"
    list+=,127.0.0.1:$port
  done
  mirror="rnbd-mirror+tcp://${list:1}/disk0"
}

# face_of_mirror [PARAMETERS...]: so that a dead server is soon known.
face_of_mirror() { attach_to "$mirror" no-path-timeout=0 reconnect-max=200ms "$@"; }

# same NAME...: the copies are the same, byte by byte.
same() {
  local first=$1 name
  for name in "${@:2}"; do cmp "$first.img" "$name.img" || fail "the copies of $first and $name differ"; done
}

writers=2
answered() { (($(cat "acked.$1" 2>/dev/null || echo 0) > $2)); }
# go_on: every writer has had an answer to a write that it began from now on.
go_on() {
  local writer before
  for ((writer = 1; writer <= writers; writer++)); do
    before=$(cat "acked.$writer" 2>/dev/null || echo 0)
    eventually 120 answered "$writer" $((before + 2))
  done
}
start_writers() {
  local writer
  for ((writer = 1; writer <= writers; writer++)); do
    spawn "writer$writer" /usr/bin/python3 -B "$writer_program" write "$uri" "$writer"
  done
  go_on
}
end_writers() {
  touch enough
  local writer
  for ((writer = 1; writer <= writers; writer++)); do
    wait_end "writer$writer" 120 || fail "writer $writer does not end"
    ((status == 0)) || fail "writer $writer: $(cat "writer$writer.log")"
    cat "writer$writer.out"
  done
}
# End of the client first: it leaves no region to be made equal.
copies_are_same() {
  stop nbdkit 10
  same "$@"
}
compare() {
  copies_are_same "$@"
  limited /usr/bin/python3 -B "$writer_program" check "$1.img"
}

# mirror_says FILTER: of what `mirror status` answers.
mirror_says() { "${ctl_command[@]}" --json "$PWD/control" mirror status | jq -r "$1"; }
all_in_step() {
  [[ $(mirror_says '[.unequal_mib] + ([.members[].state] | unique) | map(tostring) | join(",")') == "0,in step" ]]
}
# all_in_step_of CLIENT [MEMBERS]: so many are, by default two; its control socket has its name.
all_in_step_of() {
  (($("${ctl_command[@]}" --json "$PWD/$1" mirror status |
    jq '[.members[] | select(.state == "in step")] | length') == ${2:-2}))
}

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
mirror_misses_one() { [[ $(mirror_says '[.members[].state] | sort | join(",")') == 'away,in step' ]]; }
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
is_away() { [[ $(mirror_says ".members[$1].state") == away ]]; }
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

told_in_step() { [[ $(mirror_says '.members[1].state') == "in step" ]]; }
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

attached() { [[ $(mirror_says .attached) == true ]]; }
detached() { [[ $(mirror_says .attached) == false ]]; }

# The chapter of docs/mirror.md, as an operator follows it.
waits() { [[ $(mirror_says ".members[$1].state") == waiting ]]; }
two_of_three_gone() {
  local a b
  start_members a b c
  a=127.0.0.1:${member_port[a]} b=127.0.0.1:${member_port[b]}
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 3 << 20, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  stop nbdkit 10
  kill_hard b
  kill_hard c
  rm -r b.img c.img state-b state-c
  face_of_mirror "control=$PWD/control" connect-timeout=60s
  spawn user /usr/bin/python3 -m nbd -u "$uri" -c 'assert h.pread(65536, 3 << 20) == b"x" * 65536
h.pwrite(b"y" * 65536, 5 << 20, nbd.CMD_FLAG_FUA)'
  eventually 20 waits 0
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror force "$a"
  says said "WARNING"
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror discard "$b"
  status_of 0 "${ctl_command[@]}" "$PWD/control" mirror force "$a" --force
  wait_end user 20 || fail "the user still waits"
  ((status == 0)) || fail "the user: $(cat user.log)"
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror discard "$a"
  status_of 0 "${ctl_command[@]}" "$PWD/control" mirror discard "$b"
  start_member d
  status_of 0 "${ctl_command[@]}" --json "$PWD/control" mirror add "127.0.0.1:${member_port[d]}"
  mirror=$(jq -r .uri said)
  start_member c
  eventually 120 all_in_step
  "${ctl_command[@]}" "$PWD/control" mirror status | tee status
  stop nbdkit 10
  same a c d
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'assert h.pread(65536, 5 << 20) == b"y" * 65536'
}
it "when two of three are gone, an operator has the third one go on, and puts others in their places" \
  two_of_three_gone

# mirror_order WORD...: an operator's order, which is carried out; its answer is in said.
mirror_order() { status_of 0 "${ctl_command[@]}" --json "$PWD/control" mirror "$@"; }
# verify_copies STATUS WORD...: compares the copies; the answer is in said.
verify_copies() { status_of "$1" "${ctl_command[@]}" --json "$PWD/control" mirror verify "${@:2}"; }
# What two disks lose while nobody reads it is found, and repaired only if an operator says from where.
verified() {
  local a b place
  start_members a b
  a=127.0.0.1:${member_port[a]} b=127.0.0.1:${member_port[b]}
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.get_size()'
  eventually 120 all_in_step
  start_writers
  verify_copies 0
  [[ $(jq -c '[.state, .different, .compared_mib + .left_out_mib]' said) == '["done",0,16]' ]] ||
    fail "$(cat said)"
  end_writers
  cp a.img right
  for place in 5000000 5000001 9999999; do
    printf '\377' | dd of=b.img bs=1 seek="$place" conv=notrunc,fsync status=none
  done
  cmp -s a.img b.img && fail "nothing was changed"
  verify_copies 1
  [[ $(jq -c '[.state, .different, .repaired]' said) == '["done",2,0]' ]] || fail "$(cat said)"
  wait_for_line nbdkit.log "512 bytes from byte 4999680 on differ between $a and $b"
  wait_for_line nbdkit.log "512 bytes from byte 9999872 on differ between $a and $b"
  cmp -s a.img b.img && fail "it was repaired unasked"
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror verify --from nobody:1
  grep -q 'no member is called that' said
  verify_copies 0 --from "$a"
  [[ $(jq -c '[.state, .different, .repaired]' said) == '["done",2,2]' ]] || fail "$(cat said)"
  verify_copies 0
  [[ $(mirror_says .verify) == 'done, 0 differences' ]] || fail "$(mirror_says .)"
  copies_are_same a b
  cmp a.img right
}
it "copies that differ are found while they are used, and repaired from the server that is named" verified

# A host that stands by takes the mirror from nobody by that.
idle_asked() {
  local word first
  start_members a b
  face_of_mirror "control=$PWD/control"
  first=$uri
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
  eventually 120 all_in_step
  nbdkit_name=idle attach_to "$mirror" "control=$PWD/idle"
  for word in verify "verify --from 127.0.0.1:${member_port[a]}" "verify stop" \
    "dissolve 127.0.0.1:${member_port[a]}"; do
    # shellcheck disable=SC2086
    status_of 1 "${ctl_command[@]}" "$PWD/idle" mirror $word
    grep -q 'nobody has asked for the disk here yet' said || fail "$word: $(cat said)"
  done
  [[ $("${ctl_command[@]}" --json "$PWD/idle" mirror status | jq -r .state) == idle:* ]] ||
    fail "it is not idle any more"
  nbdsh "$first" <<<'h.pwrite(b"y" * 512, 0)'
}
it "who compares or dissolves a mirror on a host that stands by begins nothing there" idle_asked

# plain_uri NAME: of the disk of a server, once it is no member.
plain_uri() { echo "rnbd+tcp://127.0.0.1:${member_port[$1]}/disk0"; }
# members_at NAME: the number of its records.
members_at() { "${ctl_command[@]}" --json "$PWD/control-$1" member list | jq '.members | length'; }
# is_plain NAME: clients of one server read there what was written, and write.
is_plain() {
  nbdkit_name=plain attach_to "$(plain_uri "$1")"
  nbdsh <<<'assert h.pread(65536, 1 << 20) == b"x" * 65536; h.pwrite(b"y" * 65536, 0, nbd.CMD_FLAG_FUA)'
  stop plain 10
}
dissolved() {
  local a
  start_members "$@"
  a=127.0.0.1:${member_port[a]}
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 1 << 20)'
  eventually 120 all_in_step
  mirror_order dissolve "$a"
  [[ $(jq -r .uri said) == $(plain_uri a) ]] || fail "$(cat said)"
  if nbdsh <<<'h.pread(512, 0)' 2>/dev/null; then fail "the mirror is used still"; fi
  [[ $(mirror_says .trouble) == *"its disk is now $(plain_uri a)"* ]] || fail "$(mirror_says .)"
  mirror_order dissolve "$a" # again
  [[ $(jq -r .uri said) == $(plain_uri a) ]] || fail "$(cat said)"
  [[ $(mirror_says .losses) == 0 ]] || fail "$(mirror_says .)"
  is_plain a
  [[ $(members_at a) == 0 && $(members_at b) == 1 ]] || fail "$(members_at a) and $(members_at b) records"
  stop nbdkit 10
  refused_client "$(plain_uri b)" "it is a member of a mirror"
  refused_client "$mirror" "its disk is now .*:${member_port[a]}/disk0"
  is_plain a
  stop a 10
  start_member a
  refused_client "$mirror" "its disk is now .*:${member_port[a]}/disk0"
  nbdkit_name=plain attach_to "$(plain_uri a)"
  nbdsh <<<'h.pwrite(b"x" * 65536, 1 << 20)'
  refused_client "$mirror"
  ! grep -q 'mirror force' said || fail "$(cat said)"
  nbdsh <<<'h.pwrite(b"x" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)'
  stop plain 10
  "${ctl_command[@]}" "$PWD/control-b" member free disk0 --force
  nbdkit_name=former attach_to "$(plain_uri b)"
  nbdsh <<<'assert h.pread(65536, 1 << 20) == b"x" * 65536'
}
it "a mirror of two is dissolved into one disk, and the other server waits for that" dissolved a b
it_plugin "a mirror of three is dissolved into one disk" dissolved a b c

# Its server dies in the midst of it. Then it is the disk, or the only member of the mirror.
dissolved_half() {
  local i
  start_members a b
  for ((i = 1; i <= kills; i++)); do
    face_of_mirror "control=$PWD/control"
    nbdsh <<<'h.pwrite(b"x" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)'
    eventually 120 all_in_step
    spawn order "${ctl_command[@]}" "$PWD/control" mirror dissolve "127.0.0.1:${member_port[a]}"
    sleep "0.0$((RANDOM % 40 + 10))"
    kill_hard a
    kill_hard nbdkit
    wait_end order 30 || fail "the order still waits"
    start_member a
    if (($(members_at a) == 0)); then
      echo "it was dissolved"
      refused_client "$mirror" "its disk is now .*:${member_port[a]}/disk0"
      is_plain a
    else
      echo "it is a mirror"
      refused_client "$(plain_uri a)" "it is a member of a mirror"
    fi
    refused_client "$(plain_uri b)" "it is a member of a mirror"
    stop a 10
    stop b 10
    rm -r a.img b.img state-a state-b
    start_member a
    start_member b
  done
}
it_plugin "a mirror whose server dies while it is dissolved is a mirror or a disk, and never both" dissolved_half

# b hangs with a write, so that the mirror waits, and so do requests that come meanwhile.
dissolve_begins_while_b_hangs() {
  member_fault[b]="delay:hold-file=$PWD/hold,hold=300s:"
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  touch hold
  spawn write nbdsh <<<'h.pwrite(b"x" * 65536, 1 << 20)'
  eventually 10 test ! -e hold
}
is_disk_or_member() {
  if (($(members_at "$1") == 0)); then is_plain "$1"; else refused_client "$(plain_uri "$1")" "it is a member of a mirror"; fi
}
dissolve_waits() {
  dissolve_begins_while_b_hangs
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror dissolve "127.0.0.1:${member_port[a]}"
  says said "requests are under way"
  [[ $(mirror_says .state) == "being dissolved: only 127.0.0.1:${member_port[a]} goes on"* ]] || fail "$(mirror_says .)"
  spawn read nbdsh <<<'h.pread(512, 0)'
  mirror_order discard "127.0.0.1:${member_port[b]}"
  wait_end write 10 || fail "the write still waits"
  ((status == 0)) || fail "the write failed"
  wait_end read 10 || fail "the read still waits"
  ((status != 0)) || fail "the mirror is used still"
  [[ $(mirror_says .trouble) == *"its disk is now $(plain_uri a)"* ]] || fail "$(mirror_says .)"
  is_plain a
  kill_hard b
}
it "a mirror that waits to be dissolved says so, and goes on when a server that hangs is discarded" dissolve_waits

dissolve_ends() {
  dissolve_begins_while_b_hangs
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror dissolve "127.0.0.1:${member_port[a]}"
  spawn read nbdsh <<<'h.pread(512, 0)'
  sleep 0.5
  stop nbdkit 10
  wait_end read 10 || fail "the read still waits"
  wait_end write 10 || fail "the write still waits"
  kill_hard b
  is_disk_or_member a
}
it "the client ends with SIGTERM while its mirror waits to be dissolved" dissolve_ends

# The flush of the mirror itself waits for b.
dissolve_ends_begun() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  freeze b
  spawn order "${ctl_command[@]}" "$PWD/control" mirror dissolve "127.0.0.1:${member_port[a]}"
  sleep 0.3
  spawn read nbdsh <<<'h.pread(512, 0)'
  sleep 0.3
  stop nbdkit 10
  thaw b
  wait_end order 10 || fail "the order still waits"
  wait_end read 10 || fail "the read still waits"
  is_disk_or_member a
}
it "the client ends with SIGTERM while its mirror is being dissolved" dissolve_ends_begun

# Its answer to the operator may be missing, and the next client knows what became of it.
dissolve_cut_off() {
  local i
  start_members a b
  for ((i = 1; i <= kills; i++)); do
    face_of_mirror "control=$PWD/control"
    nbdsh <<<'h.pwrite(b"x" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)'
    eventually 120 all_in_step
    spawn order "${ctl_command[@]}" "$PWD/control" mirror dissolve "127.0.0.1:${member_port[a]}"
    sleep "0.0$((RANDOM % 40 + 10))"
    stop nbdkit 10
    wait_end order 10 || fail "the order still waits"
    if (($(members_at a) == 0)); then
      echo "it was dissolved"
      refused_client "$mirror" "its disk is now .*:${member_port[a]}/disk0"
      is_plain a
    else
      echo "it is a mirror"
      refused_client "$(plain_uri a)" "it is a member of a mirror"
    fi
    stop a 10
    stop b 10
    rm -r a.img b.img state-a state-b
    start_member a
    start_member b
  done
}
it "a client that gets SIGTERM while it dissolves its mirror leaves a mirror or a disk" dissolve_cut_off

# As the storage of any disk may. The mirror keeps its size, over restarts of servers and of the client.
copies_grow() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, (16 << 20) - 65536, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  truncate -s 32M a.img b.img
  kill_hard b
  start_member b
  eventually 120 all_in_step
  stop nbdkit 10
  kill_hard a
  start_member a
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'assert h.get_size() == 16 << 20; assert h.pread(65536, (16 << 20) - 65536) == b"x" * 65536'
  eventually 120 all_in_step
  mirror_order dissolve "127.0.0.1:${member_port[a]}"
  nbdkit_name=plain attach_to "$(plain_uri a)"
  nbdsh <<<'assert h.get_size() == 32 << 20'
}
it "copies that are enlarged stay a mirror, of the size that it had" copies_grow

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
  eventually 20 third_says .trouble 'the mirror began with 16777216'
  copies_are_same a b
}
it "a new disk that is too small keeps nobody from the mirror" smaller_one_is_new

# Its connect-timeout is longer than all of this case.
dead_one_replaced() {
  start_members a b
  face_of_mirror "control=$PWD/control" connect-timeout=120s
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 all_in_step
  kill_hard a
  nbdsh <<<'h.pwrite(b"y" * 65536, 5 << 20, nbd.CMD_FLAG_FUA)'
  mirror_order discard "127.0.0.1:${member_port[a]}"
  start_member c
  mirror_order add "127.0.0.1:${member_port[c]}"
  eventually 20 all_in_step
  copies_are_same b c
}
it "a server that takes the place of a dead one is asked at once" dead_one_replaced

# Of two that must both be there, the client alone may not do without one. An operator may.
well_one_replaced() {
  local option
  start_members a b
  mirror+="?degraded=quorum&read=near&resync-rate=1000"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 all_in_step
  mirror_order discard "127.0.0.1:${member_port[a]}"
  nbdsh <<<'h.pwrite(b"y" * 65536, 5 << 20, nbd.CMD_FLAG_FUA)'
  wait_for_line a.log "the client said goodbye" # others may have its disk
  start_member c
  mirror_order add "127.0.0.1:${member_port[c]}"
  mirror=$(jq -r .uri said)
  for option in group= degraded=quorum read=near resync-rate=1000; do
    [[ $mirror =~ [?\&]$option ]] || fail "the URI has no $option: $mirror"
  done
  eventually 60 all_in_step
  stop nbdkit 10
  same b c
  face_of_mirror
  nbdsh <<<'assert h.pread(65536, 0) + h.pread(65536, 5 << 20) == b"x" * 65536 + b"y" * 65536'
}
it "an operator replaces one of two servers, both of which must be there" well_one_replaced

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

disk_hangs() {
  member_fault[b]="delay:hold-file=$PWD/hold,hold=300s:"
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  touch hold
  nbdsh <<<'h.pwrite(b"y" * 65536, 0)' &
  local writer=$!
  wait_for_line nbdkit.log "127.0.0.1:${member_port[b]}: it leaves a request without an answer"
  "${ctl_command[@]}" "$PWD/control" mirror status | tee status
  says status "mirror discard 127.0.0.1:${member_port[b]}"
  "${ctl_command[@]}" "$PWD/control" mirror discard "127.0.0.1:${member_port[b]}"
  wait "$writer" # without b the write ends
  nbdsh <<<'assert h.pread(65536, 0) == b"y" * 65536'
  kill_hard b
}
it_plugin "a server whose disk hangs is named, and writes go on when it is discarded" disk_hangs

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

# Of two servers one gets an empty disk while nobody is attached: only a person knows whether the old one
# has gone on alone.
disk_replaced_meanwhile() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  stop nbdkit 10
  stop b
  rm b.img
  start_member b
  refused_client "$mirror" "127.0.0.1:${member_port[b]} .is there, and its disk is new in this mirror." \
    "its record has in step 127.0.0.1:${member_port[a]} and 127.0.0.1:${member_port[b]}" \
    "mirror force 127.0.0.1:${member_port[a]}"
  face_of_mirror "control=$PWD/control" connect-timeout=120s
  spawn user nbdinfo "$uri"
  eventually 30 waits 1
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror force "127.0.0.1:${member_port[b]}" --force
  says said "its disk is new in this mirror"
  mirror_order force "127.0.0.1:${member_port[a]}" --force
  eventually 120 all_in_step
  wait_end user 30 || fail "the user still waits"
  nbdsh <<<'assert h.pread(65536, 0) == b"x" * 65536'
}
it_plugin "a disk that was replaced while nobody was attached is named, and so is the way out" \
  disk_replaced_meanwhile

# waits_for MEMBER SERVER: and says so.
waits_for() {
  [[ $(mirror_says ".members[$1] | .state + .trouble") == "waitingis there, and waits for $2:"* ]]
}

# The mirror is not attached without the dead one, so there is nothing to discard it from.
one_of_quorum_dead() {
  local a b
  start_members a b
  a=127.0.0.1:${member_port[a]} b=127.0.0.1:${member_port[b]}
  mirror+="?degraded=quorum"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 all_in_step
  kill_hard a
  eventually 20 detached
  eventually 20 waits_for 1 "$a"
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror discard "$a"
  says said "mirror force"
  mirror_order force "$b" --force
  eventually 20 attached
  mirror_order discard "$a"
  start_member c
  mirror_order add "127.0.0.1:${member_port[c]}"
  eventually 60 all_in_step
  nbdsh <<<'assert h.pread(65536, 0) == b"x" * 65536'
  copies_are_same b c
}
it_plugin "of two that must both be there, one dies, and an operator has the other go on" \
  one_of_quorum_dead

# A server that stands still records nothing.
forced_unrecorded() {
  local b
  start_members a b
  b=127.0.0.1:${member_port[b]}
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 all_in_step
  stop nbdkit 10
  kill_hard a
  face_of_mirror "control=$PWD/control" connect-timeout=120s
  spawn user nbdinfo "$uri"
  eventually 20 waits 1
  freeze b
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror force "$b" --force
  says said "$b has not said yet that it has recorded it"
  thaw b
  eventually 60 forced_at_last "$b"
  wait_end user 20 || fail "the user still waits"
}
forced_at_last() { attached || "${ctl_command[@]}" "$PWD/control" mirror force "$1" --force; }
it_plugin "an operator's decision that no server has recorded is not taken for one" forced_unrecorded

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

# The URI of before `mirror add` is used once more, while the server that it names still runs.
earlier_uri() {
  local old
  start_members a b
  old=$mirror
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"o" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  mirror_order discard "127.0.0.1:${member_port[b]}"
  start_member d
  mirror_order add "127.0.0.1:${member_port[d]}"
  mirror=$(jq -r .uri said)
  eventually 120 all_in_step
  nbdsh <<<'h.pwrite(b"N" * 65536, 0, nbd.CMD_FLAG_FUA)'
  stop nbdkit 10
  refused_client "$old" "127.0.0.1:${member_port[b]} .is there, and another disk has had its place" \
    "name the servers as .mirror add. has printed them"
  if grep "mirror force" said; then fail "it says what loses the newest data"; fi
  b_has_its_data
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'assert all(h.pread(1, 0) == b"N" for _ in range(8))'
  stop nbdkit 10
  forces_beside_displaced "$old"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'assert h.pread(1, 0) == b"F"'
  eventually 120 all_in_step
}
b_has_its_data() { cmp -n 65536 b.img <(printf 'o%.0s' {1..65536}) || fail "b was overwritten"; }
# forces_beside_displaced URI: of before. An operator has a go on all the same.
forces_beside_displaced() {
  local a=127.0.0.1:${member_port[a]} b=127.0.0.1:${member_port[b]}
  mirror=$1 face_of_mirror "control=$PWD/control" connect-timeout=120s
  spawn user /usr/bin/python3 -m nbd -u "$uri" -c 'h.pwrite(b"F" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 30 waits 0
  eventually 30 waits 1
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror force "$b"
  says said "another disk has had its place in this mirror since"
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror force "$a"
  says said "nothing is copied to $b"
  mirror_order force "$a" --force
  wait_end user 30 || fail "the user still waits"
  ((status == 0)) || fail "the user: $(cat user.log)"
  eventually 30 waits 1
  stop nbdkit 10
  b_has_its_data
}
it "the URI of before another server was added shows no old data" earlier_uri

# b was away all the time.
often_forced() {
  local group="group=11111111-2222-3333-4444-555555555555"
  start_members a b
  mirror+="?$group"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  stop nbdkit 10
  limited /usr/bin/python3 -B "$source_dir/tests/integration/mirror_member.py" "${member_port[a]}" forced
  face_of_mirror "control=$PWD/control" connect-timeout=60s
  spawn user nbdinfo "$uri"
  eventually 30 is_doubted
  stop nbdkit 10
  wait_end user 20 || fail "the user still waits"
  eventually 30 free_member b
  stop b
  truncate -s 0 b.img
  truncate -s "$disk_size" b.img
  start_member b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"y" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  copies_are_same a b
}
is_doubted() { [[ $(mirror_says .members[0].trouble) == *"before a second server knows"* ]]; }
free_member() { "${ctl_command[@]}" "$PWD/control-$1" member free disk0 --force; }
it_plugin "hundreds of forced decisions that one of two servers has missed are told, and followed later" \
  often_forced

# The record of c is damaged, or a program has made it. Which server answers first is a matter of luck.
far_record() {
  local group="group=11111111-2222-3333-4444-555555555555"
  start_members a b c
  mirror+="?$group"
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  stop nbdkit 10
  limited /usr/bin/python3 -B "$source_dir/tests/integration/mirror_member.py" "${member_port[c]}" \
    forced_of_three
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'assert h.pread(65536, 0) == b"x" * 65536'
  nbdsh <<<'h.pwrite(b"y" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 30 third_is_doubted
  [[ $(mirror_says '[.members[].state] | @csv') == '"in step","in step",'* ]] || fail "the others are not used"
  ! mirror_says '.members[].trouble' | grep "member free" || fail "a record is given up"
}
third_is_doubted() { [[ $(mirror_says .members[2].trouble) == *"before a second server knows"* ]]; }
it_plugin "a record that is far ahead of two others keeps nobody out" far_record

# A client is cut off from b, an operator forces b elsewhere, and the two meet again.
forced_beside() {
  local a b
  start_members a b
  a=127.0.0.1:${member_port[a]} b=127.0.0.1:${member_port[b]}
  port=${member_port[b]} start_forward 127.0.0.1
  local group="group=11111111-2222-3333-4444-555555555555"
  mirror="rnbd-mirror+tcp://$a,127.0.0.1:$forward_port/disk0?$group"
  nbdkit_name=old face_of_mirror "control=$PWD/old"
  local old=$uri
  nbdsh <<<'h.pwrite(b"o" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step_of old
  end_forward 127.0.0.1
  nbdsh <<<'h.pwrite(b"A" * 65536, 0, nbd.CMD_FLAG_FUA)'
  mirror="rnbd-mirror+tcp://$a,$b/disk0?$group"
  face_of_mirror "control=$PWD/control" connect-timeout=120s
  spawn user /usr/bin/python3 -m nbd -u "$uri" -c 'h.pwrite(b"B" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)'
  eventually 30 waits 1
  eventually 30 used 0
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror force "$b" --force
  says said "another client uses the mirror, or may use it: $a has said that one writes to it, or"
  mirror_order force "$b" --force --split
  wait_end user 30 || fail "the user still waits"
  ((status == 0)) || fail "the user: $(cat user.log)"
  stop nbdkit 10
  port=${member_port[b]} start_forward 127.0.0.1 "$forward_port"
  wait_for_line old.log "an operator has had another client go on with other servers"
  nbdsh "$old" <<<'assert h.pread(1, 1 << 20) == b"B", "what was answered after force is gone"'
  stop old 10
  end_forward 127.0.0.1
}
used() { [[ $(mirror_says ".members[$1].trouble") == *"writes to it"* ]]; }
it "a client that was cut off ends when it meets a server that an operator has forced" forced_beside

# Where c was, a server says that another client writes to its disk. It is discarded, and then two of
# three are gone.
discarded_in_use() {
  local a c
  start_members a b c
  a=127.0.0.1:${member_port[a]}
  start_forward 127.0.0.1
  c=127.0.0.1:$forward_port
  mirror="${mirror%,*},$c/disk0"
  face_of_mirror "control=$PWD/control" connect-timeout=120s
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  end_forward 127.0.0.1
  spawn in_use /usr/bin/python3 -B -c '
import errno, sys, time
sys.path.insert(0, sys.argv[1])
import hostile_peer
server = hostile_peer.Server()
server.features |= 1 << 18 | 1 << 20
server.order(hostile_peer.OPEN, lambda request: request.reply(error=errno.EPERM), times=None)
print(server.ports[0], flush=True)
while True:
    time.sleep(60)' "$source_dir/tests/integration"
  wait_for_line in_use.out '[0-9]'
  port=$(<in_use.out) start_forward 127.0.0.1 "$forward_port"
  eventually 30 not_permitted 2
  mirror_order discard "$c"
  kill_hard b
  kill_hard a
  start_member a
  eventually 30 waits 0
  mirror_order force "$a" --force
  attached || fail "it is not attached"
  kill_hard in_use
  end_forward 127.0.0.1
}
not_permitted() { [[ $(mirror_says ".members[$1].trouble") == *"Operation not permitted"* ]]; }
it_plugin "a server that was discarded while another client used it forbids no decision" discarded_in_use

save() {
  stop "$1"
  cp "$1.img" "$1.saved"
  cp -a "state-$1" "state-$1.saved"
  start_member "$1"
}
# set_back NAME: its server has the disk and the record of when they were saved.
set_back() {
  stop "$1"
  cat "$1.saved" >"$1.img"
  rm -r "state-$1"
  cp -a "state-$1.saved" "state-$1"
  start_member "$1"
}
snapshot() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"o" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  stop nbdkit 10
  save b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"N" * 65536, 0, nbd.CMD_FLAG_FUA)'
  if [[ $1 == away ]]; then
    kill_hard b
    nbdsh <<<'h.pwrite(b"N" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)'
    start_member b
    set_back b
    wait_for_line nbdkit.log "127.0.0.1:${member_port[b]} was set back to an earlier state"
    eventually 120 told_in_step
  else
    stop nbdkit 10
    set_back b
    refused_client "$mirror" "127.0.0.1:${member_port[b]} .is there, and was set back to an earlier state" \
      "mirror force 127.0.0.1:${member_port[a]}"
    face_of_mirror "control=$PWD/control" connect-timeout=120s
    spawn user nbdinfo "$uri"
    eventually 30 waits 0
    mirror_order force "127.0.0.1:${member_port[a]}" --force
    eventually 120 all_in_step
    wait_end user 30 || fail "the user still waits"
  fi
  nbdsh <<<'assert all(h.pread(1, 0) == b"N" for _ in range(8))'
  copies_are_same a b
}
it "a server that was set back while it was away gets a full copy" snapshot away
it "a server that was set back while nobody was there is named, and is no copy" snapshot unused

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
it "users may leave while a server takes its time for their requests" users_leave

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
