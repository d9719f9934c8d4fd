#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes blocks that carry a sequence number, and finds out whether one is lost.

  stamps.py write URI WRITER [BLOCK_BYTES [PAUSE]]
      until the file `enough` exists, with PAUSE seconds between two writes; the file `acked.WRITER`
      always has the number of writes that were answered. Every block is read back now and then, and
      all of them in the end, into `blocks.WRITER`. Prints the number of writes and the longest one
      in seconds; those that took longer than STALL are in `stalls.WRITER`, and how many took how
      many milliseconds in `times.WRITER`. Every write is durable when it is answered.
  stamps.py check IMAGE
      compares an image with all that was noted in `blocks.*`, and says how many blocks are not as
      the last answered write has left them.
  stamps.py cuts CUTS
      prints how long writes have waited, the longest one from the begin of each cut to that of the next,
      and the longest one before all of them. The file CUTS has a line BEGIN END for each, in seconds
      since the epoch.
  stamps.py stalls OUTAGES SECONDS
      no write of `stalls.*` took SECONDS longer than the outages during it. The file OUTAGES has a line
      BEGIN END for each, in seconds since the epoch.
"""
import bisect
import collections
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


def write(uri, writer, size, pause):
    import nbd  # pylint: disable=import-outside-toplevel
    handle = nbd.NBD()
    handle.connect_uri(uri)
    base = writer * BLOCKS * size
    newest = [0] * BLOCKS
    sequence = 0
    longest = 0.0
    stalls = []
    times = collections.Counter()  # milliseconds
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
            times[round(took * 1000)] += 1
            if took > STALL:
                stalls.append((time.time(), took))
            newest[place] = sequence
            acked[:] = struct.pack("<Q", sequence)
            if dice.randrange(4) == 0:
                check(dice.randrange(BLOCKS))
            if pause > 0:
                time.sleep(pause)
    for place in range(BLOCKS):
        check(place)
    with open(f"blocks.{writer}", "w", encoding="ascii") as file:
        json.dump({"writer": writer, "size": size, "newest": newest}, file)
    with open(f"stalls.{writer}", "w", encoding="ascii") as file:
        json.dump(stalls, file)
    with open(f"times.{writer}", "w", encoding="ascii") as file:
        json.dump(times, file)
    print(sequence, f"{longest:.3f}")


def check_image(path):
    noted = glob.glob("blocks.*")
    assert noted, "nothing was written"
    wrong = []
    with open(path, "rb") as image:
        for note in map(load, noted):
            size = note["size"]
            for place, sequence in enumerate(note["newest"]):
                if sequence == 0:
                    continue
                image.seek((note["writer"] * BLOCKS + place) * size)
                data = image.read(size)
                if data != block(note["writer"], place, sequence, size):
                    has = struct.unpack_from("<QQ", data)[1]
                    wrong.append(f"block {place} of writer {note['writer']} has {has}, not {sequence}")
    print(f"{len(wrong)} blocks are not as the last answered write has left them")
    if wrong:
        sys.exit("; ".join(wrong[:10]))


def load(name):
    with open(name, encoding="ascii") as file:
        return json.load(file)


def check_stalls(path, more):
    with open(path, encoding="ascii") as file:
        outages = [tuple(map(float, line.split())) for line in file]
    noted = glob.glob("stalls.*")
    assert noted, "nothing was written"
    worst = 0.0
    for name in noted:
        for ended, took in load(name):
            during = [end - begin for begin, end in outages if begin < ended and end > ended - took]
            worst = max(worst, took - sum(during))
            if took > sum(during) + more:
                sys.exit(f"a write took {took:.2f} s, and no server was away for longer than "
                         f"{sum(during):.2f} s meanwhile")
    print(f"no write took more than {worst:.2f} s longer than the outage during it")


def shares(counts):
    """Of seconds, each with how often it was: text."""
    total = sum(counts.values())
    text = []
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        rest = share * total
        for seconds in sorted(counts):
            rest -= counts[seconds]
            if rest <= 0:
                break
        text.append(f"{name} {seconds:.3f}")
    return f"{', '.join(text)}, longest {max(counts):.3f} s"


def report_cuts(path):
    with open(path, encoding="ascii") as file:
        cuts = [tuple(map(float, line.split())) for line in file]
    times = collections.Counter()
    for noted in map(load, glob.glob("times.*")):
        for milliseconds, count in noted.items():
            times[int(milliseconds) / 1000] += count
    print(f"{sum(times.values())} writes: {shares(times)}")
    longest = [0.0] * len(cuts)
    before = 0.0
    for noted in map(load, glob.glob("stalls.*")):
        for ended, took in noted:
            cut = bisect.bisect(cuts, (ended,)) - 1  # the last one that began before
            if cut >= 0:
                longest[cut] = max(longest[cut], took)
            else:
                before = max(before, took)
    if cuts:
        print(f"{len(cuts)} cuts, the longest write of each: {shares(collections.Counter(longest))}")
        print(f"in {longest.count(0.0)} of them none took more than {STALL} s")
    print(f"before them the longest one took {before:.3f} s")


if sys.argv[1] == "write":
    write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 4096,
          float(sys.argv[5]) if len(sys.argv) > 5 else 0)
elif sys.argv[1] == "cuts":
    report_cuts(sys.argv[2])
elif sys.argv[1] == "stalls":
    check_stalls(sys.argv[2], float(sys.argv[3]))
else:
    check_image(sys.argv[2])
