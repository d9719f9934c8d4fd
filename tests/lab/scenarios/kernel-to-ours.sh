# shellcheck shell=bash
# Linux's RNBD client with our server.

serve() {
  truncate -s 64M /tmp/a
  truncate -s 32M /tmp/b
  rnbd_server --listen rdma:10.99.0.1:1234 --listen rdma:10.99.1.1:1234 \
    --export a=/tmp/a --export b=/tmp/b
}
first_path=ip:10.99.0.2@ip:10.99.0.1

serve_and_map() {
  on server serve
  device=$(on client kernel_map k a "$first_path")
  [[ $device == /dev/rnbd* ]]
}

same_data() {
  local here there
  here=$(on client sha256sum "$1")
  there=$(on server sha256sum "$2")
  [[ ${here%% *} == "${there%% *}" ]] || fail "the client reads $here, the server has $there"
}

verify() {
  serve_and_map
  on client fio_verify "$device" --fsync=16
  on client fio_verify "$device" --rw=write --bssplit=1m/100 --iodepth=4
  same_data "$device" /tmp/a
  on client kernel_unmap "$device"
  on server stop rnbd-server
}

use_file_system() {
  mkfs.ext4 -q "$1"
  mkdir -p /tmp/mnt
  mount "$1" /tmp/mnt
  cp -r "$source_dir/rdma" /tmp/mnt/
  head -c 8M /dev/urandom >/tmp/mnt/random
  (cd /tmp/mnt && find . -type f -exec sha256sum {} +) >/tmp/sums
  umount /tmp/mnt
  e2fsck -f -n "$1"
  mount "$1" /tmp/mnt
  (cd /tmp/mnt && sha256sum --quiet -c /tmp/sums)
  umount /tmp/mnt
  blkdiscard -o 16M -l 8M "$1"
  cmp -n 8M -i 16M:0 "$1" /dev/zero
}

file_system() {
  serve_and_map
  on client use_file_system "$device"
  on client kernel_unmap "$device"
  device=$(on client kernel_map k a "$first_path" access_mode=ro)
  fails on client dd if=/dev/zero of="$device" bs=4k count=1 oflag=direct
}

two_devices() {
  local other
  serve_and_map
  other=$(on client kernel_map k b)
  on client fio_verify "$device" & load=$!
  on client fio_verify "$other"
  wait "$load"
  same_data "$device" /tmp/a
  same_data "$other" /tmp/b
  on client kernel_unmap "$device" force
  on client fio_verify "$other"
}

restart() {
  serve_and_map
  on client fio_verify "$device"
  on server stop rnbd-server
  on client eventually 30 path_is k 10.99.0.1 disconnected
  on server serve
  # It tries again every 30 seconds.
  limit=240 on client eventually 100 path_is k 10.99.0.1 connected
  on client remap "$device"
  on client fio_verify "$device"
  same_data "$device" /tmp/a
}
remap() { [[ $(<"/sys/block/${1##*/}/rnbd/state") == open ]] || echo 1 >"/sys/block/${1##*/}/rnbd/remap_device"; }

cpus=4
boot server client
it "fio's checksums hold, and the file has what the client reads" verify
it "ext4 is clean, a discarded range reads as zeroes, and a read-only device refuses writes" file_system
it "two devices of one session are two devices, and one can be forced away" two_devices
it "the client finds a restarted server" restart
finish
