#!/usr/bin/python3
"""Sends one stage's worth of garbage to a server: garbage.py PORT STAGE

Each function named STAGE_... is a case. A title says what the server must do; after every case a
correct session must still work. The server exports `disk0` (writable) and `readonly`.
"""
import errno
import os
import random
import struct
import sys
import traceback

from raw_peer import (DISCARD, FLUSH, MIGRATION, READ_IO, RO, RW, SEND, SEND_WITH_INVALIDATE,
                      WRITE, WRITE_IO, WRITE_ZEROES, Closed, Session, Wire, connect_request,
                      info_request)

PORT = int(sys.argv[1])
RANDOM = random.Random(int(os.environ.get("SEED", "1")))


def expect(value, *allowed):
    assert value in allowed, f"got {value}, expected one of {allowed}"


def good_session():
    """A correct client: what must work at all times."""
    session = Session(PORT)
    device, _ = session.open(b"disk0", RO)
    error, data = session.read(device, 0, 4096)
    assert error == 0 and len(data) == 4096
    session.close()


# ---- Not our protocol at all

def stranger_that_says_nothing_and_leaves():
    Wire(PORT).close()


def stranger_with_random_bytes():
    for size in (1, 8, 75, 76, 77, 4096):
        wire = Wire(PORT)
        wire.send(RANDOM.randbytes(size))
        if size >= 8:
            wire.expect_close()
        wire.close()


def stranger_with_zeroes():
    wire = Wire(PORT)
    wire.send(bytes(100000))
    wire.expect_close()


def stranger_that_speaks_http():
    wire = Wire(PORT)
    wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wire.expect_close()


def stranger_that_speaks_tls():
    wire = Wire(PORT)
    wire.send(bytes.fromhex("16030100c8010000c40303") + RANDOM.randbytes(196))
    wire.expect_close()


def stranger_that_speaks_nbd():
    wire = Wire(PORT)
    wire.send(struct.pack(">Q", 0x49484156454F5054) + bytes(12))
    wire.expect_close()


# ---- The hello

def hello_case(answered=(), **named):
    """Sends one hello; it must be refused, with an errno in `answered` or by closing."""
    wire = Wire(PORT)
    record = named.pop("record", connect_request())
    wire.hello(record, **named)
    try:
        answer = wire.hello_answer()
    except Closed:
        return
    expect(answer["error"], *answered)
    wire.expect_close()


def hello_cut_short():
    for size in (8, 9, 40, 75):
        wire = Wire(PORT)
        wire.send((b"RTRS-TCP" + bytes(100))[:size])
        wire.close()


def hello_with_another_version():
    hello_case(version=0)
    hello_case(version=2)


def hello_with_a_wrong_crc():
    hello_case(crc=0)
    hello_case(crc=0xFFFFFFFF)


def hello_with_a_wrong_record_magic():
    hello_case(record=connect_request(magic=0), answered=[errno.ECONNRESET])


def hello_with_another_major_version():
    hello_case(record=connect_request(version=0x0100), answered=[errno.ECONNRESET])
    hello_case(record=connect_request(version=0x0300), answered=[errno.ECONNRESET])


def hello_with_impossible_connection_numbers():
    for cid, count in ((2, 2), (0, 0), (65535, 65535), (1, 1), (0, 65535), (0, 4096)):
        hello_case(record=connect_request(cid, count, session_uuid=os.urandom(16)),
                   answered=[errno.ECONNRESET, errno.EINVAL, errno.ENOMEM])


def hello_for_a_session_that_does_not_exist():
    hello_case(record=connect_request(cid=1, first=0, session_uuid=os.urandom(16)),
               answered=[errno.ENXIO, errno.ECONNRESET])


def hello_with_a_connection_that_is_there_already():
    session = Session(PORT)
    for cid in (0, 1):
        hello_case(record=session.request(cid, 2), answered=[errno.ECONNRESET, errno.EEXIST])
    device, _ = session.open(b"disk0", RO)
    expect(session.read(device, 0, 512)[0], 0)
    session.close()


def hello_that_takes_over_another_clients_session():
    session = Session(PORT)
    hello_case(record=connect_request(0, 2, os.urandom(16), session.session_uuid),
               answered=[errno.EEXIST, errno.ECONNRESET])
    device, _ = session.open(b"disk0", RO)
    expect(session.read(device, 0, 512)[0], 0)
    session.close()


def hello_with_unknown_digests_and_features():
    wire = Wire(PORT)
    wire.hello(connect_request(session_uuid=os.urandom(16), features=0xFFFFFFFF), digests=0xFFFF)
    answer = wire.hello_answer()
    expect(answer["error"], 0)
    assert wire.digests & ~3 == 0, f"the server agreed to unknown digests {wire.digests:#x}"
    wire.close()


