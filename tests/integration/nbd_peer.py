# SPDX-License-Identifier: BSD-3-Clause
"""A second implementation of the NBD client's side: it can send what no honest client sends.

An address is the path of a Unix socket, or a TCP port of 127.0.0.1. Numbers and names are those of
the NBD protocol, doc/proto.md of the NBD project.
"""
import socket
import struct

FIXED_NEWSTYLE, NO_ZEROES = 1, 2
EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED_REPLY = 1, 2, 3, 5, 6, 7, 8
LIST_META_CONTEXT, SET_META_CONTEXT, EXTENDED_HEADERS = 9, 10, 11
ACK, SERVER, INFO_REPLY, META_CONTEXT = 1, 2, 3, 4
ERROR = 1 << 31
UNSUPPORTED, POLICY, INVALID = ERROR + 1, ERROR + 2, ERROR + 3
UNKNOWN, SHUTDOWN, TOO_BIG, EXT_HEADER_REQD = ERROR + 6, ERROR + 7, ERROR + 9, ERROR + 10
INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE = 0, 1, 2, 3
READ, WRITE, DISCONNECT, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO, PAYLOAD_LEN = 1, 2, 4, 8, 16, 32
HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, ROTATIONAL, SEND_TRIM, SEND_WRITE_ZEROES, SEND_DF, \
    CAN_MULTI_CONN = (1 << i for i in range(9))
BLOCK_STATUS_PAYLOAD = 1 << 12
EPERM, EIO, ENOMEM, EINVAL, ENOSPC, ENOTSUP = 1, 5, 12, 22, 28, 95
M, G = 1 << 20, 1 << 30
TIMEOUT = 60


class Closed(Exception):
    """The server has hung up."""


def string(data):
    return struct.pack(">I", len(data)) + data


class Socket:
    """Bytes to and from the server."""

    def __init__(self, address):
        if address.isdigit():
            self.socket = socket.create_connection(("127.0.0.1", int(address)))
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address)
        self.socket.settimeout(TIMEOUT)

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def receive(self, size):
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError as error:
                raise Closed from error
            if not piece:
                raise Closed
            data += piece
        return bytes(data)

    def unpack(self, layout):
        return struct.unpack(layout, self.receive(struct.calcsize(layout)))

    def expect_close(self):
        """The server must hang up; what it says before does not matter."""
        try:
            while True:
                self.receive(1)
        except Closed:
            self.close()

    def close(self):
        self.socket.close()


class Haggler(Socket):
    """The handshake, option by option."""

    def __init__(self, address, flags=FIXED_NEWSTYLE | NO_ZEROES):
        super().__init__(address)
        magic, version, self.server_flags = self.unpack(">8s8sH")
        assert (magic, version) == (b"NBDMAGIC", b"IHAVEOPT"), (magic, version)
        self.structured = self.extended = False
        if flags is not None:
            self.send(struct.pack(">I", flags))

    def start(self, option, data=b"", length=None, magic=b"IHAVEOPT"):
        self.send(magic + struct.pack(">II", option, len(data) if length is None else length) + data)

    def answer(self, option):
        magic, echo, kind, length = self.unpack(">QIII")
        assert magic == 0x3e889045565a9 and echo == option, (hex(magic), echo)
        return kind, self.receive(length)

    def option(self, option, data=b"", **named):
        """All replies up to the one that ends them."""
        self.start(option, data, **named)
        replies = [self.answer(option)]
        while replies[-1][0] not in (ACK,) and not replies[-1][0] & ERROR:
            replies.append(self.answer(option))
        return replies

    def last(self, option, data=b"", **named):
        """The kind of the reply that ends the option."""
        return self.option(option, data, **named)[-1][0]

    def ask_structured(self):
        assert self.last(STRUCTURED_REPLY) == ACK
        self.structured = True

    def ask_extended(self):
        assert self.last(EXTENDED_HEADERS) == ACK
        self.structured = self.extended = True

    def contexts(self, option, name, *queries):
        data = string(name) + struct.pack(">I", len(queries)) + b"".join(map(string, queries))
        return self.option(option, data)

    def info(self, option, name, *kinds):
        """Replies to INFO or GO by kind, or the error."""
        data = string(name) + struct.pack(f">H{len(kinds)}H", len(kinds), *kinds)
        replies = self.option(option, data)
        if replies[-1][0] != ACK:
            return replies[-1][0]
        return {struct.unpack(">H", text[:2])[0]: text[2:] for _, text in replies[:-1]}


