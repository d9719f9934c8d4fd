# SPDX-License-Identifier: BSD-3-Clause
"""The server: a function that answers requests."""
import ctypes as c
import errno
import signal
import sys
import traceback
import weakref

from . import _abi
from ._buffers import Vectors, closed, encoded, failure, library, memory

_serving = set()  # servers that the library may call
_HELD = 65536  # bytes; what is shorter is cheaper to copy
_held = {}  # answers that the library still needs


@_abi.RELEASE
def _give_back(token):
    _held.pop(token).close()


class Session:
    """A client, as its server knows it: one object from session_up to session_down, to which a
    handler may add attributes of its own."""

    def __init__(self, address):
        self.name = library.rtrs_session_name(address).decode()
        self.peer = library.rtrs_session_peer(address).decode()
        self.user = library.rtrs_session_user(address).decode()  # "" = nothing is proven
        self.paths = 0  # connected now; 0: its client may come back

    def __repr__(self):
        return f"<rtrs.Session '{self.name}' from {self.peer}>"


class Request:
    """A request, to be finished once, on any thread. One that nobody has any more ends with EIO."""

    def __init__(self, incoming, session):
        self._request = incoming.request
        self.session = session
        self.message = c.string_at(incoming.message, incoming.message_length)
        self._data = (incoming.data, incoming.data_length)
        self.room = incoming.room
        self.flags = incoming.flags
        self.id = (bytes(incoming.id.client), incoming.id.number)
        self.finished = False

    def __del__(self):
        if not getattr(self, "finished", True):
            self.fail(errno.EIO)

    @property
    def client(self):
        """The name of the session."""
        return self.session.name

    @property
    def user(self):
        """The name that the client has proven; "" = none."""
        return self.session.user

    @property
    def data(self):
        """What the client sent, as bytes. For as long as the request is not finished."""
        return bytes(self.view)

    @property
    def view(self):
        """The same without a copy: a memoryview that must not be used when the request is finished."""
        if self.finished:
            raise ValueError("the request has been finished: its data are gone")
        return memory(*self._data)

    def take(self):
        """The same without a copy where that is possible, and to be kept: a memoryview."""
        if self.finished:
            raise ValueError("the request has been finished: its data are gone")
        address = library.rtrs_take_data(self._request)
        if not address:
            return memoryview(self.data)
        length = self._data[1]
        self._data = (None, 0)
        array = (c.c_ubyte * length).from_address(address)
        weakref.finalize(array, library.rtrs_free, address)
        return memoryview(array).cast("B")

    def finish(self, answer=None):
        """Ends it with an answer. What is large is not copied: it must not change any more."""
        source = Vectors(answer)
        address, length = source.array[0].base, source.array[0].length
        if length < _HELD:
            self._end(0, address, length)
            source.close()
            return
        self._begin_end()
        token = c.addressof(source.array)
        _held[token] = source
        library.rtrs_finish_with(self._request, address, length, _give_back, token)

    def fail(self, code):
        """Ends it with an errno."""
        self._end(code, None, 0)

    def _end(self, code, address, length):
        self._begin_end()
        library.rtrs_finish(self._request, code, address, length)

    def _begin_end(self):
        if self.finished:
            raise ValueError("the request has been finished already")
        self.finished = True


class Server:
    """Listens and calls handler(request) until it is closed, whoever still has this object.

    What the handler returns is the answer; an OSError that it raises is the client's error. LATER
    says that finish() or fail() will be called elsewhere. It runs on `workers` threads, which may
    block; options are the fields of rtrs_server_options.

    session_up(session), session_down(session) and paths_changed(session) are called when a client
    comes, is gone for good, and has more or fewer paths; on an event loop, where they must not
    block.
    """

    LATER = object()

    def __init__(self, uri, handler, workers=1, session_up=None, session_down=None,
                 paths_changed=None, **options):
        self._handler = handler
        self._events = (session_up, session_down, paths_changed)
        self._sessions = {}  # address -> Session
        self._callbacks = (_abi.REQUEST(self._on_request), _abi.SESSION(self._on_up),
                           _abi.SESSION(self._on_down), _abi.PATHS(self._on_paths))
        request, up, down, paths = self._callbacks  # live as long as the server
        ops = _abi.ServerOps(request=request, session_up=up, session_down=down, paths_changed=paths)
        error = _abi.Error()
        server = library.rtrs_listen(uri.encode(), ops, None,
                                     _abi.ServerOptions(workers=workers, **encoded(options)),
                                     c.byref(error))
        if not server:
            raise failure(error.code, error.text.decode())
        self._port = library.rtrs_server_port(server)
        self._open = [server]
        _serving.add(self)

    def _on_request(self, _, incoming):
        request = Request(incoming.contents, self._sessions[incoming.contents.session])
        try:
            answer = self._handler(request)
            if answer is not Server.LATER and not request.finished:
                request.finish(answer)
        except OSError as problem:
            self._failed(request, problem.errno or errno.EIO)
        except Exception:  # of the handler: the client must not wait for ever
            traceback.print_exc(file=sys.stderr)
            self._failed(request, errno.EIO)

    def _on_up(self, _, address):
        self._sessions[address] = Session(address)
        self._tell(0, self._sessions[address])

    def _on_down(self, _, address):
        self._tell(1, self._sessions.pop(address))

    def _on_paths(self, _, address, paths):
        self._sessions[address].paths = paths
        self._tell(2, self._sessions[address])

    def _tell(self, event, session):
        if self._events[event] is None:
            return
        try:
            self._events[event](session)
        except Exception:  # of the program; nobody waits for an answer
            traceback.print_exc(file=sys.stderr)

    @staticmethod
    def _failed(request, code):
        if not request.finished:
            request.fail(code)

    @property
    def port(self):
        """Of the first listener."""
        if not self._open:
            raise closed("server")
        return self._port

    def close(self, drain_ms=2000):
        """Stops; waits so long for requests that run. EBUSY: some still run, and end by themselves.
        Does nothing the second time."""
        try:
            server = self._open.pop()
        except IndexError:
            return
        if error := library.rtrs_server_close(server, drain_ms):
            raise failure(error)
        _serving.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def serve(uri, handler, **options):
    """Serves until SIGTERM or SIGINT, and says on standard output where. Call it on the main
    thread."""
    stop = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    try:
        with Server(uri, handler, **options) as server:
            print(f"listening on port {server.port}", flush=True)
            signal.sigwait(stop)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
