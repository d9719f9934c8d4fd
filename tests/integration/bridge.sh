#!/bin/bash
# rnbd-bridge as an NBD server: what it says of itself is true, and whatever a client asks for is
# done. What it has in common with the plugin is in flags.sh, io.sh, fio.sh, qemu.sh and failover.sh,
# which run in front of both.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# peer ADDRESS...: Python with nbd_peer.
peer() {
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - "$@"
}
# libnbd ARGUMENTS...: Python with libnbd.
libnbd() {
  requires_python nbd
  limited /usr/bin/python3 - "$@"
}

# ---- The handshake ----------------------------------------------------------------------------------

information() {
  start_server --export "disk0=memory:3M,description=the first"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Haggler(sys.argv[1])
assert h.server_flags == FIXED_NEWSTYLE | NO_ZEROES
simple = h.info(INFO, b"disk0")
assert list(simple) == [INFO_EXPORT], simple
size, flags = struct.unpack(">QH", simple[INFO_EXPORT])
assert size == 3 * M and not flags & SEND_DF, hex(flags)
h.ask_structured()
all_of_it = h.info(INFO, b"", INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE, 77)
print(all_of_it)
assert struct.unpack(">QH", all_of_it[INFO_EXPORT]) == (size, flags | SEND_DF)
assert all_of_it[INFO_NAME] == b"disk0", "the name of the default export"
assert b"disk0" in all_of_it[INFO_DESCRIPTION]
assert struct.unpack(">III", all_of_it[INFO_BLOCK_SIZE]) == (1, 4096, 32 * M)
wanted = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN
assert flags & wanted == wanted and not flags & (READ_ONLY | ROTATIONAL), hex(flags)
assert h.option(LIST) == [(SERVER, string(b"disk0")), (ACK, b"")]
assert h.info(INFO, b"disk1") == UNKNOWN
assert h.info(GO, b"disk1") == UNKNOWN, "and haggling goes on"
assert struct.unpack(">QH", h.info(GO, b"disk0")[INFO_EXPORT])[0] == size
PY
}
it "INFO, LIST and GO say size, flags, name, description and block sizes; a wrong name is UNKNOWN" \
  information

unreachable() {
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  stop server
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Haggler(sys.argv[1])
for answers in (h.option(GO, string(b"disk0") + b"\0\0"),
                h.option(INFO, string(b"disk0") + b"\0\0")):
    assert len(answers) == 1 and answers[0][0] == SHUTDOWN, answers
    assert b"onnection refused" in answers[0][1], answers
assert h.info(GO, b"disk1") == UNKNOWN
PY
}
it "a server that cannot be reached is not an export that does not exist" unreachable

old_way() {
  random_file image 1M
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
image = open("image", "rb").read()
for flags, zeroes in ((FIXED_NEWSTYLE, 124), (FIXED_NEWSTYLE | NO_ZEROES, 0)):
    for name in (b"disk0", b""):
        h = Haggler(sys.argv[1], flags)
        h.__class__ = Client
        h.cookies = 0
        h.start(EXPORT_NAME, name)
        size, export_flags = h.unpack(">QH")
        assert size == M and export_flags & HAS_FLAGS
        assert h.receive(zeroes) == bytes(zeroes)
        assert h.read(512, 4096) == (0, image[512:4608])
        h.leave()
wrong = Haggler(sys.argv[1])
wrong.start(EXPORT_NAME, b"disk1")
wrong.expect_close()
PY
}
it "EXPORT_NAME works with and without zeroes; a wrong name ends the connection" old_way

