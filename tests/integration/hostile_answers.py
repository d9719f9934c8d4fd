# SPDX-License-Identifier: BSD-3-Clause
"""Servers that do harm to a session that is up, see hostile_server.py. What ends the path is told
with its cause, the request goes over its next life, and the NBD client gets the right data."""
import struct

import nbd_peer as nbd
from hostile_face import SLOW, Face
from hostile_peer import (ACCESS, BLOCK_STATUS, CHUNK, HEARTBEAT, IO, KEY, UP, Server, extents, flood)
from raw_peer import READ_IO, SEND, SEND_WITH_INVALIDATE, WRITE, WRITE_IO


def operation_of(request):
    return struct.unpack_from("<I", request.message, 16)[0] & 0xFF


def is_read(request):
    return operation_of(request) == READ_IO


def is_write(request):
    return operation_of(request) == WRITE_IO


def once(face, server, deed, because, when=is_read):
    """The first read is answered by the deed, which ends the path; the second time it is right."""
    client = face.client()
    face.forget_log()
    server.order(IO, deed, when=when)
    face.serves(server, client)
    face.says(f"127.0.0.1:{server.ports[0]} is lost: .*(?:{because})")
    client.leave()


# ---- Replies that are none

def answer_for_a_permit_that_is_not_in_use(face, server):
    for buffer in (0, 15, 16, 0x7FFFF):
        once(face, server, lambda request, buffer=buffer: request.reply(buffer=buffer, pad=False),
             "a permit that is not in use")


def answer_twice(face, server):
    def twice(request):
        server.answer(request)
        server.answer(request)
    once(face, server, twice, "a permit that is not in use|a key that does not exist")


def answer_with_an_error_and_then_with_data(face, server):
    """The error is the answer."""
    def both(request):
        request.reply(error=28)
        server.answer(request)
    client = face.client()
    server.order(IO, both, when=is_read)
    assert client.read(0, 4096)[0] in (nbd.EIO, nbd.ENOSPC)
    face.serves(server, client)
    client.leave()


def answer_on_another_connection(face, server):
    once(face, server, lambda request: request.reply(cid=0, pad=False), "not in use|amount of data")


def answer_of_the_wrong_kind(face, server):
    def message(size):
        return lambda request: request.connection.frame(
            SEND, struct.pack("<HHI", 4, request.buffer, KEY)[:size], 1 << 28 | request.buffer)
    once(face, server, message(8), "longer than")
    once(face, server, message(0), "unexpected message")
    once(face, server, lambda request: request.reply(kind=0, pad=False), "a request from a server")
    once(face, server, lambda request: request.connection.frame(SEND, b""), "unexpected message")


def answer_with_data_of_another_length(face, server):
    for length in (0, 1, 512, 4095, 4097, 65536):
        once(face, server,
             lambda request, length=length: request.reply(b"!" * length, pad=False),
             "amount of data|beyond the memory")


def answer_to_another_place(face, server):
    for distance in (1, 4096, -1, 1 << 40, 1 << 63):
        def beyond(request, distance=distance):
            request.reply(b"!", address=(request.address + distance) & 2**64 - 1)
        once(face, server, beyond, "beyond the memory")
    for change in (1, 256, 1 << 31):
        def elsewhere(request, change=change):
            request.reply(b"!", key=request.key ^ change)
        once(face, server, elsewhere, "a key that does not exist|went elsewhere")


def answer_to_a_write_with_data(face, server):
    once(face, server, lambda request: request.reply(b"!" * 512, pad=False),
         "a key that does not exist|amount of data|beyond", when=is_write)


def answer_with_bytes_that_are_no_frames(face, server):
    def huge(request):
        request.connection.frame(WRITE, length=0xFFFFFFFF)
    once(face, server, lambda request: request.connection.send(b"\xff" * 4096), "bad frame")
    once(face, server, lambda request: request.connection.send(bytes(4096)), "bad frame")
    once(face, server, huge, "bad frame")


