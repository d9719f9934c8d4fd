# SPDX-License-Identifier: BSD-3-Clause
"""Memory of Python's objects, handles, and errors, as the C interface wants them."""
import ctypes as c
import errno
import os

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


class Handle(c.c_void_p):
    """A client of the library, as an argument of its functions. Who uses it holds a reference, and
    the client is freed with the last one; then `freed` is called.

    Functions that wait keep it in no variable, for the traceback of an exception would keep that.
    """

    def __init__(self, address, freed):
        super().__init__(address)
        self._tell_freed = freed
        self._process = os.getpid()

    def __del__(self):
        if self._process != os.getpid():
            return  # a child of fork() frees nothing
        try:
            library.rtrs_disconnect(self)
        finally:
            self._tell_freed()


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

    def first(self):
        """Address and length."""
        return self.array[0].base, self.array[0].length

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
