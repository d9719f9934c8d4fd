# SPDX-License-Identifier: BSD-3-Clause
"""Requests to a server over RDMA or TCP that survive paths and are carried out once.

    server = rtrs.Server("rtrs+tcp://127.0.0.1:4321", lambda request: request.data)
    client = rtrs.Client("rtrs+tcp://127.0.0.1:4321")
    client.ask(b"echo", b"hello")                    # b"hello"
    await client.ask_async(b"echo", b"hello")        # the same with asyncio
    client.call(b"put", b"hello")                    # needs no answer

A message is bytes or a text, which is sent as UTF-8; a handler gets bytes. `out` and `into` are
anything with the buffer protocol (bytes, bytearray, numpy arrays) or a list of such things; they are
not copied on the way to the library.

A client or server works only in the process that made it: in a child of os.fork() its methods raise
RtrsError with FORKED. Connect again there.
"""
from ._abi import CONTROL, FORKED, MAX_MESSAGE, MAYBE_DONE, NOWAIT, REPEATABLE, RESEND, UNKNOWN_OUTCOME
from ._abi import TLS_OFF, TLS_ON, TLS_REQUIRE
from ._client import Client
from ._server import Request, Server, Session, serve
from ._buffers import RtrsError, UnknownOutcome

__all__ = ["Client", "Server", "Request", "Session", "serve", "RtrsError", "UnknownOutcome", "REPEATABLE", "RESEND",
           "NOWAIT", "CONTROL", "MAYBE_DONE", "TLS_OFF", "TLS_ON", "TLS_REQUIRE", "MAX_MESSAGE",
           "UNKNOWN_OUTCOME", "FORKED"]