contexts() {
  start_server --export disk0=memory:1M --export other=memory:1M
  start_bridge "rnbd+tcp://$address"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
BASE = b"base:allocation"
h = Haggler(sys.argv[1])
assert h.contexts(SET_META_CONTEXT, b"disk0", BASE)[-1][0] == INVALID, "no structured replies yet"
h.ask_structured()
one = [(META_CONTEXT, struct.pack(">I", 1) + BASE), (ACK, b"")]
listed = [(META_CONTEXT, struct.pack(">I", 0) + BASE), (ACK, b"")]  # there the number means nothing
for queries in ((), (b"base:",), (BASE,), (b"qemu:dirty-bitmap:x", BASE)):
    assert h.contexts(LIST_META_CONTEXT, b"disk0", *queries) == listed, queries
for queries in ((), (b"base:",), (b"qemu:",), (BASE + b"x",)):
    assert h.contexts(SET_META_CONTEXT, b"disk0", *queries) == [(ACK, b"")], queries
assert h.contexts(SET_META_CONTEXT, b"nothing", BASE)[-1][0] == UNKNOWN
assert h.contexts(SET_META_CONTEXT, b"disk0", b"x:y", BASE) == one

def status(choose, go):
    h = Client.__new__(Client)
    Haggler.__init__(h, sys.argv[1])
    h.ask_structured()
    h.cookies = 0
    for name, queries in choose:
        h.contexts(SET_META_CONTEXT, name, *queries)
    h.info(GO, go)
    return h.request(BLOCK_STATUS, 0, 65536)[0]
assert status([(b"disk0", [BASE])], b"disk0") == 0
assert status([], b"disk0") == EINVAL
assert status([(b"disk0", [BASE]), (b"disk0", [])], b"disk0") == EINVAL, "the last one counts"
assert status([(b"other", [BASE])], b"disk0") == EINVAL, "chosen for another export"
PY
}
it "meta contexts: queries, lists, the last choice counts, and only for its export" contexts

refusals() {
  start_server --export disk0=memory:1M --export other=memory:1M
  start_bridge "rnbd+tcp://$address"
  fails nbdinfo "nbds+unix:///disk0?socket=$socket&tls-certificates=$PWD"
  fails nbdinfo "$uri"
  says bridge.log 'the client named no export, and there are 2'
  fails nbdinfo "nbd+unix:///third?socket=$socket"
  says bridge.log "'third'"
  nbdinfo --list "$uri" | tee list
  says list 'export="disk0"'
  says list 'export="other"'
  [[ $(nbdinfo --size "nbd+unix:///other?socket=$socket") == 1048576 ]]
}
it "TLS, no name where there are two exports, and a wrong name are refused; all exports are listed" \
  refusals

only_one() {
  start_server --export single=memory:2M
  start_bridge "rnbd+tcp://$address"
  [[ $(nbdinfo --size "$uri") == 2097152 ]]
  [[ $(nbdinfo --size "nbd+unix:///single?socket=$socket") == 2097152 ]]
  bridge_name=named start_bridge "rnbd+tcp://$address" --device single --access ro
  [[ $(nbdinfo --size "$uri") == 2097152 ]]
}
it "without a device in the URI the only export is the default, and --device names one" only_one

exports_of_their_own() {
  start_server --export one=memory:1M --export two=memory:2M --export "three=memory:3M,ro"
  start_bridge "rnbd+tcp://$address"
  libnbd "$socket" <<'PY'
import sys, nbd
handles = {}
for i, name in enumerate(["one", "two", "three"]):
    handles[name] = h = nbd.NBD()
    h.set_export_name(name)
    h.connect_unix(sys.argv[1])
    assert h.get_size() == (i + 1) << 20 and h.is_read_only() == (name == "three")
for at in range(0, 1 << 20, 65536):
    handles["one"].pwrite(b"1" * 65536, at)
    handles["two"].pwrite(b"2" * 65536, at)
assert handles["one"].pread(1 << 20, 0) == b"1" * (1 << 20)
assert handles["two"].pread(1 << 20, 0) == b"2" * (1 << 20)
assert handles["three"].pread(1 << 20, 0) == bytes(1 << 20)
PY
}
it "several exports are served at the same time, each with its own content and mode" exports_of_their_own

# ---- Requests ---------------------------------------------------------------------------------------

reply_styles() {
  random_file image 8M
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import random, sys
from nbd_peer import *
image = bytearray(open("image", "rb").read())
rng = random.Random(1)
for structured in (False, True):
    h = Client(sys.argv[1], structured=structured)
    asked = {}
    for _ in range(13 * 16):
        length = rng.choice((1, 511, 512, 4096, 65536, 262144, 262145, M))
        offset = rng.randrange(len(image) - length)
        asked[h.start_request(READ, offset, length)] = offset, length
        if len(asked) == 16:
            while asked:
                cookie, error, data = h.reply({c: l for c, (_, l) in asked.items()})
                offset, length = asked.pop(cookie)
                assert error == 0 and data == image[offset:offset + length], (offset, length)
    assert h.read(0, 4096, DF)[0] == (0 if structured else EINVAL), "DF needs structured replies"
    h.leave()
PY
}
it "simple and structured replies carry the same data, many at a time; DF is kept" reply_styles

