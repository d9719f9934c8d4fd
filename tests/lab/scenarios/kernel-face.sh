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
  fio_verify /dev/nbd0 --size=8m
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
  verify_until /tmp/enough /dev/nbd0 --size=4m & load=$!
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

# ---- Growth ------------------------------------------------------------------------------------------

grows_to() { # MIB
  truncate -s "$1M" /tmp/disk
  eventually 120 sectors_are 0 "$(($1 * 2048))"
}
grown_under_load() {
  make_disk
  serve_disk
  map one
  under_load grows_to 48
  write_block /dev/nbd0 700 G
  block_is /dev/nbd0 700 G
  block_is /tmp/disk 700 G
  # Without load, and while nobody serves it.
  grows_to 56
  killed one
  truncate -s 64M /tmp/disk
  map one
  eventually 120 sectors_are 0 131072
  write_block /dev/nbd0 1023 H
  block_is /tmp/disk 1023 H
  stop one
}

# ---- The server is away ------------------------------------------------------------------------------

server_leaves() { # SECONDS
  stop rnbd-server
  sleep "$1"
  serve_disk
}
server_away() { # SECONDS
  make_disk
  serve_disk
  map one
  dmesg --clear
  under_load server_leaves "$1"
  no_line 'I/O error|reconnected|Receive control failed|timed out'
  stop one
}

# ---- Hand-over ---------------------------------------------------------------------------------------

# starts_are FILE...: descriptors that the bridge got at each of its starts.
starts_are() { [[ $(paste -s -d ' ' /run/one.starts) == "$1" ]]; }
hand_over() { # TIMES
  local number before starts=0
  for ((number = 0; number < $1; ++number)); do
    rm /run/one.pid
    kill -HUP "$(<"/run/store.pid")"
    eventually 60 test -s /run/one.pid
    starts+=" 2"
    starts_are "$starts"
    before=$(writes_of /dev/nbd0)
    eventually 60 writes_come_after "$before"
  done
}
handed_over() { # TIMES
  make_disk
  serve_disk
  modprobe nbd max_part=8
  rm -f /run/one.starts
  background store "$source_dir/tests/lab/lib/descriptor-store" one "$build_dir/bin/rnbd-bridge" --kernel nbd --map-name one \
    --connect-timeout 60s rnbd+tcp://127.0.0.1/disk0
  eventually 60 test -s /run/one.pid
  pgrep -f lib/descriptor-store >/run/store.pid
  dmesg --clear
  under_load hand_over "$1"
  # The kernel has noticed nothing.
  no_line 'nbd0: (Receive control|reconnected|shutting|.*timed out)|I/O error'
  # Killed after a hand-over, it comes by the other way.
  if [[ -n $FULL ]]; then
    under_load killed_by_hand
    grep -q 'reconnected socket' <(dmesg)
  fi
  nbd-client -d /dev/nbd0
  eventually 60 is_unmapped 0
  kill -TERM "$(<"/run/store.pid")"
  ended_well store
}
killed_by_hand() {
  local before pid
  pid=$(</run/one.pid)
  rm /run/one.pid
  kill -9 "$pid"
  eventually 60 test -s /run/one.pid
  before=$(writes_of /dev/nbd0)
  eventually 60 writes_come_after "$before"
}

# ---- Whose disk it is --------------------------------------------------------------------------------

refuses() { # NAME STATUS PATTERN
  eventually 60 test -s "/run/$1.status"
  [[ $(<"/run/$1.status") == "$2" ]] || fail "$1 ended with status $(<"/run/$1.status")"
  grep -E "$3" "$1.log"
}

two_disks() {
  make_disk
  make_disk other
  serve_disk /tmp/disk /tmp/other
  map one disk0
  map two disk1
  [[ $(</sys/block/nbd0/backend) == *:one && $(</sys/block/nbd1/backend) == *:two ]]
  write_block /dev/nbd0 3 A
  write_block /dev/nbd1 3 B
  block_is /tmp/disk 3 A
  block_is /tmp/other 3 B
  # The name of one that is served, and a number.
  mv /run/one.pid /run/kept.pid
  begin_map one disk0
  refuses one 1 'is served by another process'
  mv /run/kept.pid /run/one.pid
  write_block /dev/nbd0 4 C
  block_is /tmp/disk 4 C
  # The disk of the dead one is not given to another.
  kill -9 "$(<"/run/one.pid")"
  begin_map one disk1
  refuses one 2 'is another disk'
  map one disk0
  block_is /dev/nbd0 4 C
  # Somebody else unmaps it.
  nbd-client -d /dev/nbd0
  ended_well one
  eventually 20 is_unmapped 0
  stop two
}

without_rights() {
  begin_map early disk0
  make_disk
  serve_disk
  background plain setpriv --bounding-set -sys_admin --inh-caps -sys_admin "$build_dir/bin/rnbd-bridge" \
    --kernel nbd --map-name plain rnbd+tcp://127.0.0.1/disk0
  refuses plain 1 CAP_SYS_ADMIN
  # The other one has begun before its server, and waits for it.
  eventually 60 ready_or_ended early
  stop early
}

kills=1 away=5
[[ -z ${FULL:-} ]] || kills=20 away=60 limit=1800
boot host
it_full "a disk with partitions is mapped, is what fio has written, and is unmapped" on host plain_map
it "nothing is lost when the bridge is killed under load and starts anew" on host killed_under_load "$kills"
it_full "the disk grows with its export, under load, without, and while nobody serves it" on host grown_under_load
it_full "a server that is away costs a pause, and no socket" on host server_away "$away"
it "the next bridge goes on with the socket of the one before, and the kernel notices nothing" on host handed_over "$kills"
it_full "each name has its own disk, and gets no other one" on host two_disks
it_full "without rights nothing is mapped, and a bridge that is earlier than its server waits for it" on host without_rights
finish
