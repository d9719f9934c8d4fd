#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Answers each request with its data: server.py [URI]"""
import sys

import rtrs

uri = sys.argv[1] if len(sys.argv) > 1 else "rtrs+tcp://127.0.0.1:4321"
rtrs.serve(uri, lambda request: request.data)
