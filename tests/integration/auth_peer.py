# SPDX-License-Identifier: BSD-3-Clause
"""Clients that prove a key, and some that try to get in without: auth_peer.py PORT PSK-FILE

A second implementation of docs/protocol.md's authentication. The file has the keys host1 and host2.
Each function whose name begins with case_ is a case; what it says must be so.
"""
import errno
import hashlib
import hmac
import os
import struct
import sys

from raw_peer import (EXACTLY_ONCE, SEND, USER_MESSAGES, Closed, Session, Wire, info_request)
from run_cases import run_cases

AUTHENTICATION = 4
FEATURES = USER_MESSAGES | EXACTLY_ONCE | AUTHENTICATION
PORT = int(sys.argv[1])
with open(sys.argv[2], encoding="ascii") as file:
    KEYS = dict(line.strip().split(":") for line in file)


def mac(key, *pieces):
    return hmac.new(key, b"".join(pieces), hashlib.sha256).digest()


def proofs(psk, transcript):
    extracted = mac(b"rtrs-auth-v1", psk)
    of_server, of_client = (mac(extracted, purpose, b"\1")
                            for purpose in (b"server proof", b"client proof"))
    server = mac(of_server, transcript)
    return server, mac(of_client, transcript, server)


def hello(name, nonce=None):
    return struct.pack("<HHI32s64s24x", 0x0100, 1, 0, nonce or os.urandom(32), name.encode())


def proof_message(proof):
    return struct.pack("<H6x32s8x", 0x0102, proof)


class AuthWire(Wire):
    """Remembers both records."""

    def hello(self, record, *args, **named):
        self.request = record
        super().hello(record, *args, **named)

    def receive(self, size):
        data = super().receive(size)
        if size == 76:
            self.response = data[16:72]
        return data

    def transcript(self, said, challenge):
        return hashlib.sha256(self.request[2:] + self.response + bytes(48) + said
                              + challenge[:40]).digest()

    def challenge(self, said):
        self.frame(SEND, said)
        frame = self.read_frame()
        assert frame["opcode"] == SEND and len(frame["payload"]) == 80, frame
        return frame["payload"]

    def prove(self, name, psk=None):
        """Returns what was sent."""
        psk = psk or bytes.fromhex(KEYS[name])
        said = hello(name)
        challenge = self.challenge(said)
        server, client = proofs(psk, self.transcript(said, challenge))
        assert hmac.compare_digest(server, challenge[40:72]), "the server proves something else"
        message = proof_message(client)
        self.frame(SEND, message)
        return said, message


class AuthSession(Session):
    """Two connections that nobody has proven anything on."""

    def __init__(self, session_uuid=None, path_uuid=None, features=FEATURES, cids=2, reconnect=0):
        self.session_uuid = session_uuid or os.urandom(16)
        self.path_uuid = path_uuid or os.urandom(16)
        self.wires = []
        for cid in range(cids):
            wire = AuthWire(PORT)
            wire.hello(self.request(cid, cids, features, reconnect=reconnect))
            self.answer = wire.hello_answer()
            if self.answer["error"]:
                raise OSError(self.answer["error"], "refused")
            self.wires.append(wire)
        self.queue_depth = self.answer["queue_depth"]
        self.chunk_size = self.answer["max_io_size"] + self.answer["max_header_size"]
        self.offset_bits = 28 - (self.queue_depth - 1).bit_length()
        self.name = b"raw-" + os.urandom(4).hex().encode()

    def prove(self, *names):
        for wire, name in zip(self.wires, names):
            wire.prove(name)
        return self

    def enter(self):
        self.exchange_info(self.name)
        return self


def case_who_has_the_key_gets_in():
    session = AuthSession().prove("host1", "host1").enter()
    assert session.answer["features"] & AUTHENTICATION
    session.open(b"x")
    session.close()


def write_keys(names):
    """Replaces the server's file, as rnbd-ctl does."""
    with open(sys.argv[2] + ".next", "w", encoding="ascii", opener=lambda path, flags: os.open(
            path, flags, 0o600)) as keys:
        keys.writelines(f"{name}:{KEYS[name]}\n" for name in names)
    os.rename(sys.argv[2] + ".next", sys.argv[2])


