# SPDX-License-Identifier: BSD-3-Clause
"""Disks of a server: an image and the server's records, in a directory that outlives its programs.

A disk that forgets is a file system of its own, on a loop device. At a power cut ext4 is told to
write nothing any more, not even its journal: what was not synced is gone, unless the kernel had
written it by chance. So some pages are written before, as chance has it.
"""
import asyncio
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import uuid

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
WITHOUT_THE_LOG = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH
WRITE_NOW = 7  # sync_file_range(2): wait, write and wait; no journal, no flush
PAGE = 4096
LIBC = ctypes.CDLL(None, use_errno=True)


class Disk:
    """An image with first content, and copies of it. `directory` must not be there."""

    def __init__(self, directory, layout, forgets=False, copies=()):
        self.directory, self.forgets = directory, forgets
        self.image, self.state = f"{directory}/image", f"{directory}/state"
        self.boot = f"{directory}.boot"  # in place of the kernel's boot_id
        os.mkdir(directory)
        if forgets:
            with open(directory + ".device", "wb") as file:
                file.truncate(layout.whole * (1 + len(copies)) + (24 << 20))
            subprocess.run(["mkfs.ext4", "-q", "-F", file.name], check=True)
            self._mount()
        self.images = [self.image, *map(self.copy, copies)]
        for image in self.images:
            with open(image, "wb") as file:
                file.write(layout.image())
                file.flush()
                os.fsync(file.fileno())
        os.mkdir(self.state)
        if forgets:
            subprocess.run(["sync", "-f", directory], check=True)
        self._new_boot()

    def copy(self, name):
        """Where the copy of this name is."""
        return f"{self.directory}/{name}"

    def _mount(self):
        subprocess.run(["mount", "-o", "loop", self.directory + ".device", self.directory], check=True)

    def _new_boot(self):
        with open(self.boot + ".new", "w", encoding="ascii") as file:
            print(uuid.uuid4(), file=file)
        os.rename(file.name, self.boot)

    async def lose_power(self, dice, lucky=0.0):
        """The server must be dead. The disk is there again at once, with what has reached it.

        `lucky`: the share of pages that had been written by chance. The kernel may have them in its
        cache as one piece with others, which are written with them.
        """
        for name in self.images:
            image = os.open(name, os.O_RDWR)
            for page in range(0, os.fstat(image).st_size, PAGE):
                if dice.random() < lucky:
                    LIBC.sync_file_range(image, ctypes.c_int64(page), ctypes.c_int64(PAGE), WRITE_NOW)
            os.close(image)
        root = os.open(self.directory, os.O_RDONLY)
        fcntl.ioctl(root, SHUTDOWN, struct.pack("I", WITHOUT_THE_LOG))
        os.close(root)
        await until(lambda: not subprocess.run(["umount", self.directory], stderr=subprocess.DEVNULL,
                                               check=False).returncode, "the file system stays mounted")
        # The next one is of another device: nothing of the last one's memory may be used.
        await until(lambda: not subprocess.run(["losetup", "-j", self.directory + ".device"],
                                               stdout=subprocess.PIPE, check=True).stdout,
                    "the loop device stays")
        self._mount()
        self._new_boot()

    def command(self, command):
        """The command of a server, in a machine with a boot of its own."""
        if not self.forgets:
            return command
        # The server holds no other disk, and sees another boot after a cut.
        script = ('for at in "$2"/*.disk; do [ "$at" = "$1" ] || umount -l "$at" 2>/dev/null; done; '
                  'mount --bind "$1.boot" /proc/sys/kernel/random/boot_id && shift 2 && exec "$@"')
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", self.directory,
                os.path.dirname(self.directory), *command]

    def empty(self, layout):
        """Another disk in its place, without content and records."""
        shutil.rmtree(self.state)
        os.mkdir(self.state)
        os.unlink(self.image)
        with open(self.image, "wb") as file:
            file.truncate(layout.size)
        if self.forgets:
            subprocess.run(["sync", "-f", self.directory], check=True)

    def close(self):
        if self.forgets:
            subprocess.run(["umount", "-l", self.directory], stderr=subprocess.DEVNULL, check=False)


async def until(condition, otherwise, limit=30):
    """Waits for a condition. Errors: TimeoutError."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit:
            raise TimeoutError(otherwise)
        await asyncio.sleep(0.02)


def own_mounts():
    """Starts this program again where its mounts end with it, if that can be."""
    unshare = ["unshare", "-m", "--propagation", "private"]
    if os.environ.get("RNBD_HISTORY_MOUNTS") or subprocess.run(
            [*unshare, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        return
    os.environ["RNBD_HISTORY_MOUNTS"] = "own"
    os.execvp("unshare", [*unshare, sys.executable, "-B", *sys.argv])


def can_forget(directory):
    """None, or why there can be no disks that forget."""
    if not os.environ.get("RNBD_HISTORY_MOUNTS"):
        return "power cuts take mounts, which take root"
    try:
        with tempfile.TemporaryDirectory(dir=directory) as at, \
                tempfile.NamedTemporaryFile(dir=directory) as image:
            image.truncate(4 << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", image.name], check=True, capture_output=True)
            subprocess.run(["mount", "-o", "loop", image.name, at], check=True, capture_output=True)
            subprocess.run(["umount", at], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no loop devices: {getattr(error, 'stderr', b'') or error}"
    return None
