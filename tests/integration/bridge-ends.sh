#!/bin/bash
# rnbd-bridge when something ends: itself, its clients, the server, and what is behind the server.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# peer ARGUMENTS...: Python with nbd_peer.
peer() { limited /usr/bin/python3 -c "$peer_prelude$(cat)" "$@"; }
# spawn_peer NAME ARGUMENTS...: the same in the background, its script on standard input.
spawn_peer() {
  local name=$1 script
  shift
  script=$peer_prelude$(cat)
  spawn "$name" /usr/bin/python3 -c "$script" "$@"
}
peer_prelude="
import os, struct, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, '$source_dir/tests/integration')
from nbd_peer import *
"

# A client that keeps 32 writes under way until the bridge hangs up, and counts the answers.
spawn_load() {
  spawn_peer "$1" "${2:-$socket}" "$1" <<'PY'
h = Client(sys.argv[1])
data = b"x" * 65536
waiting, answered = set(), 0
try:
    while True:
        while len(waiting) < 32:
            waiting.add(h.start_request(WRITE, 65536 * (h.cookies % 32), 65536, 0, data))
        cookie, error, _ = h.reply()
        waiting.remove(cookie)
        assert error == 0, error
        answered += 1
        if answered == 100:
            open(sys.argv[2] + ".runs", "w").close()
except Closed:
    assert answered >= 100, answered
PY
  eventually 20 test -e "$1.runs"
}

# ---- It leaves --------------------------------------------------------------------------------------

under_load() {
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0" --listen tcp:127.0.0.1:0
  spawn_load one
  spawn_load two "$(sed -n 's/.*tcp:127\.0\.0\.1:\([0-9]*\), in front.*/\1/p' bridge.log)"
  kill -TERM "${pid[bridge]}"
  expect_gone bridge 0
  expect_gone one 0
  expect_gone two 0
}
it "SIGTERM under load: it leaves with 0 within 5 s, and no answer is an error" under_load

one_at_a_time() {
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0" --lanes 1
  spawn_peer busy "$socket" <<'PY'
h = Client(sys.argv[1])
reads = 0
try:
    while True:
        assert h.read(0, 512)[0] == 0
        reads += 1
        if reads == 100:
            open("busy", "w").close()
except Closed:
    pass
PY
  eventually 20 test -e busy
  peer "$socket" "$slow" <<'PY'
began = time.monotonic()
for _ in range(50):
    assert Client(sys.argv[1]).read(0, 512)[0] == 0
took = time.monotonic() - began
print(f"50 clients in {took:.2f} s")
assert took < 10 * int(sys.argv[2]), took
PY
  stop bridge
  expect_gone busy 0
}
it "a client that never pauses lets others in, and SIGTERM" one_at_a_time

# `writer`, whose eight writes are under way, and must all be answered well.
spawn_slow_writer() {
  spawn_peer writer "$socket" <<'PY'
h = Client(sys.argv[1])
cookies = {h.start_request(WRITE, i * 512, 512, FUA, b"x" * 512) for i in range(8)}
# Refused at once, so it overtakes them: they have all arrived.
cookie = h.start_request(READ, 0, 0)
assert h.reply()[:2] == (cookie, EINVAL)
open("under.way", "w").close()
for _ in range(8):
    cookie, error, _ = h.reply()
    assert error == 0, error
    cookies.remove(cookie)
h.expect_close()
PY
  eventually 20 test -e under.way
}

answers_what_is_under_way() {
  start_server --export disk0=delay:write=1s:memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  spawn_slow_writer
  kill -TERM "${pid[bridge]}"
  expect_gone writer 0
  expect_gone bridge 0
}
it "SIGTERM: writes under way are finished and answered" answers_what_is_under_way

stands_still_meanwhile() {
  start_server --export disk0=delay:write=1s:memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  spawn_slow_writer
  kill -TERM "${pid[bridge]}"
  eventually 10 grep -q 'SIGTERM: stopping' bridge.log
  freeze bridge
  thaw bridge
  expect_gone writer 0
  expect_gone bridge 0
  if grep -q 'something hangs' bridge.log; then fail "it left in a hurry"; fi
}
it "SIGTERM, and it stands still for a moment: writes under way are finished and answered" stands_still_meanwhile

never_ends_haggling() {
  start_server --export disk0=delay:write=1s:memory:1M
  start_bridge "rnbd+tcp://$address/disk0"
  spawn_peer haggler "$socket" <<'PY'
h = Haggler(sys.argv[1])
options = (b"IHAVEOPT" + struct.pack(">II", 99, 0)) * 16
h.send(options)
try:
    while True:
        h.send(options)  # there is always something to read
        h.receive(16 * 20)
        if not os.path.exists("haggles"):
            open("haggles", "w").close()
except Closed:
    pass
PY
  spawn_slow_writer
  eventually 20 test -e haggles
  kill -TERM "${pid[bridge]}"
  expect_gone writer 0
  expect_gone bridge 0
  expect_gone haggler 0
  if grep -q 'something hangs' bridge.log; then fail "it left in a hurry"; fi
}
it "SIGTERM while a client sends options without end: the others' writes are finished and answered" \
  never_ends_haggling

