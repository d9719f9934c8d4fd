# SPDX-License-Identifier: BSD-3-Clause
"""Garbage while an export is chosen, see nbd_garbage.py."""
# pylint: disable=wildcard-import,unused-wildcard-import
import re
import select
import struct

from nbd_garbage_peer import *
from nbd_peer import *


def haggles(haggler):
    info = haggler.info(GO, b"disk0")
    assert isinstance(info, dict), info


def handshake_with_unknown_flags():
    for flags in (4, 4 | FIXED_NEWSTYLE, 0xFFFFFFFF, 1 << 31):
        Haggler(ADDRESS, flags).expect_close()


def handshake_without_fixed_newstyle_has_no_option_but_the_name():
    for flags in (0, NO_ZEROES):
        for option in (ABORT, LIST, GO, STRUCTURED_REPLY, 99):
            h = Haggler(ADDRESS, flags)
            h.start(option, string(b"disk0") + b"\0\0" if option == GO else b"")
            h.expect_close()
        h = Haggler(ADDRESS, flags)
        h.start(EXPORT_NAME, b"disk0")
        size, told = h.unpack(">QH")
        assert size == 4 * M and told & HAS_FLAGS, (size, told)
        if not flags & NO_ZEROES:
            assert h.receive(124) == bytes(124)
        h.send(struct.pack(">IHHQQI", 0x25609513, 0, READ, 7, 0, 512))
        assert h.unpack(">IIQ") == (0x67446698, 0, 7)
        assert len(h.receive(512)) == 512
        h.close()


def handshake_with_garbage_instead_of_flags_and_options():
    for garbage in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", bytes(64), b"\xff" * 64,
                    bytes.fromhex("16030100c8010000c40303") + RANDOM.randbytes(196)):
        h = Haggler(ADDRESS, None)
        h.send(garbage)
        h.expect_close()
    for _ in range(50):
        h = Haggler(ADDRESS)
        h.send(RANDOM.randbytes(64))
        h.expect_close()


def handshake_with_a_wrong_option_magic():
    h = Haggler(ADDRESS)
    h.start(LIST, magic=b"IHAVEOPS")
    h.expect_close()


def handshake_that_is_left_at_every_byte():
    whole = struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", GO, 11) + string(b"disk0") + b"\0\0"
    for size in range(len(whole)):
        h = Haggler(ADDRESS, None)
        h.send(whole[:size])
        h.close()


def handshake_with_unknown_options():
    h = Haggler(ADDRESS)
    for option in (0, 4, 12, 13, 99, 0x7FFFFFFF, 0xFFFFFFFF):
        for data in (b"", b"x", RANDOM.randbytes(4096)):
            expect(h.last(option, data), UNSUPPORTED)
    haggles(h)


def handshake_with_starttls_is_a_refusal_and_nothing_more():
    h = Haggler(ADDRESS)
    expect(h.last(STARTTLS), UNSUPPORTED, POLICY)
    haggles(h)


def handshake_with_lengths_that_contradict_each_other():
    h = Haggler(ADDRESS)
    h.ask_structured()
    name = string(b"disk0")
    for option in (INFO, GO):
        for data in (b"", b"\0", name[:3], name[:-1], name, name + b"\0", name + b"\0\1",
                     name + b"\0\1\0", name + b"\0\0\0", name + b"\0\1\0\3\0",
                     name + b"\xff\xff\0\3", b"\xff\xff\xff\xff" + b"x" * 64,
                     b"\0\0\0\6disk0\0", b"\x80\0\0\0\0\0"):
            expect(h.last(option, data), INVALID)
    base = string(b"base:allocation")
    for option in (LIST_META_CONTEXT, SET_META_CONTEXT):
        for data in (b"", name, name + b"\0\0\0", name + b"\0\0\0\1", name + b"\0\0\0\2" + base,
                     name + b"\0\0\0\1" + base + b"x", name + b"\0\0\0\0" + base,
                     name + b"\xff\xff\xff\xff" + base, name + b"\0\0\0\1\xff\xff\xff\xff",
                     b"\xff\xff\xff\xff" + base):
            expect(h.last(option, data), INVALID)
    for option in (LIST, STRUCTURED_REPLY, EXTENDED_HEADERS):
        expect(h.last(option, b"x"), INVALID)
    haggles(h)


