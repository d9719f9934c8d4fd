# SPDX-License-Identifier: BSD-3-Clause
"""The record of a history: what was asked, when, what came back, and what was done to the programs.

It is written as JSON lines, so that a failed run can be judged again: a line of the world, then a
line for each request and event. Times are seconds of one monotonic clock.
"""
import dataclasses
import itertools
import json

NOBODY = "nobody"  # the face of what no NBD client did
CHANGES = ("write", "zero", "trim")


@dataclasses.dataclass
class World:
    """Facts of the world that the checker needs. Times in seconds."""
    kind: str = "single"
    seed: int = 0
    sectors: int = 0
    fine: int = 0
    no_path_timeout: float = 0  # 0: requests wait for ever
    slack: float = 20  # what a busy machine may add to a limit
    type: str = "world"


@dataclasses.dataclass
class Request:
    """A request of an NBD client, or what somebody saw who looked at a disk himself."""
    number: int  # also the content of what it writes
    client: str
    opening: str  # since when its face had the device open without a break
    kind: str  # read, write, zero, trim, flush
    first: int = 0  # unit
    count: int = 0  # units
    fua: bool = False
    begin: float = 0
    end: float | None = None  # None: nothing had come back when the history ended
    # ok, an errno's name, or: lost (the connection ended), left (this client hung up itself)
    answer: str | None = None
    seen: list | None = None  # of a read that is ok: [how many units, value] one behind the other
    type: str = "request"

    @property
    def ok(self):
        return self.answer == "ok"

    @property
    def is_change(self):
        return self.kind in CHANGES

    def values(self):
        """(unit, value) of a read."""
        unit = self.first
        for count, value in self.seen or ():
            for _ in range(count):
                yield unit, value
                unit += 1

    def told(self):
        """For people."""
        what = self.kind + (" with FUA" if self.fua else "")
        until = "no answer" if self.end is None else f"{self.end:.3f} s: {self.answer}"
        return f"request {self.number} ({what} of {self.client}, {self.begin:.3f} s to {until})"


def runs(values):
    """[how many, value] one behind the other."""
    return [[len(list(group)), value] for value, group in itertools.groupby(values)]


@dataclasses.dataclass
class Event:
    """Something that was done to the world.

    outage      `subject` was out of order: nothing of it could be used, or part of it
    standstill  the face `subject` stood still
    cut         all servers are dead, and what was not synced is gone; they run again at the end
    contest     another face took the disk from the face `subject`, which could not use it any more
    end         the program `subject` ended; `asked` says how it was told to, if it was
    """
    kind: str
    subject: str
    begin: float
    end: float | None = None
    asked: str = ""  # SIGTERM, SIGKILL
    status: int = 0
    text: str = ""
    type: str = "event"


class History:
    """Everything that was recorded."""

    def __init__(self, world):
        self.world = world
        self.requests = []
        self.events = []

    def of(self, kind):
        return [event for event in self.events if event.kind == kind]

    def save(self, path):
        with open(path, "w", encoding="ascii") as file:
            for line in [self.world, *self.requests, *self.events]:
                print(json.dumps(dataclasses.asdict(line)), file=file)


def load(path):
    """A history that was saved."""
    history = None
    with open(path, encoding="ascii") as file:
        for line in map(json.loads, file):
            if line["type"] == "world":
                history = History(World(**line))
            elif line["type"] == "request":
                history.requests.append(Request(**line))
            else:
                history.events.append(Event(**line))
    return history
