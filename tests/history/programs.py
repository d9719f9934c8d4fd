# SPDX-License-Identifier: BSD-3-Clause
"""The real programs: started, and ended in every way, with a record of it."""
import asyncio
import ctypes
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time

import record
from storage import until

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("RNBD_BUILD_DIR", os.path.join(HERE, "../../build"))
SERVER = os.environ.get("RNBD_SERVER", f"{BUILD}/bin/rnbd-server")
BRIDGE = os.environ.get("RNBD_BRIDGE", f"{BUILD}/bin/rnbd-bridge")
CTL = os.environ.get("RNBD_CTL", f"{BUILD}/bin/rnbd-ctl")
PLUGIN = os.path.abspath(os.environ.get("RNBD_PLUGIN", f"{BUILD}/nbdkit-plugin/nbdkit-rnbd-plugin.so"))
PATIENCE = 60  # seconds until a program counts as one that does not start or end

LIBC = ctypes.CDLL(None)
DIE_WITH_PARENT = 1  # prctl(2), PR_SET_PDEATHSIG


class Broken(Exception):
    """The world cannot be built, or a program does not start."""


class Program:
    """A program of the world. `history` gets its outages and its end."""

    def __init__(self, directory, history, name):
        self.directory, self.history, self.name = directory, history, name
        self.process = None
        self.log = f"{directory}/{name}.log"
        self.told = True  # to end
        self.out = None  # the outage that is not over

    def spawn(self, command, ready_option=None, **more):
        """Returns a descriptor that has a line when the program is ready."""
        reader, writer = os.pipe()
        if ready_option:
            command = [*command, ready_option, str(writer)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                command, stdin=more.pop("stdin", subprocess.DEVNULL), stdout=more.pop("stdout", log),
                stderr=log, pass_fds=[writer], cwd=self.directory,
                preexec_fn=lambda: LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL), **more)
        self.told = False
        os.close(writer)
        os.set_blocking(reader, False)
        return reader

    async def ready(self, reader):
        def line():
            if not self.alive():
                raise Broken(f"{self.name} does not start: {self.tail()}")
            try:
                return os.read(reader, 4096)
            except BlockingIOError:
                return b""
        try:
            await until(line, f"{self.name} is not ready: {self.tail()}", PATIENCE)
        finally:
            os.close(reader)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def tail(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return " | ".join(file.read().splitlines()[-3:])

    def broken(self):
        """From now on it is out of order."""
        if self.out is None:
            self.out = record.Event("outage", self.name, time.monotonic())
            self.history.events.append(self.out)

    def mended(self):
        if self.out is not None:
            self.out.end = time.monotonic()
            self.out = None

    async def kill(self):
        self.broken()
        await self._end(signal.SIGKILL)

    async def leave(self):
        self.broken()
        await self._end(signal.SIGTERM)

    async def _end(self, number):
        if not self.alive():
            return
        self.told = True
        event = record.Event("end", self.name, time.monotonic(), asked=number.name)
        self.history.events.append(event)
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.send_signal(signal.SIGCONT)
        try:
            await until(lambda: not self.alive(), "it stays", PATIENCE)
            event.end = time.monotonic()
        except TimeoutError:
            self.process.kill()
            self.process.wait()
        event.status, event.text = self.process.returncode, self.tail()

    def stop(self):
        """The program stands still."""
        self.process.send_signal(signal.SIGSTOP)
        self.broken()

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)
        self.mended()

    def look(self):
        """Records an end that nobody asked for."""
        if self.process is not None and not self.told and not self.alive():
            self.told = True
            self.history.events.append(record.Event(
                "end", self.name, time.monotonic(), status=self.process.returncode, text=self.tail()))


