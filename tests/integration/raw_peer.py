# SPDX-License-Identifier: BSD-3-Clause
"""A client of docs/protocol.md's TCP binding, byte by byte, for sending what no honest client sends.

It shares no code with the programs it talks to.
"""
import os
import socket
import struct

TIMEOUT = float(os.environ.get("RAW_PEER_TIMEOUT", "20"))  # seconds

HELLO_MAGIC = b"RTRS-TCP"
RTRS_MAGIC = 0x1BBD
RTRS_VERSION = 0x0200
SEND, WRITE, SEND_WITH_INVALIDATE = 1, 2, 3
DIGEST_HEADER, DIGEST_DATA = 1, 2
HAS_IMMEDIATE = 1
EXACTLY_ONCE = 1
RACES = 1 << 4
USER_MESSAGES = 1 << 16
RO, RW, MIGRATION = 0, 1, 2
READ_IO, WRITE_IO, FLUSH, DISCARD, SECURE_ERASE, WRITE_ZEROES = range(6)


def _make_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _make_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Closed(Exception):
    """The peer closed the connection."""


class Wire:
    """One TCP connection."""

    def __init__(self, port, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.digests = 0

    def close(self):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def receive(self, size):
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError as error:
                raise Closed from error
            if not piece:
                raise Closed
            data += piece
        return data

    def expect_close(self):
        """Whatever is still sent is thrown away; the peer must close within the timeout."""
        try:
            while True:
                self.receive(1)
        except Closed:
            return
        except socket.timeout as error:
            raise AssertionError("the server keeps the connection open") from error

    # ---- Hello

    def hello(self, record, digests=DIGEST_HEADER | DIGEST_DATA, magic=HELLO_MAGIC, version=1,
              crc=None):
        body = struct.pack("<8sHHI", magic, version, digests, 0) + record.ljust(56, b"\0")
        self.send(body + struct.pack("<I", crc32c(body) if crc is None else crc))

    def hello_answer(self):
        """Returns the fields of the connect response; sets the digests."""
        data = self.receive(76)
        magic, version, self.digests, _ = struct.unpack_from("<8sHHI", data)
        assert magic == HELLO_MAGIC and version == 1, data
        assert crc32c(data[:72]) == struct.unpack_from("<I", data, 72)[0], "bad CRC in hello"
        keys = ("magic", "version", "error", "queue_depth", "max_io_size", "max_header_size",
                "flags", "extension_magic", "extension_version", "_", "features", "epoch")
        answer = dict(zip(keys, struct.unpack_from("<HHHHIIIHBBIQ", data, 16)))
        answer["error"] = -struct.unpack("<h", struct.pack("<H", answer["error"]))[0]
        assert answer["magic"] == RTRS_MAGIC, answer
        return answer

    # ---- Frames

    def frame(self, opcode, payload=b"", immediate=None, key=0, address=0, length=None,
              payload_crc=None, header_crc=None, flags=None):
        if flags is None:
            flags = 0 if immediate is None else HAS_IMMEDIATE
        if payload_crc is None:
            payload_crc = crc32c(payload) if self.digests & DIGEST_DATA and payload else 0
        header = struct.pack("<BBHIIIQI", opcode, flags, 0,
                             len(payload) if length is None else length, immediate or 0, key,
                             address, payload_crc)
        if header_crc is None:
            header_crc = crc32c(header) if self.digests & DIGEST_HEADER else 0
        self.send(header + struct.pack("<I", header_crc) + payload)

    def read_frame(self):
        header = self.receive(32)
        opcode, flags, _, length, immediate, key, address, payload_crc, header_crc = struct.unpack(
            "<BBHIIIQII", header)
        if self.digests & DIGEST_HEADER:
            assert header_crc == crc32c(header[:28]), "bad CRC of a frame header"
        payload = self.receive(length)
        if self.digests & DIGEST_DATA and payload:
            assert payload_crc == crc32c(payload), "bad CRC of a payload"
        return {"opcode": opcode, "immediate": immediate if flags & HAS_IMMEDIATE else None,
                "key": key, "address": address, "payload": payload}


def connect_request(cid=0, cid_count=2, path_uuid=b"p" * 16, session_uuid=b"s" * 16, first=1,
                    reconnect=0, magic=RTRS_MAGIC, version=RTRS_VERSION, features=USER_MESSAGES):
    return struct.pack("<BBHHHHH16s16sBBHBBI2x", 0, 0, magic, version, cid, cid_count, reconnect,
                       path_uuid, session_uuid, first, 0, 0x4B52, 1, 0, features)


def info_request(name=b"raw", kind=0):
    return struct.pack("<H255s15x", kind, name)


class Session:
    """All connections of a path, through the info exchange unless told otherwise."""

    def __init__(self, port, cids=2, name=None, info=True, digests=DIGEST_HEADER | DIGEST_DATA,
                 features=USER_MESSAGES, session_uuid=None, reconnect=0):
        """`session_uuid` is of a session that is there, and of which this is another path."""
        self.session_uuid, self.path_uuid = session_uuid or os.urandom(16), os.urandom(16)
        self.wires = []
        for cid in range(cids):
            wire = Wire(port)
            wire.hello(self.request(cid, cids, features, reconnect=reconnect), digests)
            self.answer = wire.hello_answer()
            if self.answer["error"]:
                raise OSError(self.answer["error"], "the server refused the connection")
            self.wires.append(wire)
        self.queue_depth = self.answer["queue_depth"]
        self.chunk_size = self.answer["max_io_size"] + self.answer["max_header_size"]
        self.offset_bits = 28 - (self.queue_depth - 1).bit_length()
        self.name = name or b"raw-" + os.urandom(4).hex().encode()
        if info:
            self.exchange_info(self.name)

    def request(self, cid, cids, features=USER_MESSAGES, **named):
        return connect_request(cid, cids, self.path_uuid, self.session_uuid, features=features,
                               **named)

    def exchange_info(self, name):
        self.wires[0].frame(SEND, info_request(name))
        frame = self.next_frame(0)
        kind, count = struct.unpack_from("<HH", frame["payload"])
        assert frame["opcode"] == SEND and kind == 1, frame
        self.chunks = []
        for i in range(count):
            address, key, length = struct.unpack_from("<QII", frame["payload"], 8 + 16 * i)
            for offset in range(0, length, self.chunk_size):
                self.chunks.append((address + offset, key))
        assert len(self.chunks) == self.queue_depth, (len(self.chunks), self.queue_depth)

    def next_frame(self, cid):
        """Skips and answers heartbeats."""
        while True:
            frame = self.wires[cid].read_frame()
            if frame["immediate"] == 0x80000000:
                self.wires[cid].frame(WRITE, immediate=0x90000000)
            elif frame["immediate"] != 0x90000000:
                return frame

    def immediate(self, buffer, offset):
        return buffer << self.offset_bits | offset

    def start_read(self, message, length, buffer=0, cid=1, **named):
        """A request whose answer brings up to `length` bytes; 0: it has no descriptor."""
        address, key = self.chunks[buffer]
        header = struct.pack("<HHHH", 3, len(message), 0, 1 if length else 0)
        if length:
            header += struct.pack("<QII", 0x1000, 77, length)
        self.wires[cid].frame(WRITE, message + header, self.immediate(buffer, length + len(message)),
                              key, address + length, **named)

    def start_write(self, message, data=b"", buffer=0, cid=1, **named):
        address, key = self.chunks[buffer]
        header = struct.pack("<HH", 2, len(message))
        self.wires[cid].frame(WRITE, data + message + header,
                              self.immediate(buffer, len(data) + len(message)), key, address, **named)

    def answer_of(self, cid=1):
        """Returns errno, buffer and data of the next answer."""
        frame = self.next_frame(cid)
        assert frame["immediate"] is not None and frame["immediate"] >> 28 == 1, frame
        return frame["immediate"] >> 19 & 0x1FF, frame["immediate"] & 0x7FFFF, frame["payload"]

    def call(self, message, length=None, data=b"", **named):
        """Returns errno and data of a request that is answered before the next one is sent."""
        if length is None:
            self.start_write(message, data, **named)
        else:
            self.start_read(message, length, **named)
        error, _, payload = self.answer_of(named.get("cid", 1))
        return error, payload

    # ---- RNBD

    def open(self, name, mode=RW, flags=0):
        message = struct.pack("<HHBB255s3x", 2, 0, mode, flags, name)
        if self.answer["features"] & USER_MESSAGES:
            self.opens = getattr(self, "opens", 0) + 1
            message += struct.pack("<II", self.opens, 0)  # anew: without it comes back to it
        error, payload = self.call(message, 56)
        if error:
            raise OSError(error, "OPEN failed")
        device, sectors = struct.unpack_from("<IQ", payload, 4)
        return device, sectors

    @staticmethod
    def io(device, operation, sector=0, length=0, flags=0):
        return struct.pack("<HHIQIIH6x", 4, 0, device, sector, operation | flags, length, 0)

    def read(self, device, sector, length, **named):
        return self.call(self.io(device, READ_IO, sector, length), length, **named)

    def write(self, device, sector, data, flags=0, **named):
        return self.call(self.io(device, WRITE_IO, sector, len(data), flags), None, data, **named)

    def close(self):
        for wire in self.wires:
            wire.close()

    def expect_close(self):
        for wire in self.wires:
            wire.expect_close()
        self.close()
