# SPDX-License-Identifier: BSD-3-Clause
"""A TCP cable inside a Python test: it can be cut, go silent, and be mended.

cut    both ends are told at once, as by a peer that resets; who connects is turned away
mute   nothing arrives any more, and nobody is told; what is sent meanwhile arrives late, when the
       cable is mended, even if its sender has given up long ago
flip   one bit of what arrives next is another one then
lose_answers  what the server sends does not arrive, and never will; until it is cut
mend   as new

forward.py is the one for scripts: a process, to be killed (a cut) or stopped (silence).
"""
import os
import random
import selectors
import socket
import threading


class _End:
    """One of the two sockets of a connection."""

    def __init__(self, sock):
        self.sock = sock
        self.other = None
        self.pending = bytearray()  # to be sent to it
        self.ended = False  # it sends nothing any more
        self.told = False  # that the other one sends nothing any more
        self.damaged = False  # a bit was flipped on the way to it, or from it


class Cable:
    """Forwards 127.0.0.1:`port` to a port of this host.

    `to_server` and `to_client` count the bytes that have arrived, `stuck` those on their way to the
    server. `clients` and `servers` are the connections that these have not ended, `left` counts those
    that clients have. `damaged` are the connections with a flipped bit, that still stand.
    """

    def __init__(self, target_port):
        self.target_port = target_port
        self.to_server = self.to_client = self.stuck = 0
        self.clients = self.servers = self.left = 0
        self._state = "open"
        self._loses_answers = False
        self.damaged = 0
        self._flips = None  # towards the server (True) or the client (False)
        self._dice = random.Random(0)
        self._ends = set()
        self._near = set()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        threading.Thread(target=self._run, daemon=True).start()

    def cut(self):
        self._become("cut")

    def mute(self):
        self._become("mute")

    def mend(self):
        self._become("open")

    def flip(self, towards_server):
        """`flipped` is true when it has happened."""
        with self._lock:
            self._flips = towards_server

    @property
    def flipped(self):
        return self._flips is None

    def _damage(self, end):
        byte = self._dice.randrange(len(end.pending))
        end.pending[byte] ^= 1 << self._dice.randrange(8)
        end.damaged = end.other.damaged = True
        self.damaged += 1  # before anybody sees that it has happened
        self._flips = None

    def lose_answers(self):
        with self._lock:
            self._loses_answers = True

    def _become(self, state):
        with self._lock:
            self._state = state
            self._loses_answers = False
            if state == "cut":
                for end in list(self._ends):
                    self._drop(end)
            self._count()
        os.write(self._wake_write, b"x")

    def _run(self):
        while True:
            ready = [key.fileobj for key, _ in self._selector.select()]
            with self._lock:
                if self._wake_read in ready:
                    os.read(self._wake_read, 4096)
                if self._listener in ready:
                    self._accept()
                for end in list(self._ends):
                    if end.sock in ready:
                        self._receive(end)
                if self._state == "open":
                    for end in list(self._ends):
                        self._send(end)
                self._count()

    def _accept(self):
        near, _ = self._listener.accept()
        if self._state == "cut":
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self.target_port))
        except OSError:
            near.close()
            return
        ends = [_End(near), _End(far)]
        for end, other in (ends, reversed(ends)):
            end.other = other
            end.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end.sock, selectors.EVENT_READ)
            self._ends.add(end)
        self._near.add(ends[0])

    def _receive(self, end):
        try:
            data = end.sock.recv(1 << 18)
        except OSError:
            data = b""
        if data:
            end.other.pending += data
        elif not end.ended:
            end.ended = True
            self.left += end in self._near
            self._selector.unregister(end.sock)

    def _send(self, end):
        """What waits for this end, and the news that there will be nothing more."""
        if self._loses_answers and end in self._near:
            end.pending.clear()
        if end.pending and self._flips is (end not in self._near):
            self._damage(end)
        try:
            if end.pending:
                # Counted first: whoever sees the answer sees the count.
                if end in self._near:
                    self.to_client += len(end.pending)
                else:
                    self.to_server += len(end.pending)
                end.sock.sendall(end.pending)
            end.pending.clear()
            if end.other.ended and not end.told:
                end.told = True
                end.sock.shutdown(socket.SHUT_WR)
        except OSError:
            end.pending.clear()
            end.told = True
        if end.ended and end.told and end.other.ended and end.other.told:
            self._drop(end)

    def _drop(self, end):
        for one in (end, end.other):
            if one not in self._ends:
                continue
            if not one.ended:
                self.left += one in self._near
                self._selector.unregister(one.sock)
            one.sock.close()
            self._ends.discard(one)
            self._near.discard(one)

    def _count(self):
        far = self._ends - self._near
        self.stuck = sum(len(end.pending) for end in far)
        self.clients = sum(not end.ended for end in self._near)
        self.servers = sum(not end.ended for end in far)
        self.damaged = sum(end.damaged for end in far)
