# shellcheck shell=bash
# From a file on one guest to a file system on the other, over RDMA and TCP: our programs, NBD's clients.
# SPDX-License-Identifier: BSD-3-Clause

serve_image() {
  [[ -e /tmp/image ]] || truncate -s 128M /tmp/image
  rnbd_server --listen rdma:10.99.0.1:1234 --listen tcp:10.99.0.1:1234 --export disk0=/tmp/image
}
rdma=rnbd://10.99.0.1/disk0 tcp=rnbd+tcp://10.99.0.1/disk0

# ---- File systems --------------------------------------------------------------------------------------

make_file_system() {
  mkfs.ext4 -q /dev/nbd0
  mkdir -p /tmp/mnt
  mount /dev/nbd0 /tmp/mnt
  cp -r "$source_dir/rdma" "$source_dir/docs" /tmp/mnt/
  head -c 8M /dev/urandom >/tmp/mnt/random
  (cd /tmp/mnt && find . -type f -exec md5sum {} +) >/tmp/sums
  rm /tmp/mnt/docs/hacking.md && fstrim /tmp/mnt
  sed -i '/docs\/hacking.md/d' /tmp/sums
  umount /tmp/mnt
}

check_file_system() {
  e2fsck -f -n "$1"
  mount "${@:2}" "$1" /tmp/mnt
  (cd /tmp/mnt && md5sum --quiet -c /tmp/sums)
  umount /tmp/mnt
}

file_system() {
  on server serve_image
  on client attach "$1"
  on client nbd_device
  on client make_file_system
  on client check_file_system /dev/nbd0
  on client nbd-client -d /dev/nbd0
  on client stop nbdkit
  on server stop rnbd-server
  on server e2fsck -f -n /tmp/image
}

# The same disk to another client of NBD at the same time.
other_client() {
  qemu-io -f raw -c 'write -P 0x5a 100M 64k' -c 'read -P 0x5a 100M 64k' "$nbd_uri"
  cmp <(dd if=/dev/nbd0 bs=64k skip=1600 count=1 iflag=direct) <(head -c 64k /dev/zero | tr '\0' Z)
}

verify() {
  on server serve_image
  on client attach "$rdma"
  on client nbd_device
  on client fio_verify /dev/nbd0
  on client other_client
}

# ---- rnbd-bridge ---------------------------------------------------------------------------------------

# nbdkit as a client of the bridge, with a filter of its own.
# shellcheck disable=SC2016 # for nbdkit
through_nbdkit() {
  nbdkit -U - --filter=readahead nbd socket=/run/nbd.sock --run 'nbdcopy "$uri" /tmp/copy'
}

bridge() {
  on server serve_image
  on client attach_bridge "$1"
  on client nbd_device /run/nbd.sock -C 4
  on client fio_verify /dev/nbd0
  on client other_client
  on client through_nbdkit
  same_data /tmp/copy /tmp/image
  on client nbd-client -d /dev/nbd0
  on client stop rnbd-bridge
}

# ---- QEMU's images -------------------------------------------------------------------------------------

make_source() {
  mke2fs -q -t ext4 -d "$source_dir/docs" /tmp/source 32M
  truncate -s 128M /tmp/reference
}

# fill IMAGE: a whole file system, then requests of odd sizes on top.
fill() {
  qemu-img convert -n -f raw -O raw /tmp/source "$1"
  qemu-io -d unmap -f raw -c 'write -P 0x11 40M 8M' -c 'write -P 0x22 43000001 100' -c 'write -z 41M 64k' \
    -c 'write -f -P 0x33 50331136 512' -c 'discard 44M 1M' -c 'write -P 0x44 134217727 1' -c flush "$1"
}
fill_attached() {
  fill "$nbd_uri"
  qemu-img compare -f raw -F raw /tmp/reference "$nbd_uri"
}

same_image() {
  local uri sum sums=()
  on client make_source
  on client fill /tmp/reference
  for uri in "$rdma" "$tcp"; do
    on server serve_image
    on client attach "$uri"
    on client fill_attached
    on client stop nbdkit
    on server stop rnbd-server
    sum=$(on server digest /tmp/image)
    sums+=("$sum")
    on server rm /tmp/image
  done
  sum=$(on client digest /tmp/reference)
  [[ ${sums[*]} == "$sum $sum" ]] || fail "the images are ${sums[*]}, what was written is $sum"
}

