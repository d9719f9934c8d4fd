# SPDX-License-Identifier: BSD-3-Clause
"""What the cases of nbd_garbage.py share: the server's address, chance, and what must always work."""
import os
import random
import sys

from nbd_peer import FLUSH, M

ADDRESS = sys.argv[1]
RANDOM = random.Random(int(os.environ.get("SEED", "1")))
SIZE = 4 * M


def expect(value, *allowed):
    assert value in allowed, f"got {value}, expected one of {allowed}"


def still_serves(client):
    """What every connection must do that has not broken the protocol."""
    expect(client.write(8192, b"k" * 4096), 0)
    expect(client.read(8192, 4096), (0, b"k" * 4096))
    expect(client.request(FLUSH)[0], 0)
