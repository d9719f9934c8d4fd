#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Sends one stage's worth of garbage to an NBD server: nbd_garbage.py ADDRESS STAGE [DEVICE]

Each function of the modules below that is named STAGE_... is a case; its title says what the client
does. After every case a correct client must be served, the one that was there before and a new one.
The server exports `disk0` (4 MiB, writable), `readonly` and nothing else; with DEVICE only disk0,
and the cases with "read_only" in their name are left out.
"""
import sys

import nbd_garbage_handshake
import nbd_garbage_transmission
from nbd_garbage_peer import ADDRESS, still_serves
from nbd_peer import Client
from run_cases import run_cases


def main():
    stage = sys.argv[2] + "_"
    cases = [(name, function) for module in (nbd_garbage_handshake, nbd_garbage_transmission)
             for name, function in vars(module).items() if name.startswith(stage)
             and (len(sys.argv) <= 3 or "read_only" not in name)]
    assert cases, f"no case belongs to {sys.argv[2]}"
    bystander = Client(ADDRESS)

    def run(case):
        case()
        still_serves(bystander)
        still_serves(Client(ADDRESS))

    run_cases(cases, run)


main()
