# SPDX-License-Identifier: BSD-3-Clause
"""Servers as Linux's, whose ids are used again, and CLOSEs that end late, see hostile_server.py: no
device's requests may reach another one, whatever becomes of a CLOSE."""
import socket
import struct
import time

from hostile_face import Face, started
from hostile_peer import CLOSE, HELLO, IO, OPEN, SIZE, UP, Server, hello, open_response, response
from raw_peer import WRITE_IO


def operation_of(request):
    return struct.unpack_from("<I", request.message, 16)[0] & 0xFF


class LinuxServer(Server):
    """Two disks, no extension. What opens gets the lowest id that is free; what is open, its own."""
    def __init__(self, listeners=1):
        self.disks = {name: bytearray(name * SIZE) for name in (b"X", b"Y")}
        self.ids = {}
        super().__init__(listeners)

    def greet(self, connection):
        connection.send(hello(response(extension=0, features=0, epoch=0)))

    def answer(self, request):
        if request.type == OPEN:
            request.reply(open_response(device=self.open(b"X" if b"X" in request.message else b"Y")))
        elif request.type == CLOSE:
            self.ids.pop(struct.unpack_from("<I", request.message, 4)[0], None)
            request.reply()
        elif request.type == IO:
            device, = struct.unpack_from("<I", request.message, 4)
            self.disk = self.disks[self.ids[device]]
            self.answer_io(request)
        else:
            super().answer(request)

    def open(self, name):
        for device, opened in self.ids.items():
            if opened == name:
                return device
        device = next(i for i in range(3) if i not in self.ids)
        self.ids[device] = name
        return device

    def lose_answer_to_close(self, request):
        """The CLOSE is carried out; its path dies, and cannot come back until behave() is called."""
        self.ids.pop(struct.unpack_from("<I", request.message, 4)[0])
        self.order(HELLO, lambda connection: connection.hang_up(), times=None,
                   port=request.connection.socket.getsockname()[1])
        for connection in list(request.connection.path.values()):
            connection.socket.shutdown(socket.SHUT_RDWR)


def each_has_its_own(face, server, y):
    """X is opened again beside Y, and both are written."""
    x = face.client(b"X")
    for client, name, data in ((y, b"Y", b"1" * 4096), (x, b"X", b"2" * 4096)):
        assert client.write(4096, data) == 0, face.tail()
        assert server.disks[name][4096:8192] == data, f"a write to {name} went elsewhere"
        assert client.read(4096, 4096) == (0, data)
    x.leave()
    y.leave()
    face.stop()


def linux_close_that_waits_for_slow_storage():
    server = LinuxServer()
    face = Face(server.ports, device="")
    hangs, closes = [], []
    server.order(IO, hangs.append, when=lambda request: operation_of(request) == WRITE_IO)
    server.order(CLOSE, closes.append)
    x = face.client(b"X")
    x.start_request(1, 0, 4096, 0, b"!" * 4096)
    face.wait_until(lambda: hangs, "the write does not arrive", 5)
    x.close()
    face.wait_until(lambda: closes, "X is not closed", 10)
    time.sleep(3)  # nobody waits for it that long
    hangs[0].reply()
    server.answer(closes[0])
    each_has_its_own(face, server, face.client(b"Y"))


def close_that_is_lost(patience):
    server, ups = LinuxServer(2), []
    server.order(UP, ups.append, times=None)
    face = Face(server.ports, device="", no_path_timeout="20s")
    x = face.client(b"X")
    face.wait_until(lambda: len(ups) == 2, "there is no second path", 10)
    face.says(rf"path to \S*:{server.ports[1]} is up", 10)
    server.order(CLOSE, server.lose_answer_to_close)
    x.leave()
    face.wait_until(lambda: not server.ids, "X is not closed", 10)
    time.sleep(patience)
    waiting = started(face.client, b"Y")
    time.sleep(0.5)
    server.behave()
    each_has_its_own(face, server, waiting.get(20))


def linux_close_whose_answer_is_lost_while_it_is_waited_for():
    close_that_is_lost(0)


def linux_close_whose_answer_is_lost_and_that_is_given_up():
    close_that_is_lost(3)
