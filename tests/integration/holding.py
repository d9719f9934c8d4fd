#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""A cable that stops in the midst of a word: holding.py SERVER_PORT BYTES READY_FD

Forwards TCP connections to that port of 127.0.0.1, and writes its own port to READY_FD. When clients
have sent so many bytes, over all of their connections, and want to send more, it makes the file `held`
and carries no more of theirs until there is a file `go`.
"""
import os
import socket
import sys
import threading
import time

SERVER_PORT, BYTES, READY = map(int, sys.argv[1:])
lock = threading.Lock()
left = BYTES


def allowance(wanted):
    """So much of it may go; 0: it is held."""
    global left  # pylint: disable=global-statement
    with lock:
        if os.path.exists("go"):
            return wanted
        granted = min(left, wanted)
        left -= granted
        if granted == 0:
            open("held", "w", encoding="ascii").close()
        return granted


def pump(source, sink, holds):
    try:
        while data := source.recv(65536):
            while data:
                size = allowance(len(data)) if holds else len(data)
                sink.sendall(data[:size])
                data = data[size:]
                if size == 0:
                    time.sleep(0.01)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    os.write(READY, f"{listener.getsockname()[1]}\n".encode())
    os.close(READY)
    while True:
        client = listener.accept()[0]
        try:
            server = socket.create_connection(("127.0.0.1", SERVER_PORT))
        except OSError:
            client.close()
            continue
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=pump, args=(client, server, True), daemon=True).start()
        threading.Thread(target=pump, args=(server, client, False), daemon=True).start()


main()
