#!/bin/bash
# Every flag that is advertised to NBD clients is true, and errors arrive with the right errno.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

requires_nbdsh() { requires_python nbd; }

file_flags() {
  requires_nbdsh
  truncate -s 16M image
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdsh <<'PY'
assert not h.is_read_only()
assert h.can_flush() and h.can_fua() and h.can_trim() and h.can_zero()
assert h.can_cache() and h.can_multi_conn()
assert h.get_size() == 16 << 20
minimum, preferred, maximum = (h.get_block_size(i) for i in range(3))
print("block sizes", minimum, preferred, maximum)
assert minimum == 1, minimum
assert preferred == 4096, preferred
assert maximum >= 32 << 20, maximum
PY
}
it "a file can write, flush, FUA, trim, zero, cache and multi-conn, single bytes to 32 MiB" file_flags

memory_flags() {
  requires_nbdsh
  start_server --export disk0=memory:16M
  attach disk0
  nbdsh <<'PY'
assert not h.is_read_only() and not h.is_rotational()
assert h.can_flush() and h.can_fua() and h.can_trim() and h.can_zero() and h.can_multi_conn()
PY
}
it "memory does not rotate, and can all that a file can" memory_flags

read_only() {
  requires_nbdsh
  random_file image 1M
  start_server --export "$1=$PWD/image$2"
  read -ra nbdkit_flags <<<"$3"
  # shellcheck disable=SC2086 # one argument or none
  attach "$1" $4
  nbdsh <<'PY'
assert h.is_read_only()
before = h.pread(4096, 0)
fails_with(errno.EPERM, h.pwrite, b"x" * 512, 0)
fails_with(errno.EPERM, h.zero, 512, 0)
fails_with(errno.EPERM, h.trim, 512, 0)
assert h.pread(4096, 0) == before
PY
}
it "an export that is read-only at the server is read-only and unwritable" read_only disk0 ,ro "" ""
it "access=ro makes a writable export read-only" read_only disk0 "" "" access=ro
[[ $face == bridge ]] || it "nbdkit -r makes a writable export read-only" read_only disk0 "" -r ""

# Clients that keep to the block size cannot ask for what begins inside a block.
odd_extents() {
  requires nbdcopy
  # shellcheck disable=SC2016 # nbdkit's shell expands it
  nbdkit_name=inner start_nbdkit eval get_size='echo 1M' can_extents='exit 0' \
    extents='echo 0 777; echo 777 500 hole,zero; echo 1277 1047299 hole,zero' \
    pread='dd if=/dev/zero bs=$3 count=1 status=none'
  local inner=$socket
  start_server --export "disk0=nbd:nbd+unix:///?socket=$inner,ro"
  attach disk0
  nbdinfo --map "$uri" | tee map
  says map '^ *0 +1024 .*data'
  says map '^ *1024 +1047552 .*hole,zero'
  nbdcopy "$uri" copy
  [[ $(stat -c %s copy) == 1048576 ]]
}
it "extents whose borders lie inside blocks are told in whole blocks" odd_extents

holes() {
  requires_nbdsh
  random_file image 1M
  truncate -s 8M image
  start_server --export "$1"
  attach disk0
  limited /usr/bin/python3 - "$uri" <<'PY'
import sys, nbd
h = nbd.NBD()
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(sys.argv[1])
assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)

def extents(offset, length):
    found = []
    def collect(context, at, entries, error):
        found.extend(zip(entries[0::2], entries[1::2]))
    while length > 0:
        del found[:]
        h.block_status(length, offset, collect)
        for size, flags in found:
            yield offset, min(size, length), flags
            offset += size
            length -= size

def flags_at(offset, length):
    return {flags for _, _, flags in extents(offset, length)}

