#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The units in a machine that starts and is shut down: what stands on a disk outlives nothing of that
# which the disk stands on.
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/machine.sh"

more_logs() { machine_journal -n 60 -q 2>/dev/null | sed 's/^/      | /'; }

# A server whose disk the same machine mounts through a bridge. The mount is of FUSE, because it needs no
# modules; systemd orders it as all that have _netdev, which it finds by the mount's source.
machine_with_its_own_disk() {
  make_machine
  requires nbdfuse
  [[ -c /dev/fuse ]] || skip "there is no FUSE here"
  truncate -s 1M "$machine/files/srv/disk0.img"
  put /etc/rnbd-server.conf <<<'[export.disk0]
path = "/srv/disk0.img"'
  put /etc/rnbd-bridge/disk0.conf <<<'URI=rnbd+tcp://127.0.0.1:1234/disk0'
  put /etc/systemd/system/rnbd-server.service.d/remote-fs.conf <<<'[Unit]
Wants=remote-fs-pre.target
Before=remote-fs-pre.target'
  put /etc/systemd/system/rnbd-server.service.d/images.conf <<<'[Service]
ReadWritePaths=/srv'
  # shellcheck disable=SC2016
  put /usr/sbin/mount.nbdfuse <<<'#!/bin/sh
rm -f /run/nbdfuse.pid
nbdfuse -o "fsname=$1" --pidfile /run/nbdfuse.pid "$2" "$1" &
while ! test -s /run/nbdfuse.pid; do kill -0 $! || exit 1; done'
  put /etc/fstab <<<'nbd+unix:///?socket=/run/rnbd/disk0.sock /mnt/disk0 nbdfuse _netdev 0 0'
  chmod +x "$machine/files/usr/sbin/mount.nbdfuse"
  mkdir -p "$machine/files/mnt/disk0"
  in_files systemd-sysusers
  in_files chown rnbd: /srv /srv/disk0.img
  in_files systemctl -q enable rnbd-server.service rnbd-bridge@disk0.service remote-fs.target
}

# A program on the disk that reads it when it starts, and writes to it when it is stopped: not before
# systemd has stopped the bridge, or made that wait for us.
program_on_the_disk() {
  # shellcheck disable=SC2016
  put /usr/local/sbin/last-words <<<'#!/bin/bash
bridge_waits() { systemctl list-jobs --no-legend | grep -E "rnbd-bridge@disk0.service +stop +waiting"; }
until bridge_waits || ! systemctl is-active rnbd-bridge@disk0.service; do :; done
printf "%-512s" "last words" | dd of=/mnt/disk0/nbd conv=notrunc,fsync'
  chmod +x "$machine/files/usr/local/sbin/last-words"
  put /etc/systemd/system/program.service <<<'[Unit]
RequiresMountsFor=/mnt/disk0
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/dd if=/mnt/disk0/nbd of=/root/read bs=512 count=1
ExecStop=/usr/local/sbin/last-words
[Install]
WantedBy=multi-user.target'
  in_files systemctl -q enable program.service
}

mounts() {
  machine_with_its_own_disk
  program_on_the_disk
  start_machine
  shut_down_machine
  cmp -n 10 "$machine/files/srv/disk0.img" <(printf 'last words') ||
    fail "what was written while the machine went down is not on the disk"
  start_machine
  cmp -n 10 "$machine/files/root/read" <(printf 'last words') || fail "it was not read at the next start"
  shut_down_machine
}
it "what a mount stands on comes before it, and is there for its last writes" mounts

without_configuration() {
  make_machine
  start_machine
  local unit
  for unit in rnbd-server.service rnbd-server.socket rnbd-bridge@typo.socket; do
    if in_machine systemctl start "$unit" >said 2>&1; then fail "$unit has started"; fi
    says said "Assertion failed on job for $unit"
  done
  shut_down_machine
}
it "a unit without its configuration file does not start, and systemctl says so" without_configuration

finish
