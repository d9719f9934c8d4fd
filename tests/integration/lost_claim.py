# SPDX-License-Identifier: BSD-3-Clause
"""A first write whose right is recorded by a server that is killed before it has said so:
lost_claim.py PORT FILE RECORDS SAYS HEARS

Says on the descriptor SAYS where its cable to the server's port is, and when the server may be
killed, which records in the directory RECORDS who writes. Is told on HEARS the sockets of two NBD servers, the first one
behind the cable, and then either that only the server was started again (`done`), or that the second
client is to write meanwhile (`taken`).
"""
import os
import re
import sys
import time

import nbd

from forwarder import Cable

BLOCK = 4096
FILE, RECORDS = sys.argv[2:4]


def content():
    with open(FILE, "rb") as file:
        return file.read(BLOCK)


def records():
    """The records by their names."""
    known = {}
    for name in os.listdir(RECORDS):
        if re.fullmatch("[0-9a-f]{32}", name):
            with open(os.path.join(RECORDS, name), "rb") as file:
                known[name] = file.read()
    return known


says = os.fdopen(int(sys.argv[4]), "w")
hears = os.fdopen(int(sys.argv[5]))


def say(text):
    print(text, file=says, flush=True)


cable = Cable(int(sys.argv[1]))
say(cable.port)
first_socket, second_socket = hears.readline().split()
first = nbd.NBD()
first.connect_unix(first_socket)
assert first.pread(BLOCK, 0) == bytes(BLOCK)
before = records()

cable.lose_answers()
ended = []
first.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"1" * BLOCK)), 0,
                 lambda error: ended.append(error.value) or 1, nbd.CMD_FLAG_FUA)
while records() == before:
    first.poll(0)
    time.sleep(0.01)
cable.cut()
assert not ended, ended
assert content() == bytes(BLOCK)
say("kill")
what = hears.readline().strip()

if what == "taken":
    second = nbd.NBD()
    second.connect_unix(second_socket)
    second.pwrite(b"2" * BLOCK, 0, nbd.CMD_FLAG_FUA)
    second.shutdown()
    say("kill")
    assert hears.readline() == "done\n"

cable.mend()
while not ended:
    first.poll(100)
if what == "taken":
    assert content() == b"2" * BLOCK, "it wrote over what it has not seen"
    assert ended[0] != 0, "the first client was not told"
else:
    assert ended[0] == 0, os.strerror(ended[0])
    assert content() == b"1" * BLOCK, "an answered write is lost"
