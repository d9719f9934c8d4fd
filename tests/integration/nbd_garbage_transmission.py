# SPDX-License-Identifier: BSD-3-Clause
"""Garbage instead of requests, see nbd_garbage.py."""
# pylint: disable=wildcard-import,unused-wildcard-import
import struct

from nbd_garbage_peer import *
from nbd_peer import *


def transmission_with_a_wrong_magic():
    for magic in (0, 0x25609514, 0x67446698, 0xFFFFFFFF):
        h = Client(ADDRESS)
        h.start_request(READ, 0, 512)
        h.start_request(READ, 0, 512, magic=magic)
        h.expect_close()


def transmission_of_random_bytes():
    for _ in range(30):
        h = Client(ADDRESS)
        h.send(RANDOM.randbytes(RANDOM.choice((27, 28, 100, 5000))))
        h.close()


def transmission_with_unknown_commands():
    for structured in (True, False):
        h = Client(ADDRESS, structured=structured)
        for command in (8, 9, 10, 255, 0x7FFF, 0xFFFF):
            expect(h.request(command, 0, 0)[0], EINVAL)
            expect(h.request(command, 1 << 60, 0xFFFFFFFF, 0xFFFF)[0], EINVAL)
        still_serves(h)


def transmission_with_unknown_flags():
    h = Client(ADDRESS, contexts=True)
    for flag in (1 << 5, 1 << 9, 1 << 15, 0xFFFF):
        for command in (READ, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS):
            length = 0 if command == FLUSH else 512
            expect(h.request(command, 0, length, flag)[0], EINVAL)
        expect(h.write(0, b"x" * 512, flag), EINVAL)
    for command, flag in ((READ, NO_HOLE), (READ, REQ_ONE), (WRITE_ZEROES, DF), (TRIM, NO_HOLE),
                          (BLOCK_STATUS, DF), (BLOCK_STATUS, FAST_ZERO), (FLUSH, DF)):
        expect(h.request(command, 0, 0 if command == FLUSH else 512, flag)[0], EINVAL)
    still_serves(h)


def transmission_without_what_was_not_agreed_on():
    h = Client(ADDRESS)
    expect(h.request(BLOCK_STATUS, 0, 512)[0], EINVAL)
    expect(Client(ADDRESS, structured=False).read(0, 512, DF)[0], EINVAL)
    still_serves(h)


def transmission_of_nothing():
    h = Client(ADDRESS, contexts=True)
    for command in (READ, WRITE, TRIM, WRITE_ZEROES, BLOCK_STATUS):
        expect(h.request(command, 0, 0)[0], EINVAL)
    expect(h.request(CACHE, 0, 0)[0], 0, EINVAL, ENOTSUP)
    expect(h.request(FLUSH, 0, 512)[0], EINVAL)
    expect(h.request(FLUSH, 512, 0)[0], EINVAL)
    still_serves(h)


def transmission_beyond_the_end():
    h = Client(ADDRESS, contexts=True)
    for offset, length in ((SIZE, 512), (SIZE - 512, 1024), (1 << 63, 512), ((1 << 64) - 512, 512),
                           ((1 << 64) - 1, 0xFFFFFF), (SIZE - 1, 2)):
        expect(h.read(offset, length)[0], EINVAL)
        expect(h.request(WRITE_ZEROES, offset, length)[0], ENOSPC)
        for command in (TRIM, CACHE, BLOCK_STATUS):
            expect(h.request(command, offset, length)[0], EINVAL)
        if length < M:
            expect(h.write(offset, bytes(length)), ENOSPC)
    expect(h.request(TRIM, 0, 0xFFFFFFFF)[0], EINVAL)
    still_serves(h)


def transmission_of_lengths_beyond_32_mib():
    h = Client(ADDRESS)
    for length in (32 * M + 1, 64 * M, 0xFFFFFFFF):
        expect(h.read(0, length)[0], EINVAL)
    expect(h.write(0, bytes(32 * M + 1)), EINVAL)
    expect(h.write(0, bytes(32 * M)), ENOSPC)
    still_serves(h)


def transmission_of_changes_to_a_read_only_export():
    h = Client(ADDRESS, b"readonly")
    expect(h.write(0, bytes(512)), EPERM)
    expect(h.write(0, bytes(M)), EPERM)
    expect(h.request(TRIM, 0, 512)[0], EPERM)
    expect(h.request(WRITE_ZEROES, 0, 512)[0], EPERM)
    expect(h.read(0, 512)[0], 0)


def transmission_that_hangs_up_in_the_middle_of_a_payload():
    for sent in (0, 1, 100, 4095, 100000, M - 1):
        h = Client(ADDRESS)
        h.start_request(WRITE, 0, M, 0, b"g" * sent)
        h.close()
    h = Client(ADDRESS)
    assert b"g" not in h.read(0, M)[1], "a part of a write was carried out"


def transmission_that_hangs_up_with_requests_under_way():
    for _ in range(20):
        h = Client(ADDRESS)
        for i in range(64):
            h.start_request(READ, i * 65536 % SIZE, 65536)
        h.close()


def transmission_of_a_disconnect_behind_requests_answers_them():
    h = Client(ADDRESS)
    cookies = {h.start_request(READ, i * 4096, 4096) for i in range(64)}
    h.start_request(DISCONNECT)
    while cookies:
        cookie, error, data = h.reply()
        expect((error, len(data)), (0, 4096))
        cookies.remove(cookie)
    h.expect_close()


