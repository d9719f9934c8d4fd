#!/bin/bash
# rnbd-bridge with clients that speak extended headers: lengths of 64 bits, in pieces that hold up
# nobody.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# peer ADDRESS...: Python with nbd_peer.
peer() {
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - "$@"
}

same_as_ever() {
  random_file image 8M
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
image = open("image", "rb").read()
plain = Client(sys.argv[1])
h = Client(sys.argv[1], extended=True)
assert (h.size, h.flags) == (plain.size, plain.flags), (hex(h.flags), hex(plain.flags))
assert h.flags & SEND_DF
for at in (0, 512, 4000, 8 * M - 700):
    assert h.read(at, 700, DF) == (0, image[at:at + 700])
starts = {h.start_request(READ, i * 8192, 8192): i * 8192 for i in range(100)}
while starts:
    cookie, error, data = h.reply()
    at = starts.pop(cookie)
    assert (error, data) == (0, image[at:at + 8192]), at
for size in (1, 512, 4096, 70000, 4 * M):
    data = bytes([size % 251]) * size
    assert h.write(4321, data, FUA) == 0
    assert plain.read(4321, size) == (0, data)
    assert h.request(WRITE, 70000, size, 0, data)[0] == 0, "as QEMU 10 does, without the flag"
    assert plain.read(70000, size) == (0, data)
assert h.request(FLUSH)[0] == 0
assert h.request(CACHE, 0, 8 * M)[0] == 0
assert h.request(BLOCK_STATUS, 0, 512)[0] == EINVAL, "no context was chosen"
h.leave()
h = Haggler(sys.argv[1])
h.ask_extended()
assert h.contexts(SET_META_CONTEXT, b"disk0", b"base:allocation")[-1][0] == ACK
def offers(option, name):
    return struct.unpack(">QH", h.info(option, name)[INFO_EXPORT])[1] & BLOCK_STATUS_PAYLOAD != 0
assert offers(INFO, b"disk0") and offers(INFO, b"") and not offers(GO, b""), "the contexts of another name"
PY
}
it "extended headers carry the same data; flags tell of a filter for those who chose a context" \
  same_as_ever

large() {
  truncate -s 128G image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Client(sys.argv[1], contexts=True, extended=True)
assert h.flags & BLOCK_STATUS_PAYLOAD and h.size == 128 * G
def fill():
    for at in range(0, 128 * G, 4 * G):
        assert h.write(at, b"d" * 65536) == 0
fill()
assert h.extents(0, 128 * G)[:3] == [(65536, 0), (4 * G - 65536, 3), (65536, 0)]
assert len(h.extents(0, 128 * G)) > 20, "many in one reply"
assert h.extents(4 * G, 64 * G, REQ_ONE) == [(65536, 0)]
assert h.request(WRITE_ZEROES, 0, 64 * G)[0] == 0
assert h.extents(0, 64 * G) == [(64 * G, 3)]
assert h.extents(0, 12, PAYLOAD_LEN, struct.pack(">QI", 64 * G, 1)) == [(64 * G, 3)]
assert h.extents(0, 12, PAYLOAD_LEN | REQ_ONE, struct.pack(">QI", 5 * G, 1)) == [(5 * G, 3)]
for at in range(64 * G, 128 * G, 4 * G):
    assert h.read(at, 65536) == (0, b"d" * 65536), "what lies behind is left alone"
fill()
assert h.request(TRIM, 0, 64 * G)[0] == 0
assert h.extents(0, 64 * G) == [(64 * G, 3)]
fill()  # neither end on the border of a block
assert h.request(WRITE_ZEROES, 100, 64 * G, FUA)[0] == 0
assert h.read(0, 200) == (0, b"d" * 100 + bytes(100))
assert h.read(64 * G, 200) == (0, bytes(100) + b"d" * 100)
runs = h.extents(0, 64 * G)
assert sum(length for length, _ in runs) == 64 * G and len(runs) < 200, runs
assert max(length for length, flags in runs if flags & 2) >= 63 * G // 64, runs
assert all(h.read(at, 512) == (0, bytes(512)) for at in range(4 * G, 64 * G, 4 * G))
assert h.request(CACHE, 64 * G, 4 * G)[0] == 0
assert h.request(READ, 0, 64 * G)[0] == EINVAL, "its reply would be too long"
plain = Client(sys.argv[1], contexts=True)
error, payload = plain.request(BLOCK_STATUS, 16 * G, 0xFFFFFFFF)
assert error == 0 and payload[:4] == struct.pack(">I", 1)
assert list(struct.iter_unpack(">II", payload[4:])) == [(0xFFFFFFFF, 3)], payload
PY
  (($(du -m image | cut -f 1) < 200)) || fail "$(du -m image)"
}
it "64 GiB are zeroed and trimmed by one request each, and one more says that they are a hole" large