class Server(Program):
    """rnbd-server. `exports`: (name, storage)."""

    def __init__(self, directory, history, name, disk, exports, options=()):
        super().__init__(directory, history, name)
        self.options = options
        self.disk, self.exports = disk, exports
        self.port = 0
        self.began = 0  # of this life in the log

    async def start(self):
        self.began = os.path.getsize(self.log) if os.path.exists(self.log) else 0
        reader = self.spawn(self.disk.command(
            [SERVER, "--listen", f"tcp:127.0.0.1:{self.port}", "--state-directory", self.disk.state,
             "--control", "none", *self.options,
             *(part for name, at in self.exports for part in ("--export", f"{name}={at}"))]), "--ready-fd")
        await self.ready(reader)
        if not self.port:
            with open(self.log, encoding="utf-8") as file:
                self.port = int(re.search(r"127\.0\.0\.1:(\d+)", file.read()).group(1))
        self.mended()

    def visited(self):
        """A client has opened something since the start, and so knows what this life has lost."""
        with open(self.log, "rb") as file:
            file.seek(self.began)
            return b": opened '" in file.read()


class Cables(Program):
    """Cables to a server."""

    def __init__(self, directory, history, server, count):
        super().__init__(directory, history, f"cables-{server.name}")
        self.server, self.count = server, count
        self.ports = []
        self.outages = {}

    async def start(self):
        command = [sys.executable, "-B", f"{HERE}/cable.py", str(self.server.port), str(self.count)]
        os.close(self.spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        line = await asyncio.get_running_loop().run_in_executor(None, self.process.stdout.readline)
        self.ports = [int(port) for port in line.split()]

    def order(self, cable, out=True, **order):
        """`out`: from now on it is out of order, or no longer."""
        if out and cable not in self.outages:
            self.outages[cable] = record.Event("outage", f"cable {cable} of {self.server.name}",
                                               time.monotonic())
            self.history.events.append(self.outages[cable])
        self.process.stdin.write(json.dumps({"cable": cable, **order}).encode() + b"\n")
        self.process.stdin.flush()
        if not out and cable in self.outages:
            self.outages.pop(cable).end = time.monotonic()


class Face(Program):
    """rnbd-bridge or nbdkit with the plugin; what NBD clients see."""

    def __init__(self, directory, history, name, kind, uri, options):
        super().__init__(directory, history, name)
        self.kind, self.uri, self.options = kind, uri, options
        self.socket, self.control = f"{directory}/{name}.sock", f"{directory}/{name}.control"
        self.connections = set()
        self.opening = 0

    async def start(self):
        try:
            os.unlink(self.socket)
        except FileNotFoundError:
            pass
        options = [("control", self.control), *self.options]
        if self.kind == "bridge":
            reader = self.spawn([BRIDGE, "--listen", f"unix:{self.socket}",
                                 *(part for key, value in options for part in ("--" + key, value)), self.uri],
                                "--ready-fd")
            await self.ready(reader)
        else:
            os.close(self.spawn(["nbdkit", "-f", "-t", "32", "-U", self.socket, PLUGIN, self.uri,
                                 *(f"{key}={value}" for key, value in options)]))
            await until(lambda: os.path.exists(self.socket) or not self.alive(), "no socket", PATIENCE)
            if not self.alive():
                raise Broken(f"{self.name} does not start: {self.tail()}")
        self.mended()

    def stop(self):
        super().stop()
        self.out.kind = "standstill"

    def connected(self, connection):
        """Returns the name of the opening that the connection belongs to."""
        if not self.connections:
            self.opening += 1
        self.connections.add(connection)
        return f"{self.name}/{self.opening}"

    def disconnected(self, connection):
        self.connections.discard(connection)

    async def ask(self, *command):
        """The answer of its control socket."""
        process = await asyncio.create_subprocess_exec(
            CTL, "--json", self.control, *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        said, _ = await process.communicate()
        try:
            return json.loads(said)
        except ValueError:
            return {}


def name_of(number):
    """Of an errno as NBD has it."""
    return "ok" if number == 0 else errno.errorcode.get(number, f"errno {number}")
