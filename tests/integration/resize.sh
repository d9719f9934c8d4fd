#!/bin/bash
# Files, block devices and exports of other NBD servers that become larger while they are served: who
# connects next has the new size, and nobody who is connected notices.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

quick=("heartbeat=$((100 * slow))ms" reconnect-min=20ms reconnect-max=200ms)

# enlarges COMMAND...: there is a disk0 of 4 MiB at $address, with the content of the file `before`; the
# command makes it 8 MiB large.
enlarges() {
  attach disk0 "${quick[@]}"
  limited /usr/bin/python3 - "$uri" "$@" <<'PY'
import nbd, subprocess, sys
MiB = 1 << 20
uri, command = sys.argv[1], sys.argv[2:]
content = open("before", "rb").read()

def connect():
    h = nbd.NBD()
    h.set_strict_mode(0)  # for requests beyond the end
    h.connect_uri(uri)
    return h

def error_of(function, *arguments):
    try:
        function(*arguments)
    except nbd.Error as error:
        return error.errno
    raise AssertionError("no error")

def beyond(h, end):
    return [error_of(h.pread, 512, end), error_of(h.pread, 1024, end - 512),
            error_of(h.pwrite, b"x" * 512, end), error_of(h.zero, 512, end), error_of(h.trim, 512, end)]

old = connect()
assert old.get_size() == 4 * MiB
errors = beyond(old, 4 * MiB)
subprocess.run(command, check=True)
new = connect()
assert new.get_size() == 8 * MiB, new.get_size()
assert old.get_size() == 4 * MiB
assert new.pread(4 * MiB, 0) == content and new.pread(4 * MiB, 4 * MiB) == bytes(4 * MiB)
new.pwrite(b"n" * 65536, 4 * MiB - 32768)
new.pwrite(b"e" * 4096, 8 * MiB - 4096)
new.zero(4096, 4 * MiB)
new.flush()
assert beyond(old, 4 * MiB) == errors, (beyond(old, 4 * MiB), errors)
assert beyond(new, 8 * MiB) == errors, (beyond(new, 8 * MiB), errors)
assert old.pread(32768, 4 * MiB - 32768) == b"n" * 32768
old.pwrite(b"o" * 4096, 4 * MiB - 4096)
old.zero(4096, 4 * MiB - 8192)
old.trim(4096, 4 * MiB - 16384)
old.flush()
assert new.pread(12288, 4 * MiB - 4096) == b"o" * 4096 + bytes(4096) + b"n" * 4096
assert new.pread(4096, 8 * MiB - 4096) == b"e" * 4096
assert connect().get_size() == 8 * MiB
PY
  stop nbdkit
}

# file EXPORT_OPTIONS [ARGUMENTS...]
file() {
  requires_python nbd
  random_file image 4M
  cp image before
  start_server --export "disk0=$PWD/image$1" "${@:2}"
  enlarges truncate -s 8M image
  stop server
  cmp -n 4161536 image before
  tail -c 4096 image | cmp - <(yes e | tr -d '\n' | head -c 4096)
}
it "a file grows: new clients have all of it, old ones go on with what they know" file ""
it "the same with O_DIRECT" file ",direct"
it "the same without io_uring" file "" --no-uring

searched() {
  requires_python nbd
  mkdir files
  random_file files/disk0 4M
  cp files/disk0 before
  start_server --search-path "$PWD/files"
  enlarges truncate -s 8M files/disk0
}
it "the same with a file of the search path" searched

block_device() {
  requires_python nbd
  ((EUID == 0)) || skip "only root can make loop devices"
  random_file image 4M
  cp image before
  local device
  device=$(losetup --find --show "$PWD/image" 2>/dev/null) || skip "no loop devices here"
  at_end losetup -d "$device"
  start_server --export "disk0=$device"
  enlarges sh -c "truncate -s 8M image && losetup -c $device"
}
it "the same with a block device" block_device

