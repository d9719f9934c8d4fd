# shellcheck shell=bash
# Copies with two histories: one was replaced, was forced, or was set back. md RAID1, DRBD and a mirror of ours.
# All three are shown, in table.txt; only the mirror has to pass. A copy has OLD, or what was written and answered
# later, NEW; a system that holds its copies for equal while they differ shows now one and now the other.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/beside.sh"

copy_a() { member a 1234; }
copy_b() { member b 1235; }
copy_d() { member d 1236; }
copies() { copy_a && copy_b; }

# ---- md ------------------------------------------------------------------------------------------------

# Another disk in b's place. What was b knows nothing of it, as a server that was only unreachable.
md_replace() {
  md /dev/md0 --fail "/dev/$(disk_of b)"
  md /dev/md0 --remove "/dev/$(disk_of b)"
  map_copy d 1236
  md /dev/md0 --add "/dev/$(disk_of d)"
  eventually 120 md_whole
}
# Both are assembled. One that md leaves out is given back to it, as a person does who sees it missing.
md_start() {
  md_disks
  md --assemble --run /dev/md0 "/dev/$(disk_of a)" "/dev/$(disk_of b)" >&2
  md --readwrite /dev/md0 >&2 || true
  eventually 60 md_is_idle
  md_whole || md_give_back a b
}
md_is_idle() { [[ $(</sys/block/md0/md/sync_action) == idle ]]; }
md_give_back() { # NAME...
  local name disk
  for name in "$@"; do
    disk=$(disk_of "$name")
    [[ ! -e /sys/block/md0/slaves/$disk ]] || continue
    md /dev/md0 --re-add "/dev/$disk" >&2 || md /dev/md0 --add "/dev/$disk" >&2
  done
  eventually 120 md_whole
}
md_force() {
  modprobe -a md_mod raid1
  map_copy b 1235
  md --assemble --run --force /dev/md0 "/dev/$(disk_of b)" >&2
  md --readwrite /dev/md0 >&2 || true
  write_block /dev/md0 4 N
  md --stop /dev/md0
}

md_leave() {
  local disk
  md --stop /dev/md0
  for disk in a b; do stop "$disk"; done
}

leave_md() { on client md_leave; }
replace_md() { on client md_replace; }
away_md() { on server killed server-b; }
back_md() {
  on server copy_b
  on client md_back
}
# The bridge has connected again; md has to be told that the disk may be tried anew.
md_back() {
  eventually 60 block_is "/dev/$(disk_of b)" 3 O >&2
  md /dev/md0 --remove failed >&2
  md_give_back b
}
end_md() { on client md --stop /dev/md0; }
start_md() { on client md_start; }
force_md() { on client md_force; }
shown_md() { content /dev/md0 "$1"; }
whole_md() { md_whole; }

# ---- DRBD ------------------------------------------------------------------------------------------------

drbd_down() { # NAME
  drbdadm down r0
  modprobe -r drbd
  stop "$1"
}
drbd_force() {
  drbdadm primary --force r0
  write_block /dev/drbd0 4 N
  drbdadm secondary r0
}
# drbd_settled: the two have agreed, or do not talk to each other.
drbd_settled() { drbd_whole || drbd_says 'cs:StandAlone'; }
drbd_start() {
  drbd_up a 1234 known
  eventually 120 drbd_settled
  drbdadm primary r0 >&2
}

leave_drbd() {
  on client drbd_down a
  on server drbd_down b
}
replace_drbd() {
  on server drbd_down b
  on server drbd_up d 1236 new
  on client eventually 120 drbd_whole
}
away_drbd() { on server drbdadm disconnect r0; }
back_drbd() {
  on server drbdadm connect r0
  on client eventually 120 drbd_whole
}
end_drbd() {
  on client drbdadm down r0
  on server drbd_down "${1:-b}"
}
start_drbd() {
  on server drbd_up b 1235 known
  on client drbd_start
}
force_drbd() { # b is up, and was cut off
  on server drbd_up b 1235 known
  on server drbd_force
  on server drbd_down b
}
shown_drbd() { content /dev/drbd0 "$1"; }
whole_drbd() { drbd_whole >&2; }

# ---- Ours --------------------------------------------------------------------------------------------------

ours() { "$build_dir/bin/rnbd-ctl" /run/one.control mirror "$@" >&2; }
ours_replace() {
  ours discard 10.99.0.1:1235
  ours add 10.99.0.1:1236
  eventually 120 all_in_step
}
ours_begin() {
  modprobe nbd max_part=8
  background one "$build_dir/bin/rnbd-bridge" --kernel nbd --map-name one --pid-file /run/one.pid \
    --connect-timeout 10min --control /run/one.control --reconnect-max 500ms "$(mirror_uri)"
  eventually 60 test -S /run/one.control
}
is_attached() { [[ $(mirror_says .attached) == true ]]; }
# A mirror that waits for a person says so, and has no disk.
ours_start() {
  ours_begin
  if (eventually 60 is_attached); then
    eventually 60 ready_or_ended one
    eventually 120 all_in_step
  else
    mirror_says '.trouble, (.members[]? | .trouble // empty)' >&2
  fi
}
ours_force() {
  ours_begin
  eventually 60 b_is_waiting
  ours force 10.99.0.1:1235 --force
  eventually 60 ready_or_ended one
  write_block /dev/nbd0 4 N
  stop one
}
b_is_waiting() { [[ $(mirror_says '.members[1].state') == waiting ]]; }