while_storage_hangs() {
  start_server --export disk0=delay:read=600s:memory:4M
  start_bridge "rnbd+tcp://$address/disk0"
  spawn_peer client "$socket" <<'PY'
h = Client(sys.argv[1], contexts=True)
for length in (4096, 100):  # on a lane, and on a thread that waits
    h.start_request(READ, 0, length)
assert h.write(0, b"x" * 512) == 0
open("hangs", "w").close()
h.expect_close()
PY
  eventually 20 test -e hangs
  stop bridge
  expect_gone client 0
}
it "SIGTERM while storage hangs: it leaves with 0 within 5 s" while_storage_hangs

while_server_is_dead() {
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address/disk0" --no-path-timeout 0 --connect-timeout 600s
  spawn_peer client "$socket" <<'PY'
h = Client(sys.argv[1])
open("reads", "w").close()
try:
    while True:
        assert h.read(0, 512)[0] == 0
except Closed:
    pass
PY
  eventually 20 test -e reads
  kill_hard server
  wait_for_line bridge.log 'is lost'
  spawn_peer late "$socket" <<'PY'
h = Haggler(sys.argv[1])
open("late", "w").close()
try:
    print(h.info(GO, b"disk0"))
except Closed:
    pass
PY
  eventually 20 test -e late
  stop bridge
  expect_gone client 0
  expect_gone late 0
}
it "SIGTERM while the server is dead and clients wait for ever: it leaves with 0 within 5 s" \
  while_server_is_dead

never_reached() {
  start_server --export disk0=memory:1M
  freeze server
  start_bridge "rnbd+tcp://$address/disk0" --connect-timeout 600s
  spawn_peer client "$socket" <<'PY'
h = Haggler(sys.argv[1])
h.start(GO, string(b"disk0") + bytes(2))
open("asked", "w").close()
h.expect_close()
PY
  eventually 20 test -e asked
  stop bridge
  expect_gone client 0
  thaw server
}
it "SIGTERM while a client waits for a server that says nothing: it leaves with 0 within 5 s" \
  never_reached

# ---- Clients leave ----------------------------------------------------------------------------------

killed_client() {
  start_server --export disk0=memory:4M
  start_bridge "rnbd+tcp://$address/disk0"
  nbdinfo --size "$uri"
  local before i
  before=$(descriptors bridge)
  for i in 1 2 3 4; do
    spawn_load "client$i"
    kill_hard "client$i"
  done
  eventually 20 has_descriptors bridge "$before"
  # The export is closed with its last client, and free for another host.
  bridge_name=other start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" <<'PY'
assert Client(sys.argv[1]).write(0, b"y" * 4096) == 0
PY
}
it "a client that is killed under load leaves nothing behind, and the export to the next host" killed_client

hangs_up_while_storage_hangs() {
  start_server --export disk0=delay:read=600s:memory:4M --export other=memory:4M
  start_bridge "rnbd+tcp://$address"
  nbdinfo --size "nbd+unix:///other?socket=$socket"
  local before i
  before=$(descriptors bridge)
  for i in 1 2 3 4; do
    peer "$socket" <<'PY'
h = Client(sys.argv[1])
for i in range(16):
    h.start_request(READ, 4096 * i, 100 if i % 2 else 4096)
assert h.write(0, b"x" * 4096) == 0
h.close()
PY
  done
  eventually 20 has_descriptors bridge "$before"
  nbdinfo --size "nbd+unix:///other?socket=$socket"
}
it "clients that hang up while storage hangs do not stay" hangs_up_while_storage_hangs

# As long as the session has room for more requests.
neighbour() {
  start_server --export slow=delay:read=600s:memory:4M --export disk0=memory:4M
  start_bridge "rnbd+tcp://$address"
  peer "$socket" <<'PY'
slow = Client(sys.argv[1], b"slow")
assert slow.write(0, b"x" * 512) == 0  # the first one reserves the device, for which it needs a thread
for i in range(64):
    slow.start_request(READ, 512 * i, 100)  # not whole sectors: each keeps a thread waiting
assert slow.write(0, b"x" * 512) == 0
good = Client(sys.argv[1], b"disk0", contexts=True)
for i in range(20):
    assert good.read(i * 100, 100) == (0, bytes(100))
    assert good.request(BLOCK_STATUS, 0, 4096)[0] == 0
good.leave()
PY
}
it "an export whose storage hangs does not hold up the clients of another one" neighbour

# Whole blocks need no threads, but permits, which all exports of a server share. As many clients as workers have
# lanes: each lane has those that hang.
permits() {
  start_server --export slow=delay:read=600s:memory:4M --export disk0=memory:4M
  start_bridge "rnbd+tcp://$address"
  peer "$socket" <<'PY'
import os
slow = [Client(sys.argv[1], b"slow") for _ in range(2 * os.cpu_count())]
for client in slow:
    for i in range(256):
        client.start_request(READ, 4096 * i, 4096)
for _ in range(2 * os.cpu_count()):
    good = Client(sys.argv[1], b"disk0")
    for i in range(20):
        assert good.read(i * 4096, 4096) == (0, bytes(4096))
    good.leave()
PY
}
it "an export whose storage hangs leaves permits for the clients of another one" permits

