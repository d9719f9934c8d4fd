#!/bin/bash
# What operators do with mirrors: servers are discarded, added, forced and freed, copies are compared, and
# mirrors dissolved.
# KILLS=N: see mirror_members.sh.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/mirror_members.sh"

histories=${FULL:+100} # how often a history is forced, or a server set back
histories=${histories:-1}
# history TITLE FUNCTION [ARGUMENTS...]: so often.
history() {
  local run
  for ((run = 1; run <= histories; ++run)); do it "$@"; done
}
# a_while: of a history that is told often. Each has its moments.
a_while() { ((histories == 1)) || sleep "$((RANDOM % 4)).$((RANDOM % 10))"; }

# The chapter of docs/mirror.md, as an operator follows it.
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

# spoil NAME PLACE: a byte of a copy.
spoil() { printf '\377' | dd of="$1.img" bs=1 seek="$2" conv=notrunc,fsync status=none; }
# One of three is wrong at a place, and two of them at another one.
verified_three() {
  local a b c
  start_members a b c
  a=127.0.0.1:${member_port[a]} b=127.0.0.1:${member_port[b]} c=127.0.0.1:${member_port[c]}
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * (1 << 20), 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  spoil a 5000
  spoil a 300000
  spoil b 300001
  verify_copies 1
  wait_for_line nbdkit.log "512 bytes from byte 4608 on differ between $a and $b and $c; the same data have $b and $c"
  wait_for_line nbdkit.log "512 bytes from byte 299520 on differ between $a and $b and $c"'$'
  verify_copies 0 --from "$c"
  copies_are_same a b c
}
it_plugin "where three copies differ, the log says which of them are the same" verified_three

# A host that stands by takes the mirror from nobody by that.
idle_asked() {
  local word first
  start_members a b
  face_of_mirror "control=$PWD/control"
  first=$uri
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
  eventually 120 all_in_step
  nbdkit_name=idle attach_to "$mirror" "control=$PWD/idle"
  eventually 20 test -S idle # nbdkit's pid file is there before its plugin runs
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

# A server that is older, or a copy that is smaller, has the others wait. What lies in the new room of
# the copies differs.
copies_grow() {
  local mib=1048576
  start_members a b
  face_of_mirror "control=$PWD/control"
  start_writers
  eventually 120 all_in_step
  enlarge 32M a
  head -c 1M /dev/urandom | dd of=a.img bs=1M seek=20 conv=notrunc status=none
  eventually 20 growth_waits "disk of 127.0.0.1:${member_port[b]} is enlarged, too, beyond $((16 * mib)) bytes"
  nbdsh <<<'assert h.get_size() == 16 << 20'
  enlarge 24M b
  eventually 20 has_size $((24 * mib))
  tail_works $((24 * mib))
  enlarge 32M b
  eventually 20 has_size $((32 * mib))
  tail_works $((32 * mib))
  [[ -z $(mirror_says .growth) ]] || fail "$(mirror_says .)"
  go_on
  end_writers
  eventually 120 all_in_step
  [[ $(mirror_says .losses) == 0 ]] || fail "a server was lost: $(mirror_says .)"
  kill_hard b
  start_member b
  eventually 120 all_in_step
  stop nbdkit 10
  kill_hard a
  start_member a
  face_of_mirror "control=$PWD/control"
  tail_works $((32 * mib))
  eventually 120 all_in_step
  compare a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pread(1, 0)'
  mirror_order dissolve "127.0.0.1:${member_port[a]}"
  nbdkit_name=plain attach_to "$(plain_uri a)"
  nbdsh <<<'assert h.get_size() == 32 << 20'
}
it "a mirror grows when all copies are enlarged, while it is used" copies_grow

third_copy() {
  local two three
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pread(1, 0)'
  eventually 120 all_in_step
  two=$(mirror_says .uri)
  start_member c
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror add "127.0.0.1:${member_port[c]}"
  three=$(grep -o 'rnbd-mirror[^ ]*' said)
  stop nbdkit 10

  mirror=$three face_of_mirror "control=$PWD/control"
  start_writers
  eventually 120 all_in_step
  [[ $(mirror_says '.members | length') == 3 ]] || fail "$(mirror_says .)"
  kill_hard a
  go_on
  kill_hard b # one by one: the newest copy goes on alone
  go_on
  start_member a
  start_member b
  eventually 120 all_in_step
  end_writers
  compare a b c

  mirror=$two face_of_mirror "control=$PWD/control"
  spawn user /usr/bin/python3 -m nbd -u "$uri" -c 'h.pread(1, 0)'
  eventually 20 a_refuses 'says member 1 of 3 .*client says member 1 of 2'
  wait_end user 60 || fail "a client of two disks waits"
  ((status != 0)) || fail "a client of two disks was served"
  stop nbdkit 10
  mirror=$three face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pread(1, 0)'
  eventually 120 all_in_step
}
a_refuses() { grep -qE "$1" a.log; }
it "a mirror of two gets a third copy, and is none of two from then on" third_copy

# with_third URI SERVER: the URI of the same mirror with one server more.
with_third() { echo "${1%%/disk0*},$2/disk0${1#*/disk0}"; }
third_mistyped() {
  local two
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 3 << 20, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  two=$(mirror_says .uri)
  stop nbdkit 10
  mirror=$(with_third "$two" 127.0.0.1:1) face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"y" * 65536, 4 << 20, nbd.CMD_FLAG_FUA)'
  is_away 2 || fail "$(mirror_says .)"
  stop nbdkit 10
  mirror=$two face_of_mirror "control=$PWD/control"
  nbdsh <<<'assert h.pread(65536, 4 << 20) == b"y" * 65536'
  eventually 120 all_in_step
  stop nbdkit 10
  start_member c
  mirror=$(with_third "$two" "127.0.0.1:${member_port[c]}") face_of_mirror "control=$PWD/control"
  nbdsh <<<'assert h.pread(65536, 4 << 20) == b"y" * 65536'
  eventually 120 all_in_step
  stop nbdkit 10
  same a b c
}
it "a third server that was never there is left out again, or replaced by the right one" third_mistyped

