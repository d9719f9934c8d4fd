# SPDX-License-Identifier: BSD-3-Clause
"""Many NBD connections of one thread, for measures of how cost grows. Needs python3-libnbd."""
import itertools
import select
import threading
import time

import nbd

BLOCK = 4096  # bytes of each request


class Connection:
    """One NBD client of one export, with at most one request under way.

    What it has measured: `waits`, seconds of each answered request; `errors`, those that failed."""

    def __init__(self, number, uri):
        self.number, self.uri = number, uri
        self.handle = nbd.NBD()
        self.waits, self.errors = [], []
        self.began = None  # seconds, while a request is under way
        self.next = 0.0  # seconds: when the next request is due
        self.fd = self.direction = None

    @property
    def died(self):
        return self.handle.aio_is_dead()

    def submit(self, writes, place):
        buffer = nbd.Buffer(BLOCK)
        began = self.began = time.monotonic()

        def done(error):
            self.began = None
            if error:
                self.errors.append(error)
            else:
                self.waits.append(time.monotonic() - began)
            return 1

        if writes:
            self.handle.aio_pwrite(buffer, place, done)
        else:
            self.handle.aio_pread(buffer, place, done)


class Crowd:
    """Connections that are driven together by `run()`, on the thread that calls it."""

    AT_ONCE = 32  # connections that are being made

    def __init__(self, uris):
        self.poll = select.epoll()
        self.connections = [Connection(number, uri) for number, uri in enumerate(uris)]
        self.by_fd = {}
        self.places = itertools.count()

    def connect(self, limit=120):
        """Connects all; returns the seconds that this took."""
        began = time.monotonic()
        waiting, under_way = iter(self.connections), set()
        rest = next(waiting, None)
        while rest or under_way:
            while rest and len(under_way) < self.AT_ONCE:
                rest.handle.aio_connect_uri(rest.uri)
                under_way.add(rest)
                self.watch(rest)
                rest = next(waiting, None)
            self.turn(0.1)
            for connection in list(under_way):
                if connection.handle.aio_is_ready():
                    under_way.remove(connection)
                elif connection.died:
                    raise RuntimeError(f"{connection.uri}: the connection failed")
            if time.monotonic() > began + limit:
                raise RuntimeError(f"{len(under_way)} connections wait for more than {limit} s")
        return time.monotonic() - began

    def watch(self, connection):
        """Tells the poll what libnbd wants of this connection now."""
        direction = connection.handle.aio_get_direction()
        if direction == connection.direction:
            return
        events = ((select.EPOLLIN if direction & nbd.AIO_DIRECTION_READ else 0)
                  | (select.EPOLLOUT if direction & nbd.AIO_DIRECTION_WRITE else 0))
        if connection.fd is None:
            connection.fd = connection.handle.aio_get_fd()
            self.by_fd[connection.fd] = connection
            self.poll.register(connection.fd, events)
        else:
            self.poll.modify(connection.fd, events)
        connection.direction = direction

    def turn(self, seconds):
        """Waits for answers, at most so long, and takes in what has come."""
        for fd, events in self.poll.poll(seconds, 256):
            connection = self.by_fd[fd]
            direction = connection.handle.aio_get_direction()
            if events & (select.EPOLLIN | select.EPOLLHUP) and direction & nbd.AIO_DIRECTION_READ:
                connection.handle.aio_notify_read()
            elif events & select.EPOLLOUT and direction & nbd.AIO_DIRECTION_WRITE:
                connection.handle.aio_notify_write()
            if connection.died:
                self.poll.unregister(fd)
            else:
                self.watch(connection)

    def once(self, writes, limit=60):
        """A request of each connection, all at once; returns the seconds of each."""
        for connection in self.connections:
            connection.waits.clear()
            connection.submit(writes, 0)
            self.watch(connection)
        self.drain(limit)
        return sorted(wait for connection in self.connections for wait in connection.waits)

    def load(self, seconds, interval, writes, events=(), limit=60):
        """A request of each connection in each `interval` seconds, if the one before it has ended.

        `events` are (seconds from the start, function): each runs on a thread of its own."""
        began = time.monotonic()
        threads = [threading.Timer(when, what) for when, what in events]
        for thread in threads:
            thread.start()
        for connection in self.connections:
            connection.waits.clear()
            connection.next = began + interval * connection.number / len(self.connections)
        while (now := time.monotonic()) < began + seconds:
            soonest = now + 0.01
            for connection in self.connections:
                if connection.began is None and connection.next <= now and not connection.died:
                    connection.submit(writes, next(self.places) % 256 * BLOCK)
                    connection.next = max(connection.next + interval, now)
                    self.watch(connection)
            self.turn(max(0, soonest - time.monotonic()))
        self.drain(limit)
        for thread in threads:
            thread.join()

    def drain(self, limit):
        end = time.monotonic() + limit
        while any(connection.began is not None for connection in self.connections):
            if time.monotonic() > end:
                raise RuntimeError(f"requests wait for more than {limit} s")
            self.turn(0.1)

    @property
    def longest(self):
        """Seconds of the longest answered request."""
        return max((max(c.waits) for c in self.connections if c.waits), default=0.0)

    @property
    def errors(self):
        """Requests that failed, and connections that were lost."""
        return sum(len(c.errors) + c.died for c in self.connections)

    def close(self):
        self.by_fd.clear()
        self.connections.clear()  # libnbd closes a handle that nobody holds
        self.poll.close()
