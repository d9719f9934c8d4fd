# SPDX-License-Identifier: BSD-3-Clause
"""Contents that name their write, so that stale, torn and foreign data are recognised.

A disk is a row of units. Most are sectors; those of some sectors are 64 bytes each, so that
requests for parts of sectors have units, too. A unit is filled with one stamp, again and again: the
number of its write, its own number, and a checksum.
"""
import struct
import zlib

ZEROES = 0  # what zeroing leaves
FIRST = 1  # what the disk held at the beginning
FIRST_WRITE = 2  # numbers of requests begin here

SECTOR, FINE = 512, 64  # bytes of a unit
HEAD = struct.Struct("<QI")
STAMP = HEAD.size + 4
NOTHING = bytes(STAMP)


def stamp(value, unit):
    head = HEAD.pack(value, unit)
    return head + struct.pack("<I", zlib.crc32(head))


class Layout:
    """Where units are. Bytes of offsets and sizes, numbers of units."""

    def __init__(self, sectors, fine=64, grown=0):
        self.sectors = sectors  # of one unit each
        self.fine = fine  # units of 64 bytes behind them, 8 a sector
        self.units = sectors + fine
        self.size = sectors * SECTOR + fine * FINE
        self.grown = grown  # sectors behind those, of a disk that has grown
        self.whole = self.size + grown * SECTOR  # bytes of it

    def width(self, unit):
        return FINE if self.sectors <= unit < self.units else SECTOR

    def offset(self, unit):
        if unit <= self.sectors:
            return unit * SECTOR
        if unit <= self.units:
            return self.sectors * SECTOR + (unit - self.sectors) * FINE
        return self.size + (unit - self.units) * SECTOR

    def bytes_of(self, first, count):
        """Of units of one width."""
        return self.offset(first + count) - self.offset(first)

    def make(self, value, first, count):
        """The data of a write of these units."""
        return b"".join(stamp(value, unit) * (self.width(unit) // STAMP)
                        for unit in range(first, first + count))

    def image(self):
        """A disk with first content."""
        return self.make(FIRST, 0, self.units)

    def read(self, data, first, count):
        """The value of each unit: the number of its write, or words for what no write made."""
        found, at = [], 0
        for unit in range(first, first + count):
            width = self.width(unit)
            found.append(self._one(data[at:at + width], unit))
            at += width
        return found

    def _one(self, data, unit):
        head = data[:STAMP]
        if data == head * (len(data) // STAMP):
            return self._stamped(head, unit)
        parts = {self._stamped(data[at:at + STAMP], unit) for at in range(0, len(data), STAMP)}
        if all(isinstance(part, int) for part in parts):
            return "torn: " + " ".join(map(str, sorted(parts)))
        return "garbage"

    @staticmethod
    def _stamped(head, unit):
        if head == NOTHING:
            return ZEROES
        value, place = HEAD.unpack(head[:HEAD.size])
        if len(head) != STAMP or stamp(value, place) != head:
            return "garbage"
        return value if place == unit else f"data of unit {place}"
