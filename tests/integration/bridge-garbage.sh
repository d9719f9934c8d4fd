#!/bin/bash
# NBD clients that do not play by the rules: each gets what the protocol says, or is sent away, and
# nobody else notices.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# garbage STAGE unix|tcp [DEVICE]: in front of all exports, or of this one.
garbage() {
  start_server --export disk0=memory:4M --export readonly=memory:1M,ro
  start_bridge "rnbd+tcp://$address${3:+/$3}" --listen tcp:127.0.0.1:0
  local where=$socket
  [[ $2 == unix ]] || where=$(logged bridge.log 'tcp:127\.0\.0\.1:[0-9]+,' | grep -oE '[0-9]+,' | tr -d ,)
  PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 "$source_dir/tests/integration/nbd_garbage.py" \
    "$where" "$1" ${3:+"$3"}
  if grep -qE '(^|[0-9] )rnbd-bridge: forged' bridge.log; then fail "a client wrote a line of the log"; fi
  if grep -q $'\x1b' bridge.log; then fail "a client wrote an escape sequence to the log"; fi
  (($(wc -l <bridge.log) < 200)) || fail "$(wc -l <bridge.log) lines of log"
  (($(wc -c <bridge.log) < 60000)) || fail "$(wc -c <bridge.log) bytes of log"
  if [[ -z $sanitizer ]]; then
    local kb
    kb=$(awk '/^VmHWM/ { print $2 }' "/proc/${pid[bridge]}/status")
    echo "at most $kb KiB were resident"
    ((kb < 200 * 1024)) || fail "$kb KiB are too much"
  fi
}
it "handshakes that cannot be, over a Unix socket" garbage handshake unix
it "requests that cannot be, over a Unix socket" garbage transmission unix
it "handshakes that cannot be, over TCP" garbage handshake tcp
it "requests that cannot be, over TCP" garbage transmission tcp
it "handshakes that cannot be, in front of one export" garbage handshake unix disk0
it "requests that cannot be, in front of one export" garbage transmission unix disk0

# 24 times 64 MiB are three times what there is for all.
hoarders() {
  start_server --export disk0=memory:4M
  start_bridge "rnbd+tcp://$address/disk0"
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - \
    "$socket" "${pid[bridge]}" <<'PY'
import random
import sys
import time
from nbd_peer import *
def resident():
    with open(f"/proc/{sys.argv[2]}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) << 10
first = Client(sys.argv[1])
data = random.Random(1).randbytes(4 * M)
assert first.write(0, data) == 0
hoarders = [Client(sys.argv[1]) for _ in range(24)]
for hoarder in hoarders:
    for _ in range(16):
        hoarder.start_request(READ, 0, 4 * M)
deadline = time.monotonic() + 60
while resident() < 560 * M:
    assert time.monotonic() < deadline, f"only {resident()} bytes are resident"
    time.sleep(0.05)
for client in (first, Client(sys.argv[1])):  # both for small requests and for large ones
    for size in (4096, M):
        starts = {client.start_request(READ, i * 4096, size): i * 4096 for i in range(64)}
        while starts:
            cookie, error, piece = client.reply()
            start = starts.pop(cookie)
            assert (error, piece) == (0, data[start:start + size])
for hoarder in hoarders:  # and they can still have everything
    for _ in range(16):
        assert hoarder.reply()[1:] == (0, data)
PY
  [[ -z $sanitizer ]] || return 0
  local kb
  kb=$(awk '/^VmHWM/ { print $2 }' "/proc/${pid[bridge]}/status")
  echo "at most $kb KiB were resident"
  ((kb < 720 * 1024)) || fail "$kb KiB are too much"
}
it "24 clients that ask for much and read nothing share 512 MiB, and good ones are served" hoarders

# Each round leaves large and small buffers of all sizes behind, in every thread that had a part.
memory_comes_back() {
  [[ -z $sanitizer ]] || skip "a sanitizer keeps what was freed"
  start_server --export disk0=memory:64M
  start_bridge "rnbd+tcp://$address/disk0" --lanes 2
  PYTHONPATH=$source_dir/tests/integration PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 - \
    "$socket" "${pid[bridge]}" <<'PY'
import sys
import time
from nbd_peer import *
def resident():
    with open(f"/proc/{sys.argv[2]}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) << 10
good = Client(sys.argv[1])
before = resident()
for round in range(3):
    for size, count in ((8 * M, 60), (32 * M, 16)):
        crowd = [Client(sys.argv[1]) for _ in range(count)]
        for client in crowd:  # they leave in the midst of their writes
            client.start_request(WRITE, 0, size)
            client.send(bytes(size - 1 if size > 8 * M else 70000))
        for client in crowd:
            client.socket.close()
    crowd = [Client(sys.argv[1]) for _ in range(30)]
    for client in crowd:  # and these read nothing
        for _ in range(64):
            client.start_request(READ, 0, M)
    for client in crowd:
        client.socket.close()
# The manual's: 64 MiB per lane, and something for the rest.
deadline = time.monotonic() + 60
while resident() - before > (2 * 64 + 32) * M:
    assert time.monotonic() < deadline, f"{resident() - before} bytes are kept"
    time.sleep(0.05)
assert good.read(0, 512)[0] == 0
PY
}
it "what clients that left have used goes back to the system" memory_comes_back

finish
