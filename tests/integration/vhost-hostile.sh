#!/bin/bash
# rnbd-bridge as the disk of a virtual machine, whose driver and front-end do harm: they harm nobody but themselves.
# Servers that are silent or gone, and second machines, too.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/vhost_disk.sh"

# stop_calmly: a bridge in which something hangs ends as well, with the same status.
stop_calmly() {
  stop bridge
  if grep -q 'something hangs' bridge.log; then fail "it left in a hurry"; fi
}

hostile() {
  serve_disk
  driver 'a request that is too long*'
  eventually 5 has_no_machine
  local before
  before=$(descriptors bridge)
  driver '*'
  eventually 10 has_descriptors bridge "$before" # what it was given is closed
  stop_calmly
}
# driver CASES [ARGUMENTS...]: a driver of virtio without a guest.
driver() { RNBD_VHOST=$PWD/vm.sock limited "$build_dir/bin/vhost_hostile" "-tc=$1" "${@:2}"; }
# start_driver CASE: one that does not end by itself.
start_driver() {
  spawn load env RNBD_VHOST="$PWD/vm.sock" "$build_dir/bin/vhost_hostile" "-tc=$1" --no-skip
  wait_for_line load.out begun
}
has_no_machine() {
  "${ctl_command[@]}" "$PWD/bridge.control" status --json >status.json
  limited /usr/bin/python3 -c 'import json, sys; sys.exit(bool(json.load(open("status.json"))["devices"]))'
}
it "drivers and front-ends that do harm stop their own ring, or are disconnected; the next one is served" hostile

no_flush() {
  # shellcheck disable=SC2016 # nbdkit's shell expands it
  start_nbdkit eval get_size='echo 64M' can_write='exit 0' pwrite='cat >/dev/null' \
    pread='dd if=/dev/zero bs=$3 count=1 status=none'
  start_server --export "disk0=nbd:$uri"
  start_vhost
  driver 'a disk without flushes*' --no-skip
  stop_calmly
}
it "storage with neither flushes nor durable writes is written to" no_flush

lost_server() {
  serve_disk --no-path-timeout 1s
  start_driver '*reads for ever*'
  kill_hard server
  expect_gone load 0
  stop_calmly
}
it "requests fail when the server does not come back, and a machine can leave meanwhile" lost_server

silent_server() {
  serve_disk
  start_driver '*reads for ever*'
  freeze server
  "$@"
  thaw server
}
leaves_then_stops() {
  kill_hard load
  stop_calmly
}
stops_then_leaves() {
  stop_calmly
  kill_hard load
}
it "a server that says nothing keeps neither a machine nor the bridge from its end" silent_server leaves_then_stops
it "... nor a bridge whose machine is there" silent_server stops_then_leaves

silent_at_a_stop() {
  serve_disk
  start_driver '*ring stops while*'
  freeze server
  wait_for_line load.out stopped
  thaw server
  expect_gone load 0
  stop_calmly
}
it "a ring stops although the server is silent: its requests fail, or are carried out when it starts" silent_at_a_stop

many_queues() {
  serve_disk
  start_driver '*many queues*'
  freeze server
  wait_for_line load.out full
  thaw server
  expect_gone load 0
  stop_calmly
}
it "a machine has memory for some large requests, however many queues send them; all are carried out" many_queues

silent_at_the_end() {
  serve_disk
  start_driver '*bridge ends while*'
  freeze server
  wait_for_line load.out silent
  stop_calmly
  expect_gone load 0
  thaw server
}
it "a bridge that ends while the server is silent leaves no request that the next one would miss" silent_at_the_end

harms_till_the_end() {
  serve_disk
  start_driver "$1"
  sleep 1
  stop_calmly
  kill_hard load
}
it "a driver that sends more than is ever carried out keeps the bridge from nothing" harms_till_the_end '*floods*'
it "... nor does one whose calls block" harms_till_the_end '*calls block*'

second() {
  serve_disk
  start_driver '*stays*'
  fails driver 'requests end*'
  wait_for_line bridge.log 'a second virtual machine was turned away, as one is there'
  "${ctl_command[@]}" "$PWD/bridge.control" status | tee said
  says said "vhost:$PWD/vm.sock"
  kill_hard load
  eventually 10 is_served
}
is_served() { driver 'a request that is too long*' >served.txt 2>&1; }
it "a second machine is turned away in words while one is there, and served after it" second

finish