# Nobody waits for one that was discarded. What comes in its place has the room, or is told to have it.
grows_without_one() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, (16 << 20) - 65536, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  kill_hard b
  eventually 20 mirror_misses_one
  enlarge 20M a b
  eventually 20 growth_waits "when 127.0.0.1:${member_port[b]} is in step, or discarded"
  has_size $((16 << 20)) || fail "it has grown alone: $(mirror_says .)"
  start_member b
  eventually 60 has_size $((20 << 20))
  tail_works $((20 << 20))
  eventually 120 all_in_step
  kill_hard b
  mirror_order discard "127.0.0.1:${member_port[b]}"
  enlarge 24M a
  eventually 20 has_size $((24 << 20))
  tail_works $((24 << 20))
  rm -r state-b b.img
  disk_size=20M start_member b
  mirror_order add "127.0.0.1:$port"
  eventually 20 second_says 'smaller than the mirror, which has 25165824 bytes'
  enlarge 24M b
  eventually 120 all_in_step
  copies_are_same a b
}
second_says() { mirror_says '.members[1].trouble' | grep -q "$1"; }
it "a mirror grows when a copy that was away is back, or without one that was discarded" grows_without_one

# The server of a has seen its disk larger for a moment.
smaller_again() {
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, (16 << 20) - 65536, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  enlarge 32M a
  eventually 20 growth_waits "disk of 127.0.0.1:${member_port[b]} is enlarged"
  enlarge 16M a
  enlarge 32M b
  eventually 20 growth_waits "disk of 127.0.0.1:${member_port[a]} is enlarged"
  has_size $((16 << 20)) || fail "it has grown beyond a disk: $(mirror_says .)"
  enlarge 24M a
  eventually 20 has_size $((24 << 20))
  tail_works $((24 << 20))
  [[ $(mirror_says .losses) == 0 ]] || fail "a server was lost: $(mirror_says .)"
  eventually 120 all_in_step
  kill_hard a
  kill_hard b
  copies_are_same_up_to 24M
}
copies_are_same_up_to() { cmp -n "$(numfmt --from=iec "$1")" a.img b.img || fail "the copies differ"; }
it "a copy that was enlarged and made smaller again has the mirror keep its size" smaller_again

