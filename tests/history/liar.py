# SPDX-License-Identifier: BSD-3-Clause
"""A proxy between NBD clients and a face that does harm: what the checker has to find.

Each fault is a coroutine with the liar and a request, whose answer it returns.
"""
import asyncio
import errno
import struct

import client
import contents
from client import FLUSH, FUA, READ, WRITE

HOLDS = 1000  # seconds: longer than any history


class Request:
    """A request of a client. `pass_on` asks the face."""

    def __init__(self, upstream, flags, kind, offset, length, data):
        self.upstream, self.flags, self.kind = upstream, flags, kind
        self.offset, self.length, self.data = offset, length, data

    async def pass_on(self):
        return await self.upstream.ask(self.kind, self.offset, self.length, self.data, self.flags)

    def overlaps(self, other):
        return self.offset < other.offset + other.length and other.offset < self.offset + self.length


class Liar:
    """A face, as clients see it, in front of one export of a real one."""

    def __init__(self, face, export, fault, dice):
        self.face, self.export, self.fault, self.dice = face, export, fault, dice
        self.socket = f"{face.directory}/{export}.sock"
        self.name = face.name
        self.open = 0
        self.late = None  # a request that is carried out behind the next one to its place
        self.old = []  # (offset, data) of some time ago
        self.was_down = False  # the machine has lost its power
        self.server = None
        self.tasks = set()

    async def start(self):
        self.server = await asyncio.start_unix_server(self._serve, self.socket, limit=1 << 22)

    # Clients need to know this of a face.
    def alive(self):
        return self.face.alive()

    def connected(self, _):
        self.open += 1
        return f"{self.name}/1" if self.fault is not two_writers else f"{self.name}-{self.open}/1"

    def disconnected(self, _):
        pass

    def now_and_then(self, share=0.1):
        return self.dice.random() < share

    async def _serve(self, reader, writer):
        upstream = client.Connection()
        try:
            await upstream.open(self.face.socket, self.export)
            writer.write(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
            await reader.readexactly(4)
            _, option, size = struct.unpack(">QII", await reader.readexactly(16))
            await reader.readexactly(size)
            for kind, data in ((client.INFO, struct.pack(">HQH", 0, upstream.size, upstream.flags)),
                               (client.ACK, b"")):
                writer.write(struct.pack(">QIII", client.OPTION_REPLY, option, kind, len(data)) + data)
            while True:
                _, flags, kind, cookie, offset, length = client.REQUEST.unpack(
                    await reader.readexactly(client.REQUEST.size))
                if kind == client.DISCONNECT:
                    break
                data = await reader.readexactly(length) if kind == WRITE else b""
                request = Request(upstream, flags, kind, offset, length, data)
                task = asyncio.ensure_future(self._answer(writer, cookie, request))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        except (EOFError, OSError, client.Refused):
            pass
        finally:
            upstream.hang_up()
            writer.close()

    async def _answer(self, writer, cookie, request):
        try:
            error, data = await self.fault(self, request)
            writer.write(client.REPLY.pack(client.REPLY_MAGIC, error, cookie) + data)
        except client.Lost:
            writer.close()

    async def carry_out_late(self, request):
        """Behind a request that overlaps it."""
        if self.late and request.kind == WRITE and self.late.overlaps(request):
            late, self.late = self.late, None
            await self.still(late)

    @staticmethod
    async def still(request):
        """Carries out what has been answered, if the client is still there."""
        try:
            await request.pass_on()
        except client.Lost:
            pass


# ---- Faults, each with words that the checker has to find for it

async def nothing(_, request):
    return await request.pass_on()


async def write_is_lost(liar, request):
    if request.kind == WRITE and liar.now_and_then():
        return 0, b""
    return await request.pass_on()


async def write_is_answered_early(liar, request):
    if request.kind == WRITE and liar.now_and_then(0.3):
        async def later():
            await asyncio.sleep(0.5)
            await liar.still(request)
        liar.tasks.add(asyncio.ensure_future(later()))
        return 0, b""
    return await request.pass_on()


async def write_is_repeated_late(liar, request):
    """A ghost: it comes again when a newer one has been answered."""
    answer = await request.pass_on()
    await liar.carry_out_late(request)
    if request.kind == WRITE and not liar.late and liar.now_and_then(0.3):
        liar.late = request
    return answer


async def failed_write_comes_late(liar, request):
    """The same, of a write whose client was told an error."""
    if request.kind == WRITE and not liar.late and liar.now_and_then(0.3):
        liar.late = request
        return errno.EIO, b""
    answer = await request.pass_on()
    await liar.carry_out_late(request)
    return answer


async def read_is_stale(liar, request):
    if request.kind == WRITE and len(liar.old) < 20 and not request.offset % contents.SECTOR:
        error, data = await request.upstream.ask(READ, request.offset, request.length)
        if not error:
            liar.old.append((request.offset, data))
    error, data = await request.pass_on()
    if request.kind == READ and not error and liar.now_and_then(0.5):
        for offset, old in liar.old:
            if request.offset <= offset and offset + len(old) <= request.offset + request.length:
                at = offset - request.offset
                data = data[:at] + old + data[at + len(old):]
    return error, data


async def sectors_are_swapped(liar, request):
    if request.kind == WRITE and request.length >= 1024 and liar.now_and_then(0.3):
        request.data = request.data[512:1024] + request.data[:512] + request.data[1024:]
    return await request.pass_on()


async def half_a_sector_is_written(liar, request):
    if request.kind == WRITE and not request.length % 512 and liar.now_and_then(0.3):
        request.length -= 256
        request.data = request.data[:-256]
    return await request.pass_on()


async def bit_is_flipped(liar, request):
    error, data = await request.pass_on()
    if data and liar.now_and_then():
        at = liar.dice.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ 4]) + data[at + 1:]
    return error, data


