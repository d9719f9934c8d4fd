# SPDX-License-Identifier: BSD-3-Clause
"""rtrs.h in ctypes."""
import ctypes as c
import difflib

REPEATABLE, RESEND, NOWAIT, CONTROL, MAYBE_DONE = 1, 2, 4, 8, 16
TLS_OFF, TLS_ON, TLS_REQUIRE = 0, 1, 2
UNKNOWN_OUTCOME = 131
FORKED = 10
MAX_MESSAGE = 240


class Sized(c.Structure):
    """A structure that begins with its size. It refuses fields that it has not, and values that do
    not fit: ctypes would forget the one, and cut the other."""

    def __init__(self, **fields):
        names = [name for name, _ in self._fields_]
        for unknown in fields.keys() - names:
            near = difflib.get_close_matches(unknown.lower(), names, n=1)
            raise TypeError(f"'{unknown}' is no option" + (f": did you mean '{near[0]}'?" if near else ""))
        super().__init__(size=c.sizeof(type(self)), **fields)
        for name, value in fields.items():
            if isinstance(value, (int, bytes)) and getattr(self, name) != value:
                raise ValueError(f"{name}={value!r} is out of range, or has a NUL in it")


class Error(c.Structure):
    _fields_ = [("code", c.c_int), ("text", c.c_char * 508)]


class IoVec(c.Structure):
    _fields_ = [("base", c.c_void_p), ("length", c.c_size_t)]


class Limits(Sized):
    _fields_ = [("size", c.c_size_t), ("queue_depth", c.c_uint32), ("max_io_size", c.c_uint32)]


class Path(Sized):
    _fields_ = [("size", c.c_size_t), ("address", c.c_char * 256), ("connected", c.c_int),
                ("in_use", c.c_int), ("requests", c.c_uint64), ("in_flight", c.c_uint),
                ("latency_ns", c.c_uint64), ("silent_ns", c.c_uint64), ("silences", c.c_uint64),
                ("moved", c.c_uint64)]


class Id(c.Structure):
    _fields_ = [("client", c.c_uint8 * 16), ("number", c.c_uint64)]


LOG = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)


class ClientOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("session_name", c.c_char_p), ("policy", c.c_char_p),
                ("lanes", c.c_uint), ("connect_timeout_ms", c.c_uint),
                ("no_path_timeout_ms", c.c_uint), ("call_timeout_ms", c.c_uint),
                ("heartbeat_interval_ms", c.c_uint), ("heartbeat_misses", c.c_uint),
                ("spin_us", c.c_uint), ("no_digests", c.c_int), ("log", LOG),
                ("log_context", c.c_void_p), ("tls", c.c_int), ("tls_no_verify_peer", c.c_int),
                ("tls_psk", c.c_char_p), ("tls_certificates", c.c_char_p),
                ("tls_username", c.c_char_p), ("auth_psk", c.c_char_p),
                ("auth_username", c.c_char_p)]


class Operation(Sized):
    _fields_ = [("size", c.c_size_t), ("flags", c.c_uint), ("message", c.c_char_p),
                ("message_length", c.c_size_t), ("out", c.POINTER(IoVec)), ("out_count", c.c_int),
                ("into", c.POINTER(IoVec)), ("in_count", c.c_int), ("done", c.c_void_p),
                ("context", c.c_void_p), ("error", c.c_int), ("answer_length", c.c_size_t),
                ("private_data", c.c_void_p), ("most", c.c_size_t), ("answer", c.c_void_p)]


class Incoming(c.Structure):
    _fields_ = [("size", c.c_size_t), ("request", c.c_void_p), ("session", c.c_void_p),
                ("message", c.c_void_p), ("message_length", c.c_size_t), ("data", c.c_void_p),
                ("data_length", c.c_size_t), ("room", c.c_size_t), ("answer", c.c_void_p),
                ("flags", c.c_uint), ("id", Id)]


