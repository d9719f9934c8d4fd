#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""A long cable between two network namespaces: wire.py NEAR FAR DEVICE SECONDS COMMANDS READY_FD

Makes an Ethernet device of that name in each, and carries every frame from one to the other in so many
seconds. Writes a line to READY_FD when both are there. Lines come from the FIFO COMMANDS:

lose to-server|to-client|both  frames that would arrive at the far end, the near one or both are lost
carry                          none is
"""
import collections
import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 2, 0x1000, 0x40000000
MOST = 20000  # frames on their way; what comes beyond is lost
LOST = {"lose to-server": {0}, "lose to-client": {1}, "lose both": {0, 1}, "carry": set()}


def make_end(namespace, name):
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(home, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns to {namespace}")
    os.close(home)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return end


def receive(end, way, due):
    """All frames that have come at one end."""
    while True:
        try:
            frame = os.read(end, 65536)
        except BlockingIOError:
            return
        if len(way) < MOST:
            way.append((due, frame))


def deliver(way, end, loses):
    while way and way[0][0] <= time.monotonic():
        _, frame = way.popleft()
        if loses:
            continue
        try:
            os.write(end, frame)
        except (BlockingIOError, OSError):
            pass  # the device is down, or full: as a cable has it


def main():
    near, far, name, delay, commands, ready = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ends = [make_end(near, name), make_end(far, name)]
    ways = [collections.deque(), collections.deque()]  # to the far end, to the near one
    lost = set()
    orders = os.open(commands, os.O_RDWR)
    os.write(int(ready), b"ready\n")
    while True:
        due = min((way[0][0] for way in ways if way), default=None)
        wait = None if due is None else max(0, due - time.monotonic())
        readable, _, _ = select.select([*ends, orders], [], [], wait)
        if orders in readable:
            lost = LOST[os.read(orders, 4096).decode().splitlines()[-1]]
        for i in range(2):
            if ends[i] in readable:
                receive(ends[i], ways[i], time.monotonic() + float(delay))
            deliver(ways[i], ends[1 - i], i in lost)


main()
