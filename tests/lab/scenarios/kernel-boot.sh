# shellcheck shell=bash
# A disk of the kernel in a machine with systemd: at boot, in service restarts, in shutdowns and after a reset.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"
# shellcheck source=/dev/null
source "$lab_dir/lib/systemd.sh"

serve_boot_disk() {
  make_disk disk 48M
  mkdir -p /tmp/state
  rnbd_server --listen tcp:10.99.0.1:1234 --state-directory /tmp/state --export disk0=/tmp/disk
}

# ---- The first day -----------------------------------------------------------------------------------

# What docs/operations.md tells an operator to do.
first_day() {
  local before
  in_systemd bash -exc 'rnbd-ctl map disk0 from 10.99.0.1 --wait 60 && test -b /dev/rnbd/by-name/disk0'
  # It is kept, and its process notices nothing.
  before=$(main_process)
  in_systemd rnbd-ctl map disk0 from 10.99.0.1 --persist
  [[ $(main_process) == "$before" ]] || fail "it has another process"
  in_systemd mkfs.ext4 -q /dev/rnbd/by-name/disk0
  machine_file /etc/fstab <<<"/dev/rnbd/by-name/disk0 /mnt/disk0 ext4 _netdev,x-systemd.after=$(unit) 0 0"
  in_systemd systemctl daemon-reload
  in_systemd rnbd-ctl check >check.txt || (($? == 1)) || fail "check says more than a warning"
  grep '^WARNING: mount /mnt/disk0: .*; write mount /mnt/disk0$' check.txt
  in_systemd mount /mnt/disk0
  in_systemd rnbd-ctl check
  in_systemd findmnt /mnt/disk0
}

# Each restart gives the disk to the next process, by way of systemd: the kernel notices nothing.
restarts() { # TIMES
  local number before
  dmesg --clear
  for ((number = 0; number < $1; ++number)); do
    before=$(main_process)
    in_systemd systemctl restart "$(unit)"
    [[ $(main_process) != "$before" ]] || fail "the process is the same"
    before=$(writes_of /dev/nbd0)
    eventually 60 writes_come_after "$before"
  done
  no_line 'nbd0: [^P]|I/O error'
}
# unit: the one that map has started.
unit() { in_systemd systemctl list-units --plain --no-legend 'rnbd-maps@*' | awk '{ print $1 }'; }
main_process() { in_systemd systemctl show -P MainPID "$(unit)"; }
restarts_under_load() {
  local load
  rm -f /tmp/enough wiped
  in_systemd truncate -s 8M /mnt/disk0/load
  verify_until /tmp/enough "$(in_root /mnt/disk0/load)" --size=4m & load=$!
  eventually 60 writes_come_after "$(writes_of /dev/nbd0)"
  restarts "$@"
  touch /tmp/enough
  wait "$load"
}

# Systemd restarts what requires a service with it, even when that has died: a mount that does would be taken away,
# or hang, for its disk needs the bridge. Nobody uses the file system here, so that nothing else keeps it mounted.
stays_mounted() {
  local mount before
  mount=$(mount_id)
  in_systemd bash -c 'echo dirty >/mnt/disk0/dirty'
  before=$(main_process)
  in_systemd kill -9 "$before"
  eventually 60 is_another_process "$before"
  in_systemd systemctl restart "$(unit)"
  in_systemd sync -f /mnt/disk0/dirty
  [[ $(mount_id) == "$mount" ]] || fail "the file system was unmounted"
  if in_systemd journalctl -b --no-pager | grep 'Unmounting.*disk0'; then fail "systemd tried to unmount it"; fi
}
mount_id() { in_systemd findmnt -no ID /mnt/disk0; }
is_another_process() { [[ $(main_process) != "$1" ]] && in_systemd systemctl -q is-active "$(unit)"; }

# ---- Shutdowns and resets ------------------------------------------------------------------------------

# No sync: an orderly end has to see to it.
leaves_words() { in_systemd bash -c 'seq 100000 >/mnt/disk0/words'; }
has_words() {
  in_systemd findmnt /mnt/disk0
  cmp <(seq 100000) "$(in_root /mnt/disk0/words)"
}
leaves_synced_words() { in_systemd bash -c 'seq 5000 >/mnt/disk0/synced && sync /mnt/disk0/synced'; }
has_synced_words() { cmp <(seq 5000) "$(in_root /mnt/disk0/synced)"; }

# mounted_cleanly: nothing had to be mended. recovered: the file system was in use when the machine ended.
mounted_cleanly() { no_line 'recovery complete|needs_recovery|I/O error'; }
recovered() { dmesg | grep 'recovery complete'; }

forgotten() {
  in_systemd systemctl stop mnt-disk0.mount
  in_systemd rnbd-ctl unmap /dev/rnbd/by-name/disk0 2>said.txt
  grep '^rnbd-ctl: this line stays in /etc/fstab, and the next boot waits for its disk' said.txt
  eventually 20 is_unmapped 0
  [[ ! -e $(in_root /etc/rnbd/map.d/disk0.conf) ]] || fail "its file is still there"
  # Until that line has gone.
  in_systemd rnbd-ctl check >check.txt || (($? == 1)) || fail "check says more than a warning"
  grep '^RNBD WARNING - 1 warning, no disks are mapped, ' check.txt
  grep '^WARNING: mount /mnt/disk0: .* nothing is mapped as that; remove the line' check.txt
  machine_file /etc/fstab </dev/null
  in_systemd rnbd-ctl check | grep '^RNBD OK - no disks are mapped, '
}

lasts() {
  on server serve_boot_disk
  on client install_systemd
  on client start_systemd
  on client first_day
  on client stays_mounted
  limit=900 on client restarts_under_load "$restarts"
  on client leaves_words
  on client stop_systemd
  reset client
  on client start_systemd
  on client has_words
  on client mounted_cleanly
  on client leaves_synced_words
  reset client
  on client start_systemd
  on client recovered
  on client has_words
  on client has_synced_words
  on client forgotten
  on client stop_systemd
}

restarts=3
[[ -z ${FULL:-} ]] || restarts=20
install_for_guests
boot server client
it "a disk is mapped, outlives its service, and is mounted at each boot" lasts
finish