K = 1024
data, hole, zero = 0, nbd.STATE_HOLE, nbd.STATE_ZERO
h.pwrite(b"a" * (1024 * K), 0)
h.trim(7168 * K, 1024 * K)
assert flags_at(0, 1024 * K) == {data}, flags_at(0, 1024 * K)
assert flags_at(1024 * K, 7168 * K) == {hole | zero}
h.pwrite(b"b" * (64 * K), 4096 * K)
assert flags_at(4096 * K, 64 * K) == {data}
h.trim(512 * K, 0)
assert flags_at(0, 512 * K) == {hole | zero}
assert h.pread(512 * K, 0) == bytes(512 * K)
h.zero(256 * K, 512 * K)
assert h.pread(256 * K, 512 * K) == bytes(256 * K)
assert flags_at(512 * K, 256 * K) == {hole | zero}, "zeroing may make a hole"
h.zero(256 * K, 768 * K, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(256 * K, 768 * K) == bytes(256 * K)
assert all(not flags & hole for flags in flags_at(768 * K, 256 * K)), "asked for no hole"
PY
}
file_holes() { holes "disk0=$PWD/image"; }
it "extents of a file follow writes, trims and zeroing with and without holes" file_holes

fast_zero() {
  requires_nbdsh
  random_file image 4M
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdsh <<'PY'
if h.can_fast_zero():
    try:
        h.zero(1 << 20, 0, nbd.CMD_FLAG_FAST_ZERO)
        assert h.pread(1 << 20, 0) == bytes(1 << 20)
    except nbd.Error as error:
        assert error.errnum == errno.ENOTSUP, error
        assert h.pread(1 << 20, 0) != bytes(1 << 20), "refused, but done"
h.zero(1 << 20, 1 << 20)
assert h.pread(1 << 20, 1 << 20) == bytes(1 << 20)
PY
}
it "fast zero either zeroes or refuses with ENOTSUP" fast_zero

flags_arrive() {
  requires_nbdsh
  # The storage is another NBD server that logs what reaches it.
  nbdkit_name=inner start_nbdkit --filter=log memory 16M "logfile=$PWD/requests"
  start_server --export "disk0=nbd:$uri"
  attach disk0
  nbdsh <<'PY'
h.pwrite(b"x" * 4096, 4096)
h.flush()
h.pwrite(b"x" * 4096, 8192, nbd.CMD_FLAG_FUA)
h.trim(65536, 65536)
h.trim(65536, 131072, nbd.CMD_FLAG_FUA)
h.zero(65536, 262144)
h.zero(65536, 327680, nbd.CMD_FLAG_NO_HOLE)
h.zero(65536, 393216, nbd.CMD_FLAG_FUA)
if h.can_cache():
    h.cache(65536, 0)
assert h.pread(4096, 8192) == b"x" * 4096
PY
  sed 's/^[^c]*connection/connection/' requests
  says requests 'Write .*offset=0x1000 count=0x1000 '
  says requests ' Flush '
  says requests 'Write .*offset=0x2000 count=0x1000 fua=1'
  says requests 'Trim .*offset=0x10000 count=0x10000 '
  says requests 'Trim .*offset=0x20000 count=0x10000 fua=1'
  says requests 'Zero .*offset=0x40000 count=0x10000 trim=1 fua=0'
  says requests 'Zero .*offset=0x50000 count=0x10000 trim=0 fua=0'
  says requests 'Zero .*offset=0x60000 count=0x10000 trim=1 fua=1'
}
it "flush, FUA, trim, zero and no-hole arrive at the storage behind the server" flags_arrive

out_of_range() {
  requires_nbdsh
  start_server --export disk0=memory:1M
  attach disk0
  nbdsh <<'PY'
fails_with(errno.EINVAL, h.pread, 512, 1 << 20)
fails_with(errno.ENOSPC, h.pwrite, b"x" * 512, 1 << 20)
fails_with(errno.EINVAL, h.pread, 1024, (1 << 20) - 512)
assert h.pread(512, (1 << 20) - 512) == bytes(512)
PY
}
it "requests past the end fail with EINVAL and ENOSPC" out_of_range

several_connections() {
  requires_nbdsh
  start_server --export disk0=memory:4M
  attach disk0
  limited /usr/bin/python3 - "$uri" <<'PY'
import sys, nbd
one, two = nbd.NBD(), nbd.NBD()
for h in (one, two):
    h.connect_uri(sys.argv[1])
for i in range(100):
    one.pwrite(bytes([i]) * 4096, i * 4096)
    one.flush()
    assert two.pread(4096, i * 4096) == bytes([i]) * 4096
PY
}
it "multi-conn: what one connection wrote, another reads" several_connections

finish
