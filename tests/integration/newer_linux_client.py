#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""A client as of a Linux that is newer than any that is packaged: newer_linux_client.py PORT

Linux's protocol only grows by what its older servers ignore: flags of requests, bytes that were
reserved, a minor version, longer messages. So the server must serve such a client.
"""
import errno
import os
import struct
import sys

from raw_peer import (DISCARD, FLUSH, READ_IO, RW, SECURE_ERASE, SEND_WITH_INVALIDATE, USER_MESSAGES, WRITE,
                      WRITE_IO, WRITE_ZEROES, Session)
from run_cases import run_cases

PORT = int(sys.argv[1])
SYNC, FUA, PREFLUSH, NOUNMAP = 0x100, 0x200, 0x400, 0x800
NEWER = 0x1000  # the next free flag
HIGHEST = 0x80000000
MINOR = 7
INVALIDATE, NEWER_HEADER_FLAG = 1, 2


class NewerLinux(Session):
    """No extension, a higher minor version, rubbish in what is reserved."""

    def request(self, cid, cids, features=0, **named):
        record = bytearray(super().request(cid, cids, features, version=0x0200 + MINOR, **named))
        record[45:] = b"\xA5" * (len(record) - 45)
        return bytes(record)

    def start_read(self, message, length, buffer=0, cid=1, **named):
        """Linux has the key of each buffer invalidated; where a buffer begins is its own affair."""
        if not length:
            return super().start_read(message, length, buffer, cid, **named)
        address, key = self.chunks[buffer]
        header = struct.pack("<HHHHQII", 3, len(message), INVALIDATE | NEWER_HEADER_FLAG, 1,
                             0x123456789ABCDEF, 77, length)
        self.wires[cid].frame(WRITE, message + header, self.immediate(buffer, length + len(message)),
                              key, address + length, **named)
        return None

    def answer_of(self, cid=1):
        data, frame = b"", self.next_frame(cid)
        while frame["immediate"] is None:
            if frame["opcode"] == WRITE:
                assert frame["address"] == 0x123456789ABCDEF, frame
                data += frame["payload"]
            else:
                assert frame["opcode"] == SEND_WITH_INVALIDATE, frame
            frame = self.next_frame(cid)
        assert frame["immediate"] >> 28 in (1, 2), frame
        return (frame["immediate"] >> 19 & 0x1FF, frame["immediate"] & 0x7FFFF,
                data + frame["payload"])

    def ask(self, device, operation, sector=0, length=0, data=b"", flags=0, room=None):
        """The errno, and what was read. The message is longer than today's."""
        message = self.io(device, operation, sector, length, flags) + b"\x5A" * 16
        return self.call(message, room, data)


def opened():
    session = NewerLinux(PORT)
    error, payload = session.call(struct.pack("<HHB", 0, 0, 3) + b"\xA5" * 31, 36, cid=0)
    assert (error, payload[4]) == (0, 2), (error, payload)
    error, payload = session.call(struct.pack("<HHBB255s3x", 2, 0, RW, 0xFF, b"disk0") + b"\xA5" * 16,
                                  56, cid=0)
    assert error == 0, error
    return session, struct.unpack_from("<I", payload, 4)[0]


def reads(session, device, sector, length):
    error, data = session.ask(device, READ_IO, sector, length, room=length)
    assert error == 0, error
    return data


def unknown_flags_of_reads_writes_flushes_and_discards_are_ignored():
    session, device = opened()
    for flag in (NEWER, HIGHEST, NEWER | HIGHEST, 0x40000000, 0x20000000):
        data = os.urandom(4096)
        assert session.ask(device, WRITE_IO, 8, 4096, data, SYNC | FUA | flag)[0] == 0, hex(flag)
        error, found = session.ask(device, READ_IO, 8, 4096, flags=SYNC | flag, room=4096)
        assert (error, found) == (0, data), hex(flag)
        for name in (PREFLUSH | FUA | SYNC | flag, flag):
            assert session.ask(device, FLUSH, 2**64 - 1, flags=name, room=0)[0] == 0, hex(flag)
        assert session.ask(device, WRITE_IO, flags=FUA | PREFLUSH | flag)[0] == 0, hex(flag)
        assert session.ask(device, DISCARD, 8, 4096, flags=flag)[0] == 0, hex(flag)
        assert reads(session, device, 8, 4096) == bytes(4096), "nothing was discarded"
    session.close()


def unknown_flags_of_write_zeroes_are_refused():
    """A flag of it may ask for blocks that keep their place, as NOUNMAP does."""
    session, device = opened()
    data = os.urandom(4096)
    assert session.ask(device, WRITE_IO, 16, 4096, data)[0] == 0
    for flag in (NEWER, HIGHEST, NEWER | NOUNMAP):
        assert session.ask(device, WRITE_ZEROES, 16, 4096, flags=flag)[0] == errno.EOPNOTSUPP
    assert reads(session, device, 16, 4096) == data
    for flag in (0, NOUNMAP):
        assert session.ask(device, WRITE_ZEROES, 16, 4096, flags=flag)[0] == 0
    assert reads(session, device, 16, 4096) == bytes(4096)
    session.close()


def unknown_operations_are_refused():
    session, device = opened()
    data = os.urandom(4096)
    assert session.ask(device, WRITE_IO, 24, 4096, data)[0] == 0
    for operation in (SECURE_ERASE, 6, 9, 255):
        for flag in (0, NEWER):
            assert session.ask(device, operation, 24, 4096, flags=flag)[0] == errno.EOPNOTSUPP
            assert session.ask(device, operation, 24, 4096, data, flag)[0] == errno.EOPNOTSUPP
            error, _ = session.ask(device, operation, 24, 4096, flags=flag, room=4096)
            assert error == errno.EOPNOTSUPP
    assert reads(session, device, 24, 4096) == data
    session.close()


def own_peer_has_no_flag_ignored():
    """Those agree by features, so a flag that was not agreed upon is a mistake."""
    session = Session(PORT, features=USER_MESSAGES)
    device, _ = session.open(b"disk0", RW)
    assert session.call(session.io(device, READ_IO, 0, 512, NEWER), 512)[0] == errno.EOPNOTSUPP
    assert session.write(device, 0, bytes(512), NEWER)[0] == errno.EOPNOTSUPP
    session.close()


run_cases([(case.__name__, case)
           for case in (unknown_flags_of_reads_writes_flushes_and_discards_are_ignored,
                        unknown_flags_of_write_zeroes_are_refused, unknown_operations_are_refused,
                        own_peer_has_no_flag_ignored)])
