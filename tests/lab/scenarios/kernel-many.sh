# shellcheck shell=bash
# Many disks of the kernel from two servers: a bridge, a process and a session for each server, and each disk by itself.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"
# shellcheck source=/dev/null
source "$lab_dir/lib/systemd.sh"

# ---- Two servers -----------------------------------------------------------------------------------------

# serve_two COUNT: disks each, a0 ... and b0 ..., at ports 1234 and 1235.
serve_two() {
  local letter number
  for letter in a b; do
    for ((number = 0; number < $1; ++number)); do make_disk "$letter$number" 8M; done
    serve_one "$letter" "$1"
  done
}
serve_one() { # a|b COUNT
  local number exports=()
  for ((number = 0; number < $2; ++number)); do exports+=(--export "$1$number=/tmp/$1$number"); done
  mkdir -p "/tmp/state-$1"
  background "server-$1" "$build_dir/bin/rnbd-server" --listen "tcp:10.99.0.1:$(port_of "$1")" \
    --state-directory "/tmp/state-$1" --pid-file "/run/server-$1.pid" "${exports[@]}"
  eventually 30 ready_or_ended "server-$1"
}
port_of() { [[ $1 == a ]] && echo 1234 || echo 1235; }
# without_disk NAME COUNT: its server is there, and its file is not.
without_disk() {
  stop "server-${1:0:1}"
  mv "/tmp/$1" "/tmp/$1.hidden"
  serve_one "${1:0:1}" "$2"
}
shows() { mv "/tmp/$1.hidden" "/tmp/$1"; }

# ---- The client ------------------------------------------------------------------------------------------

ctl() { in_systemd rnbd-ctl "$@"; }
map_one() { ctl map "$1" from "10.99.0.1:$(port_of "${1:0:1}")" --persist "${@:2}" 2>>mapped.txt; }
map_all() { # FIRST COUNT
  local letter number
  for letter in a b; do
    for ((number = $1; number < $2; ++number)); do map_one "$letter$number"; done
  done
}
# unit_of a|b: the bridge of that server's disks.
unit_of() { in_systemd systemctl list-units --plain --no-legend "rnbd-maps@10.99.0.1:$(port_of "$1")-*" | awk '{ print $1 }'; }
main_process() { in_systemd systemctl show -P MainPID "$(unit_of "$1")"; }
is_another_process() { [[ $(main_process "$1") != "$2" ]] && in_systemd systemctl -q is-active "$(unit_of "$1")"; }
device_of() { in_systemd readlink -e "/dev/rnbd/by-name/$1"; }
serves() { # COUNT
  [[ $(ctl client list devices csv noheaders nototals devname,state | grep -c '^nbd[0-9]*,open$') == "$1" ]]
}
two_of_everything() { # DISKS
  [[ $(pgrep -cx rnbd-bridge) == 2 ]] || fail "$(pgrep -cx rnbd-bridge) bridges"
  ctl client list sessions csv noheaders nototals sessname,path_cnt | tee sessions.txt
  (($(wc -l <sessions.txt) == 2)) || fail "not two sessions"
  eventually 60 serves "$1"
}
# costs: of each bridge, with its disks.
costs() {
  local process
  for process in $(pgrep -x rnbd-bridge); do
    echo "bridge $process: $(find "/proc/$process/task" -mindepth 1 -maxdepth 1 | wc -l) threads," \
      "$(find "/proc/$process/fd" -mindepth 1 | wc -l) descriptors," \
      "$(awk '/^Pss:/ { print $2 }' "/proc/$process/smaps_rollup") KiB PSS," \
      "$(awk '/^(Anonymous|Private_Dirty):/ { print $1, $2 }' "/proc/$process/smaps_rollup" | paste -s -d ' ') KiB"
  done
}

