# SPDX-License-Identifier: BSD-3-Clause
"""Garbage in RNBD messages, see garbage.py: answered with an errno, and the session goes on."""
import errno
import os
import struct

from garbage_peer import PORT, RANDOM, expect
from raw_peer import DISCARD, FLUSH, MIGRATION, READ_IO, RO, RW, WRITE_IO, WRITE_ZEROES, Closed, Session


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


def message_one_byte_too_short():
    """What the one before it left in the server's memory must not complete it."""
    session, device, _ = message_session(mode=RW)
    kinds = {0: (struct.pack("<HHB31x", 0, 0, 2), 36), 0x8001: (struct.pack("<HHI", 0x8001, 0, device), 64),
             0x8003: (struct.pack("<HHI", 0x8003, 0, 0), 4096),
             0x8005: (struct.pack("<HHIQQ", 0x8005, 0, device, 0, 4096), 64),
             0x8007: (struct.pack("<HHIQQ", 0x8007, 0, device, 0, 4096), None),
             4: (session.io(device, READ_IO, 0, 512)[:26], 512),
             2: (struct.pack("<HHBB255s3x", 2, 0, RO, 0, b"readonly"), 56),
             5: (struct.pack("<HHI", 5, 0, 0xFFFFFFFF), None)}
    for kind, (message, room) in kinds.items():
        least = errno.EOPNOTSUPP if kind == 0x8007 else 0  # files know no read-ahead but in the cache
        expect(session.call(message, room)[0], 0, least)
        for size in (len(message) - 1, 5, 4):
            assert session.call(message[:size], room)[0] == errno.EINVAL, (kind, size)
        expect(session.call(message, room)[0], 0, least)
    assert session.call(struct.pack("<HHI", 5, 0, device)[:7])[0] == errno.EINVAL
    still_works(session, device)


def message_in_the_wrong_direction():
    """Without a descriptor a read has room for nothing, whatever is written in front of its message."""
    session, device, _ = message_session(mode=RW)
    _, before = session.read(device, 0, 4096)
    for operation in (READ_IO, WRITE_IO, DISCARD, WRITE_ZEROES):
        message = session.io(device, operation, 0, 512)
        expect(session.call(message, 0)[0], errno.EINVAL)
        expect(session.call(message, 512)[0], 0 if operation == READ_IO else errno.EINVAL)
    for operation in (READ_IO, DISCARD):
        expect(session.call(session.io(device, operation, 0, 512), None, bytes(512))[0], errno.EINVAL)
    expect(session.call(session.io(device, WRITE_ZEROES, 0, 512), None, bytes(512))[0], errno.EOPNOTSUPP)
    # FLUSH may come either way, but has neither data nor a length.
    for room in (0, None):
        expect(session.call(session.io(device, FLUSH, 2**64 - 1), room)[0], 0)
        expect(session.call(session.io(device, FLUSH, 0, 512), room)[0], errno.EINVAL)
    expect(session.call(session.io(device, FLUSH), 512)[0], errno.EINVAL)
    expect(session.call(session.io(device, FLUSH), None, bytes(512))[0], errno.EINVAL)
    expect(session.read(device, 0, 4096), (0, before))
    still_works(session, device)


def on_crude(answer):
    """On storage of 4096-byte blocks that has neither DISCARD nor WRITE ZEROES."""
    session, device, sectors = message_session(b"crude", RW)
    _, before = session.read(device, 0, 8192)
    answer(session, device, sectors)
    expect(session.read(device, 0, 8192), (0, before))
    session.close()


def crude_operation_that_was_not_offered():
    def answer(session, device, sectors):
        for operation in (DISCARD, WRITE_ZEROES):
            for sector, length in ((0, 4096), (1, 512), (sectors, 4096), (0, 0)):
                expect(session.call(session.io(device, operation, sector, length))[0],
                       errno.EOPNOTSUPP)
        error, data = session.call(struct.pack("<HHBB255s3x", 2, 0, RW, 0, b"crude"), 56)
        expect((error, *struct.unpack_from("<III", data, 20)), (0, 0, 0, 0))
    on_crude(answer)


def crude_io_of_a_part_of_a_block():
    def answer(session, device, _):
        for sector, length in ((0, 512), (0, 3584), (1, 4096), (7, 512), (0, 4608), (4, 8192)):
            expect(session.read(device, sector, length)[0], errno.EINVAL)
            expect(session.write(device, sector, b"!" * length)[0], errno.EINVAL)
    on_crude(answer)


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


def search_names_that_lead_out_of_the_directory_or_to_no_disk():
    """The directory of the session is tree/own, see garbage.sh."""
    session = Session(PORT, name=b"own")
    for name, size in ((b"disk", 2048), (b"inner/disk", 4096)):
        expect(session.open(name, RO)[1], size)
    outside = os.path.abspath("outside").encode()
    names = (b"", b".", b"..", b"/", b"//", b"../other/disk", b"../../outside", b"inner/../../other/disk",
             b"inner/..", b"./../other/disk", outside, b"/" + outside, b"/../../outside", b"link", b"inner/link",
             b"up/other/disk", b"loop", b"magic/etc/passwd", b"magic" + outside, b"fifo", b"socket", b"inner", b"inner/",
             b"disk/../disk/..", b"disk/x", b"disk\n", b"\xff\xfe", b"\\..\\other", b"%2e%2e/other/disk", b"x" * 254,
             b"inner/" * 42, b"../" * 84 + b"etc", b"%SESSNAME%", b"no-such-disk")
    for mode in (RO, RW, MIGRATION):
        for name in names:
            message = struct.pack("<HHBB255s3x", 2, 0, mode, 0, name)
            error, payload = session.call(message, 56)
            assert error != 0, (name, mode, payload)
            expect(error, errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EISDIR,
                   errno.ENOTBLK, errno.EXDEV)
    unterminated = struct.pack("<HHBB255s3x", 2, 0, RO, 0, b"disk/" * 51)
    expect(session.call(unterminated, 56)[0], errno.EINVAL)
    expect(session.open(b"inner/disk", RW)[1], 4096)
    session.close()


def search_sessions_without_a_directory_of_their_own():
    for session_name in (b"nobody", b"tree", b"own%2f"):
        try:
            session = Session(PORT, name=session_name)
        except (Closed, OSError):
            continue  # no name of a session at all
        for name in (b"disk", b"own/disk", b"../own/disk", b"outside"):
            message = struct.pack("<HHBB255s3x", 2, 0, RO, 0, name)
            expect(session.call(message, 56)[0], errno.ENOENT, errno.EINVAL)
        session.close()


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


def restless_client():
    session, device, _ = message_session()
    for _ in range(1000):
        expect(session.call(struct.pack("<HHI", 5, 0, device))[0], 0)
        device, _ = session.open(b"disk0", RO)
    for _ in range(300):
        Session(PORT).close()
    still_works(session, device)


def message_of_one_client_does_not_reach_anothers_device():
    one, device, _ = message_session()
    two = Session(PORT)
    error, payload = two.read(device, 0, 512)
    assert error != 0 and not payload
    two.close()
    still_works(one, device)