come_and_go() {
  [[ -z $sanitizer ]] || skip "a sanitizer's own memory hides the bridge's"
  start_server --export disk0=memory:4M
  start_bridge "rnbd+tcp://$address/disk0"
  peer "$socket" "${pid[bridge]}" <<'PY'
import os
def resident():
    with open(f"/proc/{sys.argv[2]}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
def descriptors():
    return len(os.listdir(f"/proc/{sys.argv[2]}/fd"))
data = bytes(M)
kept = Client(sys.argv[1])
for i in range(400):
    h = Client(sys.argv[1])
    assert h.write(0, data) == 0 and h.read(0, M)[0] == 0
    if i % 2:
        h.start_request(WRITE, 0, M, 0, data[:5000])  # the rest never comes
        h.start_request(READ, 0, M)
        h.close()
    else:
        h.leave()
    if i == 100:
        before = resident()
print(before, resident())
assert resident() - before < 4096
deadline = time.monotonic() + 20
while descriptors() > 40:
    assert time.monotonic() < deadline, descriptors()
assert kept.read(0, 512)[0] == 0
PY
}
it "400 clients, half of which hang up in the middle of a write, leave no memory and no descriptor" \
  come_and_go

# A client is killed while its write hangs. What the next one writes must stay.
ghost_write() {
  truncate -s 1M image
  start_server --export "disk0=delay:hold-file=$PWD/hold,hold=2s:$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0"
  touch hold
  spawn_peer client "$socket" <<'PY'
Client(sys.argv[1]).write(0, b"old!" * 128)
PY
  eventually 20 test ! -e hold
  kill_hard client
  peer "$socket" <<'PY'
h = Client(sys.argv[1])
assert h.write(0, b"new!" * 128) == 0 and h.request(FLUSH)[0] == 0
PY
  stop bridge
  stop server
  cmp -n 512 image <(yes 'new!' | tr -d '\n' | head -c 512)
}
it "a write that a killed client left behind does not land on top of the next client's" ghost_write

# ---- The server leaves ------------------------------------------------------------------------------

late_start() {
  start_server --export disk0=memory:1M
  stop server
  start_bridge "rnbd+tcp://$address/disk0" --connect-timeout 500ms
  fails nbdinfo "$uri"
  says bridge.log "$address.*[Cc]onnection refused"
  server_port=$port server_name=second start_server --export disk0=memory:2M
  [[ $(nbdinfo --size "$uri") == 2097152 ]]
}
it "a bridge that was there before its server serves once the server is there" late_start

silent_server() {
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  start_bridge "rnbd+tcp://$address/disk0" --no-path-timeout 5s --heartbeat "$((100 * slow))ms"
  spawn_peer client "$socket" "$slow" <<'PY'
h = Client(sys.argv[1], contexts=True)
many = Client(sys.argv[1])
assert h.write(0, b"x" * 4096) == 0
open("ready", "w").close()
while not os.path.exists("frozen"):
    time.sleep(0.02)
began = time.monotonic()
asked = [h.start_request(READ, 0, 4096), h.start_request(WRITE, 0, 4096, 0, b"y" * 4096),
         h.start_request(FLUSH), h.start_request(READ, 100, 100),
         h.start_request(BLOCK_STATUS, 0, 4096), h.start_request(WRITE, 4100, 100, 0, b"z" * 100)]
for _ in asked:
    cookie, error, _ = h.reply()
    took = time.monotonic() - began
    print(asked.index(cookie), error, f"{took:.2f}", flush=True)
    assert error == EIO, error
    assert 5 <= took < 5 + 3 * int(sys.argv[2]), took
# More than are taken up at a time: those behind them end while they are started.
many.socket.settimeout(10 * int(sys.argv[2]))
asked = many.start_requests([(READ, 0, M)] * 100 + [(WRITE, 0, 512, 0, b"v" * 512)] * 300)
assert sorted(many.reply()[:2] for _ in asked) == sorted((cookie, EIO) for cookie in asked)
open("failed", "w").close()
deadline = time.monotonic() + 20 * int(sys.argv[2])
while h.write(0, b"w" * 4096) != 0:
    assert time.monotonic() < deadline, "no service any more"
assert h.request(FLUSH)[0] == 0
assert h.read(0, 4096) == (0, b"w" * 4096)
PY
  eventually 20 test -e ready
  freeze server
  touch frozen
  eventually 30 test -e failed
  thaw server
  wait_end client $((30 * slow)) || fail "the client still waits"
  cat client.out client.log
  ((status == 0)) || fail "the client left with $status"
}
it "a silent server with no-path-timeout=5s: every kind of request is EIO on time, then service" \
  silent_server

finish
