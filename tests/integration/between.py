# SPDX-License-Identifier: BSD-3-Clause
"""Stands between client and server: between.py MODE HOST PORT SERVER-PORT

answers-in-clear  answers whatever comes with an RTRS hello in clear, and never asks the server
strips-offer      takes the authentication out of what the client offers
strips-answer     takes it out of what the server answers
drops-extension   takes all of our extension out of what the client offers, as if it were Linux's
flips-request     changes one bit of the client's record, behind what the server judges
flips-response    changes one bit of the server's record
replays           answers the client's AUTH HELLO with the challenge that the one before was answered with
passes-on         does nothing; so the other modes fail for what they do

What clients have sent is in the file `sent`.
"""
import socket
import struct
import sys
import threading

MODE, HOST, PORT, SERVER_PORT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
HELLO, RECORD = 76, 16  # bytes of a hello, and where its record begins
AUTHENTICATION = 4  # a bit of the features
PATH_OF_REQUEST, EXTENSION_OF_REQUEST, FEATURES_OF_REQUEST = 12, 46, 50  # where in the record
FEATURES_OF_RESPONSE, ACCESS_OF_RESPONSE = 24, 44
AUTH_HELLO, CHALLENGE = 32 + 128, 32 + 80  # bytes of their frames
sent = open("sent", "wb", buffering=0)


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def read(sock, size):
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def changed(hello, at, bit):
    """With another bit in its record, and the right checksum again."""
    data = bytearray(hello)
    data[RECORD + at] ^= bit
    struct.pack_into("<I", data, HELLO - 4, crc32c(data[:HELLO - 4]))
    return bytes(data)


def pump(source, sink, copy=None):
    try:
        while data := source.recv(65536):
            if copy:
                copy.write(data)
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def answer_in_clear(near):
    sent.write(near.recv(65536))
    accept = struct.pack("<HHhHIII", 0x1BBD, 0x0200, 0, 64, 65536, 4096, 0).ljust(56, b"\0")
    hello = struct.pack("<8sHHI", b"RTRS-TCP", 1, 0, 0) + accept
    near.sendall(hello + struct.pack("<I", crc32c(hello)))
    while data := near.recv(65536):
        sent.write(data)


challenges = []


def replay_challenge(near, far):
    """The first one is the server's own."""
    far.sendall(read(near, AUTH_HELLO))
    challenges.append(read(far, CHALLENGE))
    near.sendall(challenges[0])


def serve(near):
    if MODE == "answers-in-clear":
        return answer_in_clear(near)
    far = socket.create_connection((HOST, SERVER_PORT))
    request = read(near, HELLO)
    sent.write(request)
    if MODE == "strips-offer":
        request = changed(request, FEATURES_OF_REQUEST, AUTHENTICATION)
    if MODE == "drops-extension":
        request = changed(request, EXTENSION_OF_REQUEST, 0xFF)
    if MODE == "flips-request":
        request = changed(request, PATH_OF_REQUEST, 1)
    far.sendall(request)
    response = read(far, HELLO)
    if MODE == "strips-answer":
        response = changed(response, FEATURES_OF_RESPONSE, AUTHENTICATION)
    if MODE == "flips-response":
        response = changed(response, ACCESS_OF_RESPONSE, 1)
    near.sendall(response)
    if MODE == "replays":
        replay_challenge(near, far)
    threading.Thread(target=pump, args=(near, far, sent), daemon=True).start()
    return pump(far, near)


def main():
    server = socket.create_server((HOST, PORT))
    print("ready")
    while True:
        near, _ = server.accept()
        threading.Thread(target=quietly, args=(near,), daemon=True).start()


def quietly(near):
    try:
        serve(near)
    except (OSError, EOFError):
        pass
    near.close()


main()
