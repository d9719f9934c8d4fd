# shellcheck shell=bash
# /dev/nbd0 on two servers: members, rnbd-bridge and both are killed under load, and the copies are the same.
# ROUNDS=N: how often all of them are killed in the cases of lab-full; default 5.
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
mixed() {
  touch over_rdma
  killed_under_load "$@"
}

# ---- Who is no member ------------------------------------------------------------------------------------

linux_as_member() {
  ramdisk 32
  kernel_server port_nr=4321
  member b 1235
  fails "$build_dir/bin/rnbd-bridge" --listen unix:/run/nbd.sock --connect now --connect-timeout 20s \
    rnbd-mirror://10.99.0.1:4321,tcp:10.99.0.1:1235/dev/ram0
  grep 'a Linux server cannot be a member of a mirror' fails.out
}
linux_refused() { on client linux_as_member; }

boot client
it "a member of a kernel's disk is killed under load: no request fails, and the copies are equal" \
  killed_under_load 600 member_dies b 1235
it_full "so are the bridge, the other member, and both at once, again and again" \
  killed_under_load 3000 die_in_turn "${ROUNDS:-5}"
it_full "the same with a member over RDMA and one over TCP" mixed 3000 die_in_turn "${ROUNDS:-5}"
it_full "Linux's server is refused as a member, with the reason" linux_refused
finish
