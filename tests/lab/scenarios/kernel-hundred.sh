# shellcheck shell=bash
# A hundred disks of the kernel in one bridge: its death under load, and what they cost when they are idle.
# The guest's clock counts instructions, so that seconds are those of its own CPU, and not of a busy machine.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"
# shellcheck source=/dev/null
source "$lab_dir/lib/two_hosts.sh"

disks=16 kills=1
[[ -z ${FULL:-} ]] || disks=100 kills=2

# map_all COUNT: the disks of a server, in a bridge that is started anew when it dies, as systemd does.
map_all() {
  local number storage=() key=127.0.0.1:1234-all
  for ((number = 0; number < $1; ++number)); do
    make_disk "d$number" 8M
    storage+=("/tmp/d$number")
  done
  serve_disk "${storage[@]}"
  modprobe nbd max_part=0
  mkdir -p /run/rnbd/map.d /run/rnbd/map
  for ((number = 0; number < $1; ++number)); do
    printf 'BRIDGE="%s"\nURI="%s"\nKERNEL="nbd"\nOPTIONS=""\n' "$key" "rnbd+tcp://127.0.0.1:1234/disk$number" \
      >"/run/rnbd/map.d/disk$number.conf"
  done
  rm -f /run/many.starts /run/many.notify
  ulimit -n 4096
  background store "$source_dir/tests/lab/lib/descriptor-store" many "$build_dir/bin/rnbd-bridge" --disks "$key" \
    --control /run/rnbd/map/control
  eventually 60 bridge_is_ready
  pgrep -f lib/descriptor-store >/run/store.pid
  eventually 60 are_mapped "$1"
}
bridge_is_ready() {
  [[ ! -e /run/store.status ]] || fail "the bridge ended with status $(</run/store.status)"
  [[ -s /run/many.pid ]]
}
are_mapped() { (($(mapped | wc -l) == $1)); }
mapped() { find /sys/block/nbd*/backend -printf '%h\n' 2>/dev/null | sed 's|.*/|/dev/|'; }
unmap_all() {
  local disk
  for disk in $(mapped); do nbd-client -d "$disk" >/dev/null; done
  eventually 60 are_mapped 0
  kill -TERM "$(</run/store.pid)"
  ended_well store
  stop rnbd-server
}

# ---- Death -------------------------------------------------------------------------------------------------

is_another_bridge() { [[ -s /run/many.pid && $(</run/many.pid) != "$1" ]]; }
kill_bridge() { # TIMES
  local number seen began before away longest
  for ((number = 0; number < $1; ++number)); do
    eventually 60 probed_after "$(count_probes)"
    seen=$(count_probes) began=$EPOCHREALTIME before=$(</run/many.pid)
    kill -9 "$before"
    eventually 60 is_another_bridge "$before"
    away=$(plus "$(stat -c %.9Y /run/many.pid)" "-$began")
    eventually 60 probed_after "$(count_probes)"
    longest=$(longest_after "$seen")
    echo "kill $number: no bridge for $away s, the longest request of all disks took $longest s"
    at_most "$longest" "$(plus "$away" 2)" || fail "that was too long"
  done
}
# loaded COUNT COMMAND...: fio's checksums over and over on so many disks; few a second, for the guest has one CPU.
loaded() {
  local loads=() disk load number=0 beside=$case_dir
  rm -f /tmp/enough
  for disk in $(mapped | head -n "$1"); do
    mkdir -p "/tmp/load-$number"
    (case_dir=/tmp/load-$number && verify_until /tmp/enough "$disk" --size=1m --rate_iops=50,50) & loads+=("$!")
    number=$((number + 1))
  done
  case_dir=$beside "${@:2}"
  touch /tmp/enough
  for load in "${loads[@]}"; do wait "$load" || fail "a load has ended badly"; done
}

dies_under_load() { # DISKS KILLS
  map_all "$1"
  dmesg --clear
  # shellcheck disable=SC2046 # one word for each
  start_probes $(mapped)
  loaded 4 kill_bridge "$2"
  stop probes
  no_line 'I/O error'
  unmap_all
}

# ---- Costs -------------------------------------------------------------------------------------------------

# spent PID: nanoseconds of CPU time of its threads.
spent() { cat "/proc/$1/task"/*/schedstat | awk '{ sum += $1 } END { printf "%d\n", sum }'; }
pss() { awk '/^Pss:/ { print $2 }' "/proc/$1/smaps_rollup"; }
costs() { # DISKS SECONDS
  local bridge spent memory
  map_all 1
  memory=$(pss "$(</run/many.pid)")
  unmap_all
  map_all "$1"
  bridge=$(</run/many.pid)
  sleep 5
  spent=$(spent "$bridge")
  sleep "$2"
  spent=$(awk "BEGIN { printf \"%.5f\", ($(spent "$bridge") - $spent) / 1e7 / $2 / $1 }")
  memory=$(awk "BEGIN { printf \"%.1f\", ($(pss "$bridge") - $memory) / ($1 - 1) }")
  echo "$1 disks: $spent % of a CPU each, $memory KiB PSS each behind the first"
  at_most "$spent" 0.005 || fail "too much CPU time"
  at_most "$memory" 154 || fail "too much memory"
  unmap_all
}

instructions=1 memory=2048 limit=1800
boot host
it "no request of $disks disks waits longer than the killed bridge is away and 2 s, and none fails" \
  on host within_memory dies_under_load "$disks" "$kills"
it_full "an idle one of $disks costs the bridge at most 0.005 % of a CPU and 0.15 MiB" on host within_memory costs "$disks" 30
finish
