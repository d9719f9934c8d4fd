# SPDX-License-Identifier: BSD-3-Clause
"""Servers whose RNBD messages make no sense, see hostile_server.py: a client is refused with the
reason, or the numbers do no harm."""
import os
import struct
import time

import nbd_peer as nbd
from hostile_face import SLOW, Face
from hostile_peer import (ACCESS_NOTICE, CLOSE, DEPTH, DEVICE_INFO, DIRECTORY, FEATURES, HELLO, INFO,
                          IO, KEY, LIST_EXPORTS, MAX_HEADER, MAX_IO, OPEN, SESSION_INFO, SIZE, Server,
                          device_info, directory, exports, hello, info_response, open_response,
                          response)
from raw_peer import SEND

HUGE = 2**64 - 1


def is_refused(face, server, step, data, because):
    face.forget_log()
    server.order(step, lambda request: request.reply(data[:request.room]), times=None)
    face.is_refused()
    face.says(f"127.0.0.1:{server.ports[0]}.*(?:{because})")
    server.behave()


def leaves(face, server, client):
    """And nobody else has the device open."""
    before = server.asked.count(CLOSE)
    client.leave()
    face.wait_until(lambda: server.asked.count(CLOSE) > before, "it is not closed", 5)


# ---- Opening

def open_answers_that_cannot_be(face, server):
    for named in ({"logical": 0}, {"logical": 3}, {"logical": 256}, {"logical": 513},
                  {"logical": 0xFFFF}):
        is_refused(face, server, OPEN, open_response(**named),
                   f"block size of {named['logical']} bytes")
    for sectors in (HUGE, 1 << 63, (1 << 54) + 1):
        is_refused(face, server, OPEN, open_response(sectors=sectors), f"size of {sectors} sectors")
    for data in (b"", b"\xff" * 56, open_response(kind=2)):
        is_refused(face, server, OPEN, data, "malformed answer to OPEN|block size")
    for data in (b"", b"\xff" * 64, device_info(kind=3)):
        is_refused(face, server, DEVICE_INFO, data, "malformed device info")


def open_refused_with_every_errno(face, server):
    for step in (OPEN, DEVICE_INFO):
        for error in (*range(1, 134), 255, 511):
            server.order(step, lambda request, error=error: request.reply(error=error), times=None)
            # A server that is gone for a moment may be asked again; but it is there.
            face.is_refused()
    face.says(f"127.0.0.1:{server.ports[0]}.*disk0")


def open_answers_with_odd_numbers(face, server):
    """Sizes of nothing and limits without sense: all requests inside the device are answered."""
    odd = 0xFFFFFFFF
    for named in ({"physical": 0}, {"physical": 3}, {"physical": 0xFFFF}, {"zeroes": odd},
                  {"discard": odd}, {"zeroes": 1, "discard": 1}, {"zeroes": 0, "discard": 0}):
        server.order(OPEN, lambda request, named=named: request.reply(open_response(**named)))
        client = face.client(contexts=True)
        for command in (nbd.TRIM, nbd.WRITE_ZEROES):
            client.request(command, 100, 200000)
        face.serves(server, client)
        leaves(face, server, client)
    for named in ({"size": 0}, {"size": HUGE}, {"size": SIZE - 512}, {"preferred": 0},
                  {"preferred": 3}, {"preferred": 1 << 31}, {"flags": 0xFFFFFFFE}):
        def told(request, named=named):
            request.reply(device_info(**named))
        server.order(DEVICE_INFO, told)
        client = face.client(contexts=True)
        assert client.size == SIZE, client.size
        if not client.flags & nbd.READ_ONLY:
            face.serves(server, client)
        leaves(face, server, client)


def open_devices_of_extreme_sizes(face, server):
    def opens(sectors):
        server.order(OPEN, lambda request: request.reply(open_response(sectors=sectors)))
        server.order(DEVICE_INFO, lambda request: request.reply(device_info(size=sectors * 512)))
        return face.client()
    client = opens(0)
    assert client.size == 0 and client.read(0, 512)[0] == nbd.EINVAL
    leaves(face, server, client)
    largest = (1 << 54) - 1
    client = opens(largest)
    assert client.size == largest * 512, client.size
    asked = []
    server.order(IO, lambda request: (asked.append(request.message), request.reply(b"!" * 512)))
    assert client.read(largest * 512 - 512, 512) == (0, b"!" * 512)
    assert struct.unpack_from("<Q", asked[0], 8)[0] == largest - 1
    assert client.read(largest * 512 - 512, 1024)[0] == nbd.EINVAL
    leaves(face, server, client)