def hello_and_nothing_more():
    Session(PORT, cids=3, info=False).close()


# ---- The info exchange

def info_case(message, cid=0, **named):
    session = Session(PORT, info=False)
    session.wires[cid].frame(SEND, message, **named)
    session.expect_close()


def info_of_a_wrong_length():
    for size in (0, 1, 2, 271, 273, 4096):
        info_case(info_request().ljust(size, b"x")[:size])


def info_of_a_wrong_type():
    for kind in (1, 2, 3, 4, 65535):
        info_case(info_request(kind=kind))


def info_with_a_bad_name():
    for name in (b"", b"a/b", b"..", b"a.b", b"new\nline", b"\x80\xff", b"x" * 255):
        info_case(info_request(name))


def info_with_a_name_that_is_taken():
    session = Session(PORT, name=b"taken")
    info_case(info_request(b"taken"))
    device, _ = session.open(b"disk0", RO)
    expect(session.read(device, 0, 512)[0], 0)
    session.close()


def info_on_another_connection():
    info_case(info_request(), cid=1)


def info_while_connections_are_missing():
    session = Session(PORT, cids=1, info=False)
    session.close()
    wire = Wire(PORT)
    wire.hello(connect_request(0, 3, session_uuid=os.urandom(16)))
    expect(wire.hello_answer()["error"], 0)
    wire.frame(SEND, info_request())
    wire.expect_close()


def info_twice():
    session = Session(PORT)
    session.wires[0].frame(SEND, info_request(b"again"))
    session.expect_close()


def info_skipped():
    session = Session(PORT, info=False)
    session.wires[1].frame(WRITE, b"x" * 64, immediate=0, key=1, address=0)
    session.expect_close()


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
    device, _ = session.open(b"disk0", RO)
    expect(session.read(device, 0, 512)[0], 0)
    session.close()


# ---- RNBD messages: answered with an errno, and the session goes on

def message_session(name=b"disk0", mode=RO):
    session = Session(PORT)
    device, sectors = session.open(name, mode)
    return session, device, sectors


def still_works(session, device):
    error, data = session.read(device, 0, 512)
    assert error == 0 and len(data) == 512, error
    session.close()


def message_of_an_unknown_type():
    session, device, _ = message_session()
    for kind in (1, 3, 6, 999, 0x8000, 0x8002, 0x80FF, 0xFFFF):
        for body in (b"", bytes(60)):
            message = struct.pack("<HH", kind, 0) + body
            expect(session.call(message, 64)[0], errno.EINVAL, errno.EOPNOTSUPP)
            expect(session.call(message)[0], errno.EINVAL, errno.EOPNOTSUPP)
    still_works(session, device)


def message_too_short():
    session, device, _ = message_session()
    for size in (0, 1, 3):
        expect(session.call(b"\x04\x00\x00\x00"[:size], 512)[0], errno.EINVAL)
    for kind in (0, 2, 4, 5, 0x8001, 0x8003, 0x8005, 0x8007):
        expect(session.call(struct.pack("<HH", kind, 0), 512)[0], errno.EINVAL, errno.ENOTCONN)
    still_works(session, device)


def message_random():
    session, device, _ = message_session()
    for _ in range(200):
        size = RANDOM.randrange(0, 265)
        message = RANDOM.randbytes(size)
        if RANDOM.random() < 0.7 and size >= 2:
            kind = RANDOM.choice([0, 2, 4, 0x8001, 0x8003, 0x8005, 0x8007])
            message = struct.pack("<H", kind) + message[2:]
        session.call(message, RANDOM.choice([None, 16, 512, 4096]))
    still_works(session, device)


def message_open_with_a_bad_name():
    session, device, _ = message_session()
    names = (b"", b"nothing", b"../disk0", b"/etc/passwd", b"disk0/../disk0", b"disk0\nx", b"\xff")
    for name in names:
        message = struct.pack("<HHBB255s3x", 2, 0, RO, 0, name)
        expect(session.call(message, 56)[0], errno.ENOENT, errno.EINVAL)
    unterminated = struct.pack("<HHBB255s3x", 2, 0, RO, 0, b"x" * 255)
    expect(session.call(unterminated, 56)[0], errno.EINVAL)
    still_works(session, device)


def message_open_with_an_unknown_mode():
    session, device, _ = message_session()
    for mode in (3, 77, 255):
        message = struct.pack("<HHBB255s3x", 2, 0, mode, 0, b"disk0")
        expect(session.call(message, 56)[0], errno.EINVAL)
    still_works(session, device)


