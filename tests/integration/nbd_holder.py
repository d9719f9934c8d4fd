# SPDX-License-Identifier: BSD-3-Clause
"""nbd_holder.py URI PIPE simple|structured|extended: an NBD client that stays, and does what a pipe says.

Blocks of 4096 bytes have one letter. Each line is answered with a line:
  write BLOCK LETTER, flush, status   ok
  read BLOCK                          the letter; 0 for zeroes
The answer is `error` if the server says so, and `gone` if it has hung up.
"""
import os
import signal
import sys

import nbd

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

uri, pipe, framing = sys.argv[1:]
SIZE = 4096


class Extended:
    """Older libnbd has no extended headers."""

    def __init__(self, address):
        sys.dont_write_bytecode = True
        import nbd_peer
        self.peer = nbd_peer
        self.client = nbd_peer.Client(address, extended=True, contexts=True)
        self.gone = False

    def ask(self, *request):
        try:
            error, data = self.client.request(*request)
        except self.peer.Closed:
            self.gone = True
            raise nbd.Error("closed") from None
        if error:
            raise nbd.Error(f"error {error}")
        return data

    def pwrite(self, data, place):
        self.ask(self.peer.WRITE, place, len(data), self.peer.PAYLOAD_LEN, data)

    def pread(self, size, place):
        return self.ask(self.peer.READ, place, size)

    def flush(self):
        self.ask(self.peer.FLUSH)

    def aio_is_dead(self):
        return self.gone

    aio_is_closed = aio_is_dead


if framing == "extended":
    h = Extended(uri.partition("socket=")[2])
else:
    h = nbd.NBD()
    h.set_request_structured_replies(framing != "simple")
    h.set_uri_allow_local_file(True)
    if framing != "simple":
        h.add_meta_context("base:allocation")
    h.connect_uri(uri)


def obey(order, block="0", letter=""):
    place = int(block) * SIZE
    if order == "write":
        h.pwrite(letter.encode() * SIZE, place)
    elif order == "flush":
        h.flush()
    elif order == "status":
        extents = []
        h.block_status(SIZE * 16, 0, lambda *found: extents.append(found))
        assert extents
    else:
        data = h.pread(SIZE, place)
        assert data == data[:1] * SIZE, "a block of many letters"
        return "0" if data[0] == 0 else data[:1].decode()
    return "ok"


print("ready", flush=True)
with open(pipe, encoding="ascii") as orders:
    for line in orders:
        try:
            print(obey(*line.split()), flush=True)
        except nbd.Error as error:
            print("gone" if h.aio_is_dead() or h.aio_is_closed() else "error", flush=True)
            print(error, file=sys.stderr, flush=True)
