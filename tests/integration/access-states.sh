#!/bin/bash
# The server takes paths out of service while clients use them, and puts them back.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

# ---- Helpers --------------------------------------------------------------------------------------

control=control.sock

ctl() { limited "$build_dir/bin/rnbd-ctl" --json "$@"; }

# of STATUS EXPRESSION: what Python makes of `status`, the answer of a control socket.
of() { /usr/bin/python3 -c 'import json, sys
status = json.loads(sys.argv[1])
print(eval(sys.argv[2]))' "$1" "$2"; }

# start_two [ARGUMENTS...]: a server with two listeners, and a cable to each: `a` and `b`, whose
# hosts are in $host_a and $host_b.
host_a=127.0.0.1 host_b=127.0.0.2
start_two() {
  start_server --listen tcp:127.0.0.1:0 --control "$control" "$@"
  local status name
  status=$(ctl "$control" status)
  listener_a=$(of "$status" 'status["listeners"][0]["listener"]')
  listener_b=$(of "$status" 'status["listeners"][1]["listener"]')
  for name in a b; do
    local -n host=host_$name listener=listener_$name there=forward_$name
    port=${listener##*:} start_forward "$host"
    there=$host:$forward_port
  done
}

# attach_two [PARAMETERS...]
attach_two() {
  attach_to "rnbd+tcp://$forward_a/disk0" "path=$forward_b" policy=round-robin settle-time=0ms \
    "heartbeat=$((100 * slow))ms" reconnect-min=20ms reconnect-max=200ms "$@"
}
# The session begins with its first NBD client.
begin_writing() {
  start_writers
  eventually 20 paths_stand 2
}
begin_asking() {
  user
  works "$1"
  eventually 20 paths_stand 2
}
leave() {
  stop nbdkit
  end_forward "$host_a"
  end_forward "$host_b"
}
paths_stand() {
  (($(of "$(ctl "$control" status)" 'sum(p["state"] == "connected" for p in status["paths"])') == $1))
}

# access a|b ACCESS: changes it, and waits until the client knows.
access() {
  local -n listener=listener_$1
  ctl "$control" access "$listener" "$2"
  eventually 20 known "$listener" "$2"
}
known() {
  local path="[p for p in status['paths'] if p['listener'] == '$1' and p['state'] == 'connected']"
  [[ $(of "$(ctl "$control" status)" "all(p['access_known'] and p['access'] == '$2' for p in $path)") == True ]]
}

# nothing_goes_over a|b: while the writers get on, only heartbeats do.
nothing_goes_over() {
  local -n host=host_$1
  eventually 20 idle "$1"
  local before
  before=$(number "forwarded.$host")
  progress 50
  # Less than an eighth of what the writers wrote.
  (($(number "forwarded.$host") - before < writers * 50 * 4096 / 8)) || fail "I/O goes over $1"
}
idle() {
  local -n listener=listener_$1
  [[ $(of "$(ctl "$control" status)" \
    "sum(p['requests'] for p in status['paths'] if p['listener'] == '$listener')") == 0 ]]
}

# ---- What the server says -----------------------------------------------------------------------------

status_says() {
  start_two --export disk0=memory:16M --export iso=memory:1M
  status_of 0 "$build_dir/bin/rnbd-ctl" "$control" status
  grep -q 'memory: *0' said || fail "memory without a session"
  attach_two
  begin_asking read
  local status
  status=$(ctl "$control" status)
  echo "$status"
  [[ $(of "$status" 'len(status["sessions"])') == 1 ]]
  [[ $(of "$status" '[l["access"] for l in status["listeners"]] == ["optimized"] * 2') == True ]]
  [[ $(of "$status" 'sorted(p["listener"] for p in status["paths"]) == sorted(l["listener"] for l in status["listeners"])') == True ]]
  [[ $(of "$status" '[(d["device"], d["access_mode"]) for d in status["devices"]]') == "[('disk0', 'unclaimed')]" ]]
  [[ $(of "$status" 'status["memory"] == 2 * (256 * 12 + 8 * 256) * 1024') == True ]]
  end_user
  leave
}
it "status names the listeners, the sessions with their paths and devices, and the memory" status_says

wrong_commands() {
  start_two --export disk0=memory:16M
  status_of 1 "$build_dir/bin/rnbd-ctl" "$control" access "$listener_a" closed
  grep -q 'optimized, non-optimized or inaccessible' said
  status_of 1 "$build_dir/bin/rnbd-ctl" "$control" access tcp:127.0.0.1:1 inaccessible
  grep -qF "$listener_b" said || fail "the listeners that there are were not named"
  status_of 1 "$build_dir/bin/rnbd-ctl" "$control" access
  status_of 0 "$build_dir/bin/rnbd-ctl" "$control" access "$listener_a" non-optimized
  says server.log "$listener_a is non-optimized from now on"
  end_forward "$host_a"
  end_forward "$host_b"
}
it "a command that cannot be carried out says what to write" wrong_commands

# ---- Paths are taken out of service -----------------------------------------------------------------

moved() {
  requires_python nbd
  truncate -s 16M image
  start_two --export "disk0=$PWD/image"
  attach_two
  begin_writing
  local state
  for state in inaccessible non-optimized inaccessible; do
    access a "$state"
    nothing_goes_over a
    carries "$host_b" 100000
    access a optimized
    carries "$host_a" 100000
    access b "$state"
    nothing_goes_over b
    carries "$host_a" 100000
    access b optimized
    carries "$host_b" 100000
  done
  end_writers
  if grep -qE 'path to .* is lost' nbdkit.log; then fail "a path was lost"; fi
  leave
}
it "I/O moves away from a listener that is taken out of service, and back: no error, nothing lost" moved

shortly_none() {
  requires_python nbd
  truncate -s 16M image
  start_two --export "disk0=$PWD/image"
  attach_two no-path-timeout=60s
  begin_writing
  access a inaccessible
  access b inaccessible
  eventually 20 idle a
  eventually 20 idle b
  wait_for_line nbdkit.log 'lets no path carry I/O'
  local acked
  acked=$(number acked.0)
  ctl "$control" status
  # One may have been answered before and counted since.
  (($(number acked.0) <= acked + 1)) || fail "writes were answered without an accessible path"
  access b non-optimized
  progress 20
  nothing_goes_over a
  access a optimized
  nothing_goes_over b
  end_writers
  leave
}
it "both paths are inaccessible for less than no-path-timeout: requests wait, no error" shortly_none

long_none() {
  requires_python nbd
  start_two --export disk0=memory:16M
  attach_two no-path-timeout=300ms
  begin_asking write
  access a inaccessible
  access b inaccessible
  ask write
  [[ $answer == EIO ]] || fail "$answer, not EIO"
  ask read
  [[ $answer == EIO ]] || fail "$answer, not EIO"
  access b optimized
  eventually 20 works write
  works flush
  works read
  end_user
  leave
}
it "both are inaccessible for longer: EIO, and service again when one is accessible" long_none

comes_back_closed() {
  requires_python nbd
  truncate -s 16M image
  start_two --export "disk0=$PWD/image"
  attach_two
  begin_writing
  access a inaccessible
  kill_hard "forward$host_a"
  wait_for_line nbdkit.log "path to $forward_a is lost"
  progress 20
  port=${listener_a##*:} start_forward "$host_a" "${forward_a##*:}"
  eventually 20 paths_stand 2
  nothing_goes_over a
  access a optimized
  carries "$host_a" 100000
  end_writers
  leave
}
it "a path that is cut while it is out of service comes back out of service" comes_back_closed

finish
