#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Sends a text and prints what comes back: client.py [URI] [TEXT]"""
import sys

import rtrs

uri = sys.argv[1] if len(sys.argv) > 1 else "rtrs+tcp://127.0.0.1:4321"
text = (sys.argv[2] if len(sys.argv) > 2 else "hello").encode()
with rtrs.Client(uri) as client:
    print(client.ask(b"echo", text).decode())