leave_ours() { :; } # the end of the case ends it
replace_ours() { on client ours_replace; }
away_ours() {
  on server killed server-b
  on client eventually 60 b_is_lost
}
b_is_lost() { [[ $(mirror_says '.members[1].state') == away ]]; }
back_ours() {
  on server copy_b
  on client eventually 120 all_in_step
}
end_ours() { on client stop one; }
start_ours() { on client ours_start; }
force_ours() { on client ours_force; }
shown_ours() { [[ ! -e /sys/block/nbd0/backend ]] || content /dev/nbd0 "$1"; }
whole_ours() { is_attached && all_in_step; }

# ---- Histories -----------------------------------------------------------------------------------------------

# Everything stops; the copies and what is recorded beside them stay.
all_end() {
  "end_$1" "${2:-b}"
  reset client
  on server servers_end
}
servers_end() {
  local name
  for name in a b d; do
    [[ ! -e /run/server-$name.pid || -s /run/server-$name.status ]] || stop "server-$name"
  done
}
save_b() {
  cp /tmp/b.img /tmp/b.saved
  cp -a /tmp/state-b /tmp/state-b.saved
}
set_back_b() {
  cat /tmp/b.saved >/tmp/b.img
  rm -r /tmp/state-b
  cp -a /tmp/state-b.saved /tmp/state-b
}
written() { # DEVICE PLACE LETTER
  write_block "$@"
  sleep 12 # a member's record is behind for up to 10 s, on purpose
}

# b is replaced by d; then the system is started with the disks of before.
replaced() {
  on client written "$device" 3 O
  on server copy_d
  "replace_$1"
  on client written "$device" 3 N
  "settle_$1"
  all_end "$1" d
  on server copies
  "start_$1"
}
# While nobody uses them, b is set back to where it was before the last write.
set_back() {
  on client written "$device" 3 O
  "settle_$1"
  all_end "$1"
  on server save_b
  on server copies
  "start_$1"
  on client written "$device" 3 N
  "settle_$1"
  all_end "$1"
  on server set_back_b
  on server copies
  "start_$1"
}
# While b is away, it is set back to before it was away the last time.
set_back_away() {
  on client written "$device" 3 O
  "settle_$1"
  all_end "$1"
  on server save_b
  on server copies
  "start_$1"
  "away_$1"
  on client written "$device" 5 N
  "back_$1"
  on client written "$device" 3 N
  "settle_$1"
  "away_$1"
  all_end "$1"
  on server set_back_b
  on server copies
  "start_$1"
}
# A write at a alone, then one at b alone, by a person's word; then both are there.
forced() {
  on client written "$device" 3 O
  on client written "$device" 4 O
  "settle_$1"
  "away_$1"
  on client written "$device" 3 N
  all_end "$1"
  on server copy_b
  "force_$1"
  reset client
  on server servers_end
  on server copies
  "start_$1"
}

# ---- The comparison ------------------------------------------------------------------------------------------

# copies_have PLACE: "NEW OLD" for a and b.
copies_have() {
  local name
  for name in a b; do content "/tmp/$name.img" "$1"; done | xargs
}
# told SYSTEM PLACE: sets $shown and $have.
told() {
  shown=$(on client "shown_$1" "$2" | xargs)
  have=$(on server copies_have "$2")
}
# history SYSTEM CASE TITLE: sets $whole, and $shown and $have for each place.
history() {
  on server copies
  device=$("device_of_$1")
  "begin_$1"
  "$2" "$1"
  whole=no
  ! on client "whole_$1" || whole=yes
  told "$1" 3
  note "$1" "$3" "shows ${shown:-nothing}; a and b have $have; held for equal: $whole"
  [[ $2 != forced ]] || told_forced "$1"
  "leave_$1"
}
told_forced() {
  told "$1" 4
  note "$1" '... what was written to b' "shows ${shown:-nothing}; a and b have $have"
}

names=(replaced set_back set_back_away forced)
declare -A titles=(
  [replaced]='b was replaced by d, and a and b are started'
  [set_back]='b is set back while nobody uses them'
  [set_back_away]='b is set back while it is away'
  [forced]='a goes on alone, then b does by a word; both: written to a'
)
shown() { # SYSTEM CASE
  requires mdadm drbdadm
  history "$1" "$2" "${titles[$2]}"
}
safe() { # CASE
  history ours "$1" "${titles[$1]}"
  # What a person has decided against is gone, and nowhere half there.
  [[ $1 != forced ]] || { [[ $shown == NEW && $have == 'NEW NEW' ]] || fail "the forced disk's answered write is gone"; }
  [[ $shown != *OLD* ]] || [[ $1 == forced ]] || fail "old content is shown"
  [[ $whole == no || $have == 'NEW NEW' ]] || fail "copies are held for equal that differ"
}

boot server client
for name in "${names[@]}"; do
  it "${titles[$name]}: a mirror shows what was answered last, or waits" safe "$name"
done
for name in "${names[@]}"; do
  it "${titles[$name]}: md RAID1 does what the table shows" shown md "$name"
  it "${titles[$name]}: DRBD does what the table shows" shown drbd "$name"
done
cat "$work_dir/table.txt"
finish
