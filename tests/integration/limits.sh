#!/bin/bash
# Limits of operations and bytes per second: requests wait, nobody is refused, and others notice
# nothing.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

ctl() { limited "${ctl_command[@]}" "$@"; }

# load NAME URI DEPTH: an NBD client that keeps DEPTH reads of 4 KiB under way until SIGTERM. On
# SIGUSR1 it says `ended N`, N being how many have ended since the last time.
load() {
  spawn "$1" /usr/bin/python3 -u -c '
import nbd, os, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
depth = int(sys.argv[2])
count = 0
def tell(*_):
    global count
    print("ended", count)
    count = 0
signal.signal(signal.SIGUSR1, tell)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
def ended(error):
    global count
    assert error.value == 0, error.value
    count += 1
    return 1
print("begun")
while True:
    while h.aio_in_flight() < depth: h.aio_pread(nbd.Buffer(4096), 0, ended)
    h.poll(50)' "$2" "$3"
  wait_for_line "$1.out" begun
}

# ended NAME: how many requests of a load have ended since the last time.
ended() {
  local before
  before=$(grep -c '^ended' "$1.out") || true
  kill -USR1 "${pid[$1]}"
  eventually 20 has_told "$1" "$before" >&2
  grep '^ended' "$1.out" | tail -n 1 | cut -d ' ' -f 2
}
has_told() { (($(grep -c '^ended' "$1.out") > $2)); }

# exports LINES: the file of a server with export a, and with b, which has no limit.
exports() {
  printf '%s\n' '[server]' "control = \"$PWD/control\"" 'reactors = 1' "${server_keys[@]}" '[export.a]' \
    'storage = "memory:1M"' "$@" '[export.b]' 'storage = "memory:1M"' >conf
}
server_keys=()

# ---- Cases ----------------------------------------------------------------------------------------

waits() {
  requires_python nbd
  exports 'iops-limit = 1'
  start_server --config "$PWD/conf" --metrics 0
  nbdkit_name=a attach a
  load slow "$uri" 16
  nbdkit_name=b attach b
  # The only event loop is free meanwhile.
  nbdsh <<<'for _ in range(500): h.pread(4096, 0)'
  ctl --json "$PWD/control" status >status.json
  /usr/bin/python3 -c '
import json
status = json.load(open("status.json"))
a, b = status["exports"]
assert (a["iops_limit"], a["bandwidth_limit"], b["iops_limit"]) == (1, None, None), status
waiting = {each["device"]: each["waiting"] for each in status["devices"]}
assert waiting["a"] >= 12 and waiting.get("b", 0) == 0, waiting'
  ctl "$PWD/control" metrics >page
  says page '^rnbd_export_throttled\{export="a"\} 1[0-9]'
  says page '^rnbd_export_throttled\{export="b"\} 0'
  says page '^rnbd_export_throttled_total\{export="a"\} [0-9]+$'
  says page '^rnbd_export_state\{export="a",state="hung"\} 0'
  # All of them end at once when the limit goes.
  exports
  ctl --json "$PWD/control" reload >said
  says said '"changed":\["a"\]'
  eventually 20 more_than slow 1000
  ctl --json "$PWD/control" status >status.json
  says status.json '"iops_limit":null'
  # And it stops in time, although 16 of them wait.
  exports 'iops-limit = 1'
  ctl "$PWD/control" reload >said
  eventually 20 limited_to slow 4
  stop server
}
more_than() { (($(ended "$1") > $2)); }
# limited_to NAME NUMBER: no more than NUMBER requests end between two looks, half a second apart.
limited_to() {
  ended "$1" >/dev/null
  sleep 0.5
  (($(ended "$1") <= $2))
}
it "what is beyond a limit waits; other exports, a reload and SIGTERM do not" waits

# Rates are what this is about, so it has to take some time: the longest of them 2 s.
rates() {
  requires_python nbd
  exports 'iops-limit = 200'
  server_keys=()
  start_server --config "$PWD/conf"
  attach a
  load client "$uri" 32
  local count
  count=$(per_seconds client 2)
  ((count <= 440)) || fail "$count operations in 2 s, with 200 allowed in each"
  eventually 20 more_than client 20
  exports 'bandwidth-limit = "400K"'
  ctl "$PWD/control" reload
  ended client
  count=$(per_seconds client 2)
  ((count <= 220)) || fail "$count x 4 KiB in 2 s, with 100 allowed in each"
  server_keys=('session-iops-limit = 50')
  exports
  ctl --json "$PWD/control" reload >said
  says said '"session_limits_changed":true'
  ended client
  count=$(per_seconds client 2)
  ((count <= 110)) || fail "$count operations in 2 s, with 50 allowed in each"
  # nbdkit 1.32.5 may abort when it stops while many requests wait ("raw_send_socket: Assertion `sock >= 0'").
  server_keys=()
  exports
  ctl "$PWD/control" reload
  stop client
}
# per_seconds NAME SECONDS: the requests that end in this time, by the clock, per SECONDS exactly.
per_seconds() {
  local began now count
  ended "$1" >/dev/null
  began=${EPOCHREALTIME/./}
  sleep "$2"
  count=$(ended "$1")
  now=${EPOCHREALTIME/./}
  echo $((count * $2 * 1000000 / (now - began)))
}
it "operations, bytes and sessions are limited to what was said" rates

shares() {
  requires_python nbd
  exports 'iops-limit = 100'
  start_server --config "$PWD/conf"
  nbdkit_name=first attach a access=ro
  load greedy "$uri" 64
  nbdkit_name=second attach a access=ro
  load modest "$uri" 2
  ended greedy
  ended modest
  sleep 2
  local greedy modest
  greedy=$(ended greedy)
  modest=$(ended modest)
  echo "greedy $greedy, modest $modest"
  ((modest * 2 >= greedy)) || fail "who asks for more gets more"
}
it "two clients of an export share its limit, however much each of them asks for" shares

leaves() {
  requires_python nbd
  exports 'iops-limit = 1'
  start_server --config "$PWD/conf"
  nbdkit_name=first attach a
  load gone "$uri" 16
  kill_hard gone
  kill_hard first
  nbdkit_name=second attach a
  # Another one may write: what the first had waiting has ended or is never carried out.
  exports
  ctl "$PWD/control" reload
  nbdsh <<<'h.pwrite(b"x" * 512, 0)'
}
it "a client that is killed while its requests wait keeps the export from nobody" leaves

finish
