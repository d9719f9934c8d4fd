# shellcheck shell=bash
# Our plugin and our server: cables that are pulled or loose, RDMA devices that are taken away.
# SPDX-License-Identifier: BSD-3-Clause

# Emulated guests are slow: four times the defaults, and what follows from them: 3.5 s become 14, and the way
# over the other path takes seconds where it takes milliseconds on a real machine.
timers=(heartbeat=2s)
noticed=60 back=60 # seconds; what is promised is measured on a machine that does nothing else
[[ -z ${FULL:-} ]] || noticed=18 back=12 # 3.5 and 3 by default

flapping=5
[[ -z ${FULL:-} ]] || flapping=180

serve() {
  truncate -s "${disk_mib}M" /tmp/a
  rnbd_server --listen rdma:10.99.0.1:1234 --listen rdma:10.99.1.1:1234 \
    --listen tcp:10.99.0.1:1235 --heartbeat 2s --export a=/tmp/a "$@"
}

use() {
  on server serve
  on client attach rnbd://10.99.0.1/a "$@" "${timers[@]}"
  on client nbd_device
}

# start_load: checked I/O in the background; end_load [SECONDS] sees that nothing was wrong or took too long.
start_load() {
  limit=600 on client verify_until enough /dev/nbd0 & load=$!
  on client eventually 100 writes_reach /dev/nbd0 100
}
end_load() {
  local longest most=${1:-$noticed}
  touch enough
  wait "$load"
  same_data /dev/nbd0 /tmp/a
  longest=$(longest_io fio-*.json)
  echo "the longest I/O took $longest s"
  awk -v a="$longest" -v b="$most" 'BEGIN { exit !(a <= b) }' || fail "not within $most s"
}
# longest_io FILE...: of fio's, in seconds.
longest_io() {
  python3 -c '
import json, sys
jobs = [job for file in sys.argv[1:] for job in json.load(open(file))["jobs"]]
print(max(job[way]["lat_ns"]["max"] for job in jobs for way in ("read", "write")) / 1e9)' "$@"
}

never_lost() { ! nbdkit_says "path to .*$1.* is lost"; }
# moves COUNTER...: each of these functions counts on: far more than heartbeats.
moves() {
  local counter before=()
  for counter in "$@"; do before+=("$($counter)"); done
  for counter in "$@"; do
    (eventually 2 grown "$counter" "${before[0]}") || return
    before=("${before[@]:1}")
  done
}
grown() { (($($1) > $2 + 200)); }
packets0() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
packets1() { cat /sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts; }
both='10.99.0.1:1234, 10.99.1.1:1234'

# ---- Cables -----------------------------------------------------------------------------------------

pulled_cable() {
  local load began
  use path=rdma:10.99.1.1
  start_load
  on client eventually 20 moves packets0 packets1
  pull server 0
  on client eventually "$noticed" goes_over 10.99.1.1:1234
  plug server 0
  began=$SECONDS
  on client eventually "$back" goes_over "$both"
  echo "back in use after $((SECONDS - began)) s"
  ((SECONDS - began <= back)) || fail "that was too late"
  end_load
  on client never_lost 10.99.1.1
}

# The client is told one address, and its server tells the others.
advertised() {
  local load
  on server serve --advertise tcp:10.99.0.1:1235 --advertise rdma:10.99.0.1 --advertise rdma:10.99.1.1
  on client attach rnbd+tcp://10.99.0.1:1235/a paths=auto settle-time=1s "${timers[@]}"
  on client nbd_device
  start_load
  on client eventually 60 moves packets0 packets1
  pull server 0
  on client eventually 60 goes_over 10.99.1.1:1234
  plug server 0
  end_load 60 # how fast that is, is not the question here
}

# What is sent on a cable when it works is sent again when it does not, until somebody gives up.
loose_cables() {
  local load
  use path=rdma:10.99.1.1 policy=round-robin
  start_load
  on client eventually 20 moves packets0 packets1
  flap server "$flapping"
  on client eventually 20 moves packets0 packets1
  end_load
  on client never_lost "10.99.[01].1" || fail "a path was given up that carried something all the time"
}

# ---- Devices ----------------------------------------------------------------------------------------

# Soft-RoCE keeps whoever removes a device waiting until no process has it open any more, and librdmacm has it open until its
# process ends: that a server listens there again by itself cannot be seen here.
remove_device() { rdma link delete rxe0; }

removed_device() {
  local load removal rdma=10.99.0.1:1234 tcp=10.99.0.1:1235
  use path=tcp:10.99.0.1:1235 settle-time=1s
  start_load
  on client eventually 20 moves packets0
  on server remove_device & removal=$!
  on client eventually 20 goes_over "$tcp"
  says rnbd-server.log '10.99.0.1:1234: the RDMA device is being removed'
  on server stop rnbd-server
  wait "$removal"
  on server rxe_up
  on server serve
  on client eventually 40 goes_over "$rdma"
  end_load 30 # the server was away, too
}

# The client's process has the device open until it ends.
removed_device_of_client() {
  local load removal
  use path=tcp:10.99.0.1:1235 settle-time=1s
  start_load
  on client eventually 20 moves packets0
  on client remove_device & removal=$!
  on client eventually 20 goes_over 10.99.0.1:1235
  end_load
  on client nbd-client -d /dev/nbd0
  on client stop nbdkit
  wait "$removal"
  on client rxe_up
  on client attach rnbd://10.99.0.1/a "${timers[@]}"
  on client nbd_device
  on client fio_verify /dev/nbd0
  same_data /dev/nbd0 /tmp/a
}

boot server client
it "a pulled cable costs no error, and its path is used again when it is back" pulled_cable
it_full "two cables that fail in turn, five times a second, cost no error" loose_cables
it_full "paths=auto: over TCP a client learns of both RDMA paths, uses them, and loses a cable without an error" advertised
it_full "I/O goes over TCP when the RDMA device is removed, and back when it and the server are" removed_device
it_full "I/O goes over TCP when the client's RDMA device is removed, and over RDMA for the next process" removed_device_of_client
finish
