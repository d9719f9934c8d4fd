#!/bin/bash
# A machine whose root file system is a disk of ours: Debian's kernel and initramfs, made from the packages.
# Its network is that of QEMU, and it has no other disk.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/made_packages.sh"

# What Debian alone makes of a root; it stays for the next run.
base=$build_dir/root-disk/base
suite=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
clean() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
make_base() {
  [[ ! -e $base/finished ]] || return 0
  rm -rf "$base"
  mkdir -p "$base"
  # shellcheck disable=SC2016 # the inner shell's
  clean unshare --mount --propagation private bash -euc '
    debootstrap --variant=minbase --include=systemd-sysv,udev,initramfs-tools,busybox,e2fsprogs,kmod,iproute2 "$1" "$0/root"
    mount -t proc proc "$0/root/proc"
    echo force-unsafe-io >"$0/root/etc/dpkg/dpkg.cfg.d/test"
    cp -L /etc/resolv.conf "$0/root/etc/"
    chroot "$0/root" apt-get install -y --no-install-recommends linux-image-amd64
    touch "$0/finished"' "$base" "$suite" >"$base/log" 2>&1 || { tail -n 20 "$base/log" && skip "debootstrap cannot fetch Debian's kernel"; }
}

# fresh_root FOLDER [PACKAGE...]: that base with ours and further packages.
fresh_root() {
  local root=$1
  rm -rf "$root"
  cp -a "$base/root" "$root"
  echo diskless >"$root/etc/hostname"
  mkdir -p "$root/root/packages" "$root/etc/dracut.conf.d"
  echo 'compress="cat"' >"$root/etc/dracut.conf.d/test.conf" # a guest reads it once
  cp "$work_dir"/packages/rnbd-{bridge,ctl,initramfs}_*.deb "$root/root/packages/"
  # shellcheck disable=SC2016 # the inner shell's
  in_root "$root" bash -euc 'apt-get install -y --no-install-recommends /root/packages/*.deb "$@"' bash "${@:2}" >"$work_dir/install.log" 2>&1 ||
    { tail -n 30 "$work_dir/install.log"; fail "the packages cannot be installed"; }
}
# in_root FOLDER COMMAND...
in_root() {
  # shellcheck disable=SC2016 # the inner shell's
  clean unshare --mount --propagation private bash -euc '
    mount -t proc proc "$0/proc"
    for folder in dev sys; do mount --rbind "/$folder" "$0/$folder"; done
    exec chroot "$0" "$@"' "$@"
}

# The image of the root, once, in $work_dir/root.img, with its kernel and initramfs beside it.
image() {
  requires debootstrap unshare mke2fs e2fsck debugfs qemu-system-x86_64
  [[ $(uname -m) == x86_64 ]] || skip "the guest is for x86_64"
  ((EUID == 0)) || skip "only root makes the root of a machine"
  [[ ! -e $work_dir/root.img ]] || return 0
  packages
  make_base
  local root=$work_dir/root
  fresh_root "$root"
  cat >"$root/etc/systemd/system/agent.service" <<'UNIT'
[Unit]
Description=What the test says on a port
[Service]
ExecStart=/usr/local/sbin/agent
[Install]
WantedBy=multi-user.target
UNIT
  cat >"$root/usr/local/sbin/agent" <<'AGENT'
#!/bin/bash
until port=$(grep -lx agent /sys/class/virtio-ports/*/name 2>/dev/null); do sleep 1; done
port=${port%/name}
exec 3<>"/dev/${port##*/}"
echo up >&3
while read -r line <&3; do
  status=0
  bash -c "$line" </dev/null >/run/said 2>&1 || status=$?
  { sed 's/^/said /' /run/said && echo "status $status"; } >&3
done
AGENT
  chmod +x "$root/usr/local/sbin/agent"
  clean chroot "$root" systemctl -q enable agent.service
  : >"$root/etc/machine-id"
  : >"$root/etc/fstab"
  cp "$root"/boot/vmlinuz-* "$work_dir/vmlinuz"
  cp "$root"/boot/initrd.img-* "$work_dir/initrd"
  mke2fs -q -t ext4 -d "$root" "$work_dir/new.img" 1500M
  rm -rf "$root"
  mv "$work_dir/new.img" "$work_dir/root.img"
}

