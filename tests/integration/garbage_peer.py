# SPDX-License-Identifier: BSD-3-Clause
"""What the cases of garbage.py share: the server's port, chance, and sessions that are correct."""
import os
import random
import sys

from raw_peer import RO, Session

PORT = int(sys.argv[1])
RANDOM = random.Random(int(os.environ.get("SEED", "1")))


def expect(value, *allowed):
    assert value in allowed, f"got {value}, expected one of {allowed}"


def good_session():
    """A correct client: what must work at all times."""
    session = Session(PORT)
    device, _ = session.open(b"disk0", RO)
    error, data = session.read(device, 0, 4096)
    assert error == 0 and len(data) == 4096
    session.close()


def reads_and_leaves(session):
    """What a correct session must still be able to do."""
    device, _ = session.open(b"disk0", RO)
    expect(session.read(device, 0, 512)[0], 0)
    session.close()