flags_and_extents() {
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Client(sys.argv[1], contexts=True)
K = 1024
def extents(offset, length, flags=0):
    error, payload = h.request(BLOCK_STATUS, offset, length, flags)
    assert error == 0, error
    assert payload[:4] == struct.pack(">I", 1), "the context's number"
    return [struct.unpack_from(">II", payload, at) for at in range(4, len(payload), 8)]
for at in (0, 1024 * K, 3072 * K):
    assert h.write(at, b"d" * (64 * K)) == 0
runs = extents(0, 4096 * K)
assert runs[:4] == [(64 * K, 0), (960 * K, 3), (64 * K, 0), (1984 * K, 3)], runs
assert extents(0, 4096 * K, REQ_ONE) == [(64 * K, 0)]
assert extents(32 * K, 8 * K, REQ_ONE) == [(8 * K, 0)], "never beyond what was asked"
assert extents(512, 512) == [(512, 0)]
assert h.request(WRITE_ZEROES, 0, 64 * K, NO_HOLE)[0] == 0
assert h.read(0, 64 * K) == (0, bytes(64 * K))
error, _ = h.request(WRITE_ZEROES, 1024 * K, 64 * K, FAST_ZERO)
assert error in (0, ENOTSUP)
assert h.read(1024 * K, 64 * K)[1] == (b"d" * (64 * K) if error else bytes(64 * K))
assert h.request(TRIM, 3072 * K, 64 * K)[0] == 0
assert extents(3072 * K, 64 * K) == [(64 * K, 3)]
assert h.request(CACHE, 0, 4096 * K)[0] == 0
for command in (READ, FLUSH):  # FUA means nothing there, and harms nobody
    assert h.request(command, 0, 512 if command == READ else 0, FUA)[0] == 0
PY
}
it "block status (also REQ_ONE), no-hole, fast zero, trim and cache do what they say" flags_and_extents

read_only() {
  random_file image 1M
  start_server --export "disk0=$PWD/image,ro"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Client(sys.argv[1])
assert h.flags & READ_ONLY
assert h.write(0, b"x" * 512) == EPERM
assert h.request(TRIM, 0, 512)[0] == EPERM
assert h.request(WRITE_ZEROES, 0, 512)[0] == EPERM
assert h.request(FLUSH)[0] == 0
assert h.read(0, 4096) == (0, open("image", "rb").read(4096))
PY
}
it "every change of a read-only export is EPERM" read_only

far_away() {
  truncate -s 6T image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Client(sys.argv[1], contexts=True)
assert h.size == 6 << 40
places = [0, (1 << 31) - 512, (1 << 32) - 512, (1 << 32) + 4096, (1 << 41) + 512, (6 << 40) - 4096]
for i, place in enumerate(places):
    assert h.write(place, bytes([i + 1]) * 4096, FUA) == 0
for i, place in enumerate(places):
    assert h.read(place, 4096) == (0, bytes([i + 1]) * 4096), place
longest = (1 << 32) - 65536
assert h.request(TRIM, 1 << 33, longest)[0] == 0
error, payload = h.request(BLOCK_STATUS, 1 << 33, 0xFFFFFFFF)
assert error == 0 and struct.unpack(">I", payload[4:8])[0] > 0
assert h.request(WRITE_ZEROES, 1 << 34, longest)[0] == 0
assert h.read(6 << 40, 512)[0] == EINVAL and h.write(6 << 40, b"x" * 512) == ENOSPC
PY
}
it "offsets of terabytes and lengths of almost 4 GiB arrive whole" far_away

# libnbd gives a connection up that answers what it has not sent completely.
too_long() {
  requires_python nbd
  start_server --export disk0=memory:128M
  start_bridge "rnbd+tcp://$address/disk0"
  nbdsh <<'PY'
for i in range(3):
    fails_with(errno.EINVAL, h.pwrite, bytes(64 << 20), 0)
    fails_with(errno.EINVAL, h.pread, 64 << 20, 0)
    h.pwrite(bytes([i]) * (32 << 20), 0)
    assert h.pread(32 << 20, 0) == bytes([i]) * (32 << 20)
PY
}
it "a write of 64 MiB is EINVAL after its payload, one of 32 MiB works on the same connection" too_long

