# shellcheck shell=bash
# A hundred disks of the kernel in one bridge: its death under load, and what they cost when they are idle.
# The guest's clock counts instructions, so that seconds are those of its own CPU, and not of a busy machine.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"
# shellcheck source=/dev/null
source "$lab_dir/lib/two_hosts.sh"

# DISKS is another number of idle ones.
disks=16 kills=1
[[ -z ${FULL:-} ]] || disks=100 kills=2
idle_disks=${DISKS:-$disks}

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
  ulimit -n 16384
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

# spent PID: nanoseconds of CPU time, with that of threads that have ended.
spent() { awk '{ printf "%.0f\n", ($14 + $15) * 1e7 }' "/proc/$1/stat"; }
pss() { awk '/^Pss:/ { print $2 }' "/proc/$1/smaps_rollup"; }
# each_of DISKS SECONDS BEFORE AFTER: per cent of a CPU. more_of DISKS BEFORE AFTER: KiB of each behind the first.
each_of() { awk "BEGIN { printf \"%.5f\", ($4 - $3) / 1e7 / $2 / $1 }"; }
more_of() { awk "BEGIN { printf \"%.1f\", ($3 - $2) / ($1 - 1) }"; }
costs() { # DISKS SECONDS
  local bridge server spent served memory kept
  map_all 1
  memory=$(pss "$(</run/many.pid)") kept=$(pss "$(pgrep -x rnbd-server)")
  unmap_all
  map_all "$1"
  bridge=$(</run/many.pid) server=$(pgrep -x rnbd-server)
  sleep 5
  spent=$(spent "$bridge") served=$(spent "$server")
  sleep "$2"
  spent=$(each_of "$1" "$2" "$spent" "$(spent "$bridge")") served=$(each_of "$1" "$2" "$served" "$(spent "$server")")
  memory=$(more_of "$1" "$memory" "$(pss "$bridge")") kept=$(more_of "$1" "$kept" "$(pss "$server")")
  echo "bridge of $1 disks: $spent % of a CPU each, $memory KiB PSS each behind the first"
  echo "server: $served % of a CPU each, $kept KiB PSS each behind the first"
  # Together, for it does not grow with their number: 0.001 % for each of a thousand.
  at_most "$spent" "$(awk "BEGIN { print 1 / $1 }")" || fail "too much CPU time"
  at_most "$memory" 154 || fail "too much memory"
  at_most "$kept" 154 || fail "too much of the server's memory"
  unmap_all
}

instructions=1 memory=2048 limit=1800
boot host
it "no request of $disks disks waits longer than the killed bridge is away and 2 s, and none fails" \
  on host within_memory dies_under_load "$disks" "$kills"
it_full "$idle_disks idle ones cost the bridge at most 1 % of a CPU together, and each 0.15 MiB there and at the server" \
  on host within_memory costs "$idle_disks" 60
finish
