#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Sends one stage's worth of garbage to a server: garbage.py PORT STAGE

Each function of the modules below that is named STAGE_... is a case. A title says what the server
must do; after every case a correct session must still work. The server exports `disk0` (writable)
and `readonly`; for the stage `generation` also what garbage_generations.py says.
"""
import sys

import garbage_frames
import garbage_generations
import garbage_handshake
import garbage_messages
from garbage_peer import good_session
from run_cases import run_cases


def main():
    stage = sys.argv[2] + "_"
    modules = (garbage_handshake, garbage_frames, garbage_messages, garbage_generations)
    cases = [(name, function) for module in modules for name, function in vars(module).items()
             if name.startswith(stage) and getattr(function, "__module__", "") == module.__name__
             and not name.endswith("_case") and not name.endswith("_session")]
    assert cases, f"no case belongs to {sys.argv[2]}"
    good_session()

    def run(case):
        case()
        good_session()

    run_cases(cases, run)


main()
