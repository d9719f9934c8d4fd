# SPDX-License-Identifier: BSD-3-Clause
"""Disks of an rnbd-server, by librnbd; rnbd(3) tells what they promise.

    with rnbd.Disk("rnbd+tcp://storage/disk0", no_path_timeout="5s") as disk:
        disk.write(0, b"x" * 4096, fua=True)
        disk.read(0, 4096)
        await disk.read_async(0, 4096)      # many at a time, with asyncio

Settings are the parameters of nbdkit-rnbd-plugin(1), with '_' for '-'. What fails raises RnbdError, which
is an OSError. A disk is for one thread at a time: its methods see to that with a lock. Requests of asyncio
beyond `depth` wait for their turn. A method that waits is refused, EBUSY, while requests of asyncio are
under way. In a child of os.fork() everything fails with FORKED: open the disk again there.
"""
import asyncio
import ctypes as c
import os
import threading
import weakref

__all__ = ["Disk", "RnbdError", "FORKED"]

FORKED = 10
READ, WRITE, FLUSH, DISCARD, WRITE_ZEROES, LOOK = range(6)
FUA, KEEP, FAST = 1, 2, 4


class _Error(c.Structure):
    _fields_ = [("code", c.c_int), ("text", c.c_char * 508)]


_LOG = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)


class _Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("settings", c.POINTER(c.c_char_p)), ("depth", c.c_uint),
                ("reserved", c.c_uint), ("log", _LOG), ("log_context", c.c_void_p)]


class _Info(c.Structure):
    _fields_ = [("size", c.c_size_t), ("bytes", c.c_uint64), ("block", c.c_uint32), ("preferred", c.c_uint32),
                ("max_request", c.c_uint32), ("abilities", c.c_uint32), ("depth", c.c_uint32),
                ("uuid", c.c_uint8 * 16), ("name", c.c_char * 256), ("reserved", c.c_uint32)]


class _Request(c.Structure):
    _fields_ = [("operation", c.c_uint32), ("flags", c.c_uint32), ("offset", c.c_uint64), ("length", c.c_uint64),
                ("data", c.c_void_p), ("cookie", c.c_uint64), ("reserved", c.c_uint64)]


class _End(c.Structure):
    _fields_ = [("cookie", c.c_uint64), ("error", c.c_int), ("reserved", c.c_int)]


def _load():
    library = c.CDLL("librnbd.so.0", use_errno=True)
    library.rnbd_strerror.restype = c.c_char_p
    library.rnbd_open.restype = c.c_void_p
    library.rnbd_open.argtypes = [c.c_char_p, c.POINTER(_Options), c.POINTER(_Error)]
    library.rnbd_describe.argtypes = [c.c_void_p, c.POINTER(_Info)]
    library.rnbd_submit.argtypes = [c.c_void_p, c.POINTER(_Request), c.c_int]
    library.rnbd_reap.argtypes = [c.c_void_p, c.POINTER(_End), c.c_int, c.c_int]
    library.rnbd_run.argtypes = [c.c_void_p, c.POINTER(_Request)]
    library.rnbd_fd.argtypes = [c.c_void_p]
    library.rnbd_close.argtypes = [c.c_void_p]
    return library


_library = _load()
_BATCH = 64
_disks = weakref.WeakSet()


def _after_fork_in_child():
    """Another thread may have had a lock, which nobody would give back here."""
    for disk in list(_disks):
        disk._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class RnbdError(OSError):
    """What a request or an opening ended with; `errno` tells which."""
    __module__ = "rnbd"


def _failure(code, text=None):
    return RnbdError(code, text or _library.rnbd_strerror(code).decode())


class _Pending:
    """A request of asyncio, and the memory that it needs until its end."""

    def __init__(self, loop, places, memory, result):
        self.future = loop.create_future()
        self.places = places
        self.memory = memory
        self.result = result


