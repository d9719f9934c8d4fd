#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes blocks that carry a sequence number, and finds out whether one is lost.

  stamps.py write URI WRITER [BLOCK_BYTES]
      until the file `enough` exists; the file `acked.WRITER` always has the number of writes that
      were answered. Every block is read back now and then, and all of them in the end, into
      `blocks.WRITER`. Prints the number of writes and the longest one in seconds; those that took
      longer than STALL are in `stalls.WRITER`. Every write is durable when it is answered.
  stamps.py check IMAGE
      compares an image with all that was noted in `blocks.*`.
  stamps.py stalls OUTAGES SECONDS
      no write of `stalls.*` took SECONDS longer than the outages during it. The file OUTAGES has a line
      BEGIN END for each, in seconds since the epoch.
"""
import glob
import json
import mmap
import os
import random
import struct
import sys
import time

BLOCKS = 64  # of each writer, one behind the other
STALL = 0.1  # seconds


def block(writer, place, sequence, size):
    return struct.pack("<QQ", writer << 32 | place, sequence) * (size // 16)


def compare(data, expected, what):
    if data == expected:
        return
    got = struct.unpack_from("<QQ", data)
    want = struct.unpack_from("<QQ", expected)
    sys.exit(f"{what}: has {got[0]:#x} number {got[1]}, not {want[0]:#x} number {want[1]}")


def write(uri, writer, size):
    import nbd  # pylint: disable=import-outside-toplevel
    handle = nbd.NBD()
    handle.connect_uri(uri)
    base = writer * BLOCKS * size
    newest = [0] * BLOCKS
    sequence = 0
    longest = 0.0
    stalls = []
    dice = random.Random(writer)

    def check(place):
        if newest[place] != 0:
            compare(handle.pread(size, base + place * size),
                    block(writer, place, newest[place], size), f"block {place}, read back")

    with open(f"acked.{writer}.new", "wb+") as file:
        file.truncate(8)
        acked = mmap.mmap(file.fileno(), 8)
        os.rename(file.name, f"acked.{writer}")
        while not os.path.exists("enough"):
            place = dice.randrange(BLOCKS)
            sequence += 1
            began = time.monotonic()
            handle.pwrite(block(writer, place, sequence, size), base + place * size,
                          nbd.CMD_FLAG_FUA)
            took = time.monotonic() - began
            longest = max(longest, took)
            if took > STALL:
                stalls.append((time.time(), took))
            newest[place] = sequence
            acked[:] = struct.pack("<Q", sequence)
            if dice.randrange(4) == 0:
                check(dice.randrange(BLOCKS))
    for place in range(BLOCKS):
        check(place)
    with open(f"blocks.{writer}", "w", encoding="ascii") as file:
        json.dump({"writer": writer, "size": size, "newest": newest}, file)
    with open(f"stalls.{writer}", "w", encoding="ascii") as file:
        json.dump(stalls, file)
    print(sequence, f"{longest:.3f}")


def check_image(path):
    noted = glob.glob("blocks.*")
    assert noted, "nothing was written"
    with open(path, "rb") as image:
        for name in noted:
            with open(name, encoding="ascii") as file:
                note = json.load(file)
            size = note["size"]
            for place, sequence in enumerate(note["newest"]):
                if sequence == 0:
                    continue
                image.seek((note["writer"] * BLOCKS + place) * size)
                compare(image.read(size), block(note["writer"], place, sequence, size),
                        f"block {place} of the image")


def check_stalls(path, more):
    with open(path, encoding="ascii") as file:
        outages = [tuple(map(float, line.split())) for line in file]
    noted = glob.glob("stalls.*")
    assert noted, "nothing was written"
    worst = 0.0
    for name in noted:
        with open(name, encoding="ascii") as file:
            stalls = json.load(file)
        for ended, took in stalls:
            during = [end - begin for begin, end in outages if begin < ended and end > ended - took]
            worst = max(worst, took - sum(during))
            if took > sum(during) + more:
                sys.exit(f"a write took {took:.2f} s, and no server was away for longer than "
                         f"{sum(during):.2f} s meanwhile")
    print(f"no write took more than {worst:.2f} s longer than the outage during it")


if sys.argv[1] == "write":
    write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 4096)
elif sys.argv[1] == "stalls":
    check_stalls(sys.argv[2], float(sys.argv[3]))
else:
    check_image(sys.argv[2])
