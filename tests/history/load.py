# SPDX-License-Identifier: BSD-3-Clause
"""NBD clients that ask for what a seed draws, and note each request."""
import asyncio
import math
import time

import client
import contents
import programs
import record

KINDS = [("write", 48), ("read", 34), ("flush", 7), ("zero", 6), ("trim", 5)]
NBD = {"write": client.WRITE, "read": client.READ, "flush": client.FLUSH, "zero": client.WRITE_ZEROES,
       "trim": client.TRIM}
NEEDED = {"flush": client.HAS_FLUSH, "zero": client.HAS_ZEROES, "trim": client.HAS_TRIM}
WINDOW = 24  # units of a place that many requests go to


class Load:
    """All clients of a world."""

    def __init__(self, history, layout, dice, places=5, pause=0.01,
                 erases=True):
        self.history, self.layout, self.dice = history, layout, dice
        # ext4 writes all of a file when a hole is punched, so that a power cut finds little to lose.
        self.kinds = [kind for kind in KINDS if erases or kind[0] not in ("zero", "trim")]
        self.pause = pause  # seconds between requests, as a mean
        self.places = [dice.randrange(layout.sectors - WINDOW) for _ in range(places)]
        self.places[0] = layout.sectors - WINDOW
        self.number = contents.FIRST_WRITE
        self.stopping = False
        self.tasks, self.links = [], []

    # ---- Single requests

    async def ask(self, connection, opening, name, kind, first=0, count=0, fua=False):
        """One request, on the record."""
        request = record.Request(self.number, name, opening, kind, first, count, fua)
        self.number += 1
        self.history.requests.append(request)
        layout = self.layout
        offset, size = (layout.offset(first), layout.bytes_of(first, count)) if count else (0, 0)
        data = layout.make(request.number, first, count) if kind == "write" else b""
        request.begin = time.monotonic()
        try:
            error, data = await connection.ask(NBD[kind], offset, size, data, client.FUA if fua else 0)
        except client.Lost:
            request.end = time.monotonic()
            request.answer = "left" if connection.lost == "hung up" else "lost"
            return request
        request.end = time.monotonic()
        request.answer = programs.name_of(error)
        if kind == "read" and not error:
            request.seen = record.runs(layout.read(data, first, count))
        return request

    def draw(self, connection):
        """kind, first unit, how many, FUA."""
        dice, layout = self.dice, self.layout
        if connection.can(client.IS_READ_ONLY):
            return "read", dice.choice(self.places), dice.randint(1, WINDOW), False
        kind = dice.choices([k for k, _ in self.kinds], [w for _, w in self.kinds])[0]
        if kind == "flush":
            return kind, 0, 0, False
        if not connection.can(NEEDED.get(kind, 0)) and kind in NEEDED:
            kind = "write"
        fua = kind != "read" and connection.can(client.HAS_FUA) and dice.random() < 0.2
        if dice.random() < 0.15:  # parts of sectors
            first = layout.sectors + dice.randrange(layout.fine)
            return kind, first, dice.randint(1, min(12, layout.units - first)), fua
        size = dice.choice((1, 1, 1, 2, 3, 8, 8, 16))
        if connection.size > layout.size and dice.random() < 0.3:  # it has grown
            return kind, layout.units + dice.randrange(layout.grown - size + 1), size, fua
        first = dice.choice(self.places) + dice.randrange(WINDOW)
        first = min(first, layout.sectors - size)
        if dice.random() < 0.01:  # longer than the server takes at once
            size, first = min(600, layout.sectors), 0
            first = dice.randrange(layout.sectors - size + 1)
        return kind, first, size, fua

    # ---- Clients

    def begin(self, face, name, depth):
        """A client of this face, which connects anew when it has to."""
        link = Link(self, face, name, depth)
        self.links.append(link)
        self.tasks.append(asyncio.ensure_future(link.run()))
        return link

    async def end(self, limit):
        """All clients wait for their answers, and leave."""
        self.stopping = True
        await asyncio.wait(self.tasks, timeout=limit)
        for task in self.tasks:
            task.cancel()

    async def read_all(self, face, name, limit):
        """A client of its own reads what the disk has in the end."""
        connection = await self.connect(face, limit)
        opening = face.connected(connection)
        try:
            done = await asyncio.wait_for(self._read_all(connection, opening, name), limit)
        except asyncio.TimeoutError:
            done = False
        await connection.close()
        face.disconnected(connection)
        return done

    async def _read_all(self, connection, opening, name):
        for _ in range(2):  # the first one may fail, for what was lost before
            await self.ask(connection, opening, name, "flush")
        for first in range(0, self.layout.sectors, 256):
            await self.ask(connection, opening, name, "read", first, min(256, self.layout.sectors - first))
        await self.ask(connection, opening, name, "read", self.layout.sectors, self.layout.fine)
        if connection.size > self.layout.size:
            await self.ask(connection, opening, name, "read", self.layout.units, self.layout.grown)
        return True

    async def connect(self, face, limit=60):
        """Errors: client.Refused."""
        deadline = time.monotonic() + limit
        while True:
            try:
                return await client.Connection().open(face.socket)
            except client.Refused:
                if time.monotonic() > deadline or not face.alive():
                    raise
                await asyncio.sleep(0.1)

    def look_at_image(self, path, name):
        """Records what the image has, when no program has it any more."""
        with open(path, "rb") as file:
            data = file.read()
        grown = self.layout.grown if len(data) > self.layout.size else 0
        request = self.note(name, "read", 0, self.layout.units + grown)
        request.seen = record.runs(self.layout.read(data, 0, self.layout.units + grown))

    def note(self, name, kind, first, count, fua=False):
        """Something that was done to an image at this moment, by no program."""
        request = record.Request(self.number, name, f"{record.NOBODY}/0", kind, first, count, fua)
        request.answer = "ok"
        self.number += 1
        request.begin = request.end = time.monotonic()
        self.history.requests.append(request)
        return request


class Link:
    """A client with one connection at a time."""

    def __init__(self, load, face, name, depth):
        self.load, self.face, self.name, self.depth = load, face, name, depth
        self.connection = None

    async def run(self):
        while not self.load.stopping:
            face = self.face
            try:
                self.connection = await client.Connection().open(face.socket)
            except client.Refused:
                await asyncio.sleep(0.05)
                continue
            opening = face.connected(self.connection)
            await asyncio.gather(*(self._work(opening) for _ in range(self.depth)))
            await self.connection.close()
            face.disconnected(self.connection)
            self.connection = None

    async def _work(self, opening):
        load = self.load
        # A client that comes while another one may still write can only read, until it connects anew.
        patience = 0.5 if self.connection.can(client.IS_READ_ONLY) else math.inf
        until = time.monotonic() + patience
        while not load.stopping and not self.connection.lost and time.monotonic() < until:
            drawn = load.draw(self.connection)
            request = await load.ask(self.connection, opening, self.name, *drawn)
            # Behind an error a little later, so that there are not thousands of them.
            await asyncio.sleep(2 * load.dice.random() * (load.pause if request.ok else 0.15))

    def may_leave(self):
        return self.connection is not None

    def hang_up(self):
        """In the midst of its requests."""
        self.connection.hang_up()