def transmission_of_a_disconnect_behind_parts_of_sectors_answers_them():
    h = Client(ADDRESS)
    cookies = {h.start_request(READ, i * 4096 + 1, 100) for i in range(256)}
    h.start_request(DISCONNECT)
    while cookies:
        cookie, error, data = h.reply()
        expect((error, len(data)), (0, 100))
        cookies.remove(cookie)
    h.expect_close()


def transmission_that_hangs_up_with_parts_of_sectors_waiting():
    for _ in range(10):
        h = Client(ADDRESS)
        for i in range(128):
            h.start_request(READ, i * 4096 + 1, 100)
            h.start_request(WRITE, i * 4096 + 2 * M + 1, 100, 0, b"p" * 100)
        h.close()


def transmission_behind_a_disconnect():
    h = Client(ADDRESS)
    h.start_request(DISCONNECT)
    try:
        h.start_request(WRITE, 0, 4096, 0, b"h" * 4096)
    except Closed:
        pass
    h.expect_close()
    assert b"h" not in Client(ADDRESS).read(0, 4096)[1], "written behind a disconnect"


def transmission_of_extended_headers_with_a_wrong_magic():
    for magic in (0, 0x25609513, 0x6e8a278c, 0xFFFFFFFF):
        h = Client(ADDRESS, extended=True)
        h.start_request(READ, 0, 512)
        h.start_request(READ, 0, 512, magic=magic)
        h.expect_close()
    h = Client(ADDRESS)
    h.start_request(READ, 0, 512, magic=0x21e41c71)
    h.expect_close()


def transmission_of_payloads_that_must_not_be():
    h = Client(ADDRESS, extended=True, contexts=True)
    for length in (1, 28, 4096, 100000, 32 * M):
        for command in (READ, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS, 8, 255):
            expect(h.request(command, 0, length, PAYLOAD_LEN, bytes(length))[0], EINVAL)
    still_serves(h)
    for command in (READ, WRITE, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS):
        expect(h.request(command, 0, 0, PAYLOAD_LEN)[0], EINVAL)
    still_serves(h)
    plain = Client(ADDRESS)
    expect(plain.request(READ, 0, 512, PAYLOAD_LEN)[0], EINVAL)
    expect(plain.write(0, b"x" * 512, PAYLOAD_LEN), EINVAL)
    still_serves(plain)


def transmission_of_payloads_that_are_too_long():
    for length in (32 * M + 1, 1 << 32, 1 << 63, (1 << 64) - 1):
        for command in (WRITE, READ, BLOCK_STATUS):
            h = Client(ADDRESS, extended=True)
            h.start_request(command, 0, length, PAYLOAD_LEN)
            h.expect_close()


def transmission_of_filters_that_cannot_be():
    def filtered(length, *ids):
        data = struct.pack(f">Q{len(ids)}I", length, *ids)
        return h.request(BLOCK_STATUS, 0, len(data), PAYLOAD_LEN, data)[0]

    h = Client(ADDRESS, extended=True, contexts=True)
    assert h.flags & BLOCK_STATUS_PAYLOAD
    expect(filtered(SIZE, 1), 0)
    for ids in ((), (0,), (2,), (1, 1), (1, 2), (0xFFFFFFFF,)):
        expect(filtered(SIZE, *ids), EINVAL)
    for length in (0, SIZE + 1, 1 << 63, (1 << 64) - 1):
        expect(filtered(length, 1), EINVAL)
    still_serves(h)
    h = Client(ADDRESS, extended=True)
    assert not h.flags & BLOCK_STATUS_PAYLOAD, "no context was chosen"
    expect(filtered(SIZE, 1), EINVAL)
    still_serves(h)


def transmission_of_extended_lengths_beyond_the_end():
    h = Client(ADDRESS, extended=True, contexts=True)
    for offset, length in ((0, SIZE + 1), (0, 1 << 32), (0, 1 << 63), (0, (1 << 64) - 1),
                           (SIZE - 512, 1024), (1 << 63, 1 << 63), ((1 << 64) - 512, 1024)):
        expect(h.request(WRITE_ZEROES, offset, length)[0], ENOSPC)
        for command in (READ, TRIM, CACHE, BLOCK_STATUS):
            expect(h.request(command, offset, length)[0], EINVAL)
    still_serves(h)


def transmission_that_hangs_up_in_the_middle_of_an_extended_header():
    whole = struct.pack(">IHH8sQQ", 0x21e41c71, PAYLOAD_LEN, WRITE, b"cookie..", 0, 512) + bytes(512)
    for size in [*range(33), 100, 543]:
        h = Client(ADDRESS, extended=True)
        h.send(whole[:size])
        h.close()


def flood(data, most):
    """Sends until the server takes no more; returns how many bytes it took."""
    h = Client(ADDRESS)
    h.socket.settimeout(2)
    sent = 0
    try:
        while sent < most:
            sent += h.socket.send(data)
    except TimeoutError:
        pass
    return h, sent


def transmission_of_ten_thousand_requests_without_reading():
    one = struct.pack(">IHH8sQI", 0x25609513, 0, READ, b"cookie..", 0, 65536)
    first = Client(ADDRESS).read(0, 65536)[1]
    h, sent = flood(one * 100, 28 * 10000)
    still_serves(Client(ADDRESS))
    h.socket.settimeout(60)
    for _ in range(min(sent // 28, 2000)):  # and it can still have them
        expect(h.reply(), (b"cookie..", 0, first))
    h.close()


def transmission_of_nonsense_without_reading():
    one = struct.pack(">IHH8sQI", 0x25609513, 0, 99, b"cookie..", 0, 0)
    h, sent = flood(one * 1000, 28 * 10_000_000)
    assert sent < 28 * 10_000_000, "it took 10 million requests whose answers nobody reads"
    still_serves(Client(ADDRESS))
    h.close()
