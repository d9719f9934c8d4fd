# shellcheck shell=bash
# Linux's NBD client on rnbd-bridge: file systems and what lies below them, and SCSI disks that fail.
# SPDX-License-Identifier: BSD-3-Clause

serve() { rnbd_server --listen tcp:127.0.0.1:1234 "$@"; }

# serve_image SIZE: a sparse file, through the bridge, as /dev/nbd0.
serve_image() {
  truncate -s "$1" /tmp/image
  serve --export disk0=/tmp/image
  attach_bridge rnbd+tcp://127.0.0.1/disk0
  nbd_device /run/nbd.sock "${@:2}"
}
end_image() {
  nbd-client -d /dev/nbd0
  stop rnbd-bridge
  stop rnbd-server
}

# ---- What lies on it -------------------------------------------------------------------------------------

# files_hold DEVICE: what was written is there when nothing of it is in the cache.
files_hold() {
  local sum
  mkfs.ext4 -q -F "$1"
  mkdir -p /tmp/mnt
  mount -o discard "$1" /tmp/mnt
  head -c 4M /dev/urandom >/tmp/mnt/kept
  cp /tmp/mnt/kept /tmp/mnt/gone
  sync
  sum=$(digest /tmp/mnt/kept)
  rm /tmp/mnt/gone
  fstrim /tmp/mnt
  umount /tmp/mnt
  echo 3 >/proc/sys/vm/drop_caches
  fsck.ext4 -fn "$1"
  mount "$1" /tmp/mnt
  [[ $(digest /tmp/mnt/kept) == "$sum" ]] || fail "the file is another one on $1"
  umount /tmp/mnt
}

# uses_at_most MIB: of the image's file.
uses_at_most() { (($(du -m /tmp/image | cut -f1) <= $1)); }

in_layers() {
  local key
  files_hold /dev/nbd0
  blkdiscard -f /dev/nbd0
  uses_at_most 1 || fail "discarded, and $(du -m /tmp/image) MiB are in use"
  printf '%s\n' label:gpt 'size=60M' 'size=100M' | sfdisk -q /dev/nbd0
  blockdev --rereadpt /dev/nbd0
  eventually 20 test -b /dev/nbd0p2
  mkswap -q /dev/nbd0p1
  swapon /dev/nbd0p1
  swapoff /dev/nbd0p1
  files_hold /dev/nbd0p1
  modprobe -a dm_crypt xts
  key=$(printf '00112233445566778899aabbccddeeff%.0s' 1 2)
  dmsetup create --noudevsync secret --table \
    "0 $(blockdev --getsz /dev/nbd0p2) crypt aes-xts-plain64 $key 0 /dev/nbd0p2 0 1 allow_discards"
  dmsetup mknodes
  files_hold /dev/mapper/secret
  dmsetup remove --noudevsync --retry secret
}

layers() {
  on client serve_image 256M -C 2
  on client in_layers
  on client end_image
}

# ---- What ends below it ----------------------------------------------------------------------------------

killed_under_files() {
  local sum writer
  mkfs.ext4 -q -F /dev/nbd0
  mkdir -p /tmp/mnt
  mount /dev/nbd0 /tmp/mnt
  head -c 4M /dev/urandom >/tmp/mnt/synced
  sync
  sum=$(digest /tmp/mnt/synced)
  { dd if=/dev/zero of=/tmp/mnt/later bs=256k count=400 oflag=direct status=none || true; } & writer=$!
  eventually 60 test -s /tmp/mnt/later
  kill -KILL "$(</run/rnbd-bridge.pid)"
  eventually 60 test -s /run/rnbd-bridge.status
  nbd-client -d /dev/nbd0 # what is under way hangs until then
  wait "$writer"
  umount /tmp/mnt || umount -l /tmp/mnt
  attach_bridge rnbd+tcp://127.0.0.1/disk0
  eventually 60 nbd_device
  fsck.ext4 -fy /dev/nbd0 || (($? == 1)) || fail "the file system cannot be mended"
  mount /dev/nbd0 /tmp/mnt
  [[ $(digest /tmp/mnt/synced) == "$sum" ]] || fail "what was synced is not what is there"
  umount /tmp/mnt
}

killed() {
  on client serve_image 256M
  on client killed_under_files
  on client end_image
}

# ---- SCSI disks ------------------------------------------------------------------------------------------

