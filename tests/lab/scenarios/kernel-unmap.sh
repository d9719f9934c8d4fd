# shellcheck shell=bash
# rnbd-ctl takes disks of the kernel away that are used, or hang; and one that hangs does not hold up the others.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"

ctl() { timeout 60 "$build_dir/bin/rnbd-ctl" "$@"; }
# ctl_map NAME [OPTION...]: disk0 of the server under that name; prints the device. Its bridge outlives rnbd-ctl.
ctl_map() {
  modprobe nbd max_part=8
  ctl map disk0 from 127.0.0.1:1234 --name "$1" -- --connect-timeout 60s "${@:2}"
}
# The bridge of the disks of that server.
bridge() { cat /run/rnbd/map/127.0.0.1:1234-*.pid; }
refuses_to_unmap() { # NAME REASON
  fails ctl unmap "$1" >refusal.txt
  grep -E "$2" refusal.txt
}
# is_gone NAME NUMBER: nothing is left of it but what its users still have open.
is_gone() {
  if ctl list noheaders notree nototals | grep -w "nbd$2"; then fail "$1 is still listed"; fi
  [[ ! -e /run/rnbd/map.d/$1.conf ]] || fail "the file of $1 is left"
}

# ---- One that is used --------------------------------------------------------------------------------------

used_disk() {
  local holder
  make_disk
  serve_disk
  [[ $(ctl_map disk0) == /dev/nbd0 ]]
  sleep infinity 9</dev/nbd0 & holder=$!
  refuses_to_unmap disk0 'nbd0 is used: open in [0-9]+ \(sleep\); .*--force'
  kill "$holder"
  wait "$holder" || true
  mkfs.ext4 -q /dev/nbd0
  mkdir -p /tmp/mnt
  mount /dev/nbd0 /tmp/mnt
  refuses_to_unmap nbd0 'nbd0 is used: mounted at /tmp/mnt; .*--force'
  fails ctl client disconnect disk0 >refusal.txt
  grep -E 'disk0 is /dev/nbd0, mounted at /tmp/mnt; .*--force' refusal.txt
  ctl check disk0 | grep '^RNBD OK - 1 session, 1 of 1 path up, 1 device'
  # By force it waits for a path, and goes on with it.
  ctl client disconnect disk0 --force
  ctl check disk0 >check.txt || (($? == 2)) || fail "check does not call it critical"
  grep -E '^CRITICAL: device nbd0: its requests wait, no path for [0-9]+ s .*disconnected by command' check.txt
  ctl recover disk0 | grep ': connected$'
  fails ctl resize disk0 1T --wait 1 >refusal.txt
  grep -E 'not 1099511627776 bytes, after 1 s; its server has [0-9]+ bytes: enlarge' refusal.txt
  echo more >/tmp/mnt/file
  umount /tmp/mnt
  ctl unmap disk0
  is_unmapped 0
  is_gone disk0 0
  no_line 'I/O error'
  ctl_map disk0
  e2fsck -fn /dev/nbd0
  ctl unmap nbd0
}

# write_until_error FIRST LAST: programs with these numbers write to the disk, and must end with EIO.
write_until_error() {
  local number
  for ((number = $1; number <= $2; ++number)); do gets_error "$number" & writers+=("$!"); done
}
gets_error() { ! dd if=/dev/zero of=/dev/nbd0 bs=256k seek=1 oflag=direct 2>"dd$1.txt" && grep -q 'Input/output error' "dd$1.txt"; }

# writers_wait COUNT: programs that have the disk as their output sleep. Linux does not count a request as under way that
# waits for the next socket.
writers_wait() {
  local file state waiting=0
  for file in /proc/[0-9]*/fd/1; do
    [[ $file -ef /dev/nbd0 ]] || continue
    read -r _ _ state _ <"${file%/fd/1}/stat"
    [[ $state != [DS] ]] || waiting=$((waiting + 1))
  done
  ((waiting >= $1))
}

# forced HOW: of the second four nothing is read by a bridge that hangs, and they are more than fits into its socket.
forced() {
  local number began writers=()
  make_disk disk 512M
  serve_disk
  ctl_map disk0
  write_until_error 1 4
  eventually 60 writes_come_after 0
  "$1"
  write_until_error 5 8
  eventually 60 writers_wait 8
  began=$SECONDS
  ctl unmap disk0 --force
  for number in "${writers[@]}"; do wait "$number" || fail "a writer has not got EIO"; done
  echo "unmapped by force within $((SECONDS - began)) s"
  is_gone disk0 0
  eventually 60 no_bridge
  [[ $1 != server_stops ]] || kill -CONT "$(</run/rnbd-server.pid)"
  eventually 60 ctl_map again
  ctl unmap again
}
nothing_happens() { :; }
bridge_dies() { kill -9 "$(bridge)"; }
bridge_stops() { kill -STOP "$(bridge)"; }
server_stops() { kill -STOP "$(</run/rnbd-server.pid)"; }
no_bridge() { ! pgrep -x rnbd-bridge; }

# A disk that shares the bridge waits while that is killed for the one that is taken, and goes on.
forced_beside_another() {
  local number writers=()
  make_disk disk 512M
  make_disk other
  serve_disk /tmp/disk /tmp/other
  ctl_map disk0
  ctl map disk1 from 127.0.0.1:1234 -- --connect-timeout 60s
  [[ $(pgrep -cx rnbd-bridge) == 1 ]] || fail "not one bridge"
  write_block /dev/nbd1 3 A
  write_until_error 1 4
  eventually 60 writes_come_after 0
  bridge_stops
  write_until_error 5 8
  eventually 60 writers_wait 8
  ctl unmap disk0 --force
  for number in "${writers[@]}"; do wait "$number" || fail "a writer has not got EIO"; done
  is_gone disk0 0
  write_block /dev/nbd1 4 B
  block_is /tmp/other 3 A
  block_is /tmp/other 4 B
  ctl unmap disk1
  eventually 60 no_bridge
}

