#!/bin/bash
# NBD clients that do not play by the rules: each gets what the protocol says, or is sent away, and
# nobody else notices.
source "${BASH_SOURCE[0]%/*}/lib.sh"

# garbage STAGE unix|tcp [DEVICE]: in front of all exports, or of this one.
garbage() {
  start_server --export disk0=memory:4M --export readonly=memory:1M,ro
  start_bridge "rnbd+tcp://$address${3:+/$3}" --listen tcp:127.0.0.1:0
  local where=$socket
  [[ $2 == unix ]] || where=$(grep -oE 'tcp:127\.0\.0\.1:[0-9]+,' bridge.log | grep -oE '[0-9]+,' | tr -d ,)
  PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 "$source_dir/tests/integration/nbd_garbage.py" \
    "$where" "$1" ${3:+"$3"}
  if grep -q '^rnbd-bridge: forged' bridge.log; then fail "a client wrote a line of the log"; fi
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

finish
