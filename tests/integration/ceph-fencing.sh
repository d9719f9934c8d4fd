#!/bin/bash
# One image, several writers: each event that a Ceph cluster fences, and storage that is away for a while.
# SPDX-License-Identifier: BSD-3-Clause
export STORE=bluestore # an OSD is killed
export WATCH_TIMEOUT=15
[[ -z ${FULL:-} ]] || WATCH_TIMEOUT=30
source "${BASH_SOURCE[0]%/*}/ceph-cluster.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

quick=("heartbeat=$((100 * slow))ms" reconnect-min=20ms reconnect-max=200ms no-path-timeout=5min)
pause=10 # seconds
[[ -z ${FULL:-} ]] || pause=60

# serve_image IMAGE: made, exported and attached.
serve_image() {
  requires_python nbd
  rbd create --size 16M "rbd/$1"
  start_server --export "disk0=rbd:rbd/$1"
  attach disk0 "${quick[@]}"
}

# ---- Another writer ---------------------------------------------------------------------------------

second_client() {
  serve_image second
  writes
  local first
  first=$(holder rbd/second)
  fails another_client_writes rbd/second
  [[ $(holder rbd/second) == "$first" ]] || fail "the lock has changed hands"
  writes
}
it "a second client is refused while the first is there, and the first goes on" second_client

second_server() {
  serve_image servers
  writes
  server_name=other start_server --export disk0=rbd:rbd/servers --state-directory "$PWD/state"
  says other.log 'another client has it open for writing'
  writes
  stop nbdkit
  stop server
  eventually 60 grep -q "export 'disk0' is served now" other.log
  attach disk0 "${quick[@]}"
  writes
}
it "a second server waits while the first is there, and serves when it has ended" second_server

killed_then_client() {
  serve_image killed
  writes
  local first
  first=$(holder rbd/killed)
  kill_hard server
  another_client_writes rbd/killed
  is_on_blocklist "$first" || fail "the lock has changed hands without a fence"
}
it "the first is killed: the second writes once the first is on the blocklist" killed_then_client

stopped_then_client() {
  serve_image stopped
  local first
  first=$(holder rbd/stopped)
  user
  works write
  freeze server
  another_client_writes rbd/stopped
  rbd export --no-progress rbd/stopped after
  is_on_blocklist "$first" || fail "the lock has changed hands without a fence"
  echo write >&"$user_asks" # waits in the server's socket
  thaw server
  await_line "$user_answers" 60 || fail "no answer"
  [[ $line == EIO* ]] || fail "a write of a server that is fenced off: $line"
  says server.log 'has fenced this server off'
  rbd export --no-progress rbd/stopped later
  cmp after later || fail "something of the first has landed"
  end_user
}
it "the first stands still, the second writes, the first goes on: nothing of it lands, and it says so" \
  stopped_then_client

on_order() {
  serve_image ordered
  user
  works write
  ceph osd blocklist add "$(holder rbd/ordered)" 60
  ask write
  [[ $answer == EIO ]] || fail "a write of a server that is on the blocklist: $answer"
  says server.log 'has fenced this server off'
  end_user
  eventually 60 writes # the server opens it anew, under another name
}
it "a server is put on the blocklist by an order: its next write fails, and who opens the export anew is served" \
  on_order

idle() {
  serve_image idle
  writes
  stop nbdkit
  ceph osd blocklist add "$(holder rbd/idle)" 60
  eventually 60 grep -q 'has fenced this server off' server.log
  attach disk0 "${quick[@]}"
  writes
}
it "an image that nobody uses notices, too: who opens it next has no error" idle

# ---- Storage that is away -----------------------------------------------------------------------------

osd_stands_still() {
  serve_image still
  start_writers
  osd STOP
  sleep "$pause"
  osd CONT
  goes_on
  end_writers
  same_as_written rbd/still
}
it "the OSD stands still for $pause s: requests wait, no error, nothing lost" osd_stands_still

# With librbd's own limit a few requests more would have to wait where they are submitted.
others_go_on() {
  requires_python nbd
  rbd create --size 16M rbd/full
  sed '/^\[global\]/a objecter inflight ops = 2' "$CEPH_CONF" >limits.conf
  start_server --reactors 1 --export "disk0=rbd:rbd/full,conf=$PWD/limits.conf" --export other=memory:16M
  attach disk0 "${quick[@]}"
  start_writers
  osd STOP
  at_end osd CONT
  nbdkit_name=other attach other "${quick[@]}"
  nbdsh <<<'for i in range(100): h.pwrite(b"x" * 4096, 0, nbd.CMD_FLAG_FUA)'
  stop other
  osd CONT
  goes_on
  end_writers
  same_as_written rbd/full
}
it "requests that wait for a cluster do not hold up other exports, however many there are" others_go_on

# One that was given up may still be carried out.
no_time_limit() {
  requires_python nbd
  rbd create --size 16M rbd/limit
  sed '/^\[global\]/a rados osd op timeout = 1' "$CEPH_CONF" >limits.conf
  start_server --export "disk0=rbd:rbd/limit,conf=$PWD/limits.conf"
  attach disk0 "${quick[@]}"
  user
  works write
  osd STOP
  echo write >&"$user_asks"
  sleep 5
  osd CONT
  await_line "$user_answers" 60 || fail "no answer"
  [[ $line == ok* ]] || fail "a write that waited: $line"
  end_user
}
it "rados_osd_op_timeout in the configuration ends no request" no_time_limit

osd_killed() {
  serve_image osd
  start_writers
  osd KILL
  eventually 20 osd_is_gone
  cluster start-osd
  goes_on
  end_writers
  same_as_written rbd/osd
}
osd_is_gone() { ! osd 0 2>/dev/null; }
it "the OSD is killed and started again under durable writes: no error, nothing lost" osd_killed

# ---- The server is killed -------------------------------------------------------------------------------

kills=5
[[ -z ${FULL:-} ]] || kills=100

# Its successor proves by the machine's table of processes that the holder of the lock is dead.
server_killed() {
  serve_image kills
  start_writers
  local i name=server
  for ((i = 1; i <= kills; i++)); do
    kill_hard "$name"
    name=server$i
    server_port=$port server_name=$name start_server --export disk0=rbd:rbd/kills
    goes_on
  done
  end_writers
  same_as_written rbd/kills
}
it "the server is killed and started again $kills times under durable writes: no error, nothing lost" server_killed

finish