REQUEST = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Incoming))
SESSION = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)
PATHS = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_uint)
RELEASE = c.CFUNCTYPE(None, c.c_void_p)


class ServerOps(Sized):
    _fields_ = [("size", c.c_size_t), ("request", REQUEST), ("session_up", SESSION),
                ("session_down", SESSION), ("paths_changed", PATHS)]


class ServerOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("loops", c.c_uint), ("workers", c.c_uint),
                ("queue_depth", c.c_uint), ("max_io_size", c.c_uint),
                ("max_request_size", c.c_uint64), ("request_memory", c.c_uint64),
                ("memory_limit", c.c_uint64), ("max_sessions", c.c_uint),
                ("session_linger_ms", c.c_uint), ("heartbeat_interval_ms", c.c_uint),
                ("heartbeat_misses", c.c_uint), ("no_digests", c.c_int), ("log", LOG),
                ("log_context", c.c_void_p), ("tls", c.c_int), ("tls_no_verify_peer", c.c_int),
                ("tls_psk", c.c_char_p), ("tls_certificates", c.c_char_p), ("auth_psk", c.c_char_p)]


def _declare(library, name, result, *arguments):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


def load(name="librtrs.so.0"):
    """The library, with what each function takes."""
    library = c.CDLL(name, use_errno=True)
    pointer, text, error = c.c_void_p, c.c_char_p, c.POINTER(Error)
    vectors = c.POINTER(IoVec)
    for declaration in (
            ("rtrs_version", text), ("rtrs_strerror", text, c.c_int),
            ("rtrs_connect", pointer, text, c.POINTER(ClientOptions), error),
            ("rtrs_shutdown", None, pointer), ("rtrs_disconnect", None, pointer),
            ("rtrs_call", c.c_int, pointer, text, c.c_size_t, vectors, c.c_int, vectors, c.c_int,
             c.POINTER(c.c_size_t), c.c_uint),
            ("rtrs_ask", c.c_int, pointer, text, c.c_size_t, vectors, c.c_int, c.c_size_t,
             c.POINTER(pointer), c.POINTER(c.c_size_t), c.c_uint),
            ("rtrs_free", None, pointer),
            ("rtrs_submit", c.c_int, pointer, c.POINTER(Operation)),
            ("rtrs_cancel", c.c_int, pointer, c.POINTER(Operation)),
            ("rtrs_fd", c.c_int, pointer),
            ("rtrs_next", c.c_int, pointer, c.POINTER(c.POINTER(Operation)), c.c_int),
            ("rtrs_register_memory", c.c_int, pointer, pointer, c.c_size_t, error),
            ("rtrs_unregister_memory", c.c_int, pointer, pointer, c.c_size_t),
            ("rtrs_client_limits", None, pointer, c.POINTER(Limits)),
            ("rtrs_client_paths", c.c_int, pointer, c.POINTER(Path), c.c_int),
            ("rtrs_add_path", c.c_int, pointer, text, error),
            ("rtrs_remove_path", c.c_int, pointer, text, error),
            ("rtrs_set_policy", c.c_int, pointer, text),
            ("rtrs_client_alive", c.c_int, pointer),
            ("rtrs_listen", pointer, text, c.POINTER(ServerOps), pointer,
             c.POINTER(ServerOptions), error),
            ("rtrs_server_close", c.c_int, pointer, c.c_uint),
            ("rtrs_server_port", c.c_uint, pointer),
            ("rtrs_finish", None, pointer, c.c_int, pointer, c.c_size_t),
            ("rtrs_finish_with", None, pointer, pointer, c.c_size_t, RELEASE, pointer),
            ("rtrs_take_data", pointer, pointer),
            ("rtrs_session_name", text, pointer), ("rtrs_session_peer", text, pointer),
            ("rtrs_session_user", text, pointer)):
        _declare(library, *declaration)
    return library