readers_elsewhere() {
  truncate -s 4M image
  start_server --export "disk0=$PWD/image,ro" --reactors 2
  local i uris=()
  for i in 1 2 3; do
    nbdkit_name=nbdkit$i attach disk0
    uris+=("$uri")
    [[ $(nbdinfo --size "$uri") == 4194304 ]]
  done
  truncate -s 6291456 image
  for uri in "${uris[@]}"; do
    [[ $(nbdinfo --size "$uri") == 6291456 ]]
    nbdcopy "$uri" - | cmp - image
  done
}
it "readers in several sessions have the new size when they come again" readers_elsewhere

odd_end() {
  requires_python nbd
  truncate -s 1000000 image
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdsh <<'PY'
os.truncate("image", 2000000)
again = nbd.NBD()
again.connect_uri(h.get_uri())
assert again.get_size() == h.get_size() == 1000000
h.trim(1000000 - 512 * 1953, 512 * 1953)
PY
}
it "a file whose end was inside a sector stays as large as it was" odd_end

shrinks() {
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  attach disk0
  [[ $(nbdinfo --size "$uri") == 4194304 ]]
  truncate -s 8M image
  [[ $(nbdinfo --size "$uri") == 8388608 ]]
  truncate -s 2M image
  [[ $(nbdinfo --size "$uri") == 8388608 ]]
  fails nbdcopy "$uri" copy
}
it "a file that shrinks again keeps the size that was told" shrinks

# A client asks what there is, and then takes it: it has what there is by then.
asked_twice() {
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited \
    /usr/bin/python3 - "$socket" <<'PY'
import os, sys
from nbd_peer import *
def size_of(info):
    return struct.unpack(">QH", info[INFO_EXPORT])[0]
h = Client.__new__(Client)
Haggler.__init__(h, sys.argv[1])
assert size_of(h.info(INFO, b"disk0")) == 4 * M
os.truncate("image", 6 * M)
assert size_of(h.info(INFO, b"disk0")) == 6 * M
os.truncate("image", 8 * M)
assert size_of(h.info(GO, b"disk0")) == 8 * M
h.cookies = 0
assert h.write(8 * M - 512, b"x" * 512) == 0
assert h.write(8 * M, b"x" * 512) == ENOSPC
by_name = Haggler(sys.argv[1])
by_name.start(EXPORT_NAME, b"disk0")
assert by_name.unpack(">QH")[0] == 8 * M
PY
}
it "rnbd-bridge tells the present size in every INFO, in GO and for EXPORT_NAME" asked_twice

# ---- Behind another NBD server ----------------------------------------------------------------------

# behind_nbd [ARGUMENTS...]: a disk0 of 4 MiB in the file `image`, which another NBD server has, with these
# filters; attached.
behind_nbd() {
  requires_python nbd
  random_file image 4M
  cp image before
  nbdkit_name=inner start_nbdkit "$@"
  start_server --export "disk0=nbd:$uri"
  attach disk0 "${quick[@]}"
  [[ $(nbdinfo --size "$uri") == 4194304 ]]
}

grows_behind_nbd() {
  behind_nbd "$@"
  nbdsh <<<'assert h.pread(4096, 0) == open("before", "rb").read(4096)' # over a connection that stays
  truncate -s 8M image
  nbdsh <<'PY'
MiB = 1 << 20
assert h.get_size() == 8 * MiB, h.get_size()
assert h.pread(4 * MiB, 0) == open("before", "rb").read()
h.pwrite(b"n" * 65536, 4 * MiB - 32768)
h.pwrite(b"e" * 4096, 8 * MiB - 4096)
h.flush()
assert h.pread(65536, 4 * MiB - 32768) == b"n" * 65536
h.set_strict_mode(0)
fails_with(errno.EINVAL, h.pread, 512, 8 * MiB)
PY
  tail -c 4096 image | cmp - <(yes e | tr -d '\n' | head -c 4096)
  says server.log 'has grown to 8388608 bytes'
  stop nbdkit
  stop server
}
it "the export of another NBD server grows while nobody has it open: the next client has all of it" \
  grows_behind_nbd file image
