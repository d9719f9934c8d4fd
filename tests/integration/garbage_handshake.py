# SPDX-License-Identifier: BSD-3-Clause
"""Garbage instead of a hello or an info request, see garbage.py."""
import errno
import os
import struct

from garbage_peer import PORT, RANDOM, expect, reads_and_leaves
from raw_peer import (EXACTLY_ONCE, SEND, USER_MESSAGES, WRITE, Closed, Session, Wire,
                      connect_request, info_request)


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


def hello_with_a_uuid_of_zeros():
    hello_case(record=connect_request(session_uuid=bytes(16)), answered=[errno.EINVAL])
    hello_case(record=connect_request(path_uuid=bytes(16), session_uuid=os.urandom(16)),
               answered=[errno.EINVAL])


def hello_that_a_later_attempt_has_overtaken():
    for features in (USER_MESSAGES, USER_MESSAGES | EXACTLY_ONCE):
        session = Session(PORT, features=features, reconnect=7)
        for cid in (1, 0) if features & EXACTLY_ONCE else (1,):
            for older in (6, 0, 65535):
                hello_case(record=session.request(cid, 2, features, reconnect=older),
                           answered=[errno.ECONNRESET])
        reads_and_leaves(session)


def hello_of_an_old_attempt_after_the_path_started_again():
    features = USER_MESSAGES | EXACTLY_ONCE
    session = Session(PORT, features=features, reconnect=65535)
    again = [Wire(PORT), Wire(PORT)]
    for cid, wire in enumerate(again):
        wire.hello(session.request(cid, 2, features, reconnect=0))  # the number after 65535
        expect(wire.hello_answer()["error"], 0)
    old, session.wires = session.wires, again
    session.exchange_info(session.name)
    for wire in old:
        wire.expect_close()
    for cid in (0, 1):
        hello_case(record=session.request(cid, 2, features, reconnect=65535),
                   answered=[errno.ECONNRESET])
    reads_and_leaves(session)


def hello_for_a_session_that_does_not_exist():
    hello_case(record=connect_request(cid=1, first=0, session_uuid=os.urandom(16)),
               answered=[errno.ENXIO, errno.ECONNRESET])


def hello_with_a_connection_that_is_there_already():
    session = Session(PORT)
    hello_case(record=session.request(1, 2), answered=[errno.ECONNRESET])
    reads_and_leaves(session)


def hello_that_starts_a_path_again():
    features = USER_MESSAGES | EXACTLY_ONCE
    session = Session(PORT, features=features)
    again = Wire(PORT)
    again.hello(session.request(0, 2, features))
    expect(again.hello_answer()["error"], 0)
    session.expect_close()
    again.close()


def hello_that_starts_a_path_again_without_generations():
    session = Session(PORT)
    hello_case(record=session.request(0, 2), answered=[errno.ECONNRESET])
    reads_and_leaves(session)


def hello_with_other_features_than_its_session():
    session = Session(PORT)
    hello_case(record=connect_request(0, 2, os.urandom(16), session.session_uuid, features=1),
               answered=[errno.ECONNRESET])
    reads_and_leaves(session)


def hello_with_unknown_digests_and_features():
    wire = Wire(PORT)
    wire.hello(connect_request(session_uuid=os.urandom(16), features=0xFFFFFFFF), digests=0xFFFF)
    answer = wire.hello_answer()
    expect(answer["error"], 0)
    assert wire.digests & ~3 == 0, f"the server agreed to unknown digests {wire.digests:#x}"
    wire.close()


def hello_with_an_extension_of_another_version_or_magic():
    for at, value in ((48, 0), (48, 2), (46, 0x53)):
        record = bytearray(connect_request(session_uuid=os.urandom(16), features=EXACTLY_ONCE))
        record[at] = value
        wire = Wire(PORT)
        wire.hello(bytes(record))
        answer = wire.hello_answer()
        keys = ("error", "extension_magic", "features", "epoch")
        expect(tuple(answer[key] for key in keys), (0, 0, 0, 0))
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
    reads_and_leaves(session)


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
