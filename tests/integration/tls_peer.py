# SPDX-License-Identifier: BSD-3-Clause
"""Users with good certificates who are after the sessions of others: tls_peer.py PORT

The directories host1 and host2 have the certificates of two users. Each function whose name begins
with case_ is a case; what it says must be so.
"""
import errno
import os
import ssl
import sys

from raw_peer import EXACTLY_ONCE, USER_MESSAGES, Closed, Session, Wire
from run_cases import run_cases

FEATURES = USER_MESSAGES | EXACTLY_ONCE
PORT = int(sys.argv[1])


class TlsWire(Wire):
    def __init__(self, user):
        super().__init__(PORT)
        context = ssl.create_default_context(cafile=f"{user}/ca-cert.pem")
        context.load_cert_chain(f"{user}/client-cert.pem", f"{user}/client-key.pem")
        context.set_alpn_protocols(["rtrs/1"])
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def receive(self, size):
        try:
            return super().receive(size)
        except ssl.SSLError as error:
            raise Closed from error


class TlsSession(Session):
    """A connection for each of the users."""

    def __init__(self, *users, session_uuid=None, path_uuid=None, reconnect=0):
        self.session_uuid = session_uuid or os.urandom(16)
        self.path_uuid = path_uuid or os.urandom(16)
        self.wires = []
        for cid, user in enumerate(users):
            wire = TlsWire(user)
            wire.hello(self.request(cid, len(users), FEATURES, reconnect=reconnect), 0)
            self.answer = wire.hello_answer()
            if self.answer["error"]:
                raise OSError(self.answer["error"], "refused")
            self.wires.append(wire)
        self.queue_depth = self.answer["queue_depth"]
        self.chunk_size = self.answer["max_io_size"] + self.answer["max_header_size"]
        self.offset_bits = 28 - (self.queue_depth - 1).bit_length()
        self.name = b"raw-" + os.urandom(4).hex().encode()

    def enter(self):
        self.exchange_info(self.name)
        return self


def refused(*users, number=errno.EACCES, **named):
    try:
        TlsSession(*users, **named)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError("another user's connection was taken")


def owner():
    session = TlsSession("host1", "host1").enter()
    device, _ = session.open(b"x")
    assert session.read(device, 0, 512)[0] == 0
    return session, device


def case_who_has_a_certificate_gets_in():
    owner()[0].close()


def case_a_second_connection_of_another_user():
    # A session that is not made yet is nothing that another user could know of.
    refused("host1", "host2", number=errno.ENXIO)


def case_another_path_of_somebody_elses_session():
    session, device = owner()
    refused("host2", session_uuid=session.session_uuid)
    assert session.read(device, 0, 512)[0] == 0
    session.close()


def case_somebody_elses_path_once_more():
    session, device = owner()
    refused("host2", session_uuid=session.session_uuid, path_uuid=session.path_uuid, reconnect=1)
    assert session.read(device, 0, 512)[0] == 0
    session.close()


def case_a_session_whose_user_has_left_for_a_while():
    session, _ = owner()
    for wire in session.wires:
        wire.close()
    refused("host2", session_uuid=session.session_uuid)
    again = TlsSession("host1", "host1", session_uuid=session.session_uuid,
                       path_uuid=session.path_uuid, reconnect=1)
    again.name = session.name
    again.enter().close()


run_cases([(name.removeprefix("case_"), case) for name, case in globals().items()
           if name.startswith("case_")])
