# shellcheck shell=bash
# From a file on one guest to a mounted file system on the other: rnbd-server, nbdkit, the kernel's NBD.

serve_image() {
  truncate -s 128M /tmp/image
  rnbd_server --listen tcp:10.99.0.1:1234 --export disk0=/tmp/image
}

make_file_system() {
  mkfs.ext4 -q /dev/nbd0
  mkdir -p /tmp/mnt
  mount /dev/nbd0 /tmp/mnt
  cp -r "$source_dir/rdma" "$source_dir/docs" /tmp/mnt/
  head -c 20M /dev/urandom >/tmp/mnt/random
  (cd /tmp/mnt && find . -type f -exec sha256sum {} +) >/tmp/sums
  rm /tmp/mnt/docs/hacking.md && fstrim /tmp/mnt
  sed -i '/docs\/hacking.md/d' /tmp/sums
  umount /tmp/mnt
}

check_file_system() {
  e2fsck -f -n "$1"
  mount "${@:2}" "$1" /tmp/mnt
  (cd /tmp/mnt && sha256sum --quiet -c /tmp/sums)
  umount /tmp/mnt
}

# The same disk to another client of NBD at the same time.
other_client() {
  qemu-io -f raw -c 'write -P 0x5a 100M 64k' -c 'read -P 0x5a 100M 64k' "$nbd_uri"
  cmp <(dd if=/dev/nbd0 bs=64k skip=1600 count=1 iflag=direct) <(head -c 64k /dev/zero | tr '\0' Z)
}

file_system() {
  on server serve_image
  on client attach rnbd+tcp://10.99.0.1/disk0
  on client nbd_device
  on client make_file_system
  on client check_file_system /dev/nbd0
  on client nbd-client -d /dev/nbd0
  on client stop nbdkit
  on server stop rnbd-server
  on server e2fsck -f -n /tmp/image
}

verify() {
  on server serve_image
  on client attach rnbd+tcp://10.99.0.1/disk0
  on client nbd_device
  on client fio_verify /dev/nbd0
  on client other_client
}

reconnect() {
  on server serve_image
  on client attach rnbd+tcp://10.99.0.1/disk0
  on client qemu-io -f raw -c 'write -P 0x11 0 1M' nbd+unix:///?socket=/run/nbd.sock
  on server stop rnbd-server
  on server rnbd_server --listen tcp:10.99.0.1:1234 --export disk0=/tmp/image
  on client qemu-io -f raw -c 'read -P 0x11 0 1M' nbd+unix:///?socket=/run/nbd.sock
}

boot server client
it "ext4 with real files on /dev/nbd0 is clean, there and in the server's file" file_system
it "fio's checksums hold on /dev/nbd0, and qemu-io shares the disk" verify
it "a client that comes after the server's restart finds its data" reconnect
finish
