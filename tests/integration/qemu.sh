#!/bin/bash
# QEMU as the client: its tools, and a guest whose disk is one of ours.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/linux_guest.sh"

serve_image() {
  random_file image 32M
  truncate -s 64M image
  start_server --export "disk0=$PWD/image"
  attach disk0
}

convert() {
  requires qemu-img
  serve_image
  qemu-img convert -f raw -O qcow2 "$uri" copy.qcow2
  qemu-img compare -f raw -F qcow2 image copy.qcow2
  qemu-img compare -f raw -F raw "$uri" image
  random_file new 64M
  qemu-img convert -n -f raw -O raw new "$uri"
  qemu-img compare -f raw -F raw "$uri" new
  stop nbdkit
  stop server
  cmp new image
}
it "qemu-img converts from and to an export" convert

map() {
  requires qemu-img
  serve_image
  qemu-img info "$uri" | tee info
  says info 'virtual size: 64 MiB'
  qemu-img map --output=json -f raw "$uri" | tee map
  qemu-img map --output=json -f raw image >expected
  says map '"zero": true, "data": false'
}
it "qemu-img map shows the holes of the image" map

patterns() {
  requires qemu-io
  serve_image
  qemu-io -f raw -t writeback \
    -c 'write -P 0x11 0 1M' -c 'write -P 0x22 512 512' -c 'write -f -P 0x33 3k 1k' \
    -c 'write -z 1M 1M' -c 'write -z -u 2M 1M' -c 'discard 4M 1M' -c 'flush' \
    -c 'aio_write -P 0x44 8M 1M' -c 'aio_write -P 0x55 9M 1M' -c 'aio_flush' \
    -c 'read -P 0x11 0 512' -c 'read -P 0x22 512 512' -c 'read -P 0x11 1k 2k' \
    -c 'read -P 0x33 3k 1k' -c 'read -P 0x11 4k 1020k' -c 'read -P 0 1M 2M' \
    -c 'read -P 0x44 8M 1M' -c 'read -P 0x55 9M 1M' "$uri"
  stop nbdkit
  qemu-io -f raw -r -c 'read -P 0x33 3k 1k' -c 'read -P 0 1M 2M' -c 'read -P 0x55 9M 1M' image
}
it "qemu-io finds every pattern it wrote, here and in the server's file" patterns

snapshot_chain() {
  requires qemu-img qemu-io
  serve_image
  qemu-img create -q -f qcow2 -b "$uri" -F raw top.qcow2
  qemu-io -f qcow2 -c 'write -P 0x77 1M 64k' top.qcow2
  fails qemu-io -f raw -r -c 'read -P 0x77 1M 64k' "$uri"
  says fails.out 'verification failed'
  qemu-img commit -q top.qcow2
  qemu-io -f raw -r -c 'read -P 0x77 1M 64k' "$uri"
}
it "an export is the backing disk of a qcow2, and takes its commit" snapshot_chain

# ---- A guest ---------------------------------------------------------------------------------------

guest() {
  requires qemu-system-x86_64 busybox xz
  [[ -z $sanitizer ]] || skip "a guest shows nothing more in a sanitized build"
  fetch_kernel
  make_initramfs <<'SCRIPT'
echo "size=$(cat /sys/block/vda/size)"
echo "md5=$(dd if=/dev/vda bs=1M count=8 iflag=direct 2>/dev/null | md5sum | cut -d ' ' -f 1)"
yes guest | dd of=/dev/vda bs=64k count=16 seek=256 iflag=fullblock oflag=direct conv=fsync 2>/dev/null
echo "written=$?"
echo "back=$(dd if=/dev/vda bs=64k count=16 skip=256 iflag=direct 2>/dev/null | md5sum | cut -d ' ' -f 1)"
blkdiscard -o 33554432 -l 1048576 /dev/vda
echo "discard=$?"
SCRIPT
  serve_image
  limit=240
  limited qemu-system-x86_64 -accel tcg -cpu max -m 256 -nographic -no-reboot -nodefaults \
    -serial file:console -kernel "$kernel" -initrd initramfs.gz \
    -append 'console=ttyS0 quiet panic=-1' \
    -drive "file=$uri,format=raw,if=virtio,cache=none,discard=unmap"
  tr -d '\r' <console | tee guest.txt
  says guest.txt "^size=131072$"
  says guest.txt "^md5=$(head -c 8M image | md5sum | cut -d ' ' -f 1)$"
  says guest.txt '^written=0$'
  says guest.txt '^discard=0$'
  { yes guest || true; } | head -c 1M >expected
  says guest.txt "^back=$(md5sum <expected | cut -d ' ' -f 1)$"
  stop nbdkit
  stop server
  cmp expected <(dd if=image bs=64k skip=256 count=16 status=none)
}
it "a guest boots, reads and writes its disk, and powers off" guest

finish
