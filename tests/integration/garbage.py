#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Sends one stage's worth of garbage to a server: garbage.py PORT STAGE

Each function of the modules below that is named STAGE_... is a case. A title says what the server
must do; after every case a correct session must still work. The server exports `disk0` (writable)
and `readonly`; for the stage `generation` also what garbage_generations.py says.
"""
import sys
import traceback

import garbage_frames
import garbage_generations
import garbage_handshake
import garbage_messages
from garbage_peer import good_session


def main():
    stage = sys.argv[2] + "_"
    modules = (garbage_handshake, garbage_frames, garbage_messages, garbage_generations)
    cases = [(name, function) for module in modules for name, function in vars(module).items()
             if name.startswith(stage) and getattr(function, "__module__", "") == module.__name__
             and not name.endswith("_case") and not name.endswith("_session")]
    assert cases, f"no case belongs to {sys.argv[2]}"
    failures = 0
    good_session()
    for name, function in cases:
        try:
            function()
            good_session()
            print("ok  ", name.replace("_", " "))
        except Exception:  # the next case may still tell something
            failures += 1
            print("FAIL", name.replace("_", " "))
            traceback.print_exc(file=sys.stdout)
    print(f"{len(cases)} cases, {failures} failed")
    sys.exit(1 if failures else 0)


main()
