# SPDX-License-Identifier: BSD-3-Clause
"""An NBD client for asyncio: fixed newstyle, simple replies, many requests under way."""
import asyncio
import struct

READ, WRITE, DISCONNECT, FLUSH, TRIM, WRITE_ZEROES = 0, 1, 2, 3, 4, 6
FUA = 1  # flag of a request
HAS_FLUSH, HAS_FUA, HAS_TRIM, HAS_ZEROES, IS_READ_ONLY = 4, 8, 32, 64, 2  # flags of an export

OPTION, OPTION_REPLY, GO = 0x49484156454F5054, 0x3E889045565A9, 7
ACK, INFO, REPLY_ERROR = 1, 3, 1 << 31
REQUEST_MAGIC, REPLY_MAGIC = 0x25609513, 0x67446698
REQUEST = struct.Struct(">IHHQQI")
REPLY = struct.Struct(">IIQ")


class Lost(Exception):
    """The connection has ended: nothing is known of the request."""


class Refused(Exception):
    """There is no such export, or nobody to ask for it."""


class Connection:
    """One connection to an export."""

    def __init__(self):
        self.reader = self.writer = self.listener = None
        self.size = self.flags = 0
        self.lost = None  # why it is
        self.waiting = {}  # cookie -> (future, bytes of the answer)
        self.cookie = 0

    async def open(self, path, export="", patience=60):
        """Errors: Refused."""
        try:
            await asyncio.wait_for(self._handshake(path, export.encode()), patience)
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            self.hang_up()
            raise Refused(f"no handshake: {error!r}") from error
        self.listener = asyncio.ensure_future(self._listen())
        return self

    def can(self, flag):
        return bool(self.flags & flag)

    async def _handshake(self, path, export):
        self.reader, self.writer = await asyncio.open_unix_connection(path, limit=1 << 22)
        greeting = await self.reader.readexactly(18)
        if greeting[:16] != b"NBDMAGICIHAVEOPT":
            raise Refused("this is no NBD server")
        self.writer.write(struct.pack(">I", 3))  # fixed newstyle, no zeroes
        data = struct.pack(">I", len(export)) + export + struct.pack(">H", 0)
        self.writer.write(struct.pack(">QII", OPTION, GO, len(data)) + data)
        while True:
            magic, _, kind, size = struct.unpack(">QIII", await self.reader.readexactly(20))
            data = await self.reader.readexactly(size)
            if magic != OPTION_REPLY or kind & REPLY_ERROR:
                raise Refused(data.decode("utf-8", "replace") or f"error {kind & ~REPLY_ERROR}")
            if kind == ACK:
                return
            if kind == INFO and data[:2] == b"\0\0":
                self.size, self.flags = struct.unpack(">QH", data[2:12])

    async def _listen(self):
        try:
            while True:
                magic, error, cookie = REPLY.unpack(await self.reader.readexactly(REPLY.size))
                if magic != REPLY_MAGIC or cookie not in self.waiting:
                    raise EOFError("this is no reply")
                future, size = self.waiting[cookie]
                data = await self.reader.readexactly(size) if size and not error else b""
                del self.waiting[cookie]
                if not future.done():
                    future.set_result((error, data))
        except (OSError, EOFError) as error:
            self._end(repr(error))

    def _end(self, why):
        self.lost = self.lost or why
        for future, _ in self.waiting.values():
            if not future.done():
                future.set_exception(Lost(self.lost))
        self.waiting.clear()
        self.writer.close()

    async def ask(self, kind, offset, length, data=b"", flags=0):
        """Returns an errno, 0 for none, and the data of a read. Errors: Lost."""
        if self.lost:
            raise Lost(self.lost)
        self.cookie += 1
        future = asyncio.get_running_loop().create_future()
        self.waiting[self.cookie] = (future, length if kind == READ else 0)
        self.writer.write(REQUEST.pack(REQUEST_MAGIC, flags, kind, self.cookie, offset, length) + data)
        return await future

    def hang_up(self):
        """Leaves without a word."""
        if self.writer:
            self.writer.transport.abort()
        if self.listener:
            self.listener.cancel()
            self._end("hung up")

    async def close(self):
        """Leaves as a client should do."""
        if not self.lost:
            self.writer.write(REQUEST.pack(REQUEST_MAGIC, 0, DISCONNECT, 0, 0, 0))
            try:
                await self.writer.drain()
            except OSError:
                pass
            self.hang_up()
