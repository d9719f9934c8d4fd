# SPDX-License-Identifier: BSD-3-Clause
"""A program of ours in front of a hostile server, as its operator and its NBD clients see it."""
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time

from nbd_peer import GO, Client, Closed, Haggler

KIND = sys.argv[2]  # nbdkit or bridge
COMMAND = sys.argv[3:]  # what starts it; for nbdkit, with the plugin
SLOW = 5 if os.environ.get("RNBD_SANITIZE") else 1
LEAVES_WITHIN = 5 * SLOW  # seconds after SIGTERM


class Face:
    """The program in front of the ports of 127.0.0.1; options are the plugin's, KEY=VALUE."""
    numbers = itertools.count(1)
    all = []

    def __init__(self, ports, device="disk0", starts=True, **options):
        number = next(Face.numbers)
        self.address = os.path.abspath(f"face-{number}.sock")
        self.log_name = f"face-{number}.log"
        self.mark = 0
        options = {"lanes": "1", "heartbeat": f"{200 * SLOW}ms", "reconnect-min": "10ms",
                   "reconnect-max": "50ms", "no-path-timeout": f"{2 * SLOW}s", **options}
        self.options = {key.replace("_", "-"): value for key, value in options.items()}
        for port in ports[1:]:
            self.options["path"] = f"127.0.0.1:{port}"
        uri = f"rnbd+tcp://127.0.0.1:{ports[0]}" + (f"/{device}" if device else "")
        with open(self.log_name, "wb") as log:
            # pylint: disable-next=consider-using-with
            self.process = subprocess.Popen(self.command(uri, device), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        Face.all.append(self)
        if starts:
            self.wait_until(self.is_there, "the program does not start", 20)

    def command(self, uri, device):
        # In debug mode, since there are more reasons in a row than are told an operator otherwise.
        if KIND == "bridge":
            pairs = [word for key, value in self.options.items() for word in ("--" + key, value)]
            listen = ["--listen", "unix:" + self.address, "--log-level", "debug"]
            return [*COMMAND, *listen, uri, *pairs]
        # With -f nbdkit stays in the foreground.
        pairs = [f"{key}={value}" for key, value in self.options.items()]
        named = [] if device else ["dynamic-export=true"]
        debug = ["-v", "-D", "rnbd.verbose=1"]
        return [*COMMAND[:-1], "-f", *debug, "-U", self.address, COMMAND[-1], uri, *pairs, *named]

    def is_there(self):
        assert self.process.poll() is None, f"it left with {self.process.returncode}: {self.tail()}"
        try:
            Haggler(self.address).close()
            return True
        except (OSError, Closed):
            return False

    @staticmethod
    def wait_until(condition, complaint, seconds):
        deadline = time.monotonic() + seconds * SLOW
        while not condition():
            assert time.monotonic() < deadline, complaint() if callable(complaint) else complaint
            time.sleep(0.005)

    # ---- For its operator

    def log(self):
        with open(self.log_name, encoding="utf-8", errors="replace") as log:
            log.seek(self.mark)
            return log.read()

    def tail(self):
        return self.log()[-4000:]

    def forget_log(self):
        self.mark = os.path.getsize(self.log_name)

    def says(self, regex, within=5):
        """One line of the log since it was last forgotten matches."""
        self.wait_until(lambda: re.search(regex, self.log()),
                        lambda: f"the log does not say '{regex}':\n{self.tail()}", within)

    def resident(self, field="VmRSS"):
        """KiB."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(field))

    def lives(self):
        assert self.process.poll() is None, f"it left with {self.process.returncode}: {self.tail()}"

    def ends(self, seconds):
        """Its exit status."""
        try:
            return self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"it still runs after {seconds * SLOW} s: {self.tail()}") from None

    def stop(self):
        self.lives()
        self.process.send_signal(signal.SIGTERM)
        status = self.ends(LEAVES_WITHIN / SLOW)
        assert status == 0, f"it left with {status} after SIGTERM: {self.tail()}"

    # ---- For its NBD clients

    def client(self, name=b"disk0", contexts=False):
        return Client(self.address, name, contexts=contexts)

    def is_refused(self, name=b"disk0"):
        """A client gets no export, but an answer or a hang-up."""
        haggler = Haggler(self.address)
        try:
            said = haggler.info(GO, name)
        except Closed:
            return
        finally:
            haggler.close()
        assert isinstance(said, int), f"it opened {said}"

    def serves(self, server, client=None):
        """What the server has is read, and what is written arrives there."""
        mine = client or self.client()
        for offset, length in ((0, 4096), (65536 - 512, 131072)):
            error, data = mine.read(offset, length)
            assert error == 0, f"error {error}: {self.tail()}"
            assert data == server.disk[offset:offset + length], "wrong data"
        data = os.urandom(4096)
        assert mine.write(8192, data) == 0 and server.disk[8192:12288] == data
        if client is None:
            mine.leave()


def forget_logs():
    """What cases said that went well is of no interest, but to sanitizers."""
    for face in Face.all:
        if SLOW == 1:
            os.unlink(face.log_name)


def end_all():
    """What failed cases left."""
    for face in Face.all:
        if face.process.poll() is None:
            face.process.kill()
        face.process.wait()
    Face.all.clear()


def started(function, *arguments):
    """A thread that runs it; join() hands on its result, or raises its exception."""
    class Result(threading.Thread):
        result = error = None

        def run(self):
            try:
                self.result = function(*arguments)
            except BaseException as error:  # pylint: disable=broad-exception-caught
                self.error = error

        def get(self, seconds):
            self.join(seconds * SLOW)
            assert not self.is_alive(), f"still waits after {seconds * SLOW} s"
            if self.error:
                raise self.error
            return self.result

    thread = Result(daemon=True)
    thread.start()
    return thread
