#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Does one stage's worth of harm to a client program: hostile_server.py STAGE KIND COMMAND...

KIND is nbdkit or bridge, COMMAND starts it. Each function of the modules below that is named
STAGE_... is a case. A title says what the server does. After every case the server is good, and the
program must serve.
"""
import inspect
import sys

import hostile_answers
import hostile_handshake
import hostile_linux
import hostile_messages
import hostile_steps
from hostile_face import SLOW, Face, end_all, forget_logs
from hostile_peer import CLOSE, Server
from run_cases import run_cases

# Of the program, by stage.
OPTIONS = {"handshake": {"connect_timeout": f"{2 * SLOW}s"}, "list": {"device": ""}}

MOST_GROWTH = 16 * 1024  # KiB that a program may keep


def run(function):
    if not inspect.signature(function).parameters:  # it starts programs itself
        function()
        return
    server = Server()
    face = Face(server.ports, **OPTIONS.get(sys.argv[1], {}))
    if sys.argv[1] != "handshake":  # which needs a program that has no session yet
        face.serves(server)
        face.wait_until(lambda: CLOSE in server.asked, "the device is not closed", 5)
    before = face.resident()
    function(face, server)
    server.behave()
    face.serves(server)
    grown = face.resident() - before
    assert SLOW > 1 or grown < MOST_GROWTH, f"it grew by {grown} KiB"
    face.stop()


def main():
    stage = sys.argv[1] + "_"
    cases = [(name, function)
             for module in (hostile_answers, hostile_handshake, hostile_linux, hostile_messages,
                            hostile_steps)
             for name, function in vars(module).items()
             if name.startswith(stage) and getattr(function, "__module__", "") == module.__name__]
    assert cases, f"no case belongs to {sys.argv[1]}"

    def run_and_forget(case):
        run(case)
        forget_logs()

    run_cases(cases, run_and_forget, after=end_all)


main()
