# shellcheck shell=bash
# Disks of the kernel that rnbd-bridge serves, their load, and how long their requests take: for scenarios, in a
# guest that is server and client.
# SPDX-License-Identifier: BSD-3-Clause

serve_disk() { # [STORAGE...]: disk0, disk1 ...
  local storage exports=() number=0
  for storage in "${@:-/tmp/disk}"; do exports+=(--export "disk$((number++))=$storage"); done
  mkdir -p /tmp/state
  rnbd_server --listen tcp:127.0.0.1:1234 --state-directory /tmp/state "${exports[@]}"
}
make_disk() { truncate -s "${2:-32M}" "/tmp/${1:-disk}"; }

# map NAME [DEVICE|URI [OPTION...]]: the bridge of that mapping; ready when this returns.
map() {
  begin_map "$@"
  eventually 60 ready_or_ended "$1"
}
begin_map() {
  local uri=${2:-disk0}
  [[ $uri == *://* ]] || uri=rnbd+tcp://127.0.0.1/$uri
  modprobe nbd max_part=8
  background "$1" "$build_dir/bin/rnbd-bridge" --kernel nbd --map-name "$1" --pid-file "/run/$1.pid" \
    --connect-timeout 60s "${@:3}" "$uri"
}
killed() {
  kill -9 "$(<"/run/$1.pid")"
  eventually 20 test -s "/run/$1.status"
}
sectors_are() { [[ $(<"/sys/block/nbd$1/size") == "$2" ]]; }
is_unmapped() { [[ ! -e /sys/block/nbd$1/backend ]]; }

# begin_with_store / end_with_store: the mapping `one` under a manager that keeps descriptors, see lib/descriptor-store.
begin_with_store() {
  modprobe nbd max_part=8
  rm -f /run/one.starts /run/one.notify
  background store "$source_dir/tests/lab/lib/descriptor-store" one "$build_dir/bin/rnbd-bridge" --kernel nbd --map-name one \
    --connect-timeout 60s rnbd+tcp://127.0.0.1/disk0
  eventually 60 test -s /run/one.pid
  pgrep -f lib/descriptor-store >/run/store.pid
}
end_with_store() {
  nbd-client -d /dev/nbd0
  eventually 60 is_unmapped 0
  kill -TERM "$(</run/store.pid)"
  ended_well store
}

# ---- Load ----------------------------------------------------------------------------------------------

# under_load COMMAND...: fio's checksums over and over on /dev/nbd0, for as long as the command takes.
under_load() {
  local load
  rm -f /tmp/enough wiped
  verify_until /tmp/enough /dev/nbd0 --size=4m & load=$!
  eventually 60 writes_reach /dev/nbd0 20
  "$@"
  touch /tmp/enough
  wait "$load"
}
writes_come_after() { (($(writes_of /dev/nbd0) > $1 + 16)); }

# under_way COUNT [NAME]: requests at least.
under_way() { (($(awk '{ print $9 }' "/sys/block/${2:-nbd0}/stat") >= $1)); }

# probed COMMAND...: with requests on /dev/nbd0 whose time is taken, see lib/probes. Those that wait when the command has
# ended count, too.
probed() { # COMMAND...
  start_probes /dev/nbd0
  "$@"
  eventually 60 probed_after "$(count_probes)"
  stop probes
}
start_probes() { # DEVICE...
  echo $(($# == 1 ? 4 : $#)) >/tmp/probers
  background probes "$source_dir/tests/lab/lib/probes" /tmp/probes /run/probes.pid "$@"
  eventually 60 ready_or_ended probes
  eventually 60 probed_after 0
}
count_probes() { wc -l </tmp/probes; }
# probed_after COUNT: each of the threads has ended two turns since there were so many.
probed_after() { (($(tail -n "+$(($1 + 1))" /tmp/probes | awk '++turns[$1] == 2' | wc -l) == $(</tmp/probers))); }
# longest_after COUNT: request since there were so many turns. Seconds.
longest_after() { tail -n "+$(($1 + 1))" /tmp/probes | awk '$2 > most { most = $2 } END { print most + 0 }'; }
# time_to_start: seconds, of two programs that do nothing. A machine needs a hundredth of a second for that, a guest
# whose CPUs are emulated far more, and what a hand-over takes here is mostly that.
time_to_start() {
  local began=$EPOCHREALTIME
  for _ in 1 2; do "$build_dir/bin/rnbd-bridge" --version >/dev/null; done
  plus "$EPOCHREALTIME" "-$began"
}
at_most() { awk "BEGIN { exit !($1 <= $2) }"; }
plus() { awk "BEGIN { printf \"%.3f\", $1 + $2 }"; }

# ---- What the kernel says --------------------------------------------------------------------------------

# no_line PATTERN: in what the kernel has said.
no_line() { (! dmesg | grep -E "$1"); }
# complains_only_of PATTERN: of disks, with warnings and worse. "Possible stuck request" is neither: with these words
# the kernel's timer comes, which is all that sends requests of a dead connection again.
complains_only_of() { (! dmesg --level emerg,alert,crit,err,warn | grep -E 'nbd|I/O|EXT4' | grep -vE "$1"); }