# Each piece takes 0.2 s. Another client's writes wait for one of them at most, not for all 64: if
# each waited for a piece, the last piece would be done before them.
nobody_waits() {
  truncate -s 128G image
  start_server --export "disk0=delay:zero=200ms,discard=200ms:$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
import time
from nbd_peer import *
other = Client(sys.argv[1], extended=True)
def done():
    return [other.read(at, 512)[1] == bytes(512) for at in range(0, 64 * G, G)]
for at in range(0, 64 * G, G):
    assert other.write(at, b"d" * 512) == 0
large = Client(sys.argv[1], extended=True)
cookie = large.start_request(WRITE_ZEROES, 0, 64 * G)
while not done()[0]:
    time.sleep(0.05)
for at in range(65 * G, 128 * G, G):
    assert other.write(at, b"o" * 512) == 0
    assert other.read(at, 512) == (0, b"o" * 512)
same = large.start_request(READ, 100 * G, 512)  # requests of the same connection do not wait, either
assert large.reply() == (same, 0, b"o" * 512)
pieces = done().count(True)
print(f"{pieces} pieces during 63 writes and reads")
assert pieces < 63, pieces
assert large.reply() == (cookie, 0, b"")
assert all(done())
PY
}
it "while 64 GiB are zeroed slowly, others read and write" nobody_waits

leaves_midway() {
  truncate -s 128G image
  start_server --export "disk0=delay:zero=200ms,discard=200ms:$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
import time
from nbd_peer import *
good = Client(sys.argv[1], extended=True)
def left():
    return [good.read(at, 512)[1] == b"d" * 512 for at in range(0, 64 * G, G)]
for command in (WRITE_ZEROES, TRIM):
    for at in range(0, 64 * G, G):
        assert good.write(at, b"d" * 512) == 0
    large = Client(sys.argv[1], extended=True)
    large.start_request(command, 0, 64 * G)
    while left()[0]:
        time.sleep(0.05)
    large.close()
    before = None
    while (after := left()) != before:
        before = after
        time.sleep(2)
    pieces = after.count(False)
    print(f"{pieces} pieces were carried out")
    assert 0 < pieces < 60 and after == [False] * pieces + [True] * (64 - pieces), after
PY
  stop bridge
}
it "a client that leaves takes the rest of its 64 GiB with it" leaves_midway

fails_midway() {
  truncate -s 128G image
  start_server --export "disk0=fault:zero-eio=0.1,discard-enospc=0.06:$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
import time
from nbd_peer import *
h = Client(sys.argv[1], extended=True)
for command, error in ((WRITE_ZEROES, EIO), (TRIM, ENOSPC)):
    for at in range(0, 64 * G, G):
        assert h.write(at, b"d" * 512) == 0
    assert h.request(command, 0, 64 * G)[0] == error
    time.sleep(0.5)
    left = [h.read(at, 512)[1] == b"d" * 512 for at in range(0, 64 * G, G)]
    pieces = left.count(False)
    print(f"{pieces} pieces were carried out")
    assert 0 < pieces < 60 and left == [False] * pieces + [True] * (64 - pieces), left
PY
}
it "a piece that fails is the last one of its 64 GiB, and their answer" fails_midway

reads_ahead_midway() {
  requires nbdkit
  nbdkit --dump-plugin null | grep -q '^has_can_cache=1' || skip "nbdkit's null plugin has no cache"
  spawn null nbdkit -f -U "$PWD/null.sock" null 1000T
  eventually 20 test -S null.sock
  start_server --export "disk0=nbd+unix:///?socket=$PWD/null.sock"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
import time
from nbd_peer import *
h = Client(sys.argv[1], extended=True)
h.start_request(CACHE, 0, h.size)
time.sleep(0.5)
h.close()
PY
  stop bridge
}
it "a client that leaves ends its read-ahead over 1000 TiB, and so does the bridge" reads_ahead_midway

