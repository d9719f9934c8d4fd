#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""TCP cables to a server: cable.py SERVER_PORT COUNT

Prints the ports of its ends, one for each cable, in a line. Orders come as lines of JSON:
  {"cable": 0, "mute": [UP, DOWN]}   carries nothing in that direction, and tells nobody
  {"cable": 0, "delay": SECONDS}     carries everything later
  {"cable": 0, "refuse": BOOL}       takes no new connection
  {"cable": 0, "cut": true}          ends all connections; both ends are told
  {"cable": 0, "late": SECONDS}      ends them for the client at once; what it has sent arrives later
"""
import asyncio
import json
import sys
import time

HELD = 4 << 20  # bytes that a cable has room for


class Cable:
    """A cable, with what is wrong with it."""

    def __init__(self):
        self.mute = [False, False]
        self.delay = 0
        self.refuse = False
        self.pairs = set()


class Direction:
    """One direction of a connection. It delivers also when its sender has gone."""

    def __init__(self, cable, number):
        self.cable, self.number = cable, number
        self.chunks = asyncio.Queue()
        self.held = 0
        self.not_before = 0

    async def take(self, reader):
        try:
            while data := await reader.read(1 << 16):
                self.held += len(data)
                await self.chunks.put((time.monotonic() + self.cable.delay, data))
                while self.held > HELD:
                    await asyncio.sleep(0.02)
        except OSError:
            pass
        await self.chunks.put((0, b""))

    async def give(self, writer):
        try:
            while True:
                due, data = await self.chunks.get()
                while self.cable.mute[self.number] or time.monotonic() < max(due, self.not_before):
                    await asyncio.sleep(0.005)
                if not data:
                    break
                self.held -= len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()


class Pair:
    """A connection through a cable."""

    def __init__(self, cable, client, server):
        self.client, self.server = client, server
        self.ways = [Direction(cable, 0), Direction(cable, 1)]

    async def carry(self):
        tasks = [asyncio.ensure_future(task) for task in (
            self.ways[0].take(self.client[0]), self.ways[0].give(self.server[1]),
            self.ways[1].take(self.server[0]), self.ways[1].give(self.client[1]))]
        await asyncio.gather(tasks[1], tasks[3])
        for task in tasks:
            task.cancel()


async def connected(cable, server_port, reader, writer):
    if cable.refuse:
        writer.transport.abort()
        return
    try:
        server = await asyncio.open_connection("127.0.0.1", server_port, limit=1 << 18)
    except OSError:
        writer.transport.abort()
        return
    pair = Pair(cable, (reader, writer), server)
    cable.pairs.add(pair)
    await pair.carry()
    cable.pairs.discard(pair)


def obey(cable, order):
    for key in ("mute", "delay", "refuse"):
        if key in order:
            setattr(cable, key, order[key])
    for pair in list(cable.pairs):
        if order.get("cut"):
            pair.client[1].transport.abort()
            pair.server[1].transport.abort()
        if "late" in order:
            pair.ways[0].not_before = time.monotonic() + order["late"]
            pair.client[1].transport.abort()


async def main():
    server_port, count = map(int, sys.argv[1:])
    cables, ports = [Cable() for _ in range(count)], []
    for cable in cables:
        listener = await asyncio.start_server(
            lambda reader, writer, cable=cable: connected(cable, server_port, reader, writer),
            "127.0.0.1", 0, limit=1 << 18)
        ports.append(listener.sockets[0].getsockname()[1])
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    print(*ports, flush=True)
    while line := await orders.readline():
        order = json.loads(line)
        obey(cables[order["cable"]], order)


asyncio.run(main())
