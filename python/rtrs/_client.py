# SPDX-License-Identifier: BSD-3-Clause
"""The client: calls that block, and calls for asyncio."""
import asyncio
import contextlib
import ctypes as c
import errno
import functools
import os

from . import _abi
from ._buffers import (Handle, RtrsError, Vectors, answer_of, closed, encoded, failure, library,
                       words)

MOST = 1 << 20  # bytes of an answer, unless one says so


def _tell(operation, done):
    """Ends the task that waits, on whichever event loop it runs."""
    def end():
        if done.done():  # cancelled
            _forget_answer(operation)
        else:
            done.set_result(None)

    loop = done.get_loop()
    if loop is asyncio._get_running_loop():
        return end()
    try:
        loop.call_soon_threadsafe(end)
    except RuntimeError:  # the loop is closed: nobody waits
        _forget_answer(operation)


def _forget_answer(operation):
    address, operation.answer = operation.answer, None
    library.rtrs_free(address)


def _end_all(waiting, registered):
    """Ends the tasks whose operations ended with the client, and gives back its memory."""
    while registered:
        registered.pop().close()
    while waiting:
        _, (operation, source, target, done) = waiting.popitem()
        source.close()
        target.close()
        operation.error = errno.ECANCELED
        _tell(operation, done)


class Client:
    """A session with a server. Any thread may call, and close; options are the fields of
    rtrs_client_options. When it is closed, methods raise RtrsError with EBADF."""

    def __init__(self, uri, **options):
        error = _abi.Error()
        client = library.rtrs_connect(uri.encode(), _abi.ClientOptions(**encoded(options)),
                                      c.byref(error))
        if not client:
            raise failure(error.code, error.text.decode())
        self._process = os.getpid()
        self._loop = None
        self._turns = None  # of what goes over the control connection, on self._loop
        self._watched = {}  # loop -> its descriptor
        self._waiting = {}  # address of an operation -> what must live as long as it
        self._registered = []  # buffers
        self._handle = Handle(client, functools.partial(_end_all, self._waiting, self._registered))

    @property
    def _client(self):
        """The handle, or EBADF."""
        handle = self._handle
        if handle is None:
            raise closed("client")
        return handle

    def call(self, message, out=None, into=None, room=0, flags=0):
        """Sends a request and waits. Returns the answer: bytes when `room` says how long it may
        be, and its length when it goes into a buffer of the caller."""
        message = words(message)
        buffer = bytearray(room) if into is None else into
        length = c.c_size_t()
        with Vectors(out) as source, Vectors(buffer, writable=True) as target:
            count = target.count if into is not None or room else 0
            error = library.rtrs_call(self._client, message, len(message), source.array,
                                      source.count, target.array, count, c.byref(length), flags)
        if error:
            raise failure(error)
        return bytes(buffer[:length.value]) if into is None else length.value

    def ask(self, message, out=None, most=MOST, flags=0):
        """Sends a request and waits. Returns the answer as bytes, of any length up to `most`."""
        message = words(message)
        memory, length = c.c_void_p(), c.c_size_t()
        with Vectors(out) as source:
            error = library.rtrs_ask(self._client, message, len(message), source.array, source.count,
                                     most, c.byref(memory), c.byref(length), flags)
        if error:
            raise failure(error)
        return answer_of(memory, length.value)

    async def call_async(self, message, out=None, into=None, room=0, flags=0):
        """As call(), for asyncio: other tasks run meanwhile."""
        buffer = bytearray(room) if into is None else into
        source, target = Vectors(out), Vectors(buffer, writable=True)
        has_room = into is not None or room
        operation = _abi.Operation(into=target.array, in_count=target.count if has_room else 0)
        await self._carry_out(operation, words(message), source, target, flags)
        length = operation.answer_length
        return bytes(buffer[:length]) if into is None else length

    async def ask_async(self, message, out=None, most=MOST, flags=0):
        """As ask(), for asyncio."""
        operation = _abi.Operation(most=most)
        await self._carry_out(operation, words(message), Vectors(out), Vectors(None), flags)
        return answer_of(operation.answer, operation.answer_length)

    async def _carry_out(self, operation, message, source, target, flags):
        """Submits it, and waits for its end; then nobody uses the memory any more."""
        loop = asyncio.get_running_loop()
        self._watch(loop)
        operation.flags = flags | _abi.NOWAIT
        operation.message, operation.message_length = message, len(message)
        operation.out, operation.out_count = source.array, source.count
        done = loop.create_future()
        try:
            await self._submit((operation, source, target, done), flags)
        except BaseException:
            source.close()
            target.close()
            raise
        try:
            await done
        except asyncio.CancelledError:
            self._cancel(operation)
            raise
        if operation.error:
            raise failure(operation.error)

    def _cancel(self, operation):
        with contextlib.suppress(RtrsError):  # close() ends it
            client = self._client  # which is not freed meanwhile
            if library.rtrs_cancel(client, operation) == 0:
                self._take_back(operation)
                return
        if c.addressof(operation) not in self._waiting:
            _forget_answer(operation)  # it has ended, and nobody will look

    async def _submit(self, held, flags):
        if not flags & _abi.CONTROL:
            return await self._try_until_taken(held, flags)
        async with self._turns:  # which is first come, first served
            await self._try_until_taken(held, flags)

    async def _try_until_taken(self, held, flags):
        """Without blocking the event loop: a permit is waited for by trying again."""
        while error := self._try(held):
            if error != errno.EAGAIN or flags & _abi.NOWAIT:
                raise failure(error)
            await asyncio.sleep(0.001)

    def _try(self, held):
        """When it has been taken it is the library's until _ended(), close(), or a cancellation that
        comes in time."""
        client, operation = self._client, held[0]
        self._waiting[c.addressof(operation)] = held
        error = library.rtrs_submit(client, operation)
        if error:
            del self._waiting[c.addressof(operation)]
        return error

    def _watch(self, loop):
        """Each loop has a descriptor of its own, which outlives the client: only the loop's thread
        ends its watch, when close() on another thread has made the descriptor readable."""
        if self._loop is loop:
            return
        client = self._client  # which is not freed meanwhile
        descriptor = library.rtrs_fd(client)
        if descriptor < 0:
            del client
            raise failure(c.get_errno())
        if loop not in self._watched:
            self._watched[loop] = os.dup(descriptor)
            loop.add_reader(self._watched[loop], self._ended, loop)
        if self._loop is not None:
            self._stop_watching(self._loop)
        self._loop = loop
        self._turns = asyncio.Lock()

    def _stop_watching(self, loop):
        """Does nothing while the loop runs on another thread."""
        if self._process != os.getpid():
            return  # a child of fork() has its parent's loop, and would take the reader from the parent
        if loop.is_running() and loop is not asyncio._get_running_loop():
            return
        descriptor = self._watched.pop(loop, None)
        if descriptor is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.remove_reader(descriptor)
        os.close(descriptor)

    def _ended(self, loop):
        operations = (c.POINTER(_abi.Operation) * 64)()
        try:
            client = self._client  # which is not freed meanwhile
            while (count := library.rtrs_next(client, operations, 64)) > 0:
                for place in range(count):
                    operation = operations[place].contents
                    _tell(operation, self._take_back(operation))
        except RtrsError:
            self._stop_watching(loop)

    def _take_back(self, operation):
        _, source, target, done = self._waiting.pop(c.addressof(operation))
        source.close()
        target.close()
        return done

    @contextlib.contextmanager
    def registered(self, memory):
        """Within it, calls use this writable buffer, or parts of it, without a copy, over RDMA, too.
        The server can write all of it meanwhile."""
        held = self._register(memory)
        try:
            yield memory
        finally:
            self._unregister(held)

    def _register(self, memory):
        client, held, error = self._client, Vectors(memory, writable=True), _abi.Error()
        if library.rtrs_register_memory(client, *held.first(), c.byref(error)):
            del client
            held.close()
            raise failure(error.code, error.text.decode())
        self._registered.append(held)
        return held

    def _unregister(self, held):
        """That of a closed client stays where it is until the client is freed."""
        with contextlib.suppress(RtrsError):
            client = self._client  # which is not freed meanwhile
            library.rtrs_unregister_memory(client, *held.first())
            self._registered.remove(held)
            held.close()

    def paths(self):
        """A list of dictionaries with the fields of rtrs_path: each path as it is now."""
        paths = (_abi.Path * 16)(*(_abi.Path() for _ in range(16)))
        count = min(library.rtrs_client_paths(self._client, paths, len(paths)), len(paths))
        return [{"address": path.address.decode(), "connected": bool(path.connected),
                 "in_use": bool(path.in_use), "requests": path.requests,
                 "in_flight": path.in_flight, "latency_ns": path.latency_ns,
                 "silent_ns": path.silent_ns, "silences": path.silences, "moved": path.moved}
                for path in paths[:count]]

    def add_path(self, path):
        """One path more to the same server: "[tcp:|rdma:][SOURCE@]HOST[:PORT]"."""
        self._change(library.rtrs_add_path, path)

    def remove_path(self, path):
        self._change(library.rtrs_remove_path, path)

    def _change(self, function, path):
        error = _abi.Error()
        if function(self._client, path.encode(), c.byref(error)):
            raise failure(error.code, error.text.decode())

    def set_policy(self, policy):
        """"min-inflight", "round-robin" or "min-latency"."""
        error = library.rtrs_set_policy(self._client, policy.encode())
        if error:
            raise failure(error, f"'{policy}' is no policy: choose min-inflight, round-robin or "
                          "min-latency" if error == errno.EINVAL else None)

    @property
    def limits(self):
        """(requests in flight, bytes in one message)."""
        limits = _abi.Limits()
        library.rtrs_client_limits(self._client, limits)
        return limits.queue_depth, limits.max_io_size

    @property
    def alive(self):
        """False when the session is over for good, or closed."""
        try:
            return bool(library.rtrs_client_alive(self._client))
        except RtrsError:
            return False

    def close(self):
        """Ends what runs, also of other threads and tasks, with ECANCELED: it was carried out once, or
        not at all. Does not wait for other threads: the client is gone when the last of their calls
        has returned. Does nothing the second time."""
        library.rtrs_shutdown(self._handle)
        self._handle = None
        for loop in list(self._watched):
            self._stop_watching(loop)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if hasattr(self, "_handle"):
            self.close()
