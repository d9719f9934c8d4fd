#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Durable writes to a mirror whose members and client are killed meanwhile.

  mirror_writer.py write URI WRITER
      until the file `enough` exists. Every write has a number. One that fails, or whose client dies, may
      have happened or not; it is read before the next one, and what was seen must stay. `acked.WRITER` has
      the number of answered writes. In the end all blocks are read, and are in `blocks.WRITER`.
  mirror_writer.py check IMAGE
      compares an image with `blocks.*`.
"""
import glob
import json
import os
import random
import struct
import sys
import time

BLOCKS = 48
SIZE = 65536
PATIENCE = 300  # seconds without any answer


def block(writer, place, number):
    return struct.pack("<QQ", writer << 32 | place, number) * (SIZE // 16)


class Writer:
    def __init__(self, uri, writer):
        import nbd  # pylint: disable=import-outside-toplevel
        self.nbd = nbd
        self.uri = uri
        self.writer = writer
        self.newest = [0] * BLOCKS  # answered, or seen
        self.possible = [[] for _ in range(BLOCKS)]  # numbers of writes that were not answered
        self.number = 0
        self.acked = 0
        self.last = time.monotonic()
        self.longest = 0.0  # seconds that an answered write took
        self.handle = None

    def place(self, index):
        # Apart, so that many regions of the activity log are used.
        return (index * 7 + self.writer) % BLOCKS * 5 * SIZE + self.writer * SIZE

    def call(self, function):
        """Again until there is an answer, perhaps of another client."""
        while True:
            try:
                if self.handle is None:
                    self.handle = self.nbd.NBD()
                    self.handle.connect_uri(self.uri)
                answer = function(self.handle)
                self.last = time.monotonic()
                return answer
            except self.nbd.Error as error:
                if time.monotonic() - self.last > PATIENCE:
                    sys.exit(f"nothing was answered for {PATIENCE} s: {error}")
                if self.handle is None or not self.handle.aio_is_ready():
                    self.handle = None
                time.sleep(0.02)

    def read(self, index):
        data = self.call(lambda handle: handle.pread(SIZE, self.place(index)))
        number = struct.unpack_from("<QQ", data)[1]
        allowed = [self.newest[index]] + self.possible[index]
        whole = block(self.writer, index, number) if number else bytes(SIZE)
        if number not in allowed or bytes(data) != whole:
            sys.exit(f"block {index} of writer {self.writer} has number {number}, not one of {allowed}")
        self.newest[index] = number
        self.possible[index] = []

    def write(self, index):
        self.number += 1
        number = self.number
        data = block(self.writer, index, number)
        try:
            if self.handle is None:
                self.call(lambda handle: None)
            self.possible[index].append(number)
            began = time.monotonic()
            self.handle.pwrite(data, self.place(index), self.nbd.CMD_FLAG_FUA)
        except self.nbd.Error:
            if not self.handle.aio_is_ready():
                self.handle = None
            return self.read(index)
        self.longest = max(self.longest, time.monotonic() - began)
        self.newest[index] = number
        self.possible[index] = []
        self.acked += 1
        self.last = time.monotonic()
        return None

    def run(self):
        dice = random.Random(self.writer)
        while not os.path.exists("enough"):
            index = dice.randrange(BLOCKS)
            if dice.random() < 0.2:
                self.read(index)
            else:
                self.write(index)
            with open(f"acked.{self.writer}.new", "w", encoding="ascii") as file:
                file.write(str(self.acked))
            os.rename(file.name, f"acked.{self.writer}")
        for index in range(BLOCKS):
            self.read(index)
        with open(f"blocks.{self.writer}", "w", encoding="ascii") as file:
            json.dump([[self.place(index), index, self.newest[index]] for index in range(BLOCKS)], file)
        print(f"{self.acked} writes were answered, the slowest after {self.longest:.2f} s")


def check(image):
    names = glob.glob("blocks.*")
    if not names:
        sys.exit("no writer came to its end")
    with open(image, "rb") as file:
        for name in names:
            writer = int(name.split(".")[1])
            with open(name, encoding="ascii") as blocks:
                for place, index, number in json.load(blocks):
                    file.seek(place)
                    want = block(writer, index, number) if number else bytes(SIZE)
                    if file.read(SIZE) != want:
                        sys.exit(f"{image}: block {index} of writer {writer} is not number {number}")


if sys.argv[1:2] == ["write"]:
    Writer(sys.argv[2], int(sys.argv[3])).run()
elif sys.argv[1:2] == ["check"]:
    check(sys.argv[2])
else:
    sys.exit(__doc__)
