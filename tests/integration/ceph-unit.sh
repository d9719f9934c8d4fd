#!/bin/bash
# The way of docs/ceph.md on a machine with systemd, and an image behind rnbd-server's unit with its
# sandbox.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/ceph-here.sh"
source "${BASH_SOURCE[0]%/*}/machine.sh"
source "$source_dir/tests/tools/page.sh"

more_logs() { machine_journal -n 60 -q 2>/dev/null | sed 's/^/      | /'; }

gateway() {
  make_machine
  DESTDIR=$machine/files cmake --install "$build_dir" --prefix /usr --component rbd >>install.txt
  mapfile -t page < <(page_commands "$source_dir/docs/ceph.md" "From a cluster to a disk of the kernel")
  ((${#page[@]} == 6)) || fail "the page has ${#page[@]} commands"
}
# on_page NUMBER PATTERN: runs that command, which is what is expected there.
on_page() {
  [[ ${page[$1]} =~ $2 ]] || fail "command $1 of the page is ${page[$1]}"
  in_machine bash -ec "${page[$1]}"
}
# Its files do not outlive the machine, nor does it end by itself.
start_cluster() { in_machine env WATCH_TIMEOUT=300 "$source_dir/tests/ceph/cluster" start /srv/ceph; }
has_its_disk() { in_machine rnbd-ctl discover rnbd+tcp://127.0.0.1 | grep -E '^disk0 +10'; }
writes_and_reads() {
  in_machine systemctl start rnbd-bridge@disk0.service
  in_machine nbdsh -u 'nbd+unix:///?socket=/run/rnbd/disk0.sock' -c "$1"
}

unit() {
  gateway
  put /etc/rnbd-server.conf <<<'[export.disk0]
storage = "rbd:rbd/disk0,id=rnbd"'
  put /etc/rnbd-bridge/disk0.conf <<<'URI=rnbd+tcp://127.0.0.1:1234/disk0'
  in_files systemd-sysusers
  in_files systemctl -q enable rnbd-server.service
  start_machine
  start_cluster
  in_machine "$source_dir/tests/ceph/cluster" client /srv/ceph
  on_page 0 '^ceph auth get-or-create client.rnbd '
  on_page 1 '^rbd create .*rbd/disk0$'
  in_machine bash -ec 'chgrp rnbd /etc/ceph/ceph.client.rnbd.keyring && chmod 640 /etc/ceph/ceph.client.rnbd.keyring'
  # It was there before all that, and looks again and again.
  eventually 60 has_its_disk
  writes_and_reads 'h.pwrite(b"y" * 4096, 0, nbd.CMD_FLAG_FUA)'
  local first
  first=$(in_machine rbd lock list rbd/disk0 | awk 'END { print $NF }')
  in_machine systemctl kill -s KILL rnbd-server.service
  # What the sandbox shows of processes proves that the first one is dead, long before the cluster knows.
  eventually 120 has_its_disk
  in_machine ceph osd blocklist ls 2>/dev/null | grep -qF "$first " || fail "it took the lock without a fence"
  writes_and_reads 'assert h.pread(4096, 0) == b"y" * 4096; h.trim(1 << 22, 1 << 22); h.flush(); h.pwrite(b"z" * 4096, 4096)'
  in_machine systemctl stop rnbd-bridge@disk0.service rnbd-server.service
  [[ -z $(in_machine rbd lock list rbd/disk0) ]] || fail "it has left a lock behind"
  shut_down_machine
}
it "the unit's sandbox lets it serve an image, be killed, and take its lock again" unit

finish
