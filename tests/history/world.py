# SPDX-License-Identifier: BSD-3-Clause
"""A world of real programs: disks, servers, cables, a face, and clients of it.

  single    a disk of one server, behind one cable or two
  power     the same; its machine loses its power
  mirror2   a disk of two servers
  mirror3   ... of three
  brick     a brick with a tier, with half of its blocks in memory
"""
import asyncio
import os
import random
import time

import client
import contents
import load
import programs
import record
import storage

KINDS = ("single", "power", "mirror2", "mirror3", "brick")
CALM = 60  # seconds for what must happen when all is mended, on a machine that is busy
MEBI = 1 << 20


class World:
    """One history. `dice` draws it."""

    def __init__(self, kind, seed, directory, can_forget):
        self.kind, self.directory = kind, directory
        self.dice = random.Random(f"{seed} {kind}")
        self.members = int(kind[-1]) if kind.startswith("mirror") else 1
        sectors = {"brick": 16 << 11}.get(kind, 4 << 11 if self.members > 1 else 1 << 11)
        fine = 128
        self.layout = contents.Layout(sectors - fine // 8, fine, grown=64)
        patience = self.dice.choice((0, 0, 4)) if self.members == 1 and kind != "power" else 0
        self.history = record.History(record.World(kind, seed, self.layout.sectors, fine, patience))
        self.disks, self.servers, self.cables, self.faces = [], [], [], []
        self.face = None
        self.clients = load.Load(self.history, self.layout, self.dice,
                                 erases=kind != "power" or self.dice.random() < 0.3)
        self.connections = self.dice.randint(1, 3)
        self.depth = self.dice.choice((1, 3, 8))
        self.face_kind = self.dice.choice(("bridge", "plugin"))
        self.ways = self.dice.choice((1, 2)) if self.members == 1 else 1
        self.direct = kind != "brick" and self.dice.random() < 0.25  # past the page cache
        self.pull = self.members > 1 and self.dice.random() < 0.5  # members copy by themselves
        self.hangs = self.dice.choice((2, 2, 7))  # seconds for which storage holds a write
        self.forgets = can_forget and (kind == "power" or self.members > 1 and self.dice.random() < 0.5)
        # The faults begin before the first member's content is copied.
        self.new_group = self.members > 1 and self.dice.random() < 0.5
        self.mode = self.dice.choice(("two-sided", "passive")) if kind == "brick" else None

    def told(self):
        """In a few words, for people."""
        more = [self.mode, self.new_group and "a new group", self.forgets and "disks that forget",
                self.direct and "direct", self.pull and "pull"]
        return ", ".join(filter(None, [
            self.face_kind, f"{self.connections} connections of depth {self.depth}", f"{self.ways} paths",
            *more, f"no-path-timeout {self.history.world.no_path_timeout} s"]))

    # ---- Building

    async def build(self):
        os.mkdir(self.directory)
        for number in range(self.members):
            disk = storage.Disk(f"{self.directory}/{number}.disk", self.layout, self.forgets)
            self.disks.append(disk)
            at = f"delay:hold-file={self.hold_file(number)},hold={self.hangs}s:{disk.image}"
            at += ",direct" if self.direct else ""
            if self.kind == "brick":
                at = f"brick:{self.layout.size // MEBI // 2}M,file={disk.image}"
            # The first member's content is copied to the others, and a brick begins without any.
            if number or self.kind == "brick":
                disk.empty(self.layout)
            server = programs.Server(self.directory, self.history, f"server{number}", disk, [("disk", at)],
                                     ["--pull", "on"] if self.pull else [])
            self.servers.append(server)
            await server.start()
            cables = programs.Cables(self.directory, self.history, server, self.ways)
            self.cables.append(cables)
            await cables.start()
        self.face = await self.another_face()
        await self.prepare()
        for number in range(self.connections):
            self.clients.begin(self.face, f"client {number}", self.depth)

    def hold_file(self, number):
        """The next write of this server hangs while the file is there."""
        return f"{self.directory}/hold{number}"

    async def prepare(self):
        """The disk has first content, and a mirror is whole."""
        if self.new_group:
            return
        connection = await self.clients.connect(self.face)
        if self.kind == "brick":
            image = self.layout.image()
            for offset in range(0, len(image), MEBI):
                await connection.ask(client.WRITE, offset, len(image[offset:offset + MEBI]),
                                     image[offset:offset + MEBI])
            await connection.ask(client.FLUSH, 0, 0)
        if self.members > 1:
            await connection.ask(client.READ, 0, contents.SECTOR)  # it attaches then
            await self.in_step()
        await connection.close()

    async def another_face(self):
        ports = [cables.ports[0] for cables in self.cables]
        scheme = "rnbd-mirror+tcp" if self.members > 1 else "rnbd+tcp"
        uri = f"{scheme}://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "/disk"
        if self.new_group:
            uri += "?resync-rate=1"
        options = [("no-path-timeout", f"{self.history.world.no_path_timeout:g}s"),
                   ("reconnect-max", "300ms"), ("connect-timeout", "60s")]
        options += [("mode", self.mode)] if self.mode else []
        options += [("path", f"127.0.0.1:{port}") for port in self.cables[0].ports[1:]]
        face = programs.Face(self.directory, self.history, f"face{len(self.faces)}", self.face_kind,
                             uri, options)
        self.faces.append(face)
        await face.start()
        return face

    async def in_step(self):
        """All members of the mirror have all data. Errors: programs.Broken.

        A member whose power was cut is in step until the face has met its server again, and a moment
        longer.
        """
        began = time.monotonic()
        status = {}
        times = 0
        while time.monotonic() < began + CALM:
            status = await self.face.ask("mirror", "status")
            states = [member["state"] for member in status.get("members", ())]
            whole = states == ["in step"] * self.members and not status["unequal_mib"]
            times = times + 1 if whole and all(server.visited() for server in self.servers) else 0
            if times == 3:
                return
            await asyncio.sleep(0.1)
        raise programs.Broken(f"the members are not in step: {status}")

    async def lost(self, number):
        """The face has noticed that it has lost this member, and goes on without it."""
        began = time.monotonic()
        while time.monotonic() < began + CALM:
            members = (await self.face.ask("mirror", "status")).get("members", ())
            if members and members[number]["state"] == "away":
                return
            await asyncio.sleep(0.1)
        raise programs.Broken(f"server{number} is dead, and is not away")

    # ---- Running

    async def run(self, seconds, faults):
        """The history. Errors: programs.Broken."""
        await self.build()
        await faults.run(seconds)
        await self.finish()

    async def finish(self):
        """All is mended: requests are answered, programs leave, and all data are looked at."""
        await self.clients.end(CALM)
        self.look_at_programs()
        if self.members > 1:
            await self.in_step()
        try:
            await self.clients.read_all(self.face, "the last client", CALM)
        except client.Refused as error:
            raise programs.Broken(f"nobody is let in in the end: {error}") from error
        self.look_at_programs()
        for program in [*self.faces, *self.servers]:
            if program.alive():
                await program.leave()
        for program in self.cables:
            await program.kill()
        # In a brick's tier blocks are anywhere.
        for number, disk in enumerate(self.disks if self.kind != "brick" else ()):
            self.clients.look_at_image(disk.image, f"image {number}")

    def look_at_programs(self):
        for program in [*self.faces, *self.servers]:
            program.look()

    async def end(self):
        """Nothing of it is left but its directory."""
        for program in [*self.faces, *self.servers, *self.cables]:
            if program.alive():
                program.process.kill()
                program.process.wait()
        for disk in self.disks:
            disk.close()