# boot WORDS-OF-THE-COMMAND-LINE [QEMU-ARGUMENT...]: until the guest takes commands.
boot() {
  power_on "$@"
  await_up
}
power_on() {
  local line=$1
  shift
  rm -f agent.in agent.out
  mkfifo agent.in agent.out
  exec {to_guest}<>agent.in {of_guest}<>agent.out
  spawn guest qemu-system-x86_64 -accel tcg,thread=single -machine pc,hpet=off -cpu max -m 1536 -nodefaults -display none -no-reboot \
    -no-user-config -serial "file:$PWD/console.log" -device virtio-rng-pci \
    -chardev "pipe,id=agent,path=$PWD/agent" -device virtio-serial-pci -device virtserialport,chardev=agent,name=agent \
    -netdev user,id=network -device virtio-net-pci,netdev=network,romfile= \
    -kernel "$work_dir/vmlinuz" -initrd "${initrd:-$work_dir/initrd}" \
    -append "console=ttyS0 loglevel=5 net.ifnames=0 panic=-1 no_timer_check nosoftlockup systemd.default_timeout_start_sec=600 $line" "$@"
}
await_up() {
  local word='' deadline=$((SECONDS + 900))
  until read -r -t 1 -u "$of_guest" word; do
    if ((SECONDS >= deadline)) || ! kill -0 "${pid[guest]}" 2>/dev/null; then
      tail console.log
      fail "the guest does not come up"
    fi
  done
  [[ $word == up ]] || fail "the guest says $word"
}

# guest COMMAND: a line for bash there; has its output and status.
guest() {
  local word text
  echo "$1" >&"$to_guest"
  while read -r -t 300 -u "$of_guest" word text; do
    case $word in
      said) printf '%s\n' "$text" ;;
      status) return "$text" ;;
    esac
  done
  tail console.log
  fail "no answer of the guest to: $1"
}
power_off() {
  echo 'systemctl --no-block poweroff' >&"$to_guest"
  wait_end guest $((300 * slow)) || fail "the guest does not end"
  exec {to_guest}>&- {of_guest}<&-
}

serve() {
  spawn server "$server_program" --listen "tcp:127.0.0.1:$1" --state-directory "$PWD/state" --export "root=$work_dir/root.img"
  eventually 20 grep -q 'ready, listening' server.log
  port=$(grep -oP 'ready, listening on tcp:127.0.0.1:\K\d+' server.log)
}
bridge() { guest 'cat /run/initramfs/rnbd/bridge.pid'; }