def handshake_with_extended_headers_and_what_they_exclude():
    for first in (None, STRUCTURED_REPLY):
        h = Haggler(ADDRESS)
        if first:
            expect(h.last(first), ACK)
        expect(h.last(EXTENDED_HEADERS, b"x"), INVALID)
        for _ in range(2):
            expect(h.last(EXTENDED_HEADERS), ACK)
        expect(h.last(STRUCTURED_REPLY), EXT_HEADER_REQD)
        haggles(h)
        h = Haggler(ADDRESS)
        h.ask_extended()
        h.start(EXPORT_NAME, b"disk0")
        h.expect_close()


def handshake_with_names_that_are_too_long_or_odd():
    h = Haggler(ADDRESS)
    for size in (4097, 8192, 65000):
        expect(h.last(INFO, string(b"n" * size) + b"\0\0"), INVALID, TOO_BIG, UNKNOWN)
    for name in (b"n" * 4096, b"\0", b"disk0\0", b"DISK0", b"../disk0", b"\xff\xfe", b"%s%n",
                 b"line\nrnbd-bridge: forged", b"\x1b[2J"):
        replies = h.option(INFO, string(name) + b"\0\0")
        expect(replies[-1][0], INVALID, UNKNOWN)
        assert len(replies[-1][1]) <= 4096, "NBD allows no longer strings"
        assert not re.search(rb"[\0-\x1f\x7f]", replies[-1][1]), replies
    haggles(h)
    long = Haggler(ADDRESS)
    long.start(EXPORT_NAME, b"n" * 5000)
    long.expect_close()


def handshake_with_huge_options():
    h = Haggler(ADDRESS)
    for option in (LIST, GO, 99):
        expect(h.last(option, bytes(70000)), TOO_BIG)
    expect(h.last(99, bytes(2 * M)), TOO_BIG)
    haggles(h)
    for option in (EXPORT_NAME, GO, 99):
        h = Haggler(ADDRESS)
        h.start(option, b"x" * 100, length=0xFFFFFFFF)
        h.expect_close()


def handshake_of_a_thousand_options():
    h = Haggler(ADDRESS)
    for i in range(1000):
        expect(h.last((LIST, 99, STRUCTURED_REPLY)[i % 3]), ACK, UNSUPPORTED)
    expect(h.last(ABORT), ACK)
    h.expect_close()


def handshake_that_asks_for_what_is_not_there_again_and_again():
    h = Haggler(ADDRESS)
    for i in range(3000):
        expect(h.info((INFO, GO)[i % 2], b"n" * 254), UNKNOWN)
    haggles(h)


def handshake_that_asks_for_much_and_reads_nothing():
    h = Haggler(ADDRESS)
    data = string(b"disk0") + struct.pack(">H", 30000) + struct.pack(">H", INFO_DESCRIPTION) * 30000
    h.socket.settimeout(0.5)
    try:
        for _ in range(200):
            h.start(INFO, data)
    except (TimeoutError, Closed):
        pass
    h.close()


def wait_until_ended(crowd, least):
    """How many of them the bridge has hung up on, as soon as those are `least`."""
    poll = select.poll()
    for h in crowd:
        poll.register(h.socket, select.POLLRDHUP)
    while len(ended := poll.poll(10000)) < least and ended:
        pass
    return len(ended)


def handshake_of_three_hundred_at_once():
    crowd, refused = [], 0
    for i in range(300):
        try:
            h = Haggler(ADDRESS)
            if i % 3 == 1:
                h.send(b"IHAVE")
            crowd.append(h)
        except Closed:
            refused += 1
    # The oldest of those that have not chosen an export make room.
    refused += wait_until_ended(crowd, 40 - refused)
    assert 40 <= refused <= 60, f"{refused} were turned away, with room for 256"
    haggles(crowd[-1])
    for h in crowd:
        h.close()


def handshake_with_export_name_of_a_device_while_others_haggle():
    silent = [Haggler(ADDRESS, None) for _ in range(20)]
    h = Haggler(ADDRESS)
    h.start(EXPORT_NAME, b"disk0")
    expect(h.unpack(">QH")[0], SIZE)
    for other in silent + [h]:
        other.close()
