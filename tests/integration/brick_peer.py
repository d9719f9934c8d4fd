#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Allocates, lists and frees blocks of a brick as no program of ours does yet.

Usage: brick_peer.py PORT fill|check|mistakes|churn|survived      (the export is `disk0`, of 4 blocks)
"""
import errno
import random
import struct
import sys

from raw_peer import RO, USER_MESSAGES, Closed, Session

PASSIVE = 1 << 19
BLOCK = 1 << 21
FAR = 0x7000_0000_0000_0000  # an address that no disk reaches


class Brick(Session):
    def __init__(self, port):
        super().__init__(port, features=USER_MESSAGES | PASSIVE)

    def info(self, device):
        error, data = self.call(struct.pack("<HHI", 0x8011, 0, device), 72)
        assert error == 0, error
        kind, _, of, blocks, free, memory, epoch, uuid, maps, lease, shift, durability, keys = \
            struct.unpack_from("<HHIQQQQ16sIIBBB", data)
        assert (kind, of, shift, keys) == (0x8012, device, 21, 0), data
        return {"blocks": blocks, "free": free, "memory": memory, "epoch": epoch, "uuid": uuid,
                "durability": durability}

    def change(self, kind, device, block, count=1, flags=0):
        return self.call(struct.pack("<HHIQII", kind, 0, device, block, count, flags))[0]

    def alloc(self, *args):
        return self.change(0x8013, *args)

    def free(self, *args):
        return self.change(0x8015, *args)

    def list(self, device, what=0, room=4096):
        found, first = [], 0
        while True:
            error, data = self.call(struct.pack("<HHIQII", 0x801B, 0, device, first, what, 0), room)
            assert error == 0, error
            kind, _, count, total = struct.unpack_from("<HHIQ", data)
            assert kind == 0x801C
            for i in range(count):
                block, blocks, flags, _ = struct.unpack_from("<QQII", data, 16 + 24 * i)
                found += [block + n * BLOCK for n in range(blocks)]
                first = block + blocks * BLOCK
            if count == 0:
                assert len(found) == total
                return found

    def map(self, device, block, number=1, count=1, flags=3):
        message = struct.pack("<HHIQII16sII", 0x8017, 0, device, block, count, flags, b"m" * 16,
                              number, 0)
        return self.call(message, 16 + 32 * count)[0]

    def sync(self, device, *ranges):
        data = b"".join(struct.pack("<QQ", *one) for one in ranges)
        return self.call(struct.pack("<HHIII", 0x801D, 0, device, len(ranges), 0), data=data)[0]


def expect(wanted, got, what):
    assert got == wanted, f"{what}: {errno.errorcode.get(got, got)}"


def fill(port):
    with_brick = Brick(port)
    device, _ = with_brick.open(b"disk0")
    info = with_brick.info(device)
    assert info["blocks"] == info["free"] == 4 and info["durability"] == 1, info
    expect(0, with_brick.alloc(device, 0), "the first block")
    expect(0, with_brick.alloc(device, FAR, 2), "two blocks far away")
    expect(errno.EEXIST, with_brick.alloc(device, FAR + BLOCK), "a block that is there")
    expect(errno.ENOSPC, with_brick.alloc(device, BLOCK, 2, 1), "one block too many, all or nothing")
    expect(0, with_brick.alloc(device, BLOCK), "the last one")
    expect(errno.ENOSPC, with_brick.alloc(device, 2 * BLOCK), "one more")
    expect(0, with_brick.free(device, FAR + BLOCK), "back")
    expect(errno.ENOENT, with_brick.free(device, FAR + BLOCK), "back once more")
    expect(0, with_brick.write(device, 8, b"one-sided" * 512 + bytes(512 - 512 * 9 % 512))[0], "bytes")
    expect(0, with_brick.sync(device, (0, 2 * BLOCK)), "sync")
    expect(errno.ENOENT, with_brick.sync(device, (FAR, BLOCK + 1)), "sync beyond what is there")
    assert with_brick.list(device) == [0, BLOCK, FAR], with_brick.list(device)
    assert with_brick.list(device, room=64) == [0, BLOCK, FAR]
    with_brick.close()


def check(port):
    """After the server was killed."""
    brick = Brick(port)
    device, _ = brick.open(b"disk0")
    assert brick.list(device) == [0, BLOCK, FAR], brick.list(device)
    assert brick.info(device)["free"] == 1
    error, data = brick.read(device, 8, 4608)
    assert error == 0 and data[:9] == b"one-sided" and data[4599:4608] == b"one-sided", data[:20]
    error, data = brick.read(device, 4096, 512)
    assert data == bytes(512)
    brick.close()


def mistakes(port):
    brick = Brick(port)
    device, _ = brick.open(b"disk0", RO)
    before = brick.list(device)
    expect(errno.EROFS, brick.alloc(device, 2 * BLOCK), "a reader allocates")
    expect(errno.EROFS, brick.free(device, 0), "a reader frees")
    expect(errno.EROFS, brick.map(device, 0), "a reader maps for writing")
    expect(errno.EINVAL, brick.alloc(device, 4096), "inside a block")
    expect(errno.EINVAL, brick.alloc(device, 0, 0), "no blocks")
    expect(errno.EINVAL, brick.map(device, 0, 0), "a MAP without a number")
    expect(errno.EINVAL, brick.call(struct.pack("<HHI", 0x801E, 0, device))[0], "no such message")
    expect(errno.EINVAL, brick.call(struct.pack("<HHIII", 0x801D, 0, device, 3, 0), data=bytes(16))[0],
           "fewer ranges than announced")
    expect(errno.ENOTCONN, brick.map(device, 0, 1, 1, 1), "a MAP without a memory path")
    expect(errno.ENOTCONN, brick.call(struct.pack("<HHI", 0x8011, 0, device + 7), 72)[0], "no device")
    unmap = struct.pack("<HHIQIIQ", 0x8019, 0, device, 0, 1, 0, 5)
    expect(errno.ENOENT, brick.call(unmap)[0], "UNMAP of what is not mapped")
    revoke = struct.pack("<HHI16s", 0x801F, 0, device, b"m" * 16)
    expect(0, brick.call(revoke)[0], "a path without keys is revoked")
    plain, _ = brick.open(b"plain", RO)
    expect(errno.EOPNOTSUPP, brick.call(struct.pack("<HHI", 0x8011, 0, plain), 72)[0], "no brick")
    assert brick.list(device) == before
    brick.close()
    stranger = Session(port)
    device, _ = stranger.open(b"disk0", RO)
    expect(errno.EINVAL, stranger.call(struct.pack("<HHI", 0x8011, 0, device), 72)[0],
           "not agreed on")
    stranger.close()


def churn(port):
    """Allocates and frees until the server dies; says what it begins, and what was acknowledged."""
    brick = Brick(port)
    device, _ = brick.open(b"disk0")
    there = set(brick.list(device))
    print(*sorted(there), flush=True)
    try:
        for step in range(1000000):
            block = random.randrange(8) * BLOCK
            change = brick.free if block in there else brick.alloc
            print("begin", block, flush=True)
            error = change(device, block)
            assert error in (0, errno.ENOSPC), error
            if error == 0:
                there ^= {block}
            print("end", *sorted(there), flush=True)
    except (Closed, OSError):
        pass


def survived(port):
    """Of what the last churn said on standard input."""
    acknowledged, doubtful = set(), set()
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["begin"]:
            doubtful = {int(words[1])}
        else:
            acknowledged = {int(word) for word in words if word != "end"}
            doubtful = set()
    brick = Brick(port)
    device, _ = brick.open(b"disk0")
    found = brick.list(device)
    assert len(found) == len(set(found)), found
    assert set(found) ^ acknowledged <= doubtful, (found, acknowledged, doubtful)
    assert brick.info(device)["free"] == 4 - len(found)
    brick.close()


globals()[sys.argv[2]](int(sys.argv[1]))