boots() {
  image
  mkdir state
  serve 0
  # The server comes later than the machine.
  stop server
  power_on "root=/dev/nbd0 rw ip=dhcp rnbd=rnbd+tcp://10.0.2.2:$port/root rnbd.option=--heartbeat=2s"
  eventually 600 grep -aq 'rnbd: waiting for rnbd+tcp' console.log
  serve "$port"
  await_up
  [[ $(guest 'findmnt -n -o SOURCE /') == /dev/nbd0 ]] || fail "its root is another disk"
  guest 'rnbd-ctl list' | tee said
  says said '^diskless-[0-9a-f]+ +root +nbd0 +open'
  if guest 'rnbd-ctl unmap root' >said 2>&1; then fail "the root is unmapped"; fi
  cat said
  says said 'mounted at /'
  local before
  before=$(bridge)

  # The server is killed, and comes again.
  guest 'dd if=/dev/urandom of=/root/before bs=1M count=8 conv=fsync; md5sum /root/before >/root/sums'
  kill -KILL "${pid[server]}"
  wait_end server 10
  guest 'dd if=/dev/urandom of=/root/during bs=1M count=4 conv=fsync >/run/dd 2>&1 & disown'
  sleep 5
  if guest 'test -s /run/dd'; then fail "it writes without a server"; fi
  serve "$port"
  eventually 120 guest 'grep copied /run/dd'
  guest 'md5sum /root/during >>/root/sums; echo 3 >/proc/sys/vm/drop_caches; md5sum -c /root/sums'

  # An upgrade leaves the process alone, and no unit touches the disk.
  guest 'dpkg -i /root/packages/rnbd-{bridge,ctl}_*.deb && systemctl daemon-reexec' | tail -n 4
  [[ $(bridge) == "$before" ]] || fail "the upgrade has restarted the bridge of the root"
  guest "test -d /proc/$before" || fail "the upgrade has ended the bridge of the root"
  guest 'mkdir -p /etc/rnbd/map.d; echo URI=rnbd+tcp://10.0.2.2/root >/etc/rnbd/map.d/root.conf'
  if guest 'systemctl start rnbd-map@root' >said 2>&1; then fail "a unit serves the root, too"; fi
  says said 'Assertion failed on job for rnbd-map@root.service'
  guest 'rm -r /etc/rnbd/map.d'

  # A killed bridge is started anew, from memory.
  guest "kill -KILL $before"
  eventually 120 another_bridge "$before"
  guest 'echo 3 >/proc/sys/vm/drop_caches; md5sum -c /root/sums; sync'
  power_off
  stop server
  e2fsck -fn "$work_dir/root.img"
  if grep -aE 'I/O error|EXT4-fs error|Failed unmounting' console.log; then fail "the lines above are wrong"; fi
  debugfs -R 'cat /root/sums' "$work_dir/root.img" 2>/dev/null | tee sums
  [[ $(wc -l <sums) == 2 ]] || fail "the end has lost what was written"
}
another_bridge() { [[ $(bridge) =~ ^[0-9]+$ && $(bridge) != "$1" ]]; }
it "Debian boots from a disk of ours, and outlives restarts of the server and of the bridge, and an upgrade" boots

# Its image is made in a root of its own; the root file system is the same.
by_dracut() {
  image
  local root=$work_dir/dracut
  fresh_root "$root" dbus procps dracut dracut-network
  mv "$root"/boot/initrd.img-* dracut.img
  grep -aq 'initqueue/settled/90-rnbd-settled.sh' dracut.img || fail "dracut's image has nothing of ours"
  rm -rf "$root"
  mkdir state
  serve 0
  initrd=dracut.img boot "root=/dev/nbd0 rw ip=dhcp rnbd=rnbd+tcp://10.0.2.2:$port/root rnbd.option=--heartbeat=2s"
  [[ $(guest 'findmnt -n -o SOURCE /') == /dev/nbd0 ]] || fail "its root is another disk"
  guest 'rnbd-ctl check'
  local before
  before=$(bridge)
  stop server
  serve "$port"
  guest 'dd if=/dev/urandom of=/root/dracut bs=1M count=4 conv=fsync; sync'
  guest "kill -KILL $before"
  eventually 120 another_bridge "$before"
  guest 'echo 3 >/proc/sys/vm/drop_caches; md5sum /root/dracut'
  power_off
  stop server
  e2fsck -fn "$work_dir/root.img"
}
it "so it does by dracut's initramfs, which systemd leaves for the root" by_dracut

others() {
  image
  boot 'root=/dev/vda rw' -drive "file=$work_dir/root.img,format=raw,if=virtio"
  [[ $(guest 'findmnt -n -o SOURCE /') == /dev/vda ]] || fail "its root is another disk"
  guest '! test -e /run/initramfs/rnbd && ! ls /proc/[0-9]*/exe -l | grep rnbd'
  power_off
}
it "a machine that does not ask for it boots from its own disk as before" others

finish
