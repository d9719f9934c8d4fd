#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A key-value service: kv.py serve URI | kv.py put URI KEY VALUE | kv.py get URI KEY"""
import errno
import sys
import rtrs

values = {}
def handle(request):
    if request.message[:1] == b"P":
        values[request.message[1:]] = request.data
    elif request.message[1:] in values:
        return values[request.message[1:]]
    else:
        raise OSError(errno.ENOENT, "no such key")

what, uri, *words = sys.argv[1:]
if what == "serve":
    sys.exit(rtrs.serve(uri, handle))
with rtrs.Client(uri) as client:
    key = words[0].encode()
    if what == "put":
        client.call(b"P" + key, words[1].encode())
    else:
        print(client.ask(b"G" + key).decode())