# They begin while replies to those before them are sent, and end at once.
many_without_a_block() {
  start_server --export disk0=memory:64M
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
import sys
from nbd_peer import *
h = Client(sys.argv[1])
h.socket.settimeout(20)
for count in 256, 257, 600, 2000:
    asked = h.start_requests([(TRIM, 1, 10)] * count)
    assert sorted(h.reply()[:2] for _ in asked) == sorted((cookie, 0) for cookie in asked), count
PY
}
it "two thousand trims of less than a block at a time are all answered" many_without_a_block

# ---- Several clients --------------------------------------------------------------------------------

one_flush() {
  nbdkit_name=inner start_nbdkit --filter=log memory 16M "logfile=$PWD/requests"
  start_server --export "disk0=nbd:$uri"
  start_bridge "rnbd+tcp://$address/disk0" --lanes 4
  libnbd "$uri" <<'PY'
import sys, nbd
handles = [nbd.NBD() for _ in range(4)]
for h in handles:
    h.connect_uri(sys.argv[1])
    assert h.can_multi_conn()
for i, h in enumerate(handles):
    h.pwrite(bytes([i + 1]) * 65536, i * 65536)
    for other in handles:
        assert other.pread(65536, i * 65536) == bytes([i + 1]) * 65536
handles[3].flush()
for h in handles:
    h.shutdown()
PY
  sed -n 's/.* \(Write\|Flush\) id.*/\1/p' requests | uniq -c | tee order
  [[ $(tr -s ' \n' ' ' <order) == " 4 Write 1 Flush " ]] || fail "the flush did not come last"
}
it "multi-conn: four connections see each other's writes, and a flush of one covers all" one_flush

copies() {
  requires nbdcopy
  random_file image 64M
  truncate -s 96M image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  nbdcopy --connections=4 --requests=64 "$uri" copy
  cmp image copy
  random_file new 96M
  nbdcopy --connections=4 --requests=64 --flush new "$uri"
  nbdcopy "$uri" - | cmp - new
  cmp image new
}
it "nbdcopy with four connections copies out and in" copies

behind_nbdkit() {
  random_file image 16M
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  start_nbdkit nbd "uri=$uri"
  nbdcopy "$uri" copy
  cmp image copy
  nbdsh <<'PY'
assert h.can_multi_conn() and h.can_fua() and h.can_trim() and h.can_zero() and h.can_cache()
h.pwrite(b"fua!" * 128, 4096, nbd.CMD_FLAG_FUA)
assert h.pread(512, 4096) == b"fua!" * 128
h.zero(1 << 20, 1 << 20, nbd.CMD_FLAG_NO_HOLE)
h.trim(1 << 20, 2 << 20)
h.cache(1 << 20, 0)
h.flush()
assert h.pread(1 << 20, 1 << 20) == bytes(1 << 20)
PY
}
it "nbdkit's nbd plugin is content with the bridge" behind_nbdkit

on_both_sockets() {
  start_server --export disk0=memory:8M
  start_bridge "rnbd+tcp://$address/disk0" --listen tcp:127.0.0.1:0
  local tcp
  tcp=$(logged bridge.log 'tcp:127\.0\.0\.1:[0-9]+')
  libnbd "$uri" "nbd://127.0.0.1:${tcp##*:}" <<'PY'
import os, sys, nbd
one, two = nbd.NBD(), nbd.NBD()
one.connect_uri(sys.argv[1])
two.connect_uri(sys.argv[2])
for h in (one, two):
    h.set_strict_mode(0)  # for requests of a byte
for length in (1, 512, 4096, 100000, 1 << 20, 8 << 20):
    for a, b in ((one, two), (two, one)):
        data = os.urandom(length)
        a.pwrite(data, (8 << 20) - length)
        assert b.pread(length, (8 << 20) - length) == data, length
PY
}
it "a Unix and a TCP socket at the same time, requests of 1 byte to 8 MiB" on_both_sockets

finish
