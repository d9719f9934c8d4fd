#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""A server as of a Linux that is newer than any that is packaged, in front of which a client program
of ours must work: newer_linux_server.py . KIND COMMAND...

KIND is nbdkit or bridge, COMMAND starts it. Linux's protocol only grows by what its older clients
ignore: a minor version, flags of an accept, bytes that were reserved.
"""
import contextlib
import errno
import os
import socket
import struct

from hostile_face import Face, end_all
from hostile_linux import LinuxServer
from hostile_peer import CHUNK, DEPTH, HELLO, INFO, SESSION_INFO, hello, info_response, open_response, response
from nbd_peer import FLUSH
from raw_peer import SEND
from run_cases import run_cases

MINOR = 7
NEWER_FLAG = 0x4  # the next free one of an accept


def with_rubbish(record, at):
    return record[:at] + b"\xA5" * (len(record) - at)


class NewerLinuxServer(LinuxServer):
    """A higher minor version, a flag of which nobody knows, rubbish in what is reserved."""

    def __init__(self):
        self.flags_of_requests = set()
        super().__init__()

    def greet(self, connection):
        record = response(version=0x0200 + MINOR, flags=NEWER_FLAG, extension=0, features=0, epoch=0)
        connection.send(hello(with_rubbish(record, 20)))

    def answer(self, request):
        if request.type == SESSION_INFO:
            request.reply(struct.pack("<HHB", 1, 0xA5A5, 3) + b"\xA5" * 31)
        else:
            super().answer(request)

    def answer_io(self, request):
        operation, = struct.unpack_from("<I", request.message, 16)
        self.flags_of_requests.add(operation >> 8 << 8)
        super().answer_io(request)


def works(server, **options):
    face = Face(server.ports, device="", **options)
    client = face.client(b"X")
    data = os.urandom(8192)
    assert client.write(4096, data) == 0, face.tail()
    assert server.disks[b"X"][4096:12288] == data
    assert client.read(4096, 8192) == (0, data)
    assert client.request(FLUSH) == (0, b"")
    client.leave()
    face.stop()


def minor_version_flags_and_reserved_bytes_are_ignored():
    server = NewerLinuxServer()
    works(server)
    unknown = {hex(flags) for flags in server.flags_of_requests if flags & ~0xF00}
    assert not unknown, f"a Linux server was sent the flags {unknown}"


def descriptor_per_chunk_wherever_the_chunks_are():
    """Keys and addresses are the server's own affair."""
    server = NewerLinuxServer()

    def tell(connection):
        chunks = [(((1 << 40) + 3 * index) * CHUNK, 1, CHUNK) for index in range(DEPTH)]
        connection.frame(SEND, info_response(descriptors=chunks))
    server.order(INFO, tell, times=None)
    works(server)


def refusals_while_linux_still_has_the_former_path():
    """The reason is new since 7.0; what a client does about it is not."""
    server = NewerLinuxServer()
    face = Face(server.ports, device="", no_path_timeout="20s")
    client = face.client(b"X")
    for error in (errno.EEXIST, errno.ENOMEM, errno.ECONNRESET):
        server.order(HELLO, lambda connection, code=error: connection.send(hello(response(error=code))),
                     times=3)
        for connections in list(server.paths.values()):
            for connection in list(connections.values()):
                with contextlib.suppress(OSError):  # the client closes a path whole
                    connection.socket.shutdown(socket.SHUT_RDWR)
        data = os.urandom(4096)
        assert client.write(4096, data) == 0, face.tail()
        assert client.read(4096, 4096) == (0, data)
        assert server.orders[HELLO][1] == 0, "it was not refused"
    client.leave()
    face.stop()


run_cases([(case.__name__, case)
           for case in (minor_version_flags_and_reserved_bytes_are_ignored,
                        descriptor_per_chunk_wherever_the_chunks_are,
                        refusals_while_linux_still_has_the_former_path)], after=end_all)
