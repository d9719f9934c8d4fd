# SPDX-License-Identifier: BSD-3-Clause
"""A write whose answer is lost, and a client that has the storage meanwhile: overtaken.py PORT FILE
SAYS HEARS

Says on the descriptor SAYS where its cable to the server's port is, and when the server may be
restarted; is told on HEARS the sockets of two NBD servers, the first one behind the cable, and that
this is done.
"""
import os
import sys

import nbd

from forwarder import Cable

BLOCK = 4096


def content():
    with open(sys.argv[2], "rb") as file:
        return file.read(BLOCK)


says = os.fdopen(int(sys.argv[3]), "w")
hears = os.fdopen(int(sys.argv[4]))


def say(text):
    print(text, file=says, flush=True)


cable = Cable(int(sys.argv[1]))
say(cable.port)
first_socket, second_socket = hears.readline().split()
first = nbd.NBD()
first.connect_unix(first_socket)
first.pwrite(b"0" * BLOCK, 0, nbd.CMD_FLAG_FUA)

cable.lose_answers()
ended = []
first.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"1" * BLOCK)), 0,
                 lambda error: ended.append(error.value) or 1, nbd.CMD_FLAG_FUA)
while content() != b"1" * BLOCK:
    first.poll(10)
cable.cut()
assert not ended, ended
say("restart")
assert hears.readline() == "done\n"

second = nbd.NBD()
second.connect_unix(second_socket)
assert second.pread(BLOCK, 0) == b"1" * BLOCK
second.pwrite(b"2" * BLOCK, 0, nbd.CMD_FLAG_FUA)
second.shutdown()

cable.mend()
while not ended:
    first.poll(100)
assert content() == b"2" * BLOCK, "an answered write is lost"
assert ended[0] != 0, "the first client was not told"
