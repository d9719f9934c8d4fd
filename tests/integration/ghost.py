#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Ghost writes: the first copy of a write that was sent again must not land on newer data.

ghost.py [OPTIONS] SERVER_PORT ASK_FD ANSWER_FD

Stands between the plugin and the server with a cable for each path, and is the client of the
plugin. ASK_FD says `ports P0 P1`, `restart` when the server is to be killed and another one started,
`ready` when that one must be ready, and `end`, which must be answered, too. ANSWER_FD gives the NBD
URI, and the new server's port, or 0 when it does not want to be ready yet.

Every run: write A is held by the storage, its path dies, A is sent again, and somewhere near a
newer write B to the same block is sent; then the held copy may go on. Every block must have what an
order of the writes explains that has A before B if A was answered before B was sent.
With --late the first copy of A is held by the cable instead.

The storage holds a write when there is a file `hold`, and removes it. It goes on when it reads a
line from the pipe `release`, and makes the file `landed` when it has ended; or, with --hold, after
so many seconds.
"""
import argparse
import os
import sys
import time

import nbd

from forwarder import Cable

SIZE = 16384
BLOCKS = 64
LIMIT = 30  # seconds, for what must happen
RESENT = 5  # seconds; in more time, handshakes of the size of a write may have passed by


def until(what, condition, seconds=LIMIT):
    """Waits for what no event announces."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.002)


class Write:
    """One that is on its way."""

    def __init__(self, handle, place, text):
        self.place = place
        self.data = text.encode().ljust(32, b".") * (SIZE // 32)
        self.error = None

        def done(error):
            self.error = error.value
            return 1

        handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(self.data)), place * SIZE, done,
                          nbd.CMD_FLAG_FUA)

    @property
    def answered(self):
        if self.error:
            sys.exit(f"a write to block {self.place} ended with {os.strerror(self.error)}")
        return self.error is not None