scsi_name() {
  local disks=(/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/*)
  [[ -e ${disks[0]} ]] && basename "${disks[0]}"
}

# serve_scsi: a thin disk of 32 MiB in blocks of 4 KiB, which does not promise zeroes for what is unmapped.
serve_scsi() {
  modprobe sd_mod # nobody loads it by itself here
  modprobe scsi_debug dev_size_mb=32 sector_size=4096 lbpu=1 lbpws=1 lbprz=0
  eventually 60 scsi_name
  eventually 60 test -b "/dev/$(scsi_name)"
  serve --export "disk0=/dev/$(scsi_name)" --export other=memory:1M
  attach_bridge rnbd+tcp://127.0.0.1
}
export_uri() { echo "nbd+unix:///$1?socket=/run/nbd.sock"; }

# works EXPORT COMMAND...: of qemu-io, which tells of some failures by words only.
works() {
  local uri command commands=()
  uri=$(export_uri "$1")
  shift
  for command; do commands+=(-c "$command"); done
  qemu-io -f raw "${commands[@]}" "$uri" >qemu-io.log 2>&1 || fail "$(<qemu-io.log)"
  if grep -iE 'fail|error|verif' qemu-io.log; then fail "qemu-io on $uri"; fi
}

zeroes_and_bad_block() {
  local bad=$((0x1234 * 4096)) # where scsi_debug has its medium error
  works disk0 'write -P 5 0 8M' 'write -z -u 0 4M' 'read -P 0 0 4M' 'read -P 5 4M 4M' \
    'write -z -u 512 1024' 'write -P 6 1000 3000' 'read -P 6 1000 3000' 'discard 4M 2M' flush
  echo 2 >/sys/bus/pseudo/drivers/scsi_debug/opts
  echo 3 >/proc/sys/vm/drop_caches
  fails qemu-io -r -f raw -c "read $bad 4k" "$(export_uri disk0)" >qemu-io.log 2>&1
  grep 'Input/output error' qemu-io.log
  works disk0 'read 0 64k' "read $((bad - 65536)) 4k"
  echo 0 >/sys/bus/pseudo/drivers/scsi_debug/opts
}

# until_pulled: writes and flushes as fast as it goes; both must fail with EIO in the end, and with nothing else.
until_pulled() {
  /usr/bin/python3 - "$(export_uri disk0)" <<'END'
import errno, nbd, sys, time
disk = nbd.NBD()
disk.connect_uri(sys.argv[1])
seen = {"write": set(), "flush": set()}
steps = {"write": lambda: disk.pwrite(b"w" * 4096, 7 * 4096), "flush": disk.flush}
end = time.monotonic() + 120
while not all(seen.values()) and time.monotonic() < end:
    for name, step in steps.items():
        try:
            step()
            open("written", "a").close()
        except nbd.Error as error:
            seen[name].add(error.errno)
print(seen)
sys.exit(any(errors != {"EIO"} for errors in seen.values()))
END
}

pulled() {
  local writer name
  name=$(scsi_name)
  until_pulled & writer=$!
  eventually 60 test -e written
  echo 1 >"/sys/block/$name/device/delete"
  wait "$writer"
  works other 'write -P 9 0 64k' 'read -P 9 0 64k' flush
  grep -E "disk0.*(Input/output error|No such device)" rnbd-server.log
}

end_scsi() {
  stop rnbd-bridge
  stop rnbd-server
  modprobe -r scsi_debug
}

scsi_disk() {
  on client serve_scsi
  on client zeroes_and_bad_block
  on client pulled
  on client end_scsi
}

# ---- Large, and often ------------------------------------------------------------------------------------

large_files() {
  mkfs.ext4 -q -F -T largefile4 -E lazy_itable_init=1,nodiscard /dev/nbd0
  mkdir -p /tmp/mnt
  mount /dev/nbd0 /tmp/mnt
  head -c 8M /dev/urandom >/tmp/mnt/file
  sync
  umount /tmp/mnt
}
large() {
  on client serve_image 4T -t 30
  limit=600 on client large_files
  on client end_image
}

# They overtake each other; nobody's program may stay, and the bridge has to serve the next one.
come_and_go() {
  local round
  for round in 1 2 3; do
    come_and_go_at 1 & come_and_go_at 2 & come_and_go_at 3 &
    wait
  done
  eventually 60 nobody_stays
  nbdinfo --size "nbd+unix:///?socket=/run/nbd.sock"
}
nobody_stays() { ! pgrep -x nbd-client; }
come_and_go_at() {
  nbd-client -unix /run/nbd.sock "/dev/nbd$1" -N '' || true
  nbd-client -d "/dev/nbd$1" || true
}
races() {
  on client serve_image 64M
  on client come_and_go
  on client end_image
}

boot client
it "a bridge that is killed under a file system costs nothing that was synced" killed
it "a thin SCSI disk gives zeroes, tells of a bad block, and is EIO once it is pulled" scsi_disk
it_full "a file system, swap space and an encrypted partition on /dev/nbd0 keep what they were given" layers
it_full "4 TiB with a time limit of 30 s have a file system" large
it_full "many who attach and detach at once leave nothing behind" races
finish