def message_open_without_room_for_the_answer():
    session, device, _ = message_session()
    message = struct.pack("<HHBB255s3x", 2, 0, RO, 0, b"readonly")
    for room in (1, 55):
        expect(session.call(message, room)[0], errno.EINVAL)
    expect(session.call(message)[0], errno.EINVAL)
    still_works(session, device)


def message_io_on_a_device_that_is_not_open():
    session, device, _ = message_session()
    for other in (device + 1, 1000, 0xFFFFFFFF):
        error, _ = session.read(other, 0, 512)
        assert error != 0
    still_works(session, device)


def message_io_outside_the_device():
    session, device, sectors = message_session(mode=RW)
    for sector, length in ((sectors, 512), (sectors - 1, 1024), (1 << 55, 512), (1 << 63, 512),
                           (0xFFFFFFFFFFFFFFFF, 512)):
        error, payload = session.read(device, sector, length)
        assert error != 0 and not payload, (sector, length, error)
        expect(session.write(device, sector, bytes(length))[0] != 0, True)
    for operation in (DISCARD, WRITE_ZEROES):
        for sector, length in ((sectors, 512), (0, 0xFFFFFE00), (sectors - 1, 1024)):
            error, _ = session.call(session.io(device, operation, sector, length))
            if length <= sectors * 512 - sector * 512:
                continue
            assert error != 0, (operation, sector, length)
    still_works(session, device)


def message_io_whose_length_is_not_that_of_the_data():
    session, device, _ = message_session(mode=RW)
    for claimed, sent in ((1024, 512), (512, 1024), (0, 512), (512, 0), (513, 513)):
        message = session.io(device, WRITE_IO, 0, claimed)
        error, _ = session.call(message, None, b"x" * sent)
        assert error != 0, (claimed, sent)
    for claimed, room in ((1024, 512), (0, 512), (512, 1024)):
        error, _ = session.call(session.io(device, READ_IO, 0, claimed), room)
        assert error != 0, (claimed, room)
    still_works(session, device)


def message_write_on_a_read_only_mapping():
    for name, mode in ((b"disk0", RO), (b"readonly", RO)):
        session, device, _ = message_session(name, mode)
        _, before = session.read(device, 0, 4096)
        for message, data in ((session.io(device, WRITE_IO, 0, 4096), b"!" * 4096),
                              (session.io(device, DISCARD, 0, 4096), b""),
                              (session.io(device, WRITE_ZEROES, 0, 4096), b"")):
            error, _ = session.call(message, None, data)
            expect(error, errno.EROFS, errno.EPERM, errno.EACCES, errno.EIO)
        # The same under another name of the request: a write that arrives as a read.
        error, _ = session.call(session.io(device, WRITE_IO, 0, 512), 512)
        assert error != 0
        assert session.read(device, 0, 4096)[1] == before, "something was written"
        session.close()


def message_open_for_writing_of_a_read_only_export():
    session, device, _ = message_session()
    for mode in (RW, MIGRATION):
        try:
            session.open(b"readonly", mode)
            raise AssertionError("opened for writing")
        except OSError as error:
            expect(error.errno, errno.EROFS, errno.EACCES, errno.EPERM)
    still_works(session, device)


def message_operations_that_do_not_exist():
    session, device, _ = message_session(mode=RW)
    for operation in (6, 7, 9, 77, 255):
        error, _ = session.call(session.io(device, operation, 0, 512), None, bytes(512))
        assert error != 0, operation
    error, _ = session.call(session.io(device, FLUSH, 0, 0))
    expect(error, 0)
    still_works(session, device)


def message_close_of_what_is_not_open():
    session, device, _ = message_session()
    for other in (device + 1, 0xFFFFFFFF):
        expect(session.call(struct.pack("<HHI", 5, 0, other))[0], 0, errno.ENOTCONN, errno.EINVAL,
               errno.ENOENT)
    still_works(session, device)


def message_of_one_client_does_not_reach_anothers_device():
    one, device, _ = message_session()
    two = Session(PORT)
    error, payload = two.read(device, 0, 512)
    assert error != 0 and not payload
    two.close()
    still_works(one, device)


def main():
    stage = sys.argv[2] + "_"
    cases = [(name, function) for name, function in globals().items()
             if name.startswith(stage) and getattr(function, "__module__", "") == "__main__"
             and not name.endswith("_case") and not name.endswith("_session")]
    assert cases, f"no case belongs to {sys.argv[2]}"
    failures = 0
    good_session()
    for name, function in cases:
        try:
            function()
            good_session()
            print("ok  ", name.replace("_", " "))
        except Exception:  # the next case may still tell something
            failures += 1
            print("FAIL", name.replace("_", " "))
            traceback.print_exc(file=sys.stdout)
    print(f"{len(cases)} cases, {failures} failed")
    sys.exit(1 if failures else 0)


main()