class Ghost:
    def __init__(self, options):
        self.options = options
        self.cables = [Cable(options.server_port) for _ in range(options.paths)]
        self.answers = os.fdopen(options.answer_fd)
        self.say("ports " + " ".join(str(cable.port) for cable in self.cables))
        self.handle = nbd.NBD()
        self.handle.connect_uri(self.answers.readline().strip())
        self.content = {}
        self.early = self.kept = 0
        self.held_since = None
        if options.hold is None:
            # Open for both ways: neither side waits, and no line is lost.
            self.release_fd = os.open("release", os.O_RDWR)

    def say(self, line):
        os.write(self.options.ask_fd, line.encode() + b"\n")

    def happens(self, condition, seconds):
        """Whether it does, while answers come in."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.handle.poll(1)
        return True

    def wait(self, what, condition, seconds=LIMIT):
        if not self.happens(condition, seconds):
            sys.exit(f"not within {seconds} s: {what}")

    def finish(self, write):
        self.wait(f"the answer to {write.data[:32]}", lambda: write.answered)
        self.content[write.place] = write.data

    def write(self, place, text):
        self.finish(Write(self.handle, place, text))

    def read(self, place):
        return bytes(self.handle.pread(SIZE, place * SIZE))

    def all_paths_work(self):
        for cable in self.cables:
            cable.mend()
        before = [cable.to_server for cable in self.cables]
        deadline = time.monotonic() + LIMIT
        # Each in turn, if it works.
        while not all(c.to_server >= b + SIZE for c, b in zip(self.cables, before)):
            self.write(BLOCKS, "to and fro")
            if time.monotonic() > deadline:
                sys.exit(f"not within {LIMIT} s: all paths are used")

    # ---- One run ------------------------------------------------------------------------------------

    def send_held(self, number, place):
        """A is held by the storage. Returns it and the cable on which it came."""
        before = [cable.to_server for cable in self.cables]
        with open("hold", "x", encoding="ascii"):
            pass
        first = Write(self.handle, place, f"run {number} A")
        self.wait("the write is held", lambda: not os.path.exists("hold"))
        self.held_since = time.monotonic()
        carried = [c.to_server - b for c, b in zip(self.cables, before)]
        assert max(carried) >= SIZE, "A took another way"
        return first, self.cables[carried.index(max(carried))]

    def send_late(self, number, place):
        """A is stuck in the cable. Returns it and the cable."""
        cable = self.cables[0]
        deadline = time.monotonic() + LIMIT
        attempt = 0
        # A path that comes back carries a handshake before it carries writes.
        while time.monotonic() < deadline:
            self.all_paths_work()
            cable.mute()
            for _ in range(50):
                attempt += 1
                first = Write(self.handle, place, f"run {number} A{attempt}")
                self.wait("A is somewhere", lambda: first.answered or cable.stuck >= SIZE)
                if cable.stuck >= SIZE:
                    return first, cable
                self.finish(first)
        sys.exit("no write took the silent path")

    def kill_path(self, cable):
        """Returns when A was sent again, or is about to be, to a server that is not ready yet."""
        others = self.cables if self.options.returns else [c for c in self.cables if c is not cable]
        before = [c.to_server for c in others]
        left = cable.left + cable.clients
        if self.options.restart:
            self.another_server("restart")
            return
        if self.options.silent:
            cable.mute()
        elif not self.options.late:
            cable.cut()
        self.wait("the client notices", lambda: cable.left >= left)
        if self.options.returns:
            cable.mend()
        if not self.options.refused:
            self.wait("A is sent again", lambda:
                      any(c.to_server >= b + SIZE for c, b in zip(others, before)), RESENT)

    def another_server(self, request):
        self.say(request)
        port = int(self.answers.readline())
        for cable in self.cables:
            cable.target_port = port or cable.target_port

    def run(self, number):
        place = number * 7 % BLOCKS
        together = number % 2 == 1 and not self.options.serial
        self.all_paths_work()
        first, cable = (self.send_late if self.options.late else self.send_held)(number, place)
        self.kill_path(cable)
        second = Write(self.handle, place, f"run {number} B") if together else None
        for other in range(self.options.others):
            self.write((place + 1 + other % (BLOCKS - 1)) % BLOCKS, f"run {number} other {other}")
        # Whoever gives A to the storage again has its answer soon, although the first one is held.
        answered = self.happens(lambda: first.answered, self.options.window)
        allowed = None
        if answered:
            self.early += not self.options.late
            second = self.both(number, first, second)
            allowed = [self.read(place)]  # and so it must stay
            assert together or allowed == [second.data], f"run {number}: B is not there at once"
        self.let_go(cable)
        if self.options.restart:
            self.another_server("ready")
        second = self.both(number, first, second)
        found = self.content[place] = self.read(place)
        if found not in (allowed or ([first.data, second.data] if together else [second.data])):
            sys.exit(f"run {number}: block {place} has {found[:32]}, and had {second.data[:32]}")
        self.kept += found == first.data

    def both(self, number, first, second):
        """Both are answered; B is sent now, if it was not before."""
        self.finish(first)
        if second is None:
            second = Write(self.handle, first.place, f"run {number} B")
        self.finish(second)
        return second

    def let_go(self, cable):
        """What was held arrives. Returns when it has."""
        if self.options.late:
            cable.mend()
            until("the server has had what was late, and has closed the old path",
                  lambda: cable.stuck == 0 and cable.servers <= cable.clients)
        elif self.options.hold is None:
            os.write(self.release_fd, b"go\n")
            self.wait("the held write has ended", lambda: os.path.exists("landed"))
            os.unlink("landed")
        else:
            end = self.held_since + self.options.hold + 0.1
            self.wait("the held write has ended", lambda: time.monotonic() > end)

    def verify_all(self):
        for place, data in self.content.items():
            found = self.read(place)
            if found != data:
                sys.exit(f"block {place} has {found[:32]} instead of {data[:32]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--paths", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--silent", action="store_true", help="the path is mute instead of cut")
    parser.add_argument("--returns", action="store_true", help="the same path comes back")
    parser.add_argument("--late", action="store_true", help="the cable holds A, not the storage")
    parser.add_argument("--restart", action="store_true", help="the server dies, not the path")
    parser.add_argument("--refused", action="store_true",
                        help="the server turns the client away as long as A is held")
    parser.add_argument("--serial", action="store_true", help="the storage holds all behind A")
    parser.add_argument("--others", type=int, default=0, help="writes to other blocks meanwhile")
    parser.add_argument("--window", type=float, default=0.1)
    parser.add_argument("--hold", type=float)
    parser.add_argument("server_port", type=int)
    parser.add_argument("ask_fd", type=int)
    parser.add_argument("answer_fd", type=int)
    options = parser.parse_args()
    ghost = Ghost(options)
    began = time.monotonic()
    for number in range(options.runs):
        ghost.run(number)
    ghost.verify_all()
    print(f"{options.runs} runs in {time.monotonic() - began:.1f} s; the write was answered early in "
          f"{ghost.early}, and was the last of two at a time in {ghost.kept}")
    ghost.handle.shutdown()
    ghost.say("end")
    ghost.answers.readline()  # the cables must work as long as the plugin


main()
