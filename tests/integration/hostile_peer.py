# SPDX-License-Identifier: BSD-3-Clause
"""A server of docs/protocol.md's TCP binding, byte by byte, that can be told to do harm.

It shares no code with the programs it talks to. Without orders it is correct: one disk of memory,
sessions with the extension. An order is a function that is called instead of one step.
"""
import os
import random
import socket
import struct
import threading
import time

from raw_peer import (FLUSH, HAS_IMMEDIATE, HELLO_MAGIC, READ_IO, RTRS_MAGIC,
                      RTRS_VERSION, SEND, WRITE, WRITE_IO, Closed, Wire, crc32c)

DEPTH, MAX_IO, MAX_HEADER = 16, 65536, 4096
CHUNK = MAX_IO + MAX_HEADER
OFFSET_BITS = 28 - (DEPTH - 1).bit_length()
KEY = 1
SIZE = 1 << 20  # bytes, of the disk
ACCESS_NOTICE = 2
FEATURES = 1 | ACCESS_NOTICE | 1 << 16
HEARTBEAT, HEARTBEAT_ANSWER, GOODBYE, ACCESS = 0x80000000, 0x90000000, 0xA0000000, 0xB0000000
# Steps that orders are about. The last ones are RNBD messages by their type.
HELLO, INFO, UP = "hello", "info", "up"
SESSION_INFO, OPEN, IO, CLOSE = 0, 2, 4, 5
DEVICE_INFO, LIST_EXPORTS, BLOCK_STATUS, DIRECTORY = 0x8001, 0x8003, 0x8005, 0x800B


def response(error=0, queue_depth=DEPTH, max_io_size=MAX_IO, max_header_size=MAX_HEADER, flags=0,
             magic=RTRS_MAGIC, version=RTRS_VERSION, extension=0x4B52, features=FEATURES, epoch=7,
             access=0):
    """A connect response."""
    if error:
        queue_depth = max_io_size = max_header_size = flags = extension = features = epoch = 0
    return struct.pack("<HHHHIIIHBBIQQB11x", magic, version, -error & 0xFFFF, queue_depth,
                       max_io_size, max_header_size, flags, extension, 1 if extension else 0, 0,
                       features, epoch, 1, access)


def hello(record, digests=0, magic=HELLO_MAGIC, version=1, crc=None):
    body = struct.pack("<8sHHI", magic, version, digests, 0) + record
    return body + struct.pack("<I", crc32c(body) if crc is None else crc)


def info_response(kind=1, count=None, descriptors=((0, KEY, DEPTH * CHUNK),)):
    head = struct.pack("<HHI", kind, len(descriptors) if count is None else count, 0)
    return head + b"".join(struct.pack("<QII", *each) for each in descriptors)


def open_response(device=5, sectors=SIZE // 512, logical=512, physical=4096, kind=3,
                  zeroes=2048, discard=2048):
    return struct.pack("<HHIQIIIIIHHHHBB10x", kind, 0, device, sectors, 128, zeroes, discard, 512,
                       0, physical, logical, 1, 0, 0, 3)


def device_info(device=5, size=SIZE, uuid=b"u" * 16, flags=4 | 8 | 16 | 32, preferred=4096,
                serial=1, kind=0x8002):
    return struct.pack("<HHIQ16sIIQ16x", kind, 0, device, size, uuid, flags, preferred, serial)


def extents(*pairs, count=None, kind=0x8006):
    """A BLOCK STATUS response of (length, flags)."""
    head = struct.pack("<HHI", kind, 0, len(pairs) if count is None else count)
    return head + b"".join(struct.pack("<QII", length, flags, 0) for length, flags in pairs)


def exports(total, *names, count=None, description=b"", kind=0x8004):
    head = struct.pack("<HHII", kind, 0, total, len(names) if count is None else count)
    return head + b"".join(struct.pack("<HH", len(name), len(description)) + name + description
                           for name in names)


def directory(entries, total=None, count=None, kind=0x800C):
    """A DIRECTORY response of (name, description, flags)."""
    number = len(entries)
    head = struct.pack("<HHII", kind, 0, number if total is None else total,
                       number if count is None else count)
    return head + b"".join(
        struct.pack("<Q16sIHH", 0, b"", flags, len(name), len(about)) + name + about
        for name, about, flags in entries)


class Request:
    """What a client asks, and where its answer goes."""

    def __init__(self, connection, frame):
        self.connection = connection
        self.buffer = frame["immediate"] >> OFFSET_BITS
        at = (frame["immediate"] & (1 << OFFSET_BITS) - 1) - frame["address"] % CHUNK
        payload = frame["payload"]
        kind, length = struct.unpack_from("<HH", payload, at)
        self.message, self.data = payload[at - length:at], payload[:at - length]
        self.is_read, self.key, self.address, self.room = kind == 3, 0, 0, 0
        if self.is_read and struct.unpack_from("<H", payload, at + 6)[0]:
            self.address, self.key, self.room = struct.unpack_from("<QII", payload, at + 8)
        self.type, = struct.unpack_from("<H", self.message)

    def reply(self, data=b"", error=0, buffer=None, key=None, address=None, kind=1, pad=True,
              cid=None):
        """The right reply, but for what is said."""
        if pad and not error:
            data = data.ljust(self.room, b"\0")
        immediate = kind << 28 | error << 19 | (self.buffer if buffer is None else buffer)
        to = self.connection if cid is None else self.connection.path[cid]
        to.frame(WRITE, data, immediate, self.key if key is None else key,
                 self.address if address is None else address)