def other_write(stamp):
    """The same unit's stamp, of a write that nobody made."""
    value, unit = contents.HEAD.unpack(stamp[:contents.HEAD.size])
    return contents.stamp(value + 500000, unit)


async def another_disks_data(liar, request):
    if request.kind == WRITE and not request.offset % contents.SECTOR and liar.now_and_then(0.3):
        request.data = b"".join(other_write(request.data[at:at + contents.STAMP])
                                for at in range(0, len(request.data), contents.STAMP))
    return await request.pass_on()


async def flush_does_nothing(_, request):
    if request.kind == FLUSH:
        return 0, b""
    request.flags &= ~FUA
    return await request.pass_on()


async def fua_does_nothing(_, request):
    if request.kind == FLUSH:
        return errno.EIO, b""  # else it would make up for it
    request.flags &= ~FUA
    return await request.pass_on()


async def loss_is_not_told(liar, request):
    """The flush behind a power cut succeeds. Before it nothing is made durable: there is much to lose."""
    if not liar.was_down and (request.kind == FLUSH or request.flags & FUA):
        return errno.EIO, b""
    error, data = await request.pass_on()
    return 0 if request.kind == FLUSH else error, data


async def flush_fails(liar, request):
    if request.kind == FLUSH and liar.now_and_then(0.5):
        return errno.EIO, b""
    return await request.pass_on()


async def answer_does_not_come(liar, request):
    if not liar.late:
        liar.late = request
        await asyncio.sleep(HOLDS)
    return await request.pass_on()


async def connection_ends(liar, request):
    if liar.now_and_then(0.03):
        raise client.Lost("by the liar")
    return await request.pass_on()


async def two_writers(_, request):
    """Its connections count as two faces, and both may write."""
    return await request.pass_on()


UNDONE = "No acknowledged write is lost"
FAULTS = {
    nothing: None,
    write_is_lost: UNDONE,
    write_is_answered_early: UNDONE,
    write_is_repeated_late: UNDONE,
    failed_write_comes_late: "began when that was over",
    read_is_stale: UNDONE,
    sectors_are_swapped: "shows data of unit",
    half_a_sector_is_written: "shows torn",
    bit_is_flipped: "shows garbage",
    another_disks_data: "which was no write of this unit",
    flush_does_nothing: "after the power cut",
    fua_does_nothing: "after the power cut",
    loss_is_not_told: "after the power cut",
    flush_fails: "failed, and nothing explains it",
    answer_does_not_come: "longer than anything was out of order",
    connection_ends: "lost its connection",
    two_writers: "one writer at a time",
}
