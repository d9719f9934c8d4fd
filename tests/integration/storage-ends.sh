#!/bin/bash
# Storage that is taken away, cut, deleted, replaced or empty, and a disk without room for the
# server's own records.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# device_ends SIZE WHAT: the device becomes that small while a client has it open.
device_ends() {
  requires_python nbd
  ((EUID == 0)) || skip "only root can make loop devices"
  truncate -s 4M image
  local device
  device=$(losetup --find --show "$PWD/image" 2>/dev/null) || skip "no loop devices here"
  at_end losetup -d "$device"
  start_server --export "disk0=$device"
  attach disk0
  nbdsh <<PY
import subprocess
h.pwrite(b"x" * 4096, 3 << 20)
h.flush()
os.truncate("image", $1)
subprocess.run(["losetup", "-c", "$device"], check=True)
fails_with(errno.EIO, h.pwrite, b"x" * 4096, 3 << 20)
fails_with(errno.EIO, h.pwrite, b"x" * 4096, 3 << 20, nbd.CMD_FLAG_FUA)
fails_with(errno.EIO, h.zero, 4096, 3 << 20)
fails_with(errno.EIO, h.pread, 4096, 3 << 20)
PY
  says server.log "$device: $2"
  truncate -s 4M image
  losetup -c "$device"
  eventually 20 writes
}
it "a device that has shrunk is EIO behind its end, until it is larger again, and the log says so" device_ends 1048576 \
  'it has shrunk to 1048576 bytes from 4194304'
it "a device that is gone is EIO, not a lack of space, and served when it is back" device_ends 0 \
  'the device is gone'

replaced() {
  requires_python nbd
  truncate -s 1M image
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdsh <<<'h.pwrite(b"a" * 512, 0)'
  truncate -s 2M new
  mv new image
  # The face may need a moment to let go of the old one.
  eventually 20 size_is $((2 << 20))
  nbdsh <<<'assert h.pread(512, 0) == bytes(512); h.pwrite(b"b" * 512, 0); h.flush()'
  [[ $(head -c 512 image | tr -d b | wc -c) == 0 ]]
  says server.log "export 'disk0': its storage is another one now"
}
size_is() { [[ $(nbdinfo --size "$uri") == "$1" ]]; }
it "a file that was replaced is served anew once nobody has the old one open" replaced

deleted() {
  requires_python nbd
  truncate -s 1M image
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdsh <<<'h.pwrite(b"a" * 512, 0)'
  rm image
  nbdsh <<<'assert h.pread(512, 0) == b"a" * 512; h.pwrite(b"b" * 512, 0); h.flush()'
  says server.log "the file of 'disk0' was deleted or replaced"
}
it "a file that was deleted is served on, and the log warns" deleted

empty() {
  requires_python nbd
  truncate -s 0 image
  nbdkit_name=inner start_nbdkit null 0
  start_server --export "disk0=$PWD/image" --export "disk1=nbd:$uri"
  says server.log "$PWD/image: it is empty"
  attach_to "rnbd+tcp://$address" dynamic-export=true
  local name
  for name in disk0 disk1; do
    uri="nbd+unix:///$name?socket=$socket"
    [[ $(nbdinfo --size "$uri") == 0 ]]
    nbdsh <<<'h.flush(); fails_with(errno.EINVAL, h.pread, 512, 0)
fails_with(errno.ENOSPC, h.pwrite, b"x" * 512, 0)'
    nbdcopy "$uri" "copy-$name"
    [[ $(stat -c %s "copy-$name") == 0 ]]
  done
  truncate -s 1M image
  uri="nbd+unix:///disk0?socket=$socket"
  nbdsh <<<'assert h.get_size() == 1 << 20; h.pwrite(b"x" * 512, 0); h.flush()'
}
it "what is empty is an export of no bytes, and grows" empty

# The first record of a storage, and those that replace it.
full_state_directory() {
  requires_python nbd
  ((EUID == 0)) || skip "only root can mount a file system"
  mkdir full
  mount -t tmpfs -o size=1M none full || skip "cannot mount a tmpfs"
  at_end umount full
  truncate -s 1M image other
  start_server --state-directory "$PWD/full" --export "disk0=$PWD/image" --export "disk1=$PWD/other"
  dd if=/dev/zero of=full/rest bs=4096 status=none || true
  if dd if=/dev/zero of=full/more bs=4096 count=1 status=none; then fail "there is room"; fi
  local name
  for name in disk0 disk1 disk0 disk1 disk0; do
    nbdkit_name=face attach "$name"
    nbdsh <<<'h.pwrite(b"x" * 512, 0); h.flush()'
    stop face
  done
  if grep 'cannot record' server.log; then fail "there was no room"; fi
}
it "a full disk below the state directory keeps nobody from writing" full_state_directory

finish
