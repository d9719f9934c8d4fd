#!/bin/bash
# rnbd-bridge as the disk of a virtual machine (vhost-user-blk): guests of qemu find what the server has and change
# it, and machines and bridges come and go. Drivers that do harm are in vhost-hostile.sh.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/linux_guest.sh"
source "${BASH_SOURCE[0]%/*}/vhost_disk.sh"

# machine [QEMU-ARGUMENTS...]: what a guest is started with.
machine() {
  echo qemu-system-x86_64 -M q35,memory-backend=memory -accel tcg,thread=single -cpu max -m 512 -nographic -nodefaults \
    -object memory-backend-memfd,id=memory,size=512M,share=on \
    -serial file:console -kernel "$kernel" -initrd initramfs.gz \
    -chardev "socket,id=disk,path=$PWD/vm.sock,reconnect=1" "$@"
}
# run_machine DEVICE-OPTIONS [QEMU-ARGUMENTS...]: a guest until it powers off; its words are in guest.txt.
run_machine() {
  local command
  read -ra command < <(machine "${@:2}")
  rm -f console
  limit=300
  limited "${command[@]}" -append 'console=ttyS0 quiet panic=-1' -device "vhost-user-blk-pci,chardev=disk$1"
  tr -d '\r' <console | tee guest.txt
}
prepare_guest() {
  requires qemu-system-x86_64 busybox xz
  [[ -z $sanitizer ]] || skip "a guest shows nothing more in a sanitized build"
  fetch_kernel
}
sum() { md5sum | cut -d ' ' -f 1; }

# ---- Guests of qemu --------------------------------------------------------------------------------

raw_disk() {
  prepare_guest
  local zeroing
  zeroing=$(command -v blkdiscard) # busybox's cannot
  mkdir tree
  add_program "$zeroing"
  make_initramfs < <(sed "s#ZEROING#$zeroing#" <<'SCRIPT'
queue=/sys/block/vda/queue
echo "size=$(cat /sys/block/vda/size) ro=$(cat /sys/block/vda/ro) serial=$(cat /sys/block/vda/serial)"
echo "block=$(cat $queue/logical_block_size) segments=$(cat $queue/max_segments) cache=$(cat $queue/write_cache)"
echo "discard=$(cat $queue/discard_max_bytes) zeroes=$(cat $queue/write_zeroes_max_bytes)"
echo "md5=$(dd if=/dev/vda bs=1M count=32 iflag=direct 2>/dev/null | md5sum | cut -d ' ' -f 1)"
yes guest | dd of=/dev/vda bs=1M count=4 seek=40 iflag=fullblock oflag=direct conv=fsync 2>/dev/null
echo "written=$?"
echo "back=$(dd if=/dev/vda bs=4k count=1024 skip=10240 iflag=direct 2>/dev/null | md5sum | cut -d ' ' -f 1)"
blkdiscard -o 4194304 -l 1048576 /dev/vda
echo "discarded=$?"
ZEROING -z -o 8388608 -l 1048576 /dev/vda
echo "zeroed=$?"
SCRIPT
  )
  serve_disk
  local before
  before=$(head -c 32M image | sum)
  run_machine ''
  says guest.txt '^size=131072 ro=0 serial=disk0$'
  says guest.txt '^block=512 segments=126 cache=write back$'
  says guest.txt '^discard=1073741824 zeroes=1073741824$'
  says guest.txt "^md5=$before$"
  says guest.txt '^written=0$'
  says guest.txt '^discarded=0$'
  says guest.txt '^zeroed=0$'
  { yes guest || true; } | head -c 4M >expected
  says guest.txt "^back=$(sum <expected)$"
  stop bridge
  stop server
  cmp expected <(dd if=image bs=1M skip=40 count=4 status=none)
  cmp <(head -c 1M /dev/zero) <(dd if=image bs=1M skip=8 count=1 status=none)
}
it "a guest sees the disk as it is, reads, writes, discards and zeroes it" raw_disk

