#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""A cable that can be cut: forward.py LISTEN_HOST LISTEN_PORT TARGET_HOST TARGET_PORT READY_FD

Forwards TCP connections until it is killed. Writes its port to READY_FD, and the number of bytes
that it has forwarded to the file `forwarded.LISTEN_HOST`. While there is a file `mute.LISTEN_HOST` the
first connection of all carries nothing.
"""
import mmap
import os
import socket
import struct
import sys
import threading
import time

HOST, PORT, TARGET, TARGET_PORT, READY = sys.argv[1:]
LOCK = threading.Lock()
TOTAL = 0


def pump(source, sink, counter, first):
    global TOTAL  # pylint: disable=global-statement
    try:
        while data := source.recv(1 << 18):
            while first and os.path.exists(f"mute.{HOST}"):
                time.sleep(0.05)
            sink.sendall(data)
            with LOCK:
                TOTAL += len(data)
                counter[:] = struct.pack("<Q", TOTAL)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def main():
    with open(f"forwarded.{HOST}.new", "wb+") as file:
        file.truncate(8)
        counter = mmap.mmap(file.fileno(), 8)
        os.rename(file.name, f"forwarded.{HOST}")
    server = socket.create_server((HOST, int(PORT)))
    os.write(int(READY), f"{server.getsockname()[1]}\n".encode())
    first = True
    while True:
        near, _ = server.accept()
        try:
            far = socket.create_connection((TARGET, int(TARGET_PORT)))
        except OSError:
            near.close()
            continue
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((near, far), (far, near)):
            threading.Thread(target=pump, args=(*pair, counter, first), daemon=True).start()
        first = False


main()