it "the same with one connection for all" \
  grows_behind_nbd --filter=multi-conn file image multi-conn-mode=disable

grows_in_use() {
  behind_nbd --filter=multi-conn file image multi-conn-mode=disable
  user
  works read || fail "cannot read"
  truncate -s 8M image
  nbdkit_name=second attach disk0 "${quick[@]}" access=ro
  [[ $(nbdinfo --size "$uri") == 4194304 ]]
  works write || fail "cannot write after it has grown"
  end_user
  [[ $(nbdinfo --size "$uri") == 8388608 ]]
  stop second
  stop nbdkit
  stop server
}
it "an export of another NBD server that grows while somebody has it open keeps its size until then" grows_in_use

stands_still() {
  behind_nbd file image
  truncate -s 8M image
  freeze inner
  [[ $(nbdinfo --size "$uri") == 4194304 ]]
  thaw inner
  nbdsh <<<'assert h.pread(4096, 0) == open("before", "rb").read(4096)'
  stop nbdkit
  stop server
}
it "who opens the export of an NBD server that stands still is told the size that is known" stands_still

becomes_smaller() {
  behind_nbd file image
  truncate -s 1M image
  nbdsh <<'PY'
assert h.get_size() == 4 << 20
assert h.pread(4096, 0) == open("before", "rb").read(4096)
fails_with(errno.EIO, h.pread, 4096, 2 << 20)
PY
  says server.log 'has shrunk to 1048576 bytes from 4194304'
  stop nbdkit
  stop server
}
it "an export of another NBD server that shrinks keeps its size, and has EIO where it ended" becomes_smaller

# ---- When things break ------------------------------------------------------------------------------

# told FILE SIZE: it grows, and somebody who comes sees it.
told() {
  truncate -s "$2" "$1"
  [[ $(nbdinfo --size "$uri") == "$2" ]] || fail "a new client does not see $2 bytes"
}

under_load() {
  requires_python nbd
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  attach disk0 "${quick[@]}"
  start_writers
  local mib
  for mib in 17 20 32 48; do
    told image $((mib << 20))
    progress 20
  done
  end_writers
}
it "growing again and again under durable writes: no error, nothing lost" under_load

# The server at the control socket `control` has no session.
alone() {
  limited "${ctl_command[@]}" --json control status >sessions
  grep -qE '"sessions": *\[\]' sessions
}

forgotten() {
  requires_python nbd
  truncate -s 16M image
  start_server --export "disk0=$PWD/image" --control "$PWD/control"
  start_forward 127.0.0.1
  attach_to "rnbd+tcp://127.0.0.1:$forward_port/disk0" "${quick[@]}"
  start_writers
  truncate -s 32M image
  end_forward 127.0.0.1
  eventually 20 alone
  start_forward 127.0.0.1 "$forward_port"
  progress 20
  ! grep 'is not what it was' nbdkit.log || fail "it is refused"
  told image 33554432
  end_writers
  stop nbdkit
  end_forward 127.0.0.1
}
it "a session that the server has forgotten goes on with a device that has grown since" forgotten

restarted() {
  image_in_use
  told image 8388608
  stop server
  server_port=$port server_name=server1 start_server --export "disk0=$PWD/image"
  works write || fail "cannot write after the restart"
  works flush || fail "cannot flush after the restart"
  end_user
  [[ $(nbdinfo --size "$uri") == 8388608 ]]
}
it "a server is restarted after somebody was told the new size: everybody goes on" restarted

no_path() {
  requires_python nbd
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  attach disk0 "${quick[@]}"
  user
  works read || fail "cannot read"
  stop server
  eventually 20 grep -qE 'path to .* is lost|lost' nbdkit.log
  [[ $(nbdinfo --size "$uri") == 4194304 ]]
  server_port=$port server_name=server1 start_server --export "disk0=$PWD/image"
  works read || fail "cannot read after the restart"
  end_user
}
it "who connects while there is no path is told the size that is known" no_path

finish
