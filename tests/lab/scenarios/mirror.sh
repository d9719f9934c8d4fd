# shellcheck shell=bash
# /dev/nbd0 on two servers: members, rnbd-bridge and both are killed under load, and the copies are the same.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"
# shellcheck source=/dev/null
source "$lab_dir/lib/members.sh"

# goes_on: requests that began from now on have ended.
goes_on() { eventually 120 writes_come_after "$(writes_of /dev/nbd0)"; }

member_dies() { # NAME PORT
  killed "server-$1"
  goes_on
  member "$1" "$2"
  eventually 120 all_in_step
}
bridge_dies() {
  killed one
  bridge_comes
}
both_die() {
  killed server-b
  killed one
  member b 1235
  bridge_comes
}
bridge_comes() {
  map_mirror
  goes_on
  eventually 120 all_in_step
}
die_in_turn() { # TIMES
  local number
  for ((number = 0; number < $1; ++number)); do
    member_dies b 1235
    bridge_dies
    member_dies a 1234
    both_die
    echo "round $number: both members are in step again"
  done
}

begin_mirror() {
  member a 1234
  member b 1235
  map_mirror
  eventually 120 all_in_step
}
under_fire() { # COMMAND...
  begin_mirror
  dmesg --clear
  under_load "$@"
  no_line 'I/O error'
  stop one
  cmp /tmp/a.img /tmp/b.img
  (($(du -k /tmp/a.img | cut -f 1) >= 1024)) || fail "nothing was written"
  stop server-a
  stop server-b
}

killed_under_load() { limit=$1 on client under_fire "${@:2}"; }

boot client
it "a member of a kernel's disk is killed under load: no request fails, and the copies are equal" \
  killed_under_load 300 member_dies b 1235
it_full "so are the bridge, the other member, and both at once, again and again" \
  killed_under_load 3000 die_in_turn 10
finish