class Connection(Wire):
    """One TCP connection from a client."""

    def __init__(self, peer, server):  # pylint: disable=super-init-not-called
        self.socket, self.server, self.digests = peer, server, 0
        peer.settimeout(120)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lock = threading.Lock()
        self.cid, self.path = None, {}

    def send(self, data):
        with self.lock:
            super().send(data)

    def run(self):
        try:
            self.shake_hands()
            while True:
                self.serve(self.read_frame())
        except (Closed, OSError):
            pass
        finally:
            self.close()

    def shake_hands(self):
        record = self.receive(76)[16:72]
        self.cid, = struct.unpack_from("<H", record, 6)
        self.path = self.server.paths.setdefault(record[12:28], {})
        self.path[self.cid] = self
        if not self.server.obeys(HELLO, self):
            self.server.greet(self)

    def serve(self, frame):
        immediate = frame["immediate"]
        if frame["opcode"] == SEND:
            if self.server.obeys(INFO, self):
                return
            self.frame(SEND, info_response())
            self.server.obeys(UP, self)
        elif immediate == HEARTBEAT:
            if self.server.answers_heartbeats:
                self.frame(WRITE, immediate=HEARTBEAT_ANSWER)
        elif immediate >> 28 == 0:
            request = Request(self, frame)
            self.server.asked.append(request.type)
            if not self.server.obeys(request.type, request):
                self.server.answer(request)

    def hold(self):
        """Says nothing until the client has closed."""
        while True:
            self.receive(1)

    def hang_up(self):
        raise Closed


class Server:
    """Listens on a port of its own, or on two, each for a path."""

    def __init__(self, listeners=1):
        self.disk = bytearray(random.Random(1).randbytes(SIZE))
        self.paths, self.asked, self.orders = {}, [], {}
        self.lock = threading.Lock()
        self.epoch = int.from_bytes(os.urandom(7), "little")
        self.answers_heartbeats = True
        self.features = FEATURES
        self.connections = 0
        self.ports = []
        for _ in range(listeners):
            listener = socket.create_server(("127.0.0.1", 0), backlog=64)
            self.ports.append(listener.getsockname()[1])
            threading.Thread(target=self.accept, args=(listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            peer, _ = listener.accept()
            self.connections += 1
            threading.Thread(target=Connection(peer, self).run, daemon=True).start()

    def order(self, step, deed, times=1, when=None, port=None):
        """`deed` is called instead of the step, so often (None: always); when: a condition."""
        with self.lock:
            self.orders[step] = [deed, times, when, port]

    def behave(self):
        with self.lock:
            self.orders.clear()
        self.answers_heartbeats = True

    def obeys(self, step, subject):
        with self.lock:
            order = self.orders.get(step)
            if order is None or order[1] == 0 or (order[2] and not order[2](subject)):
                return False
            connection = getattr(subject, "connection", subject)
            if order[3] is not None and connection.socket.getsockname()[1] != order[3]:
                return False
            if order[1] is not None:
                order[1] -= 1
        order[0](subject)
        return True

    # ---- What a correct server answers

    def greet(self, connection):
        connection.send(hello(response(features=self.features, epoch=self.epoch)))

    def answer(self, request):
        kind, message = request.type, request.message
        if kind == SESSION_INFO:
            request.reply(struct.pack("<HHB31x", 1, 0, 2))
        elif kind == OPEN:
            request.reply(open_response())
        elif kind == DEVICE_INFO:
            request.reply(device_info())
        elif kind == LIST_EXPORTS:
            first, = struct.unpack_from("<I", message, 4)
            request.reply(exports(2, *(b"disk0", b"disk1")[first:]))
        elif kind == BLOCK_STATUS:
            _, _, _, _, length = struct.unpack_from("<HHIQQ", message)
            request.reply(extents((length, 0)))
        elif kind == IO:
            self.answer_io(request)
        else:
            request.reply()

    def answer_io(self, request):
        _, _, _, sector, operation, length = struct.unpack_from("<HHIQII", request.message)
        at = sector * 512
        if operation & 0xFF == READ_IO:
            request.reply(bytes(self.disk[at:at + length]))
            return
        if operation & 0xFF == WRITE_IO:
            self.disk[at:at + length] = request.data
        elif operation & 0xFF != FLUSH:
            self.disk[at:at + length] = bytes(length)
        request.reply()


def flood(connection, immediate, seconds):
    """One immediate as fast as it is taken."""
    many = struct.pack("<BBHIIIQII", WRITE, HAS_IMMEDIATE, 0, 0, immediate, 0, 0, 0, 0) * 4096
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.send(many)