# Of more requests than are taken up, the last ones are not read while the others are under way.
leaves_a_crowd() {
  truncate -s 8T image
  start_server --export "disk0=delay:zero=100ms:$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Client(sys.argv[1], extended=True)
h.start_requests([(WRITE_ZEROES, 0, h.size)] * 257)
h.socket.shutdown(socket.SHUT_WR)
h.expect_close()
for framing in (True, False):
    polite = Client(sys.argv[1], extended=framing)
    polite.start_requests([(WRITE_ZEROES, i * M, M) for i in range(300)] + [(DISCONNECT,)])
    polite.socket.shutdown(socket.SHUT_WR)
    assert len({polite.reply()[:2] for _ in range(300)}) == 300
    polite.expect_close()
PY
  stop bridge
}
it "257 zeroings end when their client does, but 300 with a goodbye are all answered" leaves_a_crowd

requires_extended_libnbd() {
  requires_python nbd
  /usr/bin/python3 -c 'import nbd; nbd.NBD.get_extended_headers_negotiated' 2>/dev/null ||
    skip "libnbd is older than 1.18"
}

with_libnbd() {
  requires_extended_libnbd
  truncate -s 128G image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  uri=$uri nbdsh <<'PY'
h.shutdown()
h = nbd.NBD()
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(os.environ["uri"])
assert h.get_extended_headers_negotiated() and h.can_block_status_payload()
G = 1 << 30
def extents(filter=None):
    told = []
    tell = lambda context, offset, entries, error: told.extend(entries)
    if filter:
        h.block_status_filter(64 * G, 0, [filter], tell)
    else:
        h.block_status_64(64 * G, 0, tell)
    return told
for change in (h.zero, h.trim):
    h.pwrite(b"d" * 65536, 64 * G)
    h.pwrite(b"d" * 65536, 32 * G)
    assert len(extents()) == 3, extents()
    change(64 * G, 0)
    assert extents() == extents(nbd.CONTEXT_BASE_ALLOCATION) == [(64 * G, 3)], extents()
    assert h.pread(65536, 64 * G) == b"d" * 65536
h.shutdown()
PY
  qemu-img map --output=json "$uri"
}
it "libnbd zeroes, trims and maps 64 GiB by one request each" with_libnbd

# The nbd: backend as a client of qemu-nbd, whose trace has the length of each request.
upstream() {
  requires_extended_libnbd
  requires qemu-nbd
  truncate -s 128G image
  spawn qemu qemu-nbd -f raw --discard=unmap -t -e 8 -x "" -k "$PWD/upstream.sock" --trace nbd_receive_request image
  eventually 20 test -S upstream.sock
  start_server --export "disk0=nbd+unix:///?socket=$PWD/upstream.sock"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Client(sys.argv[1], contexts=True, extended=True)
assert h.write(64 * G, b"d" * 65536) == 0
for command in (WRITE_ZEROES, TRIM):
    assert h.write(32 * G, b"d" * 65536) == 0
    assert len(h.extents(0, 64 * G)) == 3
    assert h.request(command, 0, 64 * G)[0] == 0
    assert h.extents(0, 64 * G) == [(64 * G, 3)]
assert h.read(64 * G, 65536) == (0, b"d" * 65536)
PY
  if grep -q 'magic = 0x21e41c71' qemu.log; then
    says qemu.log 'type = 0x7, from = 0, len = 1073741824'
    says qemu.log 'type = 0x7, from = 34359738368, len = 34359738368'
    says qemu.log 'type = 0x6, from = 67645734912, len = 1073741824'
    says qemu.log 'type = 0x4, from = 67645734912, len = 1073741824'
  else
    grep -q 'magic = 0x' qemu.log || fail "qemu-nbd traced nothing"
    skip "qemu-nbd is older than 8.2"
  fi
}
it "a server that has its disk from qemu-nbd asks that for extents of up to 32 GiB at a time" upstream

# Without its own zeroing the server gets zeroes as data.
as_data() {
  truncate -s 8G image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0" --write-zeroes off --discard off
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Client(sys.argv[1], contexts=True, extended=True)
assert not h.flags & SEND_TRIM
assert h.request(TRIM, 0, 8 * G)[0] == EINVAL
assert h.write(3 * G // 2, b"d" * 4096) == 0
assert h.request(WRITE_ZEROES, G, G + 100 * M, NO_HOLE)[0] == 0
assert h.read(3 * G // 2, 4096) == (0, bytes(4096))
PY
  rm image
}
it "zeroes are sent as data where the server cannot make them" as_data

finish
