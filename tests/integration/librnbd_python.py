#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""The Python face of librnbd: RNBD_URI is a disk of 64 MiB, RNBD_SLOW_URI one whose reads take a second."""
import asyncio
import errno
import os
import signal
import threading
import time

import rnbd

uri = os.environ["RNBD_URI"]


def fails(code, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except rnbd.RnbdError as error:
        assert error.errno == code, error
    else:
        raise AssertionError("it raises nothing")


with rnbd.Disk(uri) as disk:
    assert disk.size == 64 << 20 and disk.block == 512 and disk.name == "disk0"
    disk.write(4096, b"hello" * 1000, fua=True)
    assert disk.read(4096 + 5, 10) == b"hellohello"
    disk.write(0, bytearray(512))
    disk.write_zeroes(4096, 512)
    disk.discard(8192, 4096)
    disk.flush()
    assert disk.read(4096, 512) == bytes(512)
    assert disk.look() == 64 << 20
    fails(errno.EINVAL, disk.read, 64 << 20, 1)
    fails(errno.EINVAL, disk.write, (64 << 20) - 1, b"ab")
    fails(errno.ENOENT, rnbd.Disk, uri + "x")
    fails(errno.EINVAL, rnbd.Disk, uri, hartbeat="1s")

    async def many():
        await asyncio.gather(*(disk.write_async(i * 4096, bytes([i]) * 4096) for i in range(200)))
        await disk.flush_async()
        found = await asyncio.gather(*(disk.read_async(i * 4096, 4096) for i in range(200)))
        assert found == [bytes([i]) * 4096 for i in range(200)]
        try:
            await disk.read_async(64 << 20, 1)
        except rnbd.RnbdError as error:
            assert error.errno == errno.EINVAL
        else:
            raise AssertionError("it raises nothing")
        given_up = asyncio.ensure_future(disk.read_async(0, 4096))
        await asyncio.sleep(0)
        given_up.cancel()
        assert await disk.read_async(4096, 1) == b"\1"

    asyncio.run(many())
    asyncio.run(many())  # another loop

    async def more_than_the_depth():
        await asyncio.gather(*(disk.write_async(i * 4096, bytes([i % 256]) * 4096) for i in range(600)))
        found = await asyncio.gather(*(disk.read_async(i * 4096, 1) for i in range(600)))
        assert found == [bytes([i % 256]) for i in range(600)]

    asyncio.run(more_than_the_depth())

    async def closed_meanwhile():
        with rnbd.Disk(uri, access="ro", depth=2) as small:
            reads = [asyncio.ensure_future(small.read_async(0, 4096)) for _ in range(9)]
            await asyncio.sleep(0)
        return await asyncio.gather(*reads, return_exceptions=True)

    ends = asyncio.run(closed_meanwhile())
    assert all(isinstance(each, (asyncio.CancelledError, ValueError)) for each in ends), ends

    async def at_rest():
        task = asyncio.ensure_future(disk.read_async(0, 4096))
        await asyncio.sleep(0)
        time.sleep(1.5)  # a heartbeat receives the answer
        await task
        before = time.process_time()
        await asyncio.sleep(2)
        assert time.process_time() - before < 0.4, time.process_time() - before

    asyncio.run(at_rest())

    def write(number):
        for i in range(100):
            disk.write(number * 4096, bytes([i]) * 4096)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.read(3 * 4096, 1) == bytes([99])

    child = os.fork()
    if child == 0:
        try:
            disk.read(0, 1)
        except rnbd.RnbdError as error:
            os._exit(0 if error.errno == rnbd.FORKED else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert disk.read(3 * 4096, 1) == bytes([99])

with rnbd.Disk(os.environ["RNBD_SLOW_URI"]) as slow:
    # A thread is inside while another one forks.
    reader = threading.Thread(target=slow.read, args=(0, 4096))
    reader.start()
    time.sleep(0.3)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            slow.read(0, 1)
        except rnbd.RnbdError as error:
            os._exit(0 if error.errno == rnbd.FORKED else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    reader.join()

try:
    disk.read(0, 1)
except ValueError:
    pass
else:
    raise AssertionError("a closed disk is read")
with rnbd.Disk(uri, access="ro", log=lambda level, line: None) as reader:
    fails(errno.EROFS, reader.write, 0, b"x")
print("done")
