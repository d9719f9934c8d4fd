#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""Faults are planted from outside, on real programs, and the checker has to find them.

One server and one bridge serve a disk for each fault; a liar stands in front of each. The machine
loses its power once. The disk without a fault must be as promised. SEED=N draws other requests.
"""
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time

import cases
import checker
import contents
import liar
import load
import programs
import record
import storage
import world

LENGTH, MOST = 4.5, 30  # seconds before the power cut, and behind it: at least and at most
REQUESTS = 300  # of each disk, in each of these times
BY_A_CUT = "after the power cut"  # words for a fault that only a power cut shows
SEED = os.environ.get("SEED") or time.strftime("%Y%m%d")


class Planted:
    """A disk with a fault, and its clients."""

    def __init__(self, number, fault, face, layout):
        dice = random.Random(f"{SEED} {fault.__name__}")
        self.history = record.History(record.World("planted", slack=0 if fault is
                                                   liar.answer_does_not_come else 20))
        self.liar = liar.Liar(face, fault.__name__, fault, dice)
        self.clients = load.Load(self.history, layout, dice, places=2, pause=0.03,
                                 erases=liar.FAULTS[fault] != BY_A_CUT)
        self.clients.number += number * 1000000

    async def begin(self):
        await self.liar.start()
        for number in range(2):
            self.clients.begin(self.liar, f"client {number}", 2)


async def enough(planted):
    """A fault that is there now and then needs requests: a busy machine gets more time for them."""
    wanted = {fault: len(one.history.requests) + REQUESTS for fault, one in planted.items()}
    until = time.monotonic() + MOST
    await asyncio.sleep(LENGTH)
    while time.monotonic() < until and any(len(planted[fault].history.requests) < number
                                           for fault, number in wanted.items()
                                           if fault is not liar.answer_does_not_come):
        await asyncio.sleep(0.2)


async def run(directory, cuts):
    """Returns the histories by fault, and one of the programs."""
    layout, common = contents.Layout(1 << 10, 64), record.History(record.World())
    disk = storage.Disk(f"{directory}/0.disk", layout, cuts, copies=[fault.__name__ for fault in liar.FAULTS])
    server = programs.Server(directory, common, "server", disk,
                             [(fault.__name__, disk.copy(fault.__name__)) for fault in liar.FAULTS])
    face = None
    try:
        await server.start()
        face = programs.Face(directory, common, "face", "bridge", f"rnbd+tcp://127.0.0.1:{server.port}",
                             [("no-path-timeout", "0"), ("reconnect-max", "300ms")])
        await face.start()
        planted = {fault: Planted(number, fault, face, layout) for number, fault in enumerate(liar.FAULTS)}
        for one in planted.values():
            await one.begin()
        await enough(planted)
        if cuts:
            await server.kill()
            cut = record.Event("cut", "the storage", time.monotonic())
            common.events.append(cut)
            await disk.lose_power(random.Random(SEED))
            cut.end = time.monotonic()
            for one in planted.values():
                one.liar.was_down = True
            await server.start()
            await enough(planted)
        await asyncio.gather(*(one.clients.end(2) for one in planted.values()))
        face.look()
        for one in planted.values():
            one.history.events = list(common.events)
        face.process.kill()  # nobody is told
        await storage.until(lambda: not face.alive(), "it stays")
        face.look()
        server.look()
    finally:
        for program in (face, server):
            if program and program.alive():
                program.process.kill()
        disk.close()
    return {fault: one.history for fault, one in planted.items()}, common


async def stale_member(directory):
    """A member of a mirror gets the content that its disk had some time ago."""
    made = world.World("mirror2", SEED, directory, can_forget=False)
    try:
        await made.build()
        await asyncio.sleep(1)
        with open(made.disks[1].image, "rb+") as image:
            old = image.read()
            await asyncio.sleep(1)
            image.seek(0)
            image.write(old)
        await asyncio.sleep(1)
        await made.finish()
    finally:
        await made.end()
    return made.history


def judge(history, words):
    """Nothing is found without a fault, and what the words say with one."""
    if not history.requests and words != "ended by itself":
        raise cases.Failed("no request")
    found = checker.check(history, most=1000000)
    if words is None and found:
        raise cases.Failed(f"without a fault: {found[0]}")
    if words is not None and not any(words in text for text in found):
        raise cases.Failed(f"{len(history.requests)} requests; not found, but: {found[:1]}")
    return f"{len(history.requests)} requests" + (f"; {len(found)} sentences" if words else "")


def main():
    storage.own_mounts()
    directory = tempfile.mkdtemp(prefix="rnbd-history.")
    why = storage.can_forget(directory)
    histories, common = asyncio.run(run(directory, why is None))
    tests = cases.Cases()
    for fault, words in liar.FAULTS.items():
        title = f"what is planted is found: {fault.__name__.replace('_', ' ')}"
        if why and words == BY_A_CUT:
            tests.it(title, skip, why)
        else:
            tests.it(title, judge, histories[fault], words)
    tests.it("what is planted is found: a program dies", judge, common, "ended by itself")
    mirror = asyncio.run(stale_member(f"{directory}/mirror"))
    tests.it("what is planted is found: a member is stale", judge, mirror, liar.UNDONE)
    if not tests.failed:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        for fault, history in histories.items():
            history.save(f"{directory}/{fault.__name__}.jsonl")
        print(f"logs and records are in {directory}")
    return tests.finish()


def skip(why):
    raise cases.Skipped(why)


if __name__ == "__main__":
    sys.exit(main())
