# shellcheck shell=bash
# systemd as process 1 of a guest's namespaces, with our programs and units installed; its files are on the guest's disk,
# /dev/vda, which outlives a reset. It has the guest's network and devices, for the kernel's nbd knows no other.
# SPDX-License-Identifier: BSD-3-Clause

# install_for_guests: on the host, which strips them; a guest would take minutes, and its disk is small.
install_for_guests() {
  DESTDIR=$work_dir/installed cmake --install "$build_dir" --prefix /usr --component server --strip >"$work_dir/install.log"
}

# install_systemd: in a guest. An empty /etc/systemd/system: what else this machine starts does not belong here.
install_systemd() {
  modprobe virtio_blk
  mkfs.ext4 -q /dev/vda
  mount_disk
  mkdir -p /machine/{files/{etc/systemd/system,var/log/journal,mnt/disk0},units,work,root}
  cp -r /lab/installed/. /machine/files/
  machine_file /etc/fstab </dev/null
  machine_file /etc/machine-id </dev/null
  # Debian has enabled it.
  mkdir /machine/units/multi-user.target.wants
  ln -s /lib/systemd/system/remote-fs.target /machine/units/multi-user.target.wants
}
mount_disk() {
  mkdir -p /machine
  mount /dev/vda /machine
}

# machine_file FILE: standard input becomes that file of the machine, while it runs, too.
machine_file() {
  local file=/machine/files$1
  [[ ! -e /run/systemd.init ]] || file=$(in_root "$1")
  mkdir -p "${file%/*}"
  cat >"$file"
}

# start_systemd: until it has started everything.
start_systemd() {
  modprobe -a virtio_blk ext4 nbd
  mountpoint -q /machine || mount_disk
  unshare -m -p -u -i --fork --kill-child bash -e "$source_dir/tests/lab/lib/systemd-init" >>"$case_dir/systemd.log" 2>&1 &
  echo $! >/run/systemd.outer
  eventually 120 listens
  in_systemd systemctl is-system-running --wait >state.txt || true
  [[ $(<state.txt) == running ]] || {
    in_systemd systemctl --failed --no-legend
    in_systemd journalctl -b -p warning --no-pager | tail -n 40
    fail "the machine is $(<state.txt)"
  }
}
listens() {
  local outer
  outer=$(</run/systemd.outer)
  grep -oE '[0-9]+' "/proc/$outer/task/$outer/children" >/run/systemd.init && in_systemd test -S /run/systemd/private
}

# in_systemd COMMAND...: runs it there. in_root FILE: its name for others.
in_systemd() {
  nsenter -t "$(</run/systemd.init)" -a -r -w env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"
}
in_root() { echo "/proc/$(</run/systemd.init)/root$1"; }

# stop_systemd: in order, as a machine does.
stop_systemd() {
  in_systemd systemctl poweroff || true
  eventually 120 systemd_has_ended
  rm /run/systemd.init
  umount /machine
}
systemd_has_ended() { ! kill -0 "$(</run/systemd.outer)" 2>/dev/null; }
