# shellcheck shell=bash
# rnbd-bridge owns /dev/nbd0: its death and new start, growth, and a server that is away, under load.
# SPDX-License-Identifier: BSD-3-Clause

serve_disk() { # [STORAGE...]: disk0, disk1 ...
  local storage exports=() number=0
  for storage in "${@:-/tmp/disk}"; do exports+=(--export "disk$((number++))=$storage"); done
  mkdir -p /tmp/state
  rnbd_server --listen tcp:127.0.0.1:1234 --state-directory /tmp/state "${exports[@]}"
}
make_disk() { truncate -s "${2:-32M}" "/tmp/${1:-disk}"; }

# map NAME [DEVICE [OPTION...]]: the bridge of that mapping; ready when this returns.
map() {
  begin_map "$@"
  eventually 60 ready_or_ended "$1"
}
begin_map() {
  modprobe nbd max_part=8
  background "$1" "$build_dir/bin/rnbd-bridge" --kernel nbd --map-name "$1" --pid-file "/run/$1.pid" \
    --connect-timeout 60s "${@:3}" "rnbd+tcp://127.0.0.1/${2:-disk0}"
}
killed() {
  kill -9 "$(<"/run/$1.pid")"
  eventually 20 test -s "/run/$1.status"
}
sectors_are() { [[ $(<"/sys/block/nbd$1/size") == "$2" ]]; }
queue_is() { [[ $(<"/sys/block/nbd0/queue/$1") == "$2" ]]; }
# no_line PATTERN: in what the kernel has said.
no_line() { (! dmesg | grep -E "$1"); }
is_unmapped() { [[ ! -e /sys/block/nbd$1/backend ]]; }

# ---- Map and unmap -----------------------------------------------------------------------------------

partitioned_disk() {
  make_disk
  printf 'start=2048, size=8192, type=83\n' | sfdisk -q /tmp/disk
}
plain_map() {
  partitioned_disk
  serve_disk
  map one
  sectors_are 0 65536
  queue_is io_timeout 2000
  grep -q '\[none\]' /sys/block/nbd0/queue/scheduler
  [[ $(</sys/block/nbd0/backend) == rnbd:*-*:one ]]
  head -c 512 /dev/nbd0 >/dev/null # whoever opens it looks for partitions
  eventually 20 test -b /dev/nbd0p1
  fio_verify /dev/nbd0
  stop one
  eventually 20 is_unmapped 0
  # Nothing is left of the name.
  map one
  stop one
}

# ---- kill -9 -----------------------------------------------------------------------------------------

# under_load COMMAND...: fio's checksums over and over, for as long as the command takes.
under_load() {
  local load
  rm -f /tmp/enough wiped
  verify_until /tmp/enough /dev/nbd0 & load=$!
  eventually 60 writes_reach /dev/nbd0 20
  "$@"
  touch /tmp/enough
  wait "$load"
}
kill_and_map() { # TIMES
  local number before
  for ((number = 0; number < $1; ++number)); do
    killed one
    map one
    # What it left unanswered is sent again, and more follows.
    before=$(writes_of /dev/nbd0)
    eventually 60 writes_come_after "$before"
  done
}
writes_come_after() { (($(writes_of /dev/nbd0) > $1 + 16)); }

killed_under_load() { # TIMES
  make_disk
  serve_disk
  map one
  under_load kill_and_map "$1"
  no_line 'I/O error'
  stop one
}

kills=1
[[ -z ${FULL:-} ]] || kills=20
boot host
it "a disk with partitions is mapped, is what fio has written, and is unmapped" on host plain_map
it "nothing is lost when the bridge is killed under load and starts anew" on host killed_under_load "$kills"
finish
