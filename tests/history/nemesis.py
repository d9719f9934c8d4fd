# SPDX-License-Identifier: BSD-3-Clause
"""Faults of a world, as a seed draws them: one after the other, each mended again."""
import asyncio
import os
import time

import client
import contents
import record
import storage

PATIENCE = 60  # seconds for what takes 5 on a machine that is not busy
FORGOTTEN = 9  # seconds: the server has forgotten a client that stood still for so long


async def answered(question, otherwise):
    """Asks until the answer is yes. Errors: TimeoutError."""
    deadline = time.monotonic() + PATIENCE
    while not await question():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        await asyncio.sleep(0.1)


class Nemesis:
    """The faults of one world."""

    def __init__(self, world):
        self.world, self.dice = world, world.dice
        self.faults = [getattr(self, name) for name in FAULTS[world.kind]]
        self.done = []  # names, in order

    async def run(self, seconds):
        until = time.monotonic() + seconds
        if self.world.new_group:
            await self.do(getattr(self, self.dice.choice(SERVERS + ["cable_is_cut", "cable_is_mute"])))
        await asyncio.sleep(0.5)
        while time.monotonic() < until:
            fault = self.dice.choice(self.faults)
            await self.do(fault)
            self.world.look_at_programs()
            await asyncio.sleep(self.dice.choice((0.05, 0.3, 1.0)))
        if self.world.members > 1:
            await self.do(self.all_lose_their_power if self.world.forgets else self.all_servers_are_killed)

    async def do(self, fault):
        self.done.append(fault.__name__)
        await fault()

    def pause(self, most):
        return asyncio.sleep(self.dice.random() ** 2 * most)

    # ---- Servers

    def server(self):
        return self.dice.choice(self.world.servers)

    async def whole(self):
        """A mirror may lose the next member when the last one is in step."""
        if self.world.members > 1:
            await self.world.in_step()

    async def server_is_killed(self):
        server = self.server()
        await server.kill()
        cut = self.cut() if self.world.kind == "brick" else None  # its memory is gone
        await self.pause(3)
        await self.start([server], cut)
        await self.whole()

    async def server_is_restarted(self):
        server = self.server()
        await server.leave()
        await self.pause(2)
        await server.start()
        await self.whole()

    async def server_stands_still(self):
        server = self.server()
        server.stop()
        await self.pause(6)
        server.go_on()
        await self.whole()

    async def storage_hangs(self):
        """One write is held, while something else fails: it may become a ghost."""
        number = self.dice.randrange(len(self.world.servers))
        file = self.world.hold_file(number)
        out = record.Event("outage", f"storage of server{number}", time.monotonic())
        self.world.history.events.append(out)
        with open(file, "wb"):
            pass
        await asyncio.sleep(0.3 * self.dice.random())
        fault = self.dice.choice(CABLES + SERVERS + ["client_hangs_up", "face_is_killed"])
        await self.do(getattr(self, fault))
        await asyncio.sleep(self.world.hangs)
        try:
            os.unlink(file)
        except FileNotFoundError:
            pass  # a write has been held
        out.end = time.monotonic()

    async def disk_grows(self):
        """Clients that come later are told; the face has to be before its server may restart.

        A disk that grows while its server is away is another one for those who have it open. A face
        that has it open lets clients in meanwhile, with the size that it knows.
        """
        world = self.world
        if os.path.getsize(world.disks[0].image) > world.layout.size:
            return
        await answered(self.server_answers, "no read is answered")
        with open(world.disks[0].image, "rb+") as image:
            image.truncate(world.layout.whole)
            os.fsync(image.fileno())
        world.clients.note("who grew it", "zero", world.layout.units, world.layout.grown, fua=True)
        await answered(self.face_is_told, "the face is not told of the new size")
        for link in world.clients.links:
            if link.may_leave():
                link.hang_up()

    async def server_answers(self):
        connection = await self.world.clients.connect(self.world.face)
        error, _ = await connection.ask(client.READ, 0, contents.SECTOR)
        await connection.close()
        return error == 0

    async def face_is_told(self):
        connection = await self.world.clients.connect(self.world.face)
        await connection.close()
        return connection.size > self.world.layout.size

    # ---- Members of a mirror

    async def member_loses_its_power(self):
        """The others still have all of it, so that nothing is lost."""
        server = self.server()
        await server.kill()
        if self.world.forgets:
            await server.disk.lose_power(self.dice, self.dice.choice((0, 0.01, 0.1)))
        await self.pause(2)
        await server.start()
        await self.whole()

    async def member_is_replaced(self):
        """The others go on without it, and it comes back with an empty disk and no records."""
        server = self.server()
        await server.kill()
        await self.world.lost(self.world.servers.index(server))
        server.disk.empty(self.world.layout)
        await server.start()
        await self.whole()

    async def all_servers_are_killed(self):
        for server in self.world.servers:
            await server.kill()
        await self.pause(2)
        for server in self.world.servers:
            await server.start()
        await self.whole()

    async def all_lose_their_power(self):
        for server in self.world.servers:
            await server.kill()
        cut = self.cut()
        for server in self.world.servers:
            await server.disk.lose_power(self.dice, self.dice.choice((0, 0.01, 0.1)))
        await self.pause(2)
        await self.start(self.world.servers, cut)
        await self.whole()

    def cut(self):
        """All servers are dead, and what they had not synced is gone."""
        cut = record.Event("cut", "the storage", time.monotonic())
        self.world.history.events.append(cut)
        return cut

    @staticmethod
    async def start(servers, cut=None):
        if cut:
            cut.end = time.monotonic()
        for server in servers:
            await server.start()

    # ---- Cables

    def cable(self):
        cables = self.dice.choice(self.world.cables)
        return cables, self.dice.randrange(cables.count)

    async def cable_is_cut(self):
        cables, number = self.cable()
        cables.order(number, cut=True, refuse=True)
        await self.pause(5)
        cables.order(number, out=False, refuse=False)
        await self.whole()

    async def cable_is_mute(self):
        """The cable carries nothing in one direction, or in both."""
        cables, number = self.cable()
        cables.order(number, mute=self.dice.choice(([True, False], [False, True], [True, True])))
        await self.pause(6)
        cables.order(number, out=False, mute=[False, False])
        await self.whole()

    async def cable_is_late(self):
        """The client loses its connections; what it has sent arrives later."""
        cables, number = self.cable()
        cables.order(number, late=0.2 + 3 * self.dice.random())
        await asyncio.sleep(0.1)
        cables.order(number, out=False)
        await self.whole()

    async def cable_is_slow(self):
        cables, number = self.cable()
        cables.order(number, delay=0.2 * self.dice.random())
        await self.pause(2)
        cables.order(number, out=False, delay=0)

    # ---- Faces and clients

    async def client_hangs_up(self):
        """Half of the time it is the one whose request has waited longest."""
        links = [link for link in self.world.clients.links if link.may_leave()]
        waiting = [r.client for r in self.world.history.requests if r.end is None]
        if waiting and self.dice.random() < 0.5:
            links = [link for link in links if link.name == waiting[0]] or links
        if links:
            self.dice.choice(links).hang_up()

    async def face_is_killed(self):
        await self.world.face.kill()
        await self.pause(1)
        await self.world.face.start()
        await self.let_in()

    async def face_is_restarted(self):
        await self.world.face.leave()
        await self.pause(1)
        await self.world.face.start()
        await self.let_in()

    async def let_in(self):
        """Waits until a client of the face has written."""
        requests, face = self.world.history.requests, self.world.face
        old = len(requests)
        await storage.until(lambda: any(r.is_change and r.ok and r.opening.startswith(face.name + "/")
                                        for r in requests[old:]),
                            f"no client of {face.name} may write. Promised: a killed client: its session and "
                            "its access are free within 5 s", PATIENCE)

    async def another_face_takes_over(self):
        """The first one stands still and is forgotten; then it goes on, and must not write."""
        world, old, clients = self.world, self.world.face, self.world.clients
        self.faults = [fault for fault in self.faults if fault.__name__ != "another_face_takes_over"]
        old.stop()
        await asyncio.sleep(FORGOTTEN)
        contest = record.Event("contest", old.name, time.monotonic())
        world.history.events.append(contest)
        new = world.face = await world.another_face()
        waiting, clients.links = clients.links, []
        clients.begin(new, "the next client", world.depth)
        await self.let_in()
        old.go_on()
        await asyncio.sleep(2)
        for link in waiting:
            link.face = new
            if link.connection:
                link.hang_up()
        await old.leave()
        contest.end = time.monotonic()
        clients.links += waiting

    async def face_stands_still(self):
        self.world.face.stop()
        await self.pause(3)
        self.world.face.go_on()


SERVERS = ["server_is_killed", "server_is_restarted", "server_stands_still"]
MEMBERS = ["member_loses_its_power", "member_is_replaced"]
CABLES = ["cable_is_cut", "cable_is_mute", "cable_is_late", "cable_is_slow"]
FACES = ["client_hangs_up", "face_is_killed", "face_is_restarted", "face_stands_still"]
ALL = SERVERS + CABLES + FACES
FAULTS = {
    "single": ALL + ["storage_hangs", "storage_hangs", "disk_grows", "another_face_takes_over"],
    "power": ALL + ["all_lose_their_power"] * 5 + ["disk_grows"],
    "mirror2": ALL + MEMBERS + ["storage_hangs", "another_face_takes_over"],
    "mirror3": ALL + MEMBERS + ["storage_hangs", "another_face_takes_over"],
    "brick": ALL,
}
