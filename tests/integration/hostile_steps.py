# SPDX-License-Identifier: BSD-3-Clause
"""Servers that fall silent or talk nonsense at a step, see hostile_server.py: the program gives up
by its connect-timeout, leaves on SIGTERM, and with connect=now does not even start."""
import signal
import threading
import time

import nbd_peer as nbd
from hostile_face import SLOW, Face, started
from hostile_peer import (DEVICE_INFO, HELLO, INFO, IO, OPEN, SESSION_INFO, Server, hello,
                          info_response, open_response, response)
from raw_peer import SEND


def then_holds(data):
    return lambda connection: (connection.send(data), connection.hold())


def nothing(_):
    pass


def is_second(connection):
    return connection.cid == 1


# (name, step, what the server does, whom to)
SILENCE = (
    ("hello", HELLO, lambda connection: connection.hold(), None),
    ("half a hello", HELLO, then_holds(hello(response())[:40]), None),
    ("second hello", HELLO, lambda connection: connection.hold(), is_second),
    ("info response", INFO, lambda connection: connection.hold(), None),
    ("half a frame", INFO, then_holds(bytes((SEND, 0, 0, 0)) + b"\x18"), None),
    # From here on heartbeats are answered.
    ("session info", SESSION_INFO, nothing, None))
# Opening may take as long as storage takes.
PATIENCE = (("open", OPEN, nothing, None), ("device info", DEVICE_INFO, nothing, None),
            ("read", IO, nothing, None))


def at_each(steps, case):
    """case(server, reached) for each step, at the same time; reached: an event."""
    def one(name, step, deed, when):
        server, reached = Server(), threading.Event()
        server.order(step, lambda subject: (reached.set(), deed(subject)), None, when)
        try:
            case(server, reached)
        except BaseException as error:
            raise AssertionError(f"{name}: {error}") from error
    for thread in [started(one, *step) for step in steps]:
        thread.get(60)


def silence_is_given_up():
    def case(server, _):
        face = Face(server.ports, connect_timeout=f"{1000 * SLOW}ms")
        began = time.monotonic()
        face.is_refused()
        took = time.monotonic() - began
        assert 0.9 < took < 4 * SLOW, f"it took {took:.1f} s"
        face.says(f"127.0.0.1:{server.ports[0]}.*timed out")
        server.behave()
        face.serves(server)
        face.stop()
    at_each(SILENCE, case)


def waits(face):
    """An NBD client that waits until the program leaves."""
    try:
        face.client().read(0, 4096)
    except (nbd.Closed, ConnectionError, AssertionError):
        pass


def sigterm_while_it_serves():
    def case(server, reached):
        face = Face(server.ports, connect_timeout="600s", no_path_timeout="0")
        client = started(waits, face)
        assert reached.wait(20 * SLOW), "the step was not reached"
        face.stop()
        client.get(5)
    at_each(SILENCE + PATIENCE, case)


def sigterm_while_it_starts():
    """With connect=now; it need not leave with 0."""
    def case(server, reached):
        face = Face(server.ports, starts=False, connect="now", connect_timeout="600s")
        assert reached.wait(20 * SLOW), "the step was not reached"
        face.process.send_signal(signal.SIGTERM)
        face.ends(5)
    at_each(SILENCE + PATIENCE[:1], case)


def start_with_connect_now():
    """It ends with an error, and says who and why."""
    def sends(data):
        return lambda connection: connection.send(data)
    steps = (
        (HELLO, sends(hello(response(error=13))), "refused the session: Permission"),
        (HELLO, sends(hello(response(queue_depth=0))), "range"),
        (HELLO, sends(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "greeting"),
        (HELLO, lambda connection: connection.hang_up(), "closed the connection"),
        (INFO, lambda connection: connection.frame(SEND, info_response(count=0)), "count"),
        (INFO, lambda connection: connection.hold(), "timed out"),
        (SESSION_INFO, nothing, "timed out.*session info"),
        (SESSION_INFO, lambda request: request.reply(b"\xff" * 36), "malformed session info"),
        (SESSION_INFO, lambda request: request.reply(error=22), "Invalid argument"),
        (OPEN, lambda request: request.reply(error=2), "disk0.*No such file"),
        (OPEN, lambda request: request.reply(open_response(logical=3)), "block size of 3"),
        (DEVICE_INFO, lambda request: request.reply(b""), "malformed device info"))
    for step, deed, because in steps:
        server = Server()
        server.order(step, deed, times=None)
        face = Face(server.ports, starts=False, connect="now", connect_timeout=f"{500 * SLOW}ms")
        status = face.ends(10)
        assert status > 0, f"it left with {status}: {face.tail()}"
        face.says(f"127.0.0.1:{server.ports[0]}.*(?:{because})")