# loaded DISK... -- COMMAND...: with checksums over and over on these disks.
loaded() {
  local loads=() disk
  rm -f /tmp/enough
  while [[ $1 != -- ]]; do
    disk=$(device_of "$1")
    mkdir -p "/tmp/load-$1"
    (case_dir=/tmp/load-$1 && verify_until /tmp/enough "$disk" --size=1m) & loads+=("$!")
    shift
  done
  shift
  "$@"
  touch /tmp/enough
  local load
  for load in "${loads[@]}"; do wait "$load" || fail "a load has ended badly"; done
}
go_on() { # DISK...
  local disk device before
  for disk in "$@"; do
    device=$(device_of "$disk")
    before=$(writes_of "$device")
    eventually 120 have_grown "$device" "$before"
  done
}
have_grown() { (($(writes_of "$1") > $2 + 8)); }

# ---- Cases -----------------------------------------------------------------------------------------------

killed_once() {
  local before other
  before=$(main_process a) other=$(main_process b)
  go_on a0 a1 a2 b0
  in_systemd kill -9 "$before"
  eventually 120 is_another_process a "$before"
  go_on a0 a1 a2 b0
  [[ $(main_process b) == "$other" ]] || fail "the other bridge was started anew"
}
restarted_once() {
  local before
  before=$(main_process a)
  in_systemd systemctl restart "$(unit_of a)"
  [[ $(main_process a) != "$before" ]] || fail "the process is the same"
  go_on a0 a1 a2 b0
}
some_go() {
  ctl unmap a3
  ctl unmap b3
  # One that somebody uses.
  in_systemd systemd-run -q --unit=holder bash -c "sleep infinity 9<$(device_of a4)"
  eventually 20 is_held a4
  fails ctl unmap a4 >refusal.txt 2>&1
  grep -E 'is used: open in [0-9]+ \(sleep\)' refusal.txt
  ctl unmap a4 --force
  in_systemd systemctl stop holder
  go_on a0 a1 a2 b0
}
is_held() { ctl show "$1" openers | grep sleep; }

first_day() { # COUNT
  install_systemd
  start_systemd
  map_all 0 1
  costs
  map_all 1 "$1"
  two_of_everything "$((2 * $1))"
  costs
  ctl check
}
under_load_of_both() { # COUNT
  dmesg --clear
  loaded a0 a1 a2 b0 -- killed_once
  eventually 60 serves "$((2 * $1))"
  no_line 'I/O error'
  dmesg --clear
  loaded a0 a1 a2 b0 -- restarted_once
  eventually 60 serves "$((2 * $1))"
  # The kernel has noticed nothing.
  no_line 'nbd[0-9]*: [^P]|I/O error'
  loaded a0 a1 a2 b0 -- some_go
  two_of_everything "$((2 * $1 - 3))"
}
# A disk that is missing at the server keeps no other one from the boot, and comes when it is there.
boots_without_one() { # COUNT
  local number
  start_systemd
  two_of_everything "$((2 * $1 - 4))"
  ctl check >check.txt || true
  grep -E "^CRITICAL: device a5: it is tried again and again: .*a5" check.txt
}
all_there() {
  eventually 60 serves "$1"
  ctl check
}
last_ones_end_it() { # COUNT
  local name unit
  unit=$(unit_of b)
  for name in $(cd "$(in_root /etc/rnbd/map.d)" && echo b*.conf); do ctl unmap "${name%.conf}"; done
  [[ $(pgrep -cx rnbd-bridge) == 1 ]] || fail "the bridge runs without a disk"
  [[ $(in_systemd systemctl is-enabled "$unit" || true) == disabled ]] || fail "it comes with the next boot"
  (($(ctl client list sessions csv noheaders nototals sessname | wc -l) == 1)) || fail "the session is still there"
  # One that wants a process of its own.
  map_one b0 --own-process
  in_systemd systemctl -q is-active rnbd-map@b0.service
  ctl unmap b0
}

many() {
  on server serve_two "$disks"
  on client first_day "$disks"
  limit=1800 on client under_load_of_both "$disks"
  on client stop_systemd
  on server without_disk a5 "$disks"
  reset client
  on client boots_without_one "$disks"
  on server shows a5
  on client all_there "$((2 * disks - 3))"
  on client last_ones_end_it "$disks"
  on client stop_systemd
}

disks=16 limit=900
install_for_guests
boot server client
it "32 disks of two servers have two bridges and two sessions, over a kill, a restart, and a boot" many
finish
