# shellcheck shell=bash
# Overlapping writes, a crash and a stale copy: md RAID1 and DRBD over two of our disks, beside a mirror of ours.
# All three are shown, in table.txt; only the mirror has to pass. The disks belong to servers in one guest and take
# 1 to 21 ms for a write, so that writes overtake each other. The other guest uses them, and crashes.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/beside.sh"

copy_a() { member a 1234 delay:write=1ms,jitter=20ms,seed=1:; }
copy_b() { member b 1235 delay:write=1ms,jitter=20ms,seed=2:; }
copies() { copy_a && copy_b; }

overlapping() { "$source_dir/tests/lab/lib/overlapping" "$@"; }
# differing FIRST: blocks, of the 64 that `overlapping` has written there.
differing() {
  python3 -c '
import sys
first, size = int(sys.argv[1]), 4096
a, b = (open(f"/tmp/{name}.img", "rb").read() for name in "ab")
places = range(first * size, (first + 64) * size, size)
assert all(a[i:i + size].strip(b"\0") for i in places), "nothing was written there"
print(sum(a[i:i + size] != b[i:i + size] for i in places))' "$1"
}
# ---- md ------------------------------------------------------------------------------------------------

md_after_crash() {
  md_disks
  md --assemble /dev/md0 "/dev/$(disk_of a)" "/dev/$(disk_of b)"
  md --readwrite /dev/md0 || true # resync waits for the first write otherwise
  eventually 120 md_whole
  eventually 120 md_clean
}
# As Debian's units do it: what is there is assembled, and run when the rest has not come in 30 s.
md_alone() {
  modprobe -a md_mod raid1
  map_copy b 1235
  md --incremental "/dev/$(disk_of b)" >&2 || true
  md --run /dev/md0 >&2 || md --run /dev/md/* >&2 || true
  md_content
  md --stop --scan >&2
  stop b
}
md_content() {
  local disk
  for disk in /sys/block/md*; do
    [[ ! -e $disk ]] || content "/dev/${disk##*/}"
  done
}

after_crash_md() { on client md_after_crash; }
away_md() { on server killed server-b; }
alone_md() {
  on server copy_b
  on client md_alone
}
# ---- DRBD ------------------------------------------------------------------------------------------------

drbd_alone() {
  eventually 60 drbd_says 'ro:Secondary/Unknown' >&2
  ! drbdadm primary r0 >&2 || content /dev/drbd0
  drbdadm down r0
  modprobe -r drbd
  stop b
}

after_crash_drbd() {
  on client drbd_up a 1234 known
  on client drbd_primary
}
away_drbd() { on server drbdadm disconnect r0; }
alone_drbd() { on server drbd_alone; }
# ---- Ours --------------------------------------------------------------------------------------------------

# A client that finds copy b alone has no disk to show.
ours_waits() { [[ $(mirror_says '[.attached, .members[1].state] | map(tostring) | join(",")') == false,waiting ]]; }
ours_alone() {
  modprobe nbd max_part=8
  background one "$build_dir/bin/rnbd-bridge" --kernel nbd --map-name one --pid-file /run/one.pid \
    --connect-timeout 10min --control /run/one.control --reconnect-max 500ms "$(mirror_uri)"
  eventually 60 ours_waits
  [[ ! -e /sys/block/nbd0/backend ]] || content /dev/nbd0
}
ours_both() {
  eventually 60 ready_or_ended one
  eventually 120 all_in_step
  content /dev/nbd0
  stop one
}

after_crash_ours() { on client ours_up; }
away_ours() { on server killed server-b; }
alone_ours() {
  on server copy_b
  on client ours_alone
}
# ---- The comparison ------------------------------------------------------------------------------------------

# compared SYSTEM: sets $overlapped, $crashed, $stale, and adds them to the table.
compared() {
  local device job before
  device=$("device_of_$1")
  on server copies
  "begin_$1"
  on client overlapping "$device" 0 1
  "settle_$1"
  overlapped=$(on server differing 0)
  note "$1" 'four writers at once to a block: of 64, copies differ in' "$overlapped"

  before=$(on client writes_of "$device")
  limit=900 on client overlapping "$device" 4096 1000 >/dev/null 2>&1 & job=$!
  on client eventually 120 writes_come "$device" $((before + 512)) # two rounds
  reset client
  kill "$job" 2>/dev/null || true
  "after_crash_$1"
  crashed=$(on server differing 4096)
  note "$1" 'in the midst of that the client crashes: differ after it' "$crashed"
  note "$1" 'and those of the first line, after the crash' "$(on server differing 0)"

  on client write_block "$device" 3 O
  "away_$1"
  on client write_block "$device" 3 N
  on server killed server-a
  reset client
  stale=$("alone_$1")
  note "$1" 'copy b was away, the rest dies, b is back alone: it serves' "${stale:-nothing}"
}
writes_come() { (($(writes_of "$1") >= $2)); }

shown() { # SYSTEM
  requires mdadm drbdadm
  compared "$1"
  note "$1" version "$("version_$1")"
}
ours() {
  compared ours
  [[ $overlapped == 0 && $crashed == 0 ]] || fail "the copies differ"
  [[ -z $stale ]] || fail "a stale copy is served: $stale"
  on server copy_a
  [[ $(on client ours_both) == *NEW ]] || fail "with both copies there, the newer content is not served"
  note ours version "$(version_ours)"
}

boot server client
it "overlapping writes and a crash leave a mirror's copies equal, and its stale copy is not served" ours
it "md RAID1 over the same disks does what the table shows" shown md
it "DRBD over the same disks does what the table shows" shown drbd
cat "$work_dir/table.txt"
finish