file_system() {
  prepare_guest
  requires mkfs.ext4 fio
  mkdir tree
  add_program "$(command -v mkfs.ext4)"
  add_program "$(command -v fio)"
  mkdir -p tree/etc
  cp /etc/mke2fs.conf tree/etc/
  make_initramfs ext4 crc32c_generic <<'SCRIPT'
echo "queues=$(ls /sys/block/vda/mq | wc -l)"
if ! mount -t ext4 -o ro /dev/vda /mnt; then
  mkfs.ext4 -q -F -m 0 /dev/vda
  echo "mkfs=$?"
else
  umount /mnt
fi
mount -t ext4 /dev/vda /mnt
echo "mounted=$?"
if [ -e /mnt/kept ]; then
  echo "again=$(md5sum </mnt/kept | cut -d ' ' -f 1)"
  poweroff -f
fi
fio --name=verify --directory=/mnt --size=8M --bsrange=4k-64k --rw=randrw --ioengine=psync --numjobs=2 --direct=1 \
  --verify=crc32c --fsync=64 --eta=never --output=/tmp/fio.txt
echo "fio=$?"
dd if=/dev/urandom of=/mnt/kept bs=64k count=32 conv=fsync 2>/dev/null
echo "sum=$(md5sum </mnt/kept | cut -d ' ' -f 1)"
rm /mnt/verify*
sync
fstrim -v /mnt
echo "trim=$?"
umount /mnt
echo "umount=$?"
[ "$(cat /proc/cmdline | grep -c again)" = 1 ] && reboot -f
SCRIPT
  serve_disk
  : >image && truncate -s 64M image
  run_machine ',num-queues=2' -smp 2
  says guest.txt '^queues=2$'
  local word
  for word in mkfs mounted fio trim umount; do says guest.txt "^$word=0$"; done
  local written
  written=$(sed -n 's/^sum=//p' guest.txt)
  (($(du -k image | cut -f 1) < 16384)) || fail "fstrim has given nothing back: $(du -k image)"
  # Another life of the machine, and of the bridge, which nobody has missed.
  stop bridge
  start_vhost
  run_machine ',num-queues=2' -smp 2
  says guest.txt "^again=$written$"
}
it "mkfs, fio with verification on two queues, fstrim; the next machine finds it all" file_system

read_only() {
  prepare_guest
  make_initramfs <<'SCRIPT'
echo "ro=$(cat /sys/block/vda/ro)"
echo "md5=$(dd if=/dev/vda bs=1M count=8 iflag=direct 2>/dev/null | md5sum | cut -d ' ' -f 1)"
dd if=/dev/zero of=/dev/vda bs=4k count=1 oflag=direct 2>/dev/null
echo "written=$?"
SCRIPT
  serve_disk --access ro
  local before
  before=$(head -c 8M image | sum)
  run_machine ''
  says guest.txt '^ro=1$'
  says guest.txt "^md5=$before$"
  says guest.txt '^written=1$'
}
it "with --access ro the guest has a disk that it can only read" read_only

reboots() {
  prepare_guest
  make_initramfs <<'SCRIPT'
count=$(dd if=/dev/vda bs=512 count=1 iflag=direct 2>/dev/null | head -c 1)
echo "boot=$count"
case $count in
  a) next=b ;;
  b) next=c ;;
  *) poweroff -f ;;
esac
yes $next | dd of=/dev/vda bs=512 count=1 iflag=fullblock oflag=direct conv=fsync 2>/dev/null
reboot -f
SCRIPT
  serve_disk
  printf a | dd of=image conv=notrunc status=none
  run_machine ''
  says guest.txt '^boot=a$'
  says guest.txt '^boot=b$'
  says guest.txt '^boot=c$'
}
it "a guest that reboots finds its disk again" reboots

# A guest that writes for ever; the first bytes of its disk count.
start_writer() {
  local command
  read -ra command < <(machine)
  rm -f console
  spawn qemu "${command[@]}" -append 'console=ttyS0 quiet panic=-1' -device vhost-user-blk-pci,chardev=disk
}
now_written() { head -c 8 image; }
written() { (($(now_written) >= $1)); }
writer() {
  prepare_guest
  make_initramfs <<'SCRIPT'
n=10000000
while n=$((n + 1)); do
  echo $n | dd of=/dev/vda bs=512 count=1 conv=sync,fsync oflag=direct 2>/dev/null || echo "failed=$n"
done
SCRIPT
  serve_disk
  printf 10000000 | dd of=image conv=notrunc status=none
}

killed() {
  writer
  local i
  for i in 1 2 3; do
    printf 10000000 | dd of=image conv=notrunc status=none
    start_writer
    eventually 120 written 10000003
    kill_hard qemu
  done
  says bridge.log 'ready'
  fails grep -qi 'warning\|turned away' bridge.log
}
it "qemu that is killed and started again is served again" killed

restarted() {
  writer
  start_writer
  eventually 120 written 10000003
  local i before
  for i in 1 2 3; do
    stop bridge
    start_vhost
    before=$(now_written)
    eventually 60 written $((before + 3))
  done
  kill_hard qemu
  fails grep -q 'failed=' console
}
it "a bridge that is stopped and started again loses no request of a guest that runs" restarted

# ---- The command line -------------------------------------------------------------------------------

mistakes() {
  status_of 2 "${bridge_command[@]}" --listen vhost: rnbd+tcp://127.0.0.1/x
  says said 'the path is missing; write e.g. vhost:/run/rnbd/vm1.sock'
  status_of 2 "${bridge_command[@]}" --listen "vhost:$PWD/x.sock" rnbd+tcp://127.0.0.1
  says said 'needs a device: write it behind the server'
  status_of 2 "${bridge_command[@]}" --listen "vhost:$PWD/x.sock" --listen "unix:$PWD/y.sock" rnbd+tcp://127.0.0.1/x
  says said 'is for one client, and nobody else'
}
it "what cannot be is said on the command line" mistakes

finish