def case_a_key_that_is_withdrawn_during_the_handshake():
    session = AuthSession()
    session.wires[0].prove("host2")
    write_keys(["host1"])
    try:
        session.wires[1].prove("host2")
        session.wires[0].frame(SEND, info_request(session.name))
        session.expect_close()
    finally:
        write_keys(KEYS)
    AuthSession().prove("host2", "host2").enter().close()


def case_the_info_request_may_overtake_a_proof():
    session = AuthSession()
    session.wires[0].prove("host1")
    session.wires[0].frame(SEND, info_request(session.name))
    session.wires[1].prove("host1")
    payload = session.next_frame(0)["payload"]
    assert struct.unpack_from("<H", payload)[0] == 1
    session.close()


def case_no_offer_is_refused_at_once():
    try:
        AuthSession(features=USER_MESSAGES | EXACTLY_ONCE)
    except OSError as error:
        assert error.errno == errno.EACCES, error
    else:
        raise AssertionError("a client that offers no proof was let in")


def case_an_info_request_in_place_of_a_proof():
    session = AuthSession()
    session.wires[0].frame(SEND, info_request(session.name))
    session.expect_close()


def case_one_connection_without_a_proof_is_no_path():
    session = AuthSession()
    session.wires[0].prove("host1")
    session.wires[0].frame(SEND, info_request(session.name))
    session.wires[1].frame(SEND, info_request(session.name))
    session.expect_close()


def case_a_wrong_proof():
    session = AuthSession()
    session.wires[0].challenge(hello("host1"))
    session.wires[0].frame(SEND, proof_message(os.urandom(32)))
    session.expect_close()


def case_a_name_that_is_not_known_is_challenged_alike():
    session = AuthSession()
    challenge = session.wires[0].challenge(hello("nobody"))
    assert struct.unpack_from("<Hh", challenge) == (0x0101, 0)
    session.wires[0].frame(SEND, proof_message(os.urandom(32)))
    session.expect_close()


def case_a_recorded_proof_is_worth_nothing():
    first = AuthSession()
    said, message = first.wires[0].prove("host1")
    again = AuthSession(first.session_uuid, first.path_uuid, reconnect=1)
    again.wires[0].challenge(said)
    again.wires[0].frame(SEND, message)
    again.expect_close()
    first.close()


def case_a_challenge_is_no_proof():
    session = AuthSession()
    challenge = session.wires[0].challenge(hello("host1"))
    session.wires[0].frame(SEND, proof_message(challenge[40:72]))
    session.expect_close()


def case_records_changed_on_the_way_are_noticed():
    for change, at in [("request", at) for at in range(2, 56)] + [("response", at) for at in range(56)]:
        session = AuthSession(cids=1)
        wire = session.wires[0]
        record = bytearray(getattr(wire, change))
        record[at] ^= 1
        setattr(wire, change, bytes(record))
        try:
            wire.prove("host1")
        except AssertionError:
            session.close()
        else:
            raise AssertionError(f"the server proves a {change} that it did not see: byte {at}")


def case_two_users_are_no_path():
    session = AuthSession()
    session.wires[0].prove("host1")
    session.wires[1].prove("host2")
    session.expect_close()


def refused(session, name):
    """The errno that a client is told in place of chunks; it may say nothing more then."""
    session.wires[0].frame(SEND, info_request(name))
    payload = session.next_frame(0)["payload"]
    kind, count, error = struct.unpack("<HHi", payload)
    assert (kind, count) == (1, 0), payload
    session.wires[0].frame(SEND, info_request(name))
    session.expect_close()
    return -error


def case_another_user_cannot_join_or_end_a_session():
    owner = AuthSession().prove("host1", "host1").enter()
    device, _ = owner.open(b"x")
    thief = AuthSession(owner.session_uuid).prove("host2", "host2")
    assert refused(thief, owner.name) == errno.EACCES
    again = AuthSession(owner.session_uuid, owner.path_uuid, reconnect=1).prove("host2", "host2")
    assert refused(again, owner.name) == errno.EACCES
    assert owner.read(device, 0, 512)[0] == 0
    owner.close()


def case_a_request_before_the_proof():
    session = AuthSession()
    try:
        session.wires[1].frame(2, b"", immediate=0)
        session.wires[0].frame(2, b"", immediate=0x80000000)
    except Closed:
        pass
    session.expect_close()


run_cases([(name.removeprefix("case_"), case) for name, case in globals().items()
           if name.startswith("case_")])
