# SPDX-License-Identifier: BSD-3-Clause
"""Memory of Python's objects, handles, and errors, as the C interface wants them."""
import ctypes as c
import errno
import os
import threading

from . import _abi

library = _abi.load()


class RtrsError(OSError):
    """What a call or a set-up ended with; `errno` tells which."""
    __module__ = "rtrs"


class UnknownOutcome(RtrsError):
    """The answer is lost: the request was carried out once, or not at all."""
    __module__ = "rtrs"


def failure(code, text=None):
    kind = UnknownOutcome if code == _abi.UNKNOWN_OUTCOME else RtrsError
    return kind(code, text if text else library.rtrs_strerror(code).decode())


def closed(what):
    return RtrsError(errno.EBADF, f"the {what} is closed")


class Handle:
    """A client of the library, which any thread may use until it is closed. It is not freed before
    the last user has left; then `freed` is called. `with` gives its address, or raises EBADF.

    What is done with its lists Python does at once, whatever other threads do.
    """

    def __init__(self, address, freed):
        self._tell_freed = freed
        self._open = [address]
        self._to_free = [address]
        self._inside = []  # threads
        self._freed = threading.Event()
        self._process = os.getpid()

    def __enter__(self):
        self._inside.append(threading.get_ident())
        try:
            return self._open[0]
        except IndexError:
            self.__exit__()
            raise closed("client") from None

    def __exit__(self, *_):
        self._inside.remove(threading.get_ident())
        if not self._open:
            self._free()

    @property
    def closed(self):
        return not self._open

    def close(self):
        """Ends the calls of other threads, and waits for them. One of this thread, which a signal has
        interrupted, ends later."""
        try:
            library.rtrs_shutdown(self._open.pop())
        except IndexError:
            pass  # another thread closes it, or has done so
        if os.getpid() != self._process:
            return  # a child of fork() waits for nobody, and frees nothing
        self._free()
        if threading.get_ident() not in self._inside:
            self._freed.wait()

    def _free(self):
        if self._inside:
            return  # who leaves last does it
        try:
            address = self._to_free.pop()
        except IndexError:
            return
        library.rtrs_disconnect(address)
        self._tell_freed()
        self._freed.set()


def encoded(options):
    """Texts as C has them; paths may be texts or os.PathLike."""
    return {name: os.fsencode(value) if isinstance(value, (str, os.PathLike)) else value
            for name, value in options.items()}


class _Buffer(c.Structure):
    """Py_buffer. Source: the buffer protocol of Python's C interface."""
    _fields_ = [("buf", c.c_void_p), ("obj", c.py_object), ("len", c.c_ssize_t),
                ("itemsize", c.c_ssize_t), ("readonly", c.c_int), ("ndim", c.c_int),
                ("format", c.c_char_p), ("shape", c.c_void_p), ("strides", c.c_void_p),
                ("suboffsets", c.c_void_p), ("internal", c.c_void_p)]


_get = c.pythonapi.PyObject_GetBuffer
_get.argtypes = [c.py_object, c.POINTER(_Buffer), c.c_int]
_release = c.pythonapi.PyBuffer_Release
_release.argtypes = [c.POINTER(_Buffer)]
_release.restype = None
_WRITABLE = 1


def words(message):
    """Of a caller, as bytes: a text, or anything with the buffer protocol."""
    return message.encode() if isinstance(message, str) else bytes(memoryview(message))


class Vectors:
    """An array of iovec over contiguous objects, which stay where they are as long as it lives.
    Texts are UTF-8."""

    def __init__(self, objects, writable=False):
        if objects is None:
            objects = []
        elif not isinstance(objects, (list, tuple)):
            objects = [objects]
        self._held = []
        self.array = (_abi.IoVec * max(len(objects), 1))()
        for place, thing in enumerate(objects):
            view = _Buffer()
            if isinstance(thing, str) and not writable:
                thing = thing.encode()
            _get(thing, c.byref(view), _WRITABLE if writable else 0)  # raises BufferError
            self._held.append(view)
            self.array[place] = _abi.IoVec(view.buf, view.len)
        self.count = len(objects)

    def close(self):
        while self._held:
            _release(c.byref(self._held.pop()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def answer_of(address, length):
    """A copy of memory of the library, which is free then."""
    try:
        return c.string_at(address, length) if length else b""
    finally:
        library.rtrs_free(address)


def memory(address, length):
    """A view of memory of the library."""
    if not length:
        return memoryview(b"")
    return memoryview((c.c_ubyte * length).from_address(address)).cast("B").toreadonly()
