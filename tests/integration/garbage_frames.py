# SPDX-License-Identifier: BSD-3-Clause
"""Garbage in frames and requests, see garbage.py: the path closes."""
import struct

from garbage_peer import PORT, RANDOM, reads_and_leaves
from raw_peer import READ_IO, SEND, SEND_WITH_INVALIDATE, WRITE, Closed, Session


# ---- Frames

def frame_case(cid, **named):
    session = Session(PORT)
    session.wires[cid].frame(**named)
    session.expect_close()


def frame_of_an_unknown_kind():
    for opcode in (0, 4, 255):
        frame_case(1, opcode=opcode)


def frame_with_a_huge_length():
    for length in (1 << 28 | 1, 0x7FFFFFFF, 0xFFFFFFFF):
        frame_case(1, opcode=WRITE, immediate=0, length=length)


def frame_with_a_wrong_header_crc():
    frame_case(1, opcode=WRITE, immediate=0x80000000, header_crc=12345)


def frame_with_a_wrong_payload_crc():
    session = Session(PORT)
    address, key = session.chunks[0]
    session.wires[1].frame(WRITE, b"x" * 64, session.immediate(0, 60), key, address, payload_crc=1)
    session.expect_close()


def frame_to_a_key_that_does_not_exist():
    session = Session(PORT)
    address, key = session.chunks[0]
    session.wires[1].frame(WRITE, b"x" * 64, 0, key ^ 0x00800001, address)
    session.expect_close()


def frame_outside_the_memory():
    for offset in (-1, 0, 1 << 40, 1 << 63):
        session = Session(PORT)
        address, key = session.chunks[-1]
        end = address + session.chunk_size
        at = (end + offset) & 0xFFFFFFFFFFFFFFFF if offset >= 0 else end - 32
        session.wires[1].frame(WRITE, b"x" * 64, 0, key, at)
        session.expect_close()


def frame_that_wraps_around():
    session = Session(PORT)
    _, key = session.chunks[0]
    session.wires[1].frame(WRITE, b"x" * 64, 0, key, 0xFFFFFFFFFFFFFFE0)
    session.expect_close()


def frame_that_nobody_waits_for():
    for opcode in (SEND, SEND_WITH_INVALIDATE):
        session = Session(PORT)
        session.wires[1].frame(opcode, b"x" * 8 if opcode == SEND else b"")
        # A send-with-invalidate may be accepted as a plain completion.
        if opcode == SEND:
            session.expect_close()
        session.close()


def frame_cut_in_the_middle():
    for size in (1, 31, 32, 40):
        session = Session(PORT)
        header = struct.pack("<BBHIIIQII", WRITE, 0, 0, 100, 0, 0, 0, 0, 0)
        session.wires[1].send((header + bytes(100))[:size])
        session.close()


def frame_stream_of_random_bytes():
    for _ in range(10):
        session = Session(PORT)
        try:
            session.wires[1].send(RANDOM.randbytes(100000))
            session.expect_close()
        except Closed:
            pass


# ---- Requests

def request_case(payload, immediate, chunk=0):
    session = Session(PORT)
    address, key = session.chunks[chunk]
    session.wires[1].frame(WRITE, payload, immediate(session), key, address)
    session.expect_close()


def request_for_a_chunk_that_does_not_exist():
    session = Session(PORT)
    if session.queue_depth == 1 << (session.queue_depth - 1).bit_length():
        session.close()
        return  # every number that fits is a chunk
    address, key = session.chunks[0]
    session.wires[1].frame(WRITE, b"x" * 64, session.immediate(session.queue_depth, 60), key, address)
    session.expect_close()


def request_whose_header_is_beyond_the_chunk():
    for back in (0, 1, 3):
        request_case(b"x" * 64, lambda s, back=back: s.immediate(0, s.chunk_size - back))


def request_of_an_unknown_type():
    for kind in (0, 1, 4, 77):
        request_case(struct.pack("<HHHH", kind, 0, 0, 0), lambda s: s.immediate(0, 0))


def request_whose_user_message_is_longer_than_what_came():
    request_case(struct.pack("<HH", 2, 65535), lambda s: s.immediate(0, 0))


def request_with_too_many_descriptors():
    for count in (2, 255, 65535):
        request_case(struct.pack("<HHHH", 3, 0, 0, count) + bytes(16 * 4), lambda s: s.immediate(0, 0))


def request_whose_descriptor_is_empty():
    session = Session(PORT)
    session.start_read(session.io(0, READ_IO, 0, 0), 0)
    session.expect_close()


def request_whose_descriptor_is_longer_than_the_data():
    session = Session(PORT)
    message = session.io(0, READ_IO, 0, 512)
    header = struct.pack("<HHHH", 3, len(message), 0, 1) + struct.pack("<QII", 0, 1, 1 << 20)
    address, key = session.chunks[0]
    session.wires[1].frame(WRITE, message + header, session.immediate(0, 512 + len(message)), key,
                           address + 512)
    try:
        error, _, payload = session.answer_of()
        assert error != 0 and not payload or len(payload) <= 512, (error, len(payload))
    except Closed:
        pass
    session.close()


def request_immediates_of_unknown_kinds_are_ignored():
    session = Session(PORT)
    for kind in (3, 7, 10, 15):
        session.wires[1].frame(WRITE, immediate=kind << 28)
    reads_and_leaves(session)
