#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Ships numpy arrays without a copy at the client: tensor.py serve URI | tensor.py send URI [MIB]"""
import json
import sys
import time

import numpy
import rtrs

tensors = {}


def handle(request):
    """'put' keeps an array in the memory in which it came, 'get' answers from there."""
    what = json.loads(request.message)
    if what["do"] == "get":
        return tensors[what["name"]]
    kept = numpy.frombuffer(request.take(), what["dtype"]).reshape(what["shape"])
    tensors[what["name"]] = kept


def send(client, name, array):
    head = {"do": "put", "name": name, "dtype": array.dtype.str, "shape": array.shape}
    client.call(json.dumps(head).encode(), array)


def receive(client, name, into):
    client.call(json.dumps({"do": "get", "name": name}).encode(), into=into)


def main(what, uri, mib="1024"):
    if what == "serve":
        return rtrs.serve(uri, handle)
    array = numpy.arange(int(mib) << 17, dtype="u8").reshape(-1, 1024)
    back = numpy.zeros_like(array)
    with rtrs.Client(uri) as client, client.registered(array), client.registered(back):
        for step, name in ((send, "sent"), (receive, "received")):
            began = time.monotonic()
            step(client, "weights", array if step is send else back)
            print(f"{name} {mib} MiB, {array.nbytes / 1e9 / (time.monotonic() - began):.2f} GB/s")
    return int(not numpy.array_equal(array, back))


sys.exit(main(*sys.argv[1:]))