class Client(Haggler):
    """An NBD connection in transmission."""

    def __init__(self, address, name=b"disk0", structured=True, contexts=False, extended=False):
        super().__init__(address)
        if extended:
            self.ask_extended()
        elif structured:
            self.ask_structured()
        if contexts:
            assert len(self.contexts(SET_META_CONTEXT, name, b"base:allocation")) == 2
        info = self.info(GO, name)
        assert isinstance(info, dict), hex(info)
        self.size, self.flags = struct.unpack(">QH", info[INFO_EXPORT])
        self.cookies = 0
        self.offsets = {}

    def start_request(self, command, offset=0, length=0, flags=0, data=b"", magic=None):
        """With extended headers, the flag for a payload is the caller's, but of write()."""
        self.cookies += 1
        cookie = struct.pack(">Q", self.cookies << 32 | 0xC0FFEE)
        if magic is None:
            magic = 0x21e41c71 if self.extended else 0x25609513
        layout = ">IHH8sQQ" if self.extended else ">IHH8sQI"
        self.send(struct.pack(layout, magic, flags, command, cookie, offset, length) + data)
        if self.extended:
            self.offsets[cookie] = offset
        return cookie

    def start_requests(self, requests):
        """Many at once: each the arguments of start_request()."""
        pieces = []
        self.send = pieces.append
        cookies = [self.start_request(*request) for request in requests]
        del self.send
        self.send(b"".join(pieces))
        return cookies

    def reply(self, sizes=None):
        """The next reply: (cookie, error, data). Simple replies have the data that `sizes` says for
        their cookie."""
        magic, = self.unpack(">I")
        if self.extended:
            return self.extended_reply(magic)
        if magic == 0x67446698:
            error, cookie = self.unpack(">I8s")
            return cookie, error, self.receive((sizes or {}).get(cookie, 0) if error == 0 else 0)
        assert magic == 0x668e33ef, hex(magic)
        flags, kind, cookie, length = self.unpack(">HH8sI")
        assert flags == 1, "the only chunk of a reply"
        payload = self.receive(length)
        if kind & 0x8000:
            error, text = struct.unpack(">IH", payload[:6])
            assert text == len(payload) - 6
            return cookie, error, b""
        return cookie, 0, payload[8:] if kind == 1 else payload

    def extended_reply(self, magic):
        assert magic == 0x6e8a278c, hex(magic)
        flags, kind, cookie, offset, length = self.unpack(">HH8sQQ")
        assert flags == 1, "the only chunk of a reply"
        assert offset == self.offsets.pop(cookie), offset
        payload = self.receive(length)
        if kind & 0x8000:
            error, text = struct.unpack(">IH", payload[:6])
            assert text == len(payload) - 6
            return cookie, error, b""
        if kind == 1:
            assert payload[:8] == struct.pack(">Q", offset)
            return cookie, 0, payload[8:]
        assert (kind, length) == (0, 0) or kind == 6, (kind, length)
        return cookie, 0, payload

    def extents(self, offset, length, flags=0, data=b""):
        """The length and the flags of each extent, with extended headers."""
        error, payload = self.request(BLOCK_STATUS, offset, length, flags, data)
        assert error == 0, error
        context, count = struct.unpack(">II", payload[:8])
        assert context == 1 and len(payload) == 8 + 16 * count, payload
        return list(struct.iter_unpack(">QQ", payload[8:]))

    def request(self, command, offset=0, length=0, flags=0, data=b""):
        """(error, data) of a request while no other is under way."""
        cookie = self.start_request(command, offset, length, flags, data)
        plain = command == READ and not self.structured
        echo, error, data = self.reply({cookie: length} if plain else None)
        assert echo == cookie, "another request's reply"
        return error, data

    def read(self, offset, length, flags=0):
        return self.request(READ, offset, length, flags)

    def write(self, offset, data, flags=0):
        if self.extended:
            flags |= PAYLOAD_LEN
        return self.request(WRITE, offset, len(data), flags, data)[0]

    def leave(self):
        self.start_request(DISCONNECT)
        self.expect_close()
