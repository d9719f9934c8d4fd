# SPDX-License-Identifier: BSD-3-Clause
"""Servers that do harm before a session is up, see hostile_server.py: clients are refused, the log
names the server and the cause, and when the server is good the program serves."""
import os
import re
import time

from hostile_face import SLOW
from hostile_peer import (CHUNK, DEPTH, HELLO, INFO, KEY, UP, hello, info_response, response)
from raw_peer import DIGEST_DATA, DIGEST_HEADER, SEND, WRITE


def is_refused(face, server, step, deed, because, within=5):
    """Every attempt of the program meets the deed."""
    face.forget_log()
    server.order(step, deed, times=None)
    began = time.monotonic()
    face.is_refused()
    took = time.monotonic() - began
    face.says(f"127.0.0.1:{server.ports[0]}.*(?:{because})")
    assert took < within * SLOW, f"it took {took:.1f} s"
    face.lives()


def sends(*pieces):
    return lambda connection: [connection.send(piece) for piece in pieces]


def frames(**named):
    return lambda connection: connection.frame(**named)


# ---- The answer to a hello

def handshake_refused_with_every_errno(face, server):
    for error in (*range(1, 134), 255, 511, 512, 4095):
        words = re.escape(os.strerror(error))
        is_refused(face, server, HELLO, sends(hello(response(error=error))),
                   f"refused the session: {words}")


def handshake_refused_with_an_errno_that_is_none(face, server):
    for error in (-17, 4096, 0x7FFF, 0x8000):
        is_refused(face, server, HELLO, sends(hello(response(error=error))), "out of range")


def handshake_hello_that_cannot_be(face, server):
    record = response()
    for wrong, because in (
            (hello(record, magic=b"RTRS-UDP"), "unexpected greeting"),
            (b"NBDMAGICIHAVEOPT\0\3", "NBD server"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "unexpected greeting"),
            (bytes(76), "unexpected greeting"),
            (os.urandom(4096), "unexpected greeting"),
            (hello(record, version=2), "version"),
            (hello(record, version=0), "version"),
            (hello(record, digests=4), "digests"),
            (hello(record, crc=0), "CRC|checksum|damaged")):
        is_refused(face, server, HELLO, sends(wrong), because)


def handshake_record_that_cannot_work(face, server):
    for named, because in (
            ({"magic": 0}, "magic"), ({"version": 0x0100}, "version"),
            ({"version": 0x0300}, "version"), ({"queue_depth": 0}, "range"),
            ({"queue_depth": 65535}, "range"), ({"max_io_size": 0}, "range"),
            ({"max_io_size": 511}, "range"), ({"max_io_size": 0xFFFFFFFF}, "range"),
            ({"max_io_size": 1 << 28}, "range"), ({"max_header_size": 0}, "range"),
            ({"max_header_size": 311}, "range"), ({"max_header_size": 0xFFFFF000}, "range"),
            ({"access": 3}, "range"), ({"access": 255}, "range")):
        is_refused(face, server, HELLO, sends(hello(response(**named))), because)


def handshake_other_record_for_the_second_connection(face, server):
    """Sizes are taken from the first one, but what is there must be a record."""
    def second(connection):
        connection.send(hello(response(version=0x0100 if connection.cid else 0x0200)))
    is_refused(face, server, HELLO, second, "version")


def handshake_frames_behind_a_hello(face, server):
    """Nothing may come before the info request."""
    def early(connection):
        connection.send(hello(response()))
        connection.frame(WRITE, immediate=0x80000000)
    is_refused(face, server, HELLO, early, "receives|info re")


# ---- The info exchange

def handshake_info_response_that_cannot_be(face, server):
    chunks = DEPTH * CHUNK
    for wrong, because in (
            (b"", "too short"), (info_response()[:7], "too short"),
            (info_response()[:-1], "too short"), (info_response(kind=0), "type"),
            (info_response(kind=2), "type"), (info_response(count=0), "count"),
            (info_response(count=2), "too short"), (info_response(count=65535), "count"),
            (info_response() + bytes(16 * DEPTH), "longer than"),
            (bytes(1 << 20), "longer than"),
            (info_response(descriptors=((0, KEY, 0),)), "length"),
            (info_response(descriptors=((0, KEY, CHUNK),)), "length|count"),
            (info_response(descriptors=((0, KEY, chunks - 1),)), "length"),
            (info_response(descriptors=((0, KEY, chunks + CHUNK),)), "length"),
            (info_response(descriptors=((0, KEY, 0xFFFFFFFF),)), "length"),
            (info_response(descriptors=((2**64 - 1, KEY, chunks),)), "length"),
            (info_response(descriptors=((0, KEY, chunks), (0, KEY, chunks))), "length")):
        is_refused(face, server, INFO, frames(opcode=SEND, payload=wrong), because)


def handshake_something_else_than_an_info_response(face, server):
    for named, because in (
            ({"opcode": WRITE, "immediate": 0x80000000}, "before the info response"),
            ({"opcode": WRITE, "immediate": 0x10000000}, "before the info response"),
            ({"opcode": WRITE, "immediate": 0xB0000002}, "before the info response"),
            ({"opcode": WRITE, "payload": bytes(64), "key": KEY}, "key"),
            ({"opcode": 0}, "frame|operation"), ({"opcode": 255}, "frame|operation"),
            ({"opcode": SEND, "length": 0xFFFFFFFF}, "frame|length"),
            ({"opcode": SEND, "length": 1 << 28 | 1}, "frame|length")):
        is_refused(face, server, INFO, frames(**named), because)


def handshake_digests_that_are_wrong(face, server):
    def chosen(connection):
        connection.send(hello(response(), digests=DIGEST_HEADER | DIGEST_DATA))
    server.order(UP, lambda connection: None)
    for named, because in (({"header_crc": 1}, "frame.*(?i:crc|checksum|digest)|damaged"),
                           ({"payload_crc": 1}, "damaged on the way")):
        def wrong(connection, named=named):
            connection.digests = DIGEST_HEADER | DIGEST_DATA
            connection.frame(SEND, info_response(), flags=0, **named)
        server.order(INFO, wrong, times=None)
        is_refused(face, server, HELLO, chosen, because)


def handshake_hang_up_after_each_step(face, server):
    def hang_up(connection):
        connection.hang_up()
    for step, when, because in (
            (HELLO, lambda c: c.cid == 0, "closed the connection during the handshake"),
            (HELLO, lambda c: c.cid == 1, "closed the connection"),
            (INFO, None, "closed the connection"), (UP, None, "closed the connection|answer")):
        server.behave()
        face.forget_log()
        server.order(step, hang_up, times=None, when=when)
        began = time.monotonic()
        face.is_refused()
        took = time.monotonic() - began
        assert took < 5 * SLOW, f"it took {took:.1f} s"
        face.says(f"127.0.0.1:{server.ports[0]}.*(?:{because})")


def handshake_half_a_record_and_a_hang_up(face, server):
    def half(connection):
        connection.send(hello(response())[:40])
        connection.hang_up()
    is_refused(face, server, HELLO, half, "closed the connection")
    server.behave()

    def half_an_info(connection):
        connection.send(bytes((SEND,)) + bytes(3) + b"\x18")
        connection.hang_up()
    is_refused(face, server, INFO, half_an_info, "in the middle of a frame")
