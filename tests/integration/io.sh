#!/bin/bash
# Requests of every size and alignment do exactly what they say, and nothing beside it.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# A bytearray is the model; the device must agree after every step. Arguments: URI SEED STEPS MAX.
model_check() {
  requires_python nbd
  limited /usr/bin/python3 - "$@" <<'PY'
import random, sys, nbd
uri, seed, steps, largest = sys.argv[1], *map(int, sys.argv[2:])
rng = random.Random(seed)
print("seed", seed)
h = nbd.NBD()
h.connect_uri(uri)
size = h.get_size()
h.set_strict_mode(0)  # 512 may be the block size, but any byte is served
model = bytearray(h.pread(size, 0))
for step in range(steps):
    length = min(size, max(1, int(largest ** rng.random())))
    offset = rng.choice([0, size - length, rng.randrange(size - length + 1)])
    kind = rng.choice(["read", "write", "write", "zero", "nohole", "trim", "flush", "fua"])
    context = f"step {step}: {kind} {length} at {offset}"
    flags = nbd.CMD_FLAG_FUA if kind == "fua" else 0
    if kind == "read":
        assert h.pread(length, offset) == model[offset:offset + length], context
    elif kind in ("write", "fua"):
        data = rng.randbytes(length)
        h.pwrite(data, offset, flags)
        model[offset:offset + length] = data
    elif kind in ("zero", "nohole"):
        h.zero(length, offset, nbd.CMD_FLAG_NO_HOLE if kind == "nohole" else 0)
        model[offset:offset + length] = bytes(length)
    elif kind == "trim":
        h.trim(length, offset)
        # A trim is advice: each byte is now what it was, or zero.
        now = h.pread(length, offset)
        was = model[offset:offset + length]
        assert all(a == b or a == 0 for a, b in zip(now, was)), context
        model[offset:offset + length] = now
    else:
        h.flush()
    around = max(0, offset - 4096)
    window = min(size, offset + length + 4096) - around
    assert h.pread(window, around) == model[around:around + window], f"after {context}"
assert h.pread(size, 0) == model
h.flush()
h.shutdown()
PY
}

random_requests() {
  random_file image "$2"
  start_server --export "$1"
  attach disk0
  model_check "$uri" "${SEED:-$RANDOM}" 1000 262144
}
file_requests() { random_requests "disk0=$PWD/image" 2M; }
it "1,000 random requests of 1 byte to 256 KiB agree with a model (file)" file_requests
memory_requests() { random_requests disk0=memory:2M 0; }
it "1,000 random requests of 1 byte to 256 KiB agree with a model (memory)" memory_requests
odd_size() { random_requests "disk0=$PWD/image" 1234567; }
it "1,000 random requests agree with a model when the size is no multiple of 512" odd_size

odd_end() {
  requires_python nbd
  random_file image 1049099
  start_server --export "disk0=$PWD/image"
  attach disk0
  [[ $(nbdinfo --size "$uri") == 1049099 ]] || fail "size is $(nbdinfo --size "$uri")"
  nbdcopy "$uri" copy
  cmp image copy
  random_file source 1049099
  nbdcopy --flush source "$uri"
  stop nbdkit
  stop server
  cmp source image
}
it "an image whose size is no multiple of 512 is copied to its last byte and not made longer" odd_end

sectors() {
  requires_python nbd
  random_file image 256K
  cp image before
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdsh <<'PY'
image = open("before", "rb").read()
for sector in range(512):
    assert h.pread(512, sector * 512) == image[sector * 512:(sector + 1) * 512]
for sector in range(0, 512, 2):
    h.pwrite(bytes([sector // 2]) * 512, sector * 512)
for sector in range(512):
    expected = bytes([sector // 2]) * 512 if sector % 2 == 0 else image[sector * 512:(sector + 1) * 512]
    assert h.pread(512, sector * 512) == expected, sector
PY
}
it "512-byte requests touch their own sector only" sectors

large_requests() {
  requires_python nbd
  truncate -s 256M image
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdsh <<'PY'
M = 1 << 20
data = os.urandom(M) * 64
h.pwrite(data, 32 * M)
assert h.pread(64 * M, 32 * M) == data
assert h.pread(M, 31 * M) == bytes(M) and h.pread(M, 96 * M) == bytes(M)
h.pwrite(data, 128 * M - 512, nbd.CMD_FLAG_FUA)
assert h.pread(64 * M, 128 * M - 512) == data
h.zero(64 * M, 32 * M)
assert h.pread(64 * M, 32 * M) == bytes(64 * M)
PY
}
# The bridge takes 32 MiB at most, and says so.
[[ $face == bridge ]] || it "requests of 64 MiB are split and put together again" large_requests

huge_trim() {
  requires_python nbd
  truncate -s 8G image
  start_server --export "$1"
  attach disk0
  nbdsh <<'PY'
length = (4 << 30) - 512
for at in (0, 512, 4096, length, length + 512):
    h.pwrite(b"x" * 512, at)
h.trim(length, 512)
assert h.pread(512, 0) == b"x" * 512
assert h.pread(512, 512) == bytes(512) and h.pread(512, 4096) == bytes(512)
assert h.pread(512, length) == bytes(512)
assert h.pread(512, length + 512) == b"x" * 512
h.pwrite(b"x" * 512, 4096)
h.zero(length, 512)
assert h.pread(512, 4096) == bytes(512) and h.pread(512, length + 512) == b"x" * 512
PY
}
file_huge_trim() { huge_trim "disk0=$PWD/image"; }
it "one trim and one zeroing of 4 GiB - 512 clear exactly that much (file)" file_huge_trim
memory_huge_trim() { huge_trim disk0=memory:8G; }
it "one trim and one zeroing of 4 GiB - 512 clear exactly that much (memory)" memory_huge_trim

neighbours() {
  requires_python nbd
  start_server --export disk0=memory:1M
  attach disk0
  limited /usr/bin/python3 - "$uri" "${SEED:-$RANDOM}" <<'PY'
import random, sys, nbd
# Neighbours of 700 bytes share sectors: writing one must not undo what its neighbour writes at the
# same time.
rng = random.Random(int(sys.argv[2]))
print("seed", sys.argv[2])
WIDTH, COUNT = 700, 1400
handles = [nbd.NBD() for _ in range(4)]
for h in handles:
    h.connect_uri(sys.argv[1])
    h.set_strict_mode(0)
for turn in range(4):
    values = [bytes([rng.randrange(1, 256)]) * WIDTH for _ in range(COUNT)]
    order = list(range(COUNT))
    rng.shuffle(order)
    cookies = []
    for i in order:
        h = handles[i % len(handles)]
        buffer = nbd.Buffer.from_bytearray(bytearray(values[i]))
        cookies.append((h, h.aio_pwrite(buffer, i * WIDTH), buffer))
        while h.aio_in_flight() > 60:
            h.poll(-1)
    for h, cookie, _ in cookies:
        while not h.aio_command_completed(cookie):
            h.poll(-1)
    for i in range(COUNT):
        got = handles[0].pread(WIDTH, i * WIDTH)
        assert got == values[i], f"turn {turn}, piece {i}: a neighbour's write was lost"
PY
}
it "neighbouring requests in one sector, at the same time, do not undo each other" neighbours

finish
