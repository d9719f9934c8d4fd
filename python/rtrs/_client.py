# SPDX-License-Identifier: BSD-3-Clause
"""The client: calls that block, and calls for asyncio."""
import asyncio
import contextlib
import ctypes as c

from . import _abi
from ._buffers import Vectors, answer_of, encoded, failure, library, words

MOST = 1 << 20  # bytes of an answer, unless one says so


class Client:
    """A session with a server. Any thread may call; options are the fields of
    rtrs_client_options."""

    def __init__(self, uri, **options):
        error = _abi.Error()
        self._client = library.rtrs_connect(uri.encode(), _abi.ClientOptions(**encoded(options)),
                                            c.byref(error))
        if not self._client:
            raise failure(error.code, error.text.decode())
        self._loop = None
        self._turns = None  # of what goes over the control connection, on self._loop
        self._waiting = {}  # address of an operation -> what must live as long as it

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
            await self._submit(operation, flags)
        except BaseException:
            source.close()
            target.close()
            raise
        # From here on it is the library's, until _ended() or a cancellation that comes in time.
        self._waiting[c.addressof(operation)] = (operation, source, target, done)
        try:
            await done
        except asyncio.CancelledError:
            if library.rtrs_cancel(self._client, operation) == 0:
                self._take_back(operation)
            elif c.addressof(operation) not in self._waiting:
                library.rtrs_free(operation.answer)  # it has ended, and nobody will look
            raise
        if operation.error:
            raise failure(operation.error)

    async def _submit(self, operation, flags):
        if not flags & _abi.CONTROL:
            return await self._try_until_taken(operation, flags)
        async with self._turns:  # which is first come, first served
            await self._try_until_taken(operation, flags)

    async def _try_until_taken(self, operation, flags):
        """Without blocking the event loop: a permit is waited for by trying again."""
        while error := library.rtrs_submit(self._client, operation):
            if error != 11 or flags & _abi.NOWAIT:  # EAGAIN
                raise failure(error)
            await asyncio.sleep(0.001)

    def _watch(self, loop):
        if self._loop is loop:
            return
        descriptor = library.rtrs_fd(self._client)
        if descriptor < 0:
            raise failure(c.get_errno())
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor)
        loop.add_reader(descriptor, self._ended)
        self._loop = loop
        self._turns = asyncio.Lock()

    def _ended(self):
        operations = (c.POINTER(_abi.Operation) * 64)()
        while count := library.rtrs_next(self._client, operations, 64):
            for place in range(count):
                operation = operations[place].contents
                done = self._take_back(operation)
                if done.done():  # cancelled
                    library.rtrs_free(operation.answer)
                else:
                    done.set_result(None)

    def _take_back(self, operation):
        _, source, target, done = self._waiting.pop(c.addressof(operation))
        source.close()
        target.close()
        return done

    @contextlib.contextmanager
    def registered(self, memory):
        """Within it, calls use this writable buffer, or parts of it, without a copy, over RDMA, too.
        The server can write all of it meanwhile."""
        with Vectors(memory, writable=True) as held:
            address, length = held.array[0].base, held.array[0].length
            error = _abi.Error()
            if library.rtrs_register_memory(self._client, address, length, c.byref(error)):
                raise failure(error.code, error.text.decode())
            try:
                yield memory
            finally:
                library.rtrs_unregister_memory(self._client, address, length)

    def paths(self):
        """A list of dictionaries with the fields of rtrs_path: each path as it is now."""
        paths = (_abi.Path * 16)(*(_abi.Path() for _ in range(16)))
        count = min(library.rtrs_client_paths(self._client, paths, len(paths)), len(paths))
        return [{"address": path.address.decode(), "connected": bool(path.connected),
                 "in_use": bool(path.in_use), "requests": path.requests,
                 "in_flight": path.in_flight, "latency_ns": path.latency_ns}
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
        if error := library.rtrs_set_policy(self._client, policy.encode()):
            raise failure(error, None if error == _abi.FORKED else
                          f"'{policy}' is no policy: choose min-inflight, round-robin or min-latency")

    @property
    def limits(self):
        """(requests in flight, bytes in one message)."""
        limits = _abi.Limits()
        library.rtrs_client_limits(self._client, limits)
        return limits.queue_depth, limits.max_io_size

    @property
    def alive(self):
        """False when the session is over for good."""
        return bool(library.rtrs_client_alive(self._client))

    def close(self):
        if self._client:
            descriptor = library.rtrs_fd(self._client) if self._loop is not None else -1
            # A child of fork() has its parent's loop, and would take the reader from the parent.
            if descriptor >= 0 and not self._loop.is_closed():
                self._loop.remove_reader(descriptor)
            library.rtrs_disconnect(self._client)
            self._client = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_client", None):
            self.close()
