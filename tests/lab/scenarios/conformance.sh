# shellcheck shell=bash
# Verbs is the same queue pair as TCP, carries the same sessions, and in two messages per request.
# SPDX-License-Identifier: BSD-3-Clause

verbs_conformance() {
  RNBD_RDMA_ADDRESS=10.99.0.1 run_doctest "$build_dir/bin/conformance_verbs"
}

sessions() {
  RNBD_RDMA_ADDRESS=$1 run_doctest "$build_dir/bin/unit_transport" -sf='*/session_test*,*/memory_path_test*'
}

# From then on the kernel counts what is registered; the number that was, ever.
count_registrations() {
  echo p:registrations rxe_reg_user_mr >/sys/kernel/debug/tracing/kprobe_events
  echo 1 >/sys/kernel/debug/tracing/events/kprobes/registrations/enable
}
registrations() { awk '$1 == "registrations" { print $2 }' /sys/kernel/debug/tracing/kprobe_profile; }

# moved PROGRAM WHAT: what the program's connections counted, all of them together.
moved() {
  grep -o "[0-9]* $2" "$case_dir/$1.log" | awk '{ sum += $1 } END { print sum + 0 }'
}
# one_message_each PROGRAM: for 2000 requests. What opens and closes things is a few dozen messages more.
one_message_each() {
  local arrivals sends completions
  arrivals=$(moved "$1" arrivals) sends=$(moved "$1" sends) completions=$(moved "$1" 'completions of sends')
  echo "$1: $arrivals arrivals, $sends sends, $completions completions of sends"
  ((arrivals >= 2000 && arrivals < 2100)) || fail "not one message comes for each request"
  ((sends >= 2000 && sends < 2100)) || fail "not one message goes for each request"
  ((completions <= sends / 64)) || fail "more completions than one in 64 sends"
}

# 2000 requests, half of them reads.
count_messages() {
  local before
  count_registrations
  rnbd_server --log-level debug --listen rdma:10.99.0.1 --export disk0=memory:16M --heartbeat 60s
  attach -v -- rnbd://10.99.0.1/disk0 lanes=1 heartbeat=60s
  nbdsh -u "$nbd_uri" -c 'h.pwrite(bytes(4096), 0)'
  before=$(registrations)
  ((before > 0)) || fail "registrations are not counted"
  nbdsh -u "$nbd_uri" -c '
for i in range(1000):
    data = i.to_bytes(4, "little") * 1024
    h.pwrite(data, i * 4096)
    assert h.pread(4096, i * 4096) == data
'
  [[ $(registrations) == "$before" ]] || fail "memory was registered while requests ran"
  stop nbdkit
  stop rnbd-server
  one_message_each rnbd-server
  one_message_each nbdkit
}

# The first one has no RDMA device.
name_of_two() {
  printf '%s two-addresses\n' 127.0.0.1 10.99.0.1 >>/etc/hosts
  [[ $(getent ahostsv4 two-addresses | awk 'NR == 1 { print $1 }') == 127.0.0.1 ]]
  rnbd_server --listen rdma:10.99.0.1 --export disk0=memory:1M
  attach rnbd://two-addresses/disk0 lanes=2
  nbdsh -u "$nbd_uri" -c 'h.pwrite(b"x" * 4096, 0)'
  stop nbdkit
}

port_goes_down() {
  rnbd_server --listen rdma:10.99.0.1 --export disk0=memory:1M --heartbeat 60s
  attach -v -- rnbd://10.99.0.1/disk0 lanes=4 heartbeat=60s
  nbdsh -u "$nbd_uri" -c 'h.pwrite(b"x" * 4096, 0)'
  # Nobody sends meanwhile: who loses his last connection reads no more events.
  printf 'link set cable0 %s\n' down up | ip -batch -
  eventually 20 grep -q 'RDMA device rxe0: port 1 is down' rnbd-server.log
  eventually 20 nbdkit_says 'RDMA device rxe0: port 1 is down'
  eventually 20 grep -q 'RDMA device rxe0: port 1 is up' rnbd-server.log
  [[ $(grep -c 'port 1 is down' rnbd-server.log) == 1 ]] || fail "the server says it several times"
  stop nbdkit
  stop rnbd-server
}

boot server
it "a queue pair over verbs passes the suite of all transports" on server verbs_conformance
it "sessions over RDMA behave as over TCP, by IPv4" on server sessions 10.99.0.1
it_full "sessions over RDMA behave as over TCP, by IPv6" on server sessions fd99::1
it "a request is one message there and one back, and registers nothing" on server count_messages
it "a server is found at the second address of its name when the first has no RDMA" on server name_of_two
# The last one: the kernel forgets the IPv6 addresses of what goes down.
it "server and client say once that a port of their RDMA device is down" on server port_goes_down
finish
