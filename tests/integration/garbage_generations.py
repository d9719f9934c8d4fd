# SPDX-License-Identifier: BSD-3-Clause
"""Writes whose generations cannot be, see garbage.py: answered as docs/protocol.md says, RTRS extension.

The server has a queue depth of 48, and `slow`, whose writes take a second.
"""
import errno
import os
import struct
import time

from garbage_peer import PORT, expect, reads_and_leaves
from raw_peer import (EXACTLY_ONCE, RACES, READ_IO, TIMEOUT, USER_MESSAGES, WRITE, WRITE_IO, Closed,
                      Session)

SETTLE = 1
BUFFER = 3  # the permit that is abused
GENERATIONS = EXACTLY_ONCE | USER_MESSAGES


def extended(session_uuid=None, name=None, more=0):
    session = Session(PORT, name=name, features=GENERATIONS | more, session_uuid=session_uuid)
    assert session.answer["features"] & EXACTLY_ONCE, "the server does not know generations"
    return session


def open_when_free(session, name):
    """A write of a lost session that still runs keeps everybody from opening it for writing."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return session.open(name)[0]
        except PermissionError:
            assert time.monotonic() < deadline, "the lost session keeps the storage"
            time.sleep(0.05)


def two_paths():
    """Of one session."""
    name = b"two-" + os.urandom(4).hex().encode()
    one = extended(name=name)
    return one, extended(one.session_uuid, name)


def numbered(session, device, generation, flags=0, sector=0, length=512):
    return (session.io(device, WRITE_IO, sector, length)
            + struct.pack("<IHH", generation & 0xFFFFFFFF, flags, 0))


def start(session, device, generation, fill, flags=0, buffer=BUFFER, sector=0):
    session.start_write(numbered(session, device, generation, flags, sector), fill * 512,
                        buffer=buffer)


def write(session, device, generation, fill, **named):
    """Returns the errno of the answer."""
    start(session, device, generation, fill, **named)
    error, buffer, _ = session.answer_of()
    expect(buffer, named.get("buffer", BUFFER))
    return error


def holds(session, device, fill):
    """Also proves that nothing else was answered: the next answer is that of this read."""
    session.start_read(session.io(device, 0, 0, 512), 512, buffer=BUFFER + 1)
    error, buffer, data = session.answer_of()
    expect(error, 0)
    expect(buffer, BUFFER + 1)
    expect(data, fill * 512)


def bystander_of(what):
    """What `what` does must not be noticed by another session that was there before."""
    session = extended()
    what()
    reads_and_leaves(session)


# ---- Answered, and the path goes on

def generation_that_is_older_is_dropped_without_an_answer():
    session = extended()
    device, _ = session.open(b"disk0")
    expect(write(session, device, 5, b"A"), 0)
    for older in (4, 1, 0, 5 + 0x80000000, 6 + 0x80000000, -1):
        start(session, device, older, b"B")
        holds(session, device, b"A")
    expect(write(session, device, 6, b"C"), 0)
    holds(session, device, b"C")
    session.close()


def generation_that_is_older_is_answered_with_estale_where_copies_may_race():
    session = extended(more=RACES)
    assert session.answer["features"] & RACES, "the server knows no races"
    device, _ = session.open(b"disk0")
    expect(write(session, device, 5, b"A"), 0)
    for older in (4, 1, -1):
        expect(write(session, device, older, b"B"), errno.ESTALE)
        holds(session, device, b"A")
    expect(write(session, device, 6, b"C"), 0)
    session.close()


def generation_that_has_ended_is_answered_and_not_carried_out():
    session = extended()
    device, sectors = session.open(b"disk0")
    expect(write(session, device, 1, b"A"), 0)
    expect(write(session, device, 1, b"B"), 0)
    holds(session, device, b"A")
    failed = write(session, device, 2, b"B", sector=sectors)
    assert failed != 0
    expect(write(session, device, 2, b"B"), failed)
    holds(session, device, b"A")
    session.close()


def generation_that_jumps_is_newer_up_to_half_of_all_numbers():
    session = extended()
    device, _ = session.open(b"disk0")
    newest = 0
    for jump in (1, 1000000, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 3):
        newest += jump
        expect(write(session, device, newest, b"%d" % (jump % 10)), 0)
        holds(session, device, b"%d" % (jump % 10))
        start(session, device, newest - 1, b"!")
        holds(session, device, b"%d" % (jump % 10))
    # The numbers of another permit are its own.
    expect(write(session, device, 1, b"Z", buffer=BUFFER + 2), 0)
    holds(session, device, b"Z")
    session.close()


def generation_that_was_settled_is_cancelled_for_ever():
    session = extended()
    device, _ = session.open(b"disk0")
    expect(write(session, device, 1, b"A"), 0)
    expect(write(session, device, 1, b"B", flags=SETTLE), 0)
    expect(write(session, device, 2, b"B", flags=SETTLE), errno.ECANCELED)
    expect(write(session, device, 2, b"B"), errno.ECANCELED)
    holds(session, device, b"A")
    # Flags that nobody knows are none.
    expect(write(session, device, 3, b"C", flags=0xFFFF & ~SETTLE), 0)
    holds(session, device, b"C")
    session.close()


def generation_cut_off_the_message_that_is_then_too_short():
    session = extended()
    device, _ = session.open(b"disk0")
    expect(write(session, device, 1, b"A"), 0)
    # The last eight bytes of the message count as its trailer: of those the generation is 0.
    session.start_write(session.io(device, WRITE_IO, 0, 512), b"B" * 512, buffer=BUFFER + 2)
    expect(session.answer_of()[0], errno.EINVAL)
    holds(session, device, b"A")
    session.close()


def generation_that_executes_is_answered_on_both_paths_and_carried_out_once():
    one, two = two_paths()
    device, _ = one.open(b"slow")
    start(one, device, 1, b"A")
    start(two, device, 1, b"B")
    for path in (one, two):
        error, buffer, _ = path.answer_of()
        expect((error, buffer), (0, BUFFER))
    holds(one, device, b"A")
    # What the one path has carried out is old on the other one, too.
    start(two, device, 0, b"B")
    holds(two, device, b"A")
    one.close()
    two.close()


# ---- At the cost of the path, or of the session

def lost(session, message, buffer=BUFFER):
    """The path ends, with no answer before."""
    try:
        session.start_write(message, b"!" * 512, buffer=buffer)
        frame = session.next_frame(1)
        raise AssertionError(f"answered: {frame}")
    except Closed:
        session.expect_close()


def generation_missing_at_the_cost_of_the_path():
    def what():
        for size in range(8):
            session = extended()
            session.start_write(bytes(size), buffer=BUFFER)
            session.expect_close()
    bystander_of(what)


def generation_of_a_permit_that_does_not_exist_at_the_cost_of_the_path():
    def what():
        for permit in (48, 63):
            session = extended()
            device, _ = session.open(b"disk0")
            expect(session.queue_depth, 48)
            session.chunks += session.chunks[:16]
            lost(session, numbered(session, device, 1), buffer=permit)
    bystander_of(what)


def generation_on_the_same_path_before_the_answer_at_the_cost_of_the_path():
    def what():
        for second in (1, 2, 0):
            session = extended()
            device = open_when_free(session, b"slow")
            start(session, device, 1, b"A")
            lost(session, numbered(session, device, second))
    bystander_of(what)


def begin_write(session, cid, size=64 * 1024):
    """The first half of a large write arrives."""
    address, key = session.chunks[BUFFER]
    session.wires[cid].frame(WRITE, b"x" * (size // 2), session.immediate(BUFFER, size - 4), key, address,
                             length=size)


def generation_where_another_connection_writes_at_the_cost_of_the_path():
    def what():
        for size in (512, 8192):
            session = extended()
            device, _ = session.open(b"disk0")
            begin_write(session, 0)
            session.call(session.io(device, READ_IO, 0, 512), 512, buffer=BUFFER + 1)  # that has begun
            session.start_write(numbered(session, device, 1, length=size), b"!" * size, buffer=BUFFER)
            session.expect_close()
        session = extended()
        begin_write(session, 0)
        session.call(session.io(session.open(b"disk0")[0], READ_IO, 0, 512), 512, buffer=BUFFER + 1)
        # Its bytes are what the other connection has left there.
        session.wires[1].frame(WRITE, immediate=session.immediate(BUFFER, 100))
        session.expect_close()
    bystander_of(what)


def generation_whose_chunk_is_written_to_while_it_executes_at_the_cost_of_the_path():
    def what():
        for cid in (0, 1):
            session = extended()
            device = open_when_free(session, b"slow")
            start(session, device, 1, b"A")
            session.call(session.io(device, READ_IO, 0, 512), 512, buffer=BUFFER + 1)
            begin_write(session, cid)
            session.expect_close()
    bystander_of(what)


def generation_across_two_chunks_at_the_cost_of_the_path():
    def what():
        session = extended()
        address, key = session.chunks[BUFFER]
        session.wires[1].frame(WRITE, b"x" * 64, session.immediate(BUFFER, 60), key,
                               address + session.chunk_size - 32)
        session.expect_close()
    bystander_of(what)


def generation_on_another_path_before_the_answer_at_the_cost_of_both_paths():
    def what():
        for jump in (1, 0x7FFFFFFF):
            one, two = two_paths()
            device = open_when_free(one, b"slow")
            start(one, device, 1, b"A")
            lost(two, numbered(two, device, 1 + jump))
            one.expect_close()
            after = extended()
            holds(after, open_when_free(after, b"slow"), b"A")  # what was under way, whole
            after.close()
    bystander_of(what)