# A new mirror of the size that it has then would have larger regions.
grows_beyond_its_regions() {
  local mib=1048576
  local first=$(((1 << 40) - mib)) last=$(((1 << 40) + 4 * mib))
  truncate -s "$last" sparse 2>/dev/null || skip "no file of 1 TiB here"
  disk_size="$first" start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 120 all_in_step
  enlarge "$last" a b
  eventually 20 has_size "$last"
  kill_hard a
  kill_hard b
  eventually 20 detached
  start_member a
  start_member b
  eventually 60 attached
  tail_works "$last"
}
it "a mirror that has grown beyond the regions of a new one attaches again" grows_beyond_its_regions

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

# An operator looks first, and then lets a copy replace the content.
added_with_data() {
  local c
  start_members a b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"x" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 all_in_step
  mirror_order discard "127.0.0.1:${member_port[b]}"
  printf data >c.img
  truncate -s "$disk_size" c.img
  start_member c
  c=127.0.0.1:${member_port[c]}
  mirror_order add "$c"
  eventually 20 holds_data 1
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror add "$c"
  says said "a member already"
  cmp -n 4 c.img <(printf data) || fail "c was overwritten"
  mirror_order add "$c" --force
  eventually 60 all_in_step
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror add "$c" --force
  says said "a member already"
  copies_are_same a c
}
holds_data() { [[ $(mirror_says ".members[$1] | .state + .trouble") == "waitingits disk is new"*"--force"* ]]; }
it_plugin "a disk with data that was added gets a copy once an operator says so" added_with_data

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

# b has writes that a lacks, and stands still while the client comes.
forced_before_an_answer() {
  local a b
  start_members a b
  a=127.0.0.1:${member_port[a]} b=127.0.0.1:${member_port[b]}
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"o" * 65536, 0, nbd.CMD_FLAG_FUA)'
  eventually 20 all_in_step
  kill_hard a
  nbdsh <<<'h.pwrite(b"N" * 65536, 0, nbd.CMD_FLAG_FUA)'
  stop nbdkit 10
  start_member a
  freeze b
  face_of_mirror "control=$PWD/control" connect-timeout=120s
  spawn user nbdsh <<<'assert h.pread(65536, 0) == b"N" * 65536'
  eventually 20 waits 0
  status_of 1 "${ctl_command[@]}" "$PWD/control" mirror force "$a" --force
  says said "nothing is known yet of $b, which may have newer data"
  thaw b
  wait_end user 30 || fail "the user still waits"
  ((status == 0)) || fail "the user: $(cat user.log)"
  eventually 30 all_in_step
  copies_are_same a b
}
it "no disk is forced while another server has yet to answer" forced_before_an_answer

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
  a_while
  end_forward 127.0.0.1
  a_while
  nbdsh <<<'h.pwrite(b"A" * 65536, 0, nbd.CMD_FLAG_FUA)'
  a_while
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
  a_while
  stop nbdkit 10
  port=${member_port[b]} start_forward 127.0.0.1 "$forward_port"
  wait_for_line old.log "an operator has had another client go on with other servers"
  nbdsh "$old" <<<'assert h.pread(1, 1 << 20) == b"B", "what was answered after force is gone"'
  stop old 10
  end_forward 127.0.0.1
}
used() { [[ $(mirror_says ".members[$1].trouble") == *"writes to it"* ]]; }
history "a client that was cut off ends when it meets a server that an operator has forced" forced_beside

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
  eventually 30 detached
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
  a_while
  stop nbdkit 10
  save b
  face_of_mirror "control=$PWD/control"
  nbdsh <<<'h.pwrite(b"N" * 65536, 0, nbd.CMD_FLAG_FUA)'
  a_while
  if [[ $1 == away ]]; then
    kill_hard b
    nbdsh <<<'h.pwrite(b"N" * 65536, 1 << 20, nbd.CMD_FLAG_FUA)'
    a_while
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
history "a server that was set back while it was away gets a full copy" snapshot away
history "a server that was set back while nobody was there is named, and is no copy" snapshot unused

finish
