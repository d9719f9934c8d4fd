# SPDX-License-Identifier: BSD-3-Clause
"""nbd_writer.py SOCKET NUMBER NAME: writes of a client, 16 under way at a time, until there is a file `enough`.

Each of 16 places of its own gets blocks with a count. In the end all have the last one that was answered;
meanwhile some are read, which must show what was answered last. NAME.runs is there when it runs.
"""
import os
import struct
import sys
import time

sys.dont_write_bytecode = True
from nbd_peer import READ, WRITE, Client  # noqa: E402

address, number, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SIZE, PLACES = 16384, 16
client = Client(address)
answered = [0] * PLACES
under_way = {}  # cookie -> (place, count); count None: a read
longest = 0.0


def block(place, count):
    return struct.pack("<QQQ", number, place, count) * (SIZE // 24) + b"\0" * (SIZE % 24)


def offset(place):
    return (number * PLACES + place) * SIZE


def begin(place, reads):
    if reads:
        cookie = client.start_request(READ, offset(place), SIZE)
        under_way[cookie] = (place, None)
    else:
        count = answered[place] + 1
        cookie = client.start_request(WRITE, offset(place), SIZE, 0, block(place, count))
        under_way[cookie] = (place, count)


def end():
    global longest
    began = time.monotonic()
    cookie, error, data = client.reply({each: SIZE for each, (_, count) in under_way.items() if count is None})
    longest = max(longest, time.monotonic() - began)
    place, count = under_way.pop(cookie)
    assert error == 0, error
    if count is None:
        assert data == block(place, answered[place]), f"place {place} is not as it was answered"
    else:
        answered[place] = count
    return place


for place in range(PLACES):
    begin(place, False)
turns = 0
while not os.path.exists("enough"):
    place = end()
    turns += 1
    begin(place, turns % 4 == 0)
    if turns == 100:
        open(f"{name}.runs", "w", encoding="ascii").close()
while under_way:
    end()
for place in range(PLACES):
    begin(place, True)
while under_way:
    end()
print(f"{sum(answered)} writes, the longest silence {longest:.3f} s")
