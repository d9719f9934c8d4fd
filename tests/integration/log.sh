#!/bin/bash
# The log of rnbd-server and rnbd-bridge: whole and in order, and nothing waits for who reads it.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# fill FD: a pipe takes nothing more.
fill() {
  /usr/bin/python3 -c "
import os
fd = os.open('/proc/self/fd/$1', os.O_WRONLY | os.O_NONBLOCK)
for size in (4096, 1):
    try:
        while True:
            os.write(fd, b'x' * size)
    except BlockingIOError:
        pass"
}

full_stderr_of_bridge() {
  start_server --export disk0=memory:1M
  local r w
  pipe r w
  bridge_command=(bash -c "exec \"\$@\" 2>&$w" bash "${bridge_command[@]}")
  start_bridge --log-level debug --no-path-timeout 2s "rnbd+tcp://$address/disk0"
  fill "$w"
  nbdsh <<PY
h.pread(512, 0)
os.kill(${pid[server]}, signal.SIGKILL)
start = time.monotonic()
fails_with(errno.EIO, h.pread, 512, 0)
took = time.monotonic() - start
assert took < 6 * $slow, f"EIO after {took} s"
PY
  wait_end server 10
  stop bridge
}
it "rnbd-bridge, nobody reads its log: a dead server is EIO in time, and SIGTERM ends it" \
  full_stderr_of_bridge

full_stderr_of_server() {
  local r w
  pipe r w
  server_command=(bash -c "exec \"\$@\" 2>&$w" bash "${server_command[@]}")
  start_server --log-level debug --export disk0=memory:1M --export slow=delay:read=3600s:memory:1M
  fill "$w"
  local round
  for round in 1 2 3; do
    nbdkit_name=nbdkit$round attach disk0
    nbdsh <<<'h.pwrite(b"x" * 512, 0, nbd.CMD_FLAG_FUA)'
    stop "nbdkit$round"
  done
  # A backend that hangs, so that the server has to leave in a hurry.
  attach slow no-path-timeout=1s
  spawn reader /usr/bin/python3 -m nbd -u "$uri" -c 'open("connected", "w").close()' -c 'h.pread(512, 0)'
  eventually 20 test -e connected
  stop server
  wait_end reader 60
}
it "rnbd-server, nobody reads its log: clients come and go, and SIGTERM ends it" full_stderr_of_server

# A start that fails has said everything when it ends.
in_order() {
  local round
  for round in {1..20}; do
    status_of 1 "$server_program" --listen tcp:0.0.0.0:0 --export a=memory:1M \
      --control none --pid-file "$PWD/missing/too/pid"
    (($(wc -l <said) == 2)) || fail "not two lines, in round $round"
    sed -n 1p said | grep -q 'no authentication' || fail "the warning is not the first line"
    sed -n 2p said | grep -q 'missing/too/pid' || fail "the error is not the last line"
  done
}
it "a start that fails: every line is there, in order" in_order

# Nobody gives up what storage holds, so it has to be in the log.
one_under_way() { "${ctl_command[@]}" control status --json | grep -q '"requests": *1'; }
storage_hangs() {
  start_server --control "$PWD/control" --export disk0=delay:read=16s:memory:1M
  attach disk0
  local ends_read ends
  pipe ends_read ends
  spawn reader /usr/bin/python3 -m nbd -u "$uri" -c 'import os' \
    -c 'h.pread(512, 0)' -c "os.read($ends_read, 1)" # until the log has it
  eventually 10 one_under_way
  eventually $((16 * slow)) grep -q "the storage of 'disk0' .* has ended none of its 1 request for 1[0-9] seconds" server.log
  eventually $((16 * slow)) grep -q "the storage of 'disk0' .* answers again, after" server.log
  exec {ends_read}<&-
  echo >&"$ends"
  wait_end reader $((20 * slow))
  ((status == 0)) || fail "the read failed"
}
it "storage that takes requests and ends none is in the log, and when it goes on" storage_hangs

finish
