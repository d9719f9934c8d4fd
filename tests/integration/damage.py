#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""A cable that damages: damage.py TARGET_PORT FLIPS READY_FD

Writes its port to READY_FD. When there is a file `begin` it flips FLIPS bits, one after the other, in
what goes to the server and to the client in turn. Each must end its connection, and the next one comes
when data flow again. Then the file `flipped` has how many there were in each direction, and the cable is as
any other.
"""
import os
import signal
import sys
import time

from forwarder import Cable

LIMIT = 30  # seconds, for what must happen


def until(what, condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {LIMIT} s: {what}")
        time.sleep(0.002)


def main():
    port, flips, ready = (int(word) for word in sys.argv[1:])
    cable = Cable(port)
    os.write(ready, f"{cable.port}\n".encode())
    os.close(ready)
    while not os.path.exists("begin"):
        time.sleep(0.02)
    for number in range(flips):
        carried = cable.to_server + cable.to_client
        until("data flow", lambda: cable.to_server + cable.to_client > carried + 200_000)
        towards_server = number % 2 == 0
        cable.flip(towards_server)
        until("something is sent", lambda: cable.flipped)
        until(f"the connection of flip {number} ends", lambda: cable.damaged == 0)
    with open("flipped.new", "w", encoding="ascii") as file:
        print((flips + 1) // 2, flips // 2, file=file)
    os.rename("flipped.new", "flipped")
    signal.pause()


main()