def half_a_reply(request):
    header = struct.pack("<BBHIIIQII", WRITE, 1, 0, 4096, 1 << 28 | request.buffer, request.key,
                         request.address, 0, 0)
    request.connection.send(header + b"!" * 1000)


def answer_with_half_a_frame_and_a_hang_up(face, server):
    def half(request):
        half_a_reply(request)
        request.connection.hang_up()
    once(face, server, half, "in the middle of a frame")
    once(face, server, lambda request: request.connection.hang_up(), "closed the connection")


def answer_by_hanging_up_each_time():
    """Paths that come and end without an answer do not count: no-path-timeout is over once."""
    server = Server()
    face = Face(server.ports)
    client = face.client()
    server.order(IO, lambda request: request.connection.hang_up(), times=None)
    error, _ = client.read(0, 4096)
    assert error == nbd.EIO, error
    face.says("no path for too long")
    server.behave()
    face.wait_until(lambda: client.read(0, 4096)[0] == 0, "service does not resume", 10)
    face.serves(server, client)
    client.leave()
    face.stop()


def answer_with_half_a_frame_and_silence(face, server):
    def half(request):
        half_a_reply(request)
        request.connection.hold()
    once(face, server, half, "owes answers|heartbeats")


def answer_never_nor_heartbeats(face, server):
    def silent(request):
        server.answers_heartbeats = False
        request.connection.hold()
    client = face.client()
    face.forget_log()
    server.order(IO, silent, when=is_read)
    server.order(UP, lambda connection: setattr(server, "answers_heartbeats", True))
    face.serves(server, client)
    face.says("is lost: .*(?:owes answers|heartbeats)")
    client.leave()


def answer_ends_a_key(face, server):
    """Means nothing over TCP but for a receive."""
    def end_key(request):
        request.connection.frame(SEND_WITH_INVALIDATE, key=request.key)
        server.answer(request)
    client = face.client()
    server.order(IO, end_key, when=is_read)
    face.serves(server, client)
    client.leave()


def ignored(face, server, immediates):
    """What comes in front of the answer to a read changes nothing."""
    def say_and_answer(request):
        for immediate in immediates:
            request.connection.frame(WRITE, immediate=immediate)
        server.answer(request)
    client = face.client()
    server.order(IO, say_and_answer, when=is_read)
    face.serves(server, client)
    client.leave()


def answer_of_unknown_kinds(face, server):
    """Immediates that nobody knows."""
    ignored(face, server, [kind << 28 | 5 for kind in (3, 4, 7, 12, 15)])


# ---- Errors

def answer_with_every_errno(face, server):
    """Also with those that mean something else inside the program: each request has one answer, an
    error or, where that is a way out, what was asked for."""
    client = face.client(contexts=True)
    requests = ((nbd.READ, 4096, b""), (nbd.WRITE, 4096, b"x" * 4096), (nbd.READ, 100, b""),
                (nbd.WRITE, 100, b"x" * 100), (nbd.FLUSH, 0, b""), (nbd.TRIM, 4096, b""),
                (nbd.WRITE_ZEROES, 4096, b""), (nbd.CACHE, 4096, b""),
                (nbd.BLOCK_STATUS, 4096, b""))
    for number in (*range(1, 134), 255, 511):
        def refuse(request, number=number):
            request.reply(error=number)
        for step in (IO, BLOCK_STATUS, 0x8007):
            server.order(step, refuse, times=None)
        for command, length, data in requests:
            error, _ = client.request(command, 8192 if length else 0, length, 0, data)
            # What is no more than a wish may be fulfilled in another way.
            assert error != 0 or command == nbd.CACHE, (number, command)
    server.behave()
    face.serves(server)
    client.leave()
    face.serves(server)


# ---- What nobody asked for

def unasked(face, server, deed, because, step=UP):
    """It comes behind the info response of the path's next life, which ends at once."""
    client = face.client()
    face.serves(server, client)  # the path of the deed before is back: the next life is this one's
    face.forget_log()
    server.order(step, deed)
    server.order(IO, lambda request: request.connection.hang_up(), when=is_read)
    face.serves(server, client)
    face.says(f"127.0.0.1:{server.ports[0]}(?: is lost)?: .*(?:{because})")
    client.leave()