def open_session_info_that_cannot_be():
    """Asked once per session, so each has a program of its own."""
    for data in (b"", b"\xff" * 36, struct.pack("<HHB31x", 0, 0, 2),
                 struct.pack("<HHB31x", 1, 0, 0)):
        server = Server()
        face = Face(server.ports, connect_timeout="5s")
        is_refused(face, server, SESSION_INFO, data, "malformed session info")
        face.serves(server)
        face.stop()


# ---- Opened again

def renewal_of_something_else(face, server):
    """Who has it open gets EIO for good; new clients get what is there, if it is a device."""
    for named in ({"sectors": 8}, {"logical": 3}, {"sectors": HUGE}):
        client = face.client()
        face.forget_log()
        server.order(OPEN, lambda request, named=named: request.reply(open_response(**named)))
        server.epoch += 1
        server.order(IO, lambda request: request.connection.hang_up())
        assert client.read(0, 4096)[0] == nbd.EIO
        face.says("'disk0' (?:is not what it was|has)")
        assert client.read(0, 4096)[0] == nbd.EIO
        face.serves(server)
        client.leave()


def renewal_with_other_limits(face, server):
    """As with another device. More than before would do no harm."""
    for named in ({"queue_depth": DEPTH // 2}, {"max_io_size": MAX_IO // 2},
                  {"features": FEATURES & ~ACCESS_NOTICE}):
        depth, size = named.get("queue_depth", DEPTH), named.get("max_io_size", MAX_IO)
        memory = ((0, KEY, depth * (size + MAX_HEADER)),)
        client = face.client()
        face.forget_log()
        server.epoch += 1
        server.order(HELLO, lambda connection, named=named: connection.send(
            hello(response(epoch=server.epoch, **named))), times=None)
        server.order(INFO, lambda connection, memory=memory: connection.frame(
            SEND, info_response(descriptors=memory)), times=None)
        server.order(IO, lambda request: request.connection.hang_up())
        assert client.read(0, 4096)[0] == nbd.EIO
        face.says("came back with other limits")
        server.behave()
        assert client.read(0, 4096)[0] == nbd.EIO
        face.serves(server)
        client.leave()


def renewal_with_nonsense(face, server):
    """It is tried again until the server makes sense."""
    for step in (SESSION_INFO, OPEN, DEVICE_INFO):
        client = face.client()
        face.forget_log()
        server.order(step, lambda request: request.reply(b"\xff" * request.room))
        server.epoch += 1
        server.order(IO, lambda request: request.connection.hang_up())
        face.serves(server, client)
        face.says("malformed")
        leaves(face, server, client)


# ---- Lists of exports

def listed(face, limit):
    """How long the last list took, in a program whose clients may choose."""
    haggler = nbd.Haggler(face.address)
    began = time.monotonic()
    replies = haggler.option(nbd.LIST)
    took = time.monotonic() - began
    haggler.close()
    assert took < limit * SLOW, f"it took {took:.1f} s"
    return replies


def refuses_list(face, server, make, because, limit=5):
    face.forget_log()
    server.order(LIST_EXPORTS, lambda request: request.reply(
        make(struct.unpack_from("<I", request.message, 4)[0], request.room)), times=None)
    assert listed(face, limit)[-1][0] & nbd.ERROR
    face.says(f"127.0.0.1:{server.ports[0]}.*(?:{because})")


def list_pages_that_cannot_be(face, server):
    name = b"\1\0\0\0x"
    for page in (b"", exports(1, kind=1), exports(1, b"a", b"b"), exports(9, b"a", count=9),
                 exports(0xFFFF, b"a", count=0xFFFF), exports(1, b""), exports(1, b"a\nb"),
                 exports(1, b"x" * 255), exports(1, b"a", description=b"\x1b[2J"),
                 exports(1, b"a")[:12] + b"\xff" * 8 + name):
        refuses_list(face, server, lambda first, room, page=page: page, "malformed list")
    refuses_list(face, server, lambda first, room: exports(0xFFFFFFFF, b"a"), "too many")


def list_without_end(face, server):
    """The same page again and again, each time with more to come."""
    names = [b"%03d" % i for i in range(999)]
    refuses_list(face, server, lambda first, room: exports(first + 2000, *names), "too many", 20)


def list_of_long_descriptions(face, server):
    """Each page has one; together they would fill the memory."""
    def page(first, room):
        return exports(100000, b"%d" % first, description=b"x" * (room - 12 - 4 - 6))
    before = face.resident()
    refuses_list(face, server, page, "too many", limit=20)
    grown = face.resident("VmHWM") - before
    assert SLOW > 1 or grown < 64 * 1024, f"it grew by {grown} KiB"


def list_that_ends_early(face, server):
    """An empty page ends the list, whatever was promised."""
    def two(request):
        first, = struct.unpack_from("<I", request.message, 4)
        request.reply(exports(50000, *(b"a", b"b")[first:]))
    server.order(LIST_EXPORTS, two, times=None)
    assert [kind for kind, _ in listed(face, 5)] == [nbd.SERVER, nbd.SERVER, nbd.ACK]


def list_refused_with_every_errno(face, server):
    for error in (*range(1, 134), 255, 511):
        def refuse(request, error=error):
            request.reply(error=error)
        server.order(LIST_EXPORTS, refuse, times=None)
        listed(face, 5)


# ---- What is asked with paths=auto, once per session, so each has a program of its own

ADDRESS = 16


def tells_addresses(deed, says, **options):
    """Whatever it is told, its disk works."""
    server = Server()
    server.order(DIRECTORY, deed, times=None)
    face = Face(server.ports, paths="auto", **options)
    face.serves(server)
    assert server.asked.count(DIRECTORY) == 1, server.asked
    face.says(says)
    face.stop()


def addresses_that_cannot_be():
    told = (b"tcp:x:1", b"", ADDRESS)
    for data in (b"", b"\xff" * 4096, directory([told], kind=0x8004), directory([told], count=9),
                 directory([told], count=0xFFFFFFFF, total=0xFFFFFFFF),
                 directory([(b"tcp:\x1b[2J", b"", ADDRESS)]), directory([told])[:-1] + b"\xff" * 8):
        tells_addresses(lambda request, data=data: request.reply(data[:request.room]),
                        "does not tell its addresses: .*malformed|advertises no addresses|"
                        "advertises tcp:")
    tells_addresses(lambda request: request.reply(error=22), "advertises no addresses")
    tells_addresses(lambda request: request.reply(error=5), "does not tell its addresses")


def addresses_that_mean_something_else():
    """They are none, so nothing is connected anywhere."""
    names = (b"unix:/run/x", b"tcp:0.0.0.0:1", b"tcp:127.0.0.1,preference=9", b"127.0.0.1",
             b"tcp:a@127.0.0.1", b"tcp:[fe80::1%lo]:1", b"rnbd+tcp://127.0.0.1/disk0", b"tcp:" * 60)
    tells_addresses(lambda request: request.reply(directory([(n, b"", ADDRESS) for n in names])),
                    "advertises no addresses")


def addresses_of_hundreds():
    """A session has 8 paths, whoever wants more."""
    stranger = Server()
    more = [(b"tcp:127.0.0.1:%d" % port, b"", ADDRESS) for port in range(1, 100)]
    more.insert(0, (b"tcp:127.0.0.1:%d" % stranger.ports[0], b"", ADDRESS))
    tells_addresses(lambda request: request.reply(directory(more)),
                    "advertises tcp:127.0.0.1:6, which becomes a further path")
    assert OPEN not in stranger.asked, stranger.asked


def addresses_that_never_come():
    """The disk is there after connect-timeout at the latest."""
    tells_addresses(lambda request: None, "does not tell its addresses", connect_timeout="2s")


# ---- One path is hostile, the other one is good

def second_path_is_good():
    server = Server(listeners=2)
    face = Face(server.ports, policy="round-robin", connect_timeout="5s")
    client = face.client()
    before = face.resident()
    for deed in (lambda request: request.reply(buffer=(request.buffer + 1) % 16, pad=False),
                 lambda request: request.reply(b"!" * 512, pad=False),
                 lambda request: request.connection.send(os.urandom(64)),
                 lambda request: request.connection.hang_up()):
        server.order(IO, deed, times=None, port=server.ports[0])
        for _ in range(20):
            face.serves(server, client)
    server.behave()
    face.serves(server, client)
    client.leave()
    grown = face.resident() - before
    assert SLOW > 1 or grown < 8192, f"it grew by {grown} KiB"
    face.stop()