# not_joined [--force]: since it was started again the bridge has not joined the disk, which its server lacks.
not_joined() {
  make_disk
  make_disk other
  serve_disk /tmp/disk /tmp/other
  ctl_map disk0
  [[ $(ctl map disk1 from 127.0.0.1:1234 -- --connect-timeout 60s) == /dev/nbd1 ]]
  write_block /dev/nbd1 3 A # its first opener looks for partitions, so that nothing waits below
  kill -9 "$(bridge)"
  stop rnbd-server
  mv /tmp/other /tmp/hidden
  serve_disk /tmp/disk /tmp/other
  ctl recover disk0
  if is_unmapped 1; then fail "the kernel has lost it"; fi
  ctl unmap disk1 "$@"
  is_unmapped 1 || fail "it is left in the kernel"
  is_gone disk1 1
  write_block /dev/nbd0 3 A
  ctl unmap disk0
  eventually 60 no_bridge
}

forced_while_mounted() {
  make_disk
  serve_disk
  ctl_map disk0
  mkfs.ext4 -q /dev/nbd0
  mkdir -p /tmp/mnt
  mount /dev/nbd0 /tmp/mnt
  head -c 1M /dev/urandom >/tmp/mnt/file
  sync -f /tmp/mnt/file
  bridge_dies
  ctl unmap disk0 --force
  fails dd if=/dev/zero of=/tmp/mnt/file bs=64k count=1 oflag=direct conv=notrunc
  umount /tmp/mnt
  is_gone disk0 0
  # What was synced is there.
  ctl_map disk0
  e2fsck -fy /dev/nbd0 || (($? == 1)) || fail "the file system cannot be mended"
  ctl unmap disk0
}

# ---- One that hangs, and another one -------------------------------------------------------------------------

# serve_other: disk1 and third, on a server of its own, which nobody stops.
serve_other() {
  make_disk other
  make_disk third
  mkdir -p /tmp/other-state
  background other-server "$build_dir/bin/rnbd-server" --listen tcp:127.0.0.1:1235 --state-directory /tmp/other-state \
    --pid-file /run/other-server.pid --export disk1=/tmp/other --export third=/tmp/third
  eventually 30 ready_or_ended other-server
}
other_grows() { # MIB
  truncate -s "$1M" /tmp/other
  eventually 120 sectors_are 0 "$(($1 * 2048))"
}
other_comes_and_goes() {
  ctl map third from 127.0.0.1:1235 --name third -- --connect-timeout 60s
  ctl unmap third
}
# begin_to_hang HOW: /dev/nbd1, with more under way than fits into its socket. Its first opener looks for partitions, so
# that comes before.
begin_to_hang() {
  ctl_map disk0
  fio --name=hang --filename=/dev/nbd1 --direct=1 --ioengine=libaio --iodepth=64 --rw=randwrite --bs=64k --size=16m \
    --time_based --runtime=1h --output=hang.txt & hanging=$!
  eventually 60 under_way 16 nbd1
  "$1"
  eventually 60 nothing_is_answered
}
# The kernel need not say so: where a sender waits for room in the socket, its timer waits with it. Nor are
# requests under way, for Linux, that wait for the next socket. So the load counts, which never ends.
nothing_is_answered() {
  local before
  before=$(writes_of /dev/nbd1)
  sleep 2
  [[ $(writes_of /dev/nbd1) == "$before" ]] && kill -0 "$hanging"
}

one_hangs() { # HOW
  local how hanging longest grown=40
  make_disk
  serve_disk
  serve_other
  modprobe nbd max_part=8
  ctl map disk1 from 127.0.0.1:1235 -- --connect-timeout 60s
  for how in "$@"; do
    begin_to_hang "$how"
    under_load probed other_lives "$((grown += 8))"
    # Growth stops a queue for a moment.
    longest=$(longest_after 0)
    echo "$how: the longest request of the other disk took $longest s"
    at_most "$longest" "$(plus 2 "$(time_to_start)")" || fail "$how: the other disk was held up for $longest s"
    ctl unmap disk0 --force
    wait "$hanging" || true
    [[ $how != server_stops ]] || kill -CONT "$(</run/rnbd-server.pid)"
  done
  ctl unmap disk1
}
other_lives() { # MIB
  other_grows "$1"
  other_comes_and_goes
}

[[ -z ${FULL:-} ]] || limit=900
boot host
it_full "a disk that is open or mounted is not unmapped, and the refusal says who uses it" on host used_disk
it_full "by force its users get EIO" on host forced nothing_happens
it "by force its users get EIO, with a dead bridge, too" on host forced bridge_dies
it_full "with a bridge that hangs, too" on host forced bridge_stops
it "a disk that shares the bridge goes on when that is killed for one that is taken" on host forced_beside_another
it "a disk that its bridge has not joined is taken from the kernel" on host not_joined
it_full "by force, too" on host not_joined --force
it_full "with a server that hangs, too" on host forced server_stops
it_full "a file system loses nothing that was synced when its disk is taken by force" on host forced_while_mounted
ways=(bridge_stops)
[[ -z ${FULL:-} ]] || ways=(server_stops bridge_dies bridge_stops)
it "a disk that hangs does not hold up another one, its growth, and a third that comes and goes" on host one_hangs "${ways[@]}"
finish