def unasked_access_notices(face, server):
    for value in (3, 4, 255, 0xFFFFFFF):
        unasked(face, server,
                lambda connection, value=value: connection.frame(WRITE, immediate=ACCESS | value),
                "access notice with an unknown value")
    unasked(face, server, lambda connection: connection.send(
        2 * struct.pack("<BBHIIIQII", WRITE, 1, 0, 0, ACCESS | 1, 0, 0, 0, 0)),
            "access notice before the last one")


def unasked_access_on_the_wrong_connection(face, server):
    """Unknown there."""
    ignored(face, server, [ACCESS | 2])


def unasked_replies(face, server):
    unasked(face, server, lambda connection: connection.frame(WRITE, immediate=1 << 28 | 3),
            "not in use|before the first request")
    unasked(face, server, lambda connection: connection.frame(SEND, b""), "message")


def unasked_writes(face, server):
    for key, address in ((0, 0), (KEY, 0), (KEY, CHUNK), (1 << 8, 0), (0xFFFFFFFF, 2**64 - 1)):
        unasked(face, server, lambda connection, key=key, address=address: connection.frame(
            WRITE, b"!" * 64, 0x10000000, key, address), "a key that does not exist")


def unasked_flood_of_heartbeats(face, server):
    """From a server that does not read the answers, and on the connection that owes one."""
    before = face.resident()
    unasked(face, server, lambda connection: flood(connection, HEARTBEAT, 1),
            "does not read the answers|closed")
    client = face.client()
    def flood_first(request):
        flood(request.connection, HEARTBEAT, 1)
        server.answer(request)
    server.order(IO, flood_first, when=is_read)
    assert client.read(0, 4096) == (0, bytes(server.disk[:4096]))
    client.leave()
    grown = face.resident() - before
    assert SLOW > 1 or grown < 8192, f"it grew by {grown} KiB"


# ---- Block status

def status_that_cannot_be(face, server):
    """The client gets an error, and the session goes on."""
    client = face.client(contexts=True)
    half = 32768
    for answer in (extents(), extents((0, 1)), extents((half, 0), (0, 1)),
                   extents((65536, 0), (1, 0)), extents((half, 0), (half + 1, 1)),
                   extents((2**64 - 1, 3)), extents((half, 0), (2**64 - half, 0)),
                   extents((half, 0), count=0xFFFFFFFF),
                   extents((half, 0), count=0), extents((half, 0), kind=7), b"\xff" * 65536):
        def reply(request, answer=answer):
            request.reply(answer[:request.room])
        server.order(BLOCK_STATUS, reply)
        error, _ = client.request(nbd.BLOCK_STATUS, 0, 65536)
        assert error != 0, answer[:64]
        assert client.read(0, 512) == (0, bytes(server.disk[:512]))
    client.leave()


def status_that_crawls(face, server):
    """One byte at a time, with flags that nobody knows: legal, if odd. Each answer ends, with a block
    that is data because the rest of it is not known."""
    client = face.client(contexts=True)
    server.order(BLOCK_STATUS, lambda request: request.reply(extents((1, 0xFFFFFFFC))), times=None)
    one = struct.pack(">III", 1, 512, 0)
    assert client.request(nbd.BLOCK_STATUS, 0, 65536) == (0, one)
    assert client.request(nbd.BLOCK_STATUS, 4096, 65536, nbd.REQ_ONE) == (0, one)
    server.order(BLOCK_STATUS, lambda request: request.reply(
        extents(*[(1, i % 4) for i in range((request.room - 8) // 16)])), times=None)
    error, data = client.request(nbd.BLOCK_STATUS, 0, 65536)
    assert error == 0 and 8 < len(data) <= 4 + 8 * 256, (error, len(data))
    client.leave()