qcow2_image() {
  qemu-img create -q -f qcow2 "$nbd_uri" 64M
  qemu-io -f qcow2 -c 'write -P 0x71 1M 3M' -c 'write -z 2M 64k' -c 'discard 3M 64k' "$nbd_uri"
  qemu-img snapshot -c before "$nbd_uri"
  qemu-io -f qcow2 -c 'write -P 0x72 1M 64k' -c 'read -P 0x72 1M 64k' "$nbd_uri"
  qemu-img snapshot -a before "$nbd_uri"
  qemu-img check -f qcow2 "$nbd_uri"
  qemu-io -r -f qcow2 -c 'read -P 0x71 1M 1M' -c 'read -P 0 2M 64k' -c 'read -P 0 3M 64k' "$nbd_uri"
}

qcow2() {
  on server serve_image
  on client attach "$rdma"
  on client qcow2_image
}

# ---- A machine's disk ----------------------------------------------------------------------------------

bootable_image() {
  head -c 4k /dev/urandom >/tmp/random
  as --32 -o /tmp/boot.o "$source_dir/tests/lab/lib/boot_sector.S"
  ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o /tmp/boot /tmp/boot.o
  cat /tmp/boot /tmp/random >/tmp/image
  truncate -s 128M /tmp/image
}
boot_machine() {
  local status=0
  qemu-system-x86_64 -accel tcg -machine pc -m 32 -nodefaults -display none -no-reboot -device isa-debug-exit,iobase=0xf4 \
    -drive "file=$nbd_uri,format=raw,if=virtio,cache=none" || status=$?
  [[ $status == 67 ]] || fail "the machine ended with $status"
}
was_copied() { cmp /tmp/random <(dd if=/tmp/image bs=512 skip=2048 count=8 status=none); }

machine() {
  on server bootable_image
  on server serve_image
  on client attach "$rdma"
  on client boot_machine
  on client stop nbdkit
  on server stop rnbd-server
  on server was_copied
}

# ---- nbdkit's filters ----------------------------------------------------------------------------------

partitioned_image() {
  truncate -s 128M /tmp/image
  printf 'start=2048, size=131072, type=83\n' | sfdisk -q /tmp/image
}
# second_half_holds BYTE: of the partition, which starts at 1 MiB; an octal number.
second_half_holds() {
  cmp -n 32M <(tail -c +$((33 * 1024 * 1024 + 1)) /tmp/image) <(tr '\0' "\\$1" </dev/zero)
}
partition_write() {
  qemu-io -f raw -c 'write -P 0x41 32M 32M' -c flush -c 'read -P 0x41 33M 1M' "$nbd_uri"
  [[ $(nbdinfo --size "$nbd_uri") == $((64 * 1024 * 1024)) ]]
}

filters() {
  on server partitioned_image
  on server serve_image
  on client attach --filter=readahead --filter=cache --filter=partition -- "$rdma" partition=1
  on client partition_write
  on server second_half_holds 101
  on client nbd_device
  on client fio_verify /dev/nbd0
}

copy_on_write() {
  local before after
  on server partitioned_image
  on server serve_image
  before=$(on server digest /tmp/image)
  on client attach --filter=cow -- "$rdma"
  on client nbd_device
  on client make_file_system
  on client check_file_system /dev/nbd0
  after=$(on server digest /tmp/image)
  [[ $after == "$before" ]] || fail "a write has reached the server"
}

# --------------------------------------------------------------------------------------------------------

reconnect() {
  on server serve_image
  on client attach "$rdma"
  on client qemu-io -f raw -c 'write -P 0x11 0 1M' nbd+unix:///?socket=/run/nbd.sock
  on server stop rnbd-server
  on server serve_image
  on client qemu-io -f raw -c 'read -P 0x11 0 1M' nbd+unix:///?socket=/run/nbd.sock
}

boot server client
it "ext4 with real files on /dev/nbd0 is clean, there and in the server's file, over RDMA" file_system "$rdma"
it_full "the same over TCP" file_system "$tcp"
it_full "fio's checksums hold on /dev/nbd0, and qemu-io shares the disk" verify
it "rnbd-bridge serves the kernel's client with four connections, and others beside it, over RDMA" bridge "$rdma"
it_full "RDMA and TCP leave the same image, byte for byte" same_image
it "a qcow2 image that qemu-img makes in it goes back to its snapshot, and is clean" qcow2
it_full "a machine of qemu boots from it, and reads and writes it" machine
it_full "a partition behind nbdkit's cache and readahead is that part of the image" filters
it_full "a file system under nbdkit's cow leaves the server's image alone" copy_on_write
it_full "a client that comes after the server's restart finds its data" reconnect
finish
