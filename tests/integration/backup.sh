#!/bin/bash
# The commands of "Backup" in docs/operations.md: a snapshot of a disk that is in use, with its file
# system frozen or not, which is copied from an export of its own; and a clone.
# SPDX-License-Identifier: BSD-3-Clause

# A mount namespace of its own: those that other tests make meanwhile would keep copies of these mounts,
# and with them what lies below.
if ((EUID == 0)) && [[ -z ${own_mounts-} ]] && unshare --mount true 2>/dev/null; then
  own_mounts=1 exec unshare --mount bash "$0" "$@"
fi
source "${BASH_SOURCE[0]%/*}/lib.sh"

# store: images on XFS, which can share their blocks, and a server of them by a file.
store() {
  ((EUID == 0)) || skip "only root can mount"
  requires mkfs.xfs fsfreeze e2fsck debugfs losetup nbdfuse nbdcopy
  [[ -z $sanitizer ]] || skip "the storage shows nothing more in a sanitized build"
  truncate -s 320M xfs.img
  mkfs.xfs -q -m reflink=1 xfs.img
  mkdir srv
  mount -o loop xfs.img srv 2>said || skip "no loop devices, or no XFS: $(<said)"
  at_end umount -l "$PWD/srv"
  truncate -s 64M srv/disk0.img
  mke2fs -q -t ext4 srv/disk0.img
  exports
  start_server --config "$PWD/conf"
}
exports() {
  printf '%s\n' '[server]' "control = \"$PWD/control\"" '[export.disk0]' "path = \"$PWD/srv/disk0.img\"" "$@" >conf
}
reload() { "${ctl_command[@]}" "$PWD/control" reload; }

# mounted: the disk, as a client of it has it.
mounted() {
  start_bridge --access rw "rnbd+tcp://$address/disk0"
  : >fuse
  spawn fuse nbdfuse -P "$PWD/fuse.pid" fuse "$uri"
  eventually 10 test -s fuse.pid
  device=$(losetup --find --show fuse)
  mkdir mnt
  mount "$device" mnt
  at_end unmount_all
}
# Whatever has become of the case.
unmount_all() {
  fsfreeze --unfreeze mnt
  umount -l mnt
  losetup -d "$device"
  umount -l fuse
} 2>/dev/null
unmounted() {
  umount mnt
  losetup -d "$device"
  umount fuse
  expect_gone fuse 0
}
# A program that writes to the file system all the time.
writes_on() {
  # shellcheck disable=SC2016
  spawn writer bash -c 'trap "exit 0" TERM
    n=0; while :; do n=$((n + 1)); echo "$n" >"mnt/file$((n % 50))"; sync -f mnt; done'
  eventually 10 test -e mnt/file20
}

# The file system is thawed whatever becomes of the copy.
while_frozen() {
  local result=0
  fsfreeze --freeze mnt
  "$@" || result=$?
  fsfreeze --unfreeze mnt
  return "$result"
}
snapshot() { cp --reflink=always srv/disk0.img srv/disk0.monday; }
copied() {
  exports '[export.monday]' "path = \"$PWD/srv/disk0.monday\"" 'read-only = true'
  reload
  # shellcheck disable=SC2016 # $uri is nbdkit's
  nbdkit -r -U - "$plugin" "rnbd+tcp://$address/monday" --run 'nbdcopy "$uri" disk0.img'
  exports
  reload
  cmp srv/disk0.monday disk0.img
  rm srv/disk0.monday
}

frozen() {
  store
  mounted
  writes_on
  echo kept >mnt/kept
  while_frozen snapshot
  copied
  stop writer
  unmounted
  # Nothing is to be mended, and no journal to be gone through.
  e2fsck -fn disk0.img | tee said
  dumpe2fs -h disk0.img 2>/dev/null | grep -i 'features' | tee features
  if grep -q needs_recovery features; then fail "the copy has a journal that must be gone through"; fi
  [[ $(debugfs -R 'cat kept' disk0.img 2>/dev/null) == kept ]] || fail "what was written before is missing"
}
it "a snapshot of a frozen file system is clean, and has all that was written" frozen

as_after_a_power_cut() {
  store
  mounted
  writes_on
  echo kept >mnt/kept
  sync -f mnt
  echo later >mnt/later
  snapshot
  copied
  stop writer
  unmounted
  e2fsck -fp disk0.img || (($? == 1))
  e2fsck -fn disk0.img
  [[ $(debugfs -R 'cat kept' disk0.img 2>/dev/null) == kept ]] || fail "what was synced is missing"
}
it "one that is not frozen mends itself by its journal, and has all that was synced" as_after_a_power_cut

cloned() {
  store
  mounted
  writes_on
  while_frozen cp --reflink=always srv/disk0.img srv/disk1.img
  exports '[export.disk1]' "path = \"$PWD/srv/disk1.img\""
  reload
  stop writer
  bridge_name=clone start_bridge --access rw "rnbd+tcp://$address/disk1"
  nbdinfo --json "$uri" >clone.json
  "${ctl_command[@]}" "$PWD/control" status --json | tee status.json
  limited /usr/bin/python3 - <<'PY'
import json
export = {each["export"]: each["uuid"] for each in json.load(open("status.json"))["exports"]}
assert export["disk0"] and export["disk1"] and export["disk0"] != export["disk1"], export
assert export["disk1"] in open("clone.json").read(), export
PY
  nbdsh <<<'h.pwrite(b"clone" * 1024, 32 << 20); h.flush()'
  cmp -n 5120 <(tail -c +33554433 srv/disk1.img) <(printf 'clone%.0s' {1..1024})
  unmounted
  e2fsck -fn srv/disk0.img
}
it "a clone is a disk of its own, with another UUID" cloned

restored() {
  store
  start_bridge --access rw "rnbd+tcp://$address/disk0"
  nbdcopy "$uri" disk0.img
  nbdsh <<<'h.pwrite(b"spoilt" * 1024, 0)'
  stop bridge
  # shellcheck disable=SC2016 # $uri is nbdkit's
  nbdkit -U - "$plugin" access=rw "rnbd+tcp://$address/disk0" --run 'nbdcopy disk0.img "$uri"'
  e2fsck -fn srv/disk0.img
}
it "a backup is brought back by writing to the export" restored

finish
