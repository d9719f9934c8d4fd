# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
# A machine for tests of units: systemd as process 1 of namespaces of its own, over an overlay of this
# machine's files with our programs installed in it, or of another root without them. What it writes is
# kept until the case ends, so it can be shut down and started again. Source it behind lib.sh.

# make_machine [ROOT]: needs root and a kernel that allows all that. Its files are below $machine/files.
make_machine() {
  requires cmake unshare nsenter findmnt
  ((EUID == 0)) || skip "only root may start a machine in namespaces"
  [[ -z $sanitizer ]] || skip "the installed programs would need the sanitizer's library"
  local cgroups
  cgroups=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
  [[ -n $cgroups ]] || skip "there is no cgroup2 file system here"
  machine_cgroup=$cgroups/rnbd-test-$$-$case_number
  mkdir "$machine_cgroup" 2>/dev/null || skip "no cgroup can be made here"
  at_end remove_machine_cgroup "$machine_cgroup"
  machine=$PWD/machine
  # An empty /etc/systemd/system: what else this machine starts is none of the test's business.
  mkdir -p "$machine"/{files/{etc/systemd/system,var/log/journal,srv,root},units,work,root}
  ln -s "${1:-/}" "$machine/lower"
  in_files true 2>refused.txt || skip "namespaces or overlays are not allowed: $(<refused.txt)"
  (($# > 0)) || DESTDIR=$machine/files cmake --install "$build_dir" --prefix /usr --component server >install.txt
  put /etc/fstab </dev/null
  put /etc/machine-id </dev/null
}
# Whatever has become of the machine.
remove_machine_cgroup() {
  echo 1 >"$1/cgroup.kill"
  eventually 10 remove_cgroups "$1"
}
remove_cgroups() { find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; }

# put FILE: standard input becomes that file of the machine.
put() {
  local file=$machine/files$1
  [[ $1 != /etc/systemd/system/* ]] || file=$machine/units/${1#/etc/systemd/system/}
  mkdir -p "${file%/*}"
  cat >"$file"
}

# Runs in a mount namespace of its own.
mount_files() {
  mount --make-rprivate /
  mount -t overlay overlay "$1/root" -o "lowerdir=$1/lower,upperdir=$1/files,workdir=$1/work"
  mount --bind "$1/units" "$1/root/etc/systemd/system"
}

# in_files COMMAND...: with the machine's files, while it is off.
in_files() {
  # shellcheck disable=SC2016
  unshare -m bash -ec "$(declare -f mount_files)"'; mount_files "$0"; exec chroot "$0/root" "$@"' \
    "$machine" "$@"
}

# start_machine: until its systemd has started everything.
start_machine() {
  declare -f mount_files boot_machine >boot.sh
  printf 'boot_machine %q\n' "$machine" >>boot.sh
  # shellcheck disable=SC2016
  spawn machine bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$machine_cgroup" \
    unshare -m -p -n -u -i -C --fork --kill-child bash -e boot.sh
  eventually 20 machine_listens
  in_machine systemctl is-system-running --wait >state.txt || true
  [[ $(<state.txt) == running ]] || {
    in_machine systemctl --failed --no-legend
    fail "the machine is $(<state.txt)"
  }
}
machine_listens() {
  machine_init=$(grep -oE '[0-9]+' "/proc/${pid[machine]}/task/${pid[machine]}/children") &&
    in_machine test -S /run/systemd/private
}

# Runs in the new namespaces, before systemd.
boot_machine() {
  local root=$1/root node
  mount_files "$1"
  ip link set lo up
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  for node in run tmp dev; do mount -t tmpfs tmpfs "$root/$node"; done
  for node in null zero full random urandom tty fuse; do
    [[ -e /dev/$node ]] || continue
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
  done
  mkdir "$root"/dev/{pts,shm}
  mount -t devpts devpts "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount --make-rshared "$root" # as systemd finds it on a machine: credentials are mounted by a child of its own
  exec chroot "$root" env -i container=test PATH=/usr/sbin:/usr/bin /lib/systemd/systemd \
    --unit=multi-user.target
}

# in_machine COMMAND...: runs it there.
in_machine() {
  nsenter -t "$machine_init" -a -r -w env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"
}

# shut_down_machine: in order, as a machine does.
shut_down_machine() {
  in_machine systemctl poweroff || true
  wait_end machine $((60 * slow)) || fail "the machine does not end"
}

# What the machine's journal says, also when it is off.
machine_journal() { journalctl -D "$machine/files/var/log/journal" --no-pager -o short-monotonic "$@"; }