class Disk:
    """An open disk. `log(level, line)` is called from any thread, with a level of 0 (debug) to 3 (error)."""

    def __init__(self, uri, *, depth=0, log=None, **settings):
        self._handle = None
        self._lock = threading.Lock()
        self._pending = {}
        self._cookie = 0
        self._loop = None
        self._places = None  # of its requests, for those of asyncio
        self._fd = -1
        words = [f"{key.replace('_', '-')}={value}".encode() for key, value in settings.items()]
        array = (c.c_char_p * (len(words) + 1))(*words, None)
        self._log = _LOG(lambda _, level, line: log(level, line.decode(errors="replace")) if log else None)
        options = _Options(c.sizeof(_Options), array, depth, 0, self._log, None)
        error = _Error()
        self._handle = _library.rnbd_open(os.fsencode(uri), c.byref(options), c.byref(error))
        if not self._handle:
            raise _failure(error.code, error.text.decode(errors="replace"))
        _disks.add(self)
        self._depth = self._describe().depth

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()

    def close(self):
        """Cancels what is under way: it raises CancelledError where it is awaited."""
        with self._lock:
            handle, self._handle = self._handle, None
            self._forget_loop()
            if handle:
                _library.rnbd_close(handle)
            pending, self._pending = self._pending, {}
        for each in pending.values():
            if not each.future.get_loop().is_closed():
                each.future.cancel()
                each.places.release()

    def _open_handle(self):
        if not self._handle:
            raise ValueError("the disk is closed")
        return self._handle

    def _describe(self):
        info = _Info(c.sizeof(_Info))
        with self._lock:
            code = _library.rnbd_describe(self._open_handle(), c.byref(info))
        if code:
            raise _failure(code)
        return info

    @property
    def size(self):
        """Bytes, as known since the opening or the last look()."""
        return self._describe().bytes

    @property
    def block(self):
        """Other offsets and lengths are slower."""
        return self._describe().block

    @property
    def name(self):
        return self._describe().name.decode(errors="replace")

    # ---- Requests ------------------------------------------------------------------------------

    @staticmethod
    def _read(offset, length):
        memory = c.create_string_buffer(length)
        return _Request(READ, 0, offset, length, c.addressof(memory)), memory, lambda: memory.raw

    @staticmethod
    def _write(offset, data, fua):
        view = memoryview(data).cast("B")
        # What Python may change meanwhile would break the path: its checksum is wrong then.
        memory = c.create_string_buffer(view.tobytes(), view.nbytes)
        return _Request(WRITE, FUA if fua else 0, offset, view.nbytes, c.addressof(memory)), memory, lambda: None

    @staticmethod
    def _plain(operation, offset=0, length=0, flags=0):
        return _Request(operation, flags, offset, length, None), None, lambda: None

    def _run(self, request, _memory, result):
        with self._lock:
            code = _library.rnbd_run(self._open_handle(), c.byref(request))
        if code:
            raise _failure(code)
        return result()

    def read(self, offset, length):
        return self._run(*self._read(offset, length))

    def write(self, offset, data, fua=False):
        """`data` has the buffer protocol. With `fua` it is durable when this returns."""
        self._run(*self._write(offset, data, fua))

    def flush(self):
        self._run(*self._plain(FLUSH))

    def discard(self, offset, length):
        self._run(*self._plain(DISCARD, offset, length))

    def write_zeroes(self, offset, length, fua=False, keep=False, fast=False):
        self._run(*self._plain(WRITE_ZEROES, offset, length, fua * FUA | keep * KEEP | fast * FAST))

    def look(self):
        """Asks the server for the size, and returns it."""
        self._run(*self._plain(LOOK))
        return self.size

    # ---- With asyncio --------------------------------------------------------------------------

    async def read_async(self, offset, length):
        return await self._start(*self._read(offset, length))

    async def write_async(self, offset, data, fua=False):
        await self._start(*self._write(offset, data, fua))

    async def flush_async(self):
        await self._start(*self._plain(FLUSH))

    async def _start(self, request, memory, result):
        """All requests of a disk belong to one loop. Who gives up does not cancel the request. More
        requests than the depth of the disk wait for their turn."""
        places = self._join_loop()
        await places.acquire()
        try:
            pending = self._submit(request, places, memory, result)
        except BaseException:
            places.release()
            raise
        return await pending.future

    def _join_loop(self):
        loop = asyncio.get_running_loop()
        with self._lock:
            handle = self._open_handle()
            if self._loop is not loop:
                if self._pending:
                    raise RuntimeError("requests of another event loop are under way")
                self._forget_loop()
                self._fd = _library.rnbd_fd(handle)
                if self._fd < 0:
                    raise _failure(c.get_errno())
                loop.add_reader(self._fd, self._reap)
                self._loop = loop
                self._places = asyncio.Semaphore(self._depth)
            return self._places

    def _submit(self, request, places, memory, result):
        with self._lock:
            handle = self._open_handle()
            self._cookie += 1
            request.cookie = self._cookie
            if _library.rnbd_submit(handle, c.byref(request), 1) != 1:
                raise _failure(c.get_errno())
            pending = _Pending(asyncio.get_running_loop(), places, memory, result)
            self._pending[self._cookie] = pending
            return pending

    def _forget_loop(self):
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._loop = None

    def _reap(self):
        ends = (_End * _BATCH)()
        while True:
            with self._lock:
                count = _library.rnbd_reap(self._handle, ends, _BATCH, 0) if self._handle else 0
                ended = [(self._pending.pop(end.cookie), end.error) for end in ends[:max(count, 0)]]
            for pending, error in ended:
                pending.places.release()
                if pending.future.done():
                    continue
                if error:
                    pending.future.set_exception(_failure(error))
                else:
                    pending.future.set_result(pending.result())
            if count < _BATCH:
                return
