#!/bin/bash
# rnbd-bridge is started anew, by a service manager that keeps descriptors: its NBD clients go on.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/kept_bridge.sh"

restarts=${FULL:+100}
restarts=${restarts:-5}

# ---- Clients go on ------------------------------------------------------------------------------------

# Reads, writes and flushes of every kind of client, before and after.
goes_on() {
  serve
  keep "rnbd+tcp://$address/disk0"
  local name
  for name in simple structured extended; do client "$name" "$name"; done
  for name in simple structured extended; do says_of "$name" ok write 0 a; done
  restart
  [[ $(tail -n 1 kept.starts) == 4 ]] || fail "it got $(tail -n 1 kept.starts) descriptors, not a record and three sockets"
  for name in simple structured extended; do
    says_of "$name" a read 0
    says_of "$name" ok write 1 b
    says_of "$name" ok flush
  done
  says_of simple b read 1
  wait_for_line kept.log "NBD clients of 'disk0' that go on after the restart: 3"
  restart
  says_of structured ok status
  says_of extended b read 1
}
it "clients of every kind go on after a restart" goes_on

# Requests that were not begun are begun by the next one, and those under way are answered before.
under_load() {
  local number
  serve
  keep "rnbd+tcp://$address/disk0"
  begin_load
  for ((number = 0; number < restarts; ++number)); do restart; done
  end_load
}
it "no answer is lost or wrong when the bridge is started anew under load" under_load

# For longer than a new client waits for a server.
waits_for_server() {
  local name
  serve
  keep "rnbd+tcp://$address/disk0" --connect-timeout 1s --reconnect-max 200ms
  for name in one two three; do client "$name" simple; done
  says_of one ok write 0 a
  hold
  stop server
  let_start
  sleep 2.5
  server_port=$port serve
  for name in two three; do says_of "$name" a read 0; done
  says_of one ok write 0 b
}
it "clients go on when the server comes back after the bridge" waits_for_server

# Each opening for writing has a number of its own, which the successor must know as its own.
goes_on_with_access() {
  local name
  serve
  keep "rnbd+tcp://$address/disk0" --access rw "$@"
  for name in one two; do client "$name" simple; done
  says_of one ok write 0 a
  for _ in 1 2 3; do
    restart
    for name in one two; do says_of "$name" ok write 1 b; done
  done
}
it "clients of a bridge that reserves the disk when it opens it go on" goes_on_with_access
it "they also do if it attaches when it starts" goes_on_with_access --connect now

# The right of a client that writes nothing for a while.
keeps_right() {
  serve
  keep "rnbd+tcp://$address/disk0" "$@"
  client one simple
  client two simple
  says_of one ok write 0 a
  restart
  says_of two a read 0
  other_is_refused
  says_of one ok write 0 b
}
it "a client that has written keeps its right, without another write" keeps_right
it "so it does with a bridge that reserves the disk when it opens it" keeps_right --access rw

# The second restart comes while they wait for the server.
restarted_while_waiting() {
  local name
  serve
  keep "rnbd+tcp://$address/disk0" --reconnect-max 200ms "$@"
  for name in one two; do client "$name" simple; done
  says_of one ok write 0 a
  hold
  stop server
  let_start
  restart
  restart
  server_port=$port serve
  for name in one two; do says_of "$name" ok write 1 b; done
}
it "clients that wait for their disk go on after one more restart" restarted_while_waiting
it "so do those of a bridge that reserves the disk when it opens it" restarted_while_waiting --access rw

# ---- Clients that must not go on ------------------------------------------------------------------------

# other_writes LETTER HOW: another client has the disk for a moment, and leaves, or is killed.
other_writes() {
  local kept=$uri
  bridge_name=other start_bridge "rnbd+tcp://$address/disk0"
  nbdsh <<<"h.pwrite(b'$1' * 4096, 0, nbd.CMD_FLAG_FUA)"
  "$2" other
  uri=$kept
}
other_writer() {
  serve
  keep "rnbd+tcp://$address/disk0" "${@:2}"
  client writer simple
  says_of writer ok write 0 a
  hold
  other_writes o "$1"
  let_start
  wait_for_line kept.log "an NBD client of 'disk0' is disconnected: another client may have written meanwhile"
  says_of writer gone write 0 b
  [[ $(head -c 1 image) == o ]] || fail "the other client's write is gone"
}
it "a client is disconnected if another one has written while the bridge was away" other_writer stop
it "the same of a bridge that reserves the disk when it opens it" other_writer stop --access rw
it "a client is disconnected if another one has written and died while the bridge was away" other_writer kill_hard

# Its numbers begin anew, so that they prove nothing.
forgetful_server() {
  truncate -s 64M image
  start_server --export "disk0=$PWD/image"
  keep "rnbd+tcp://$address/disk0" "$@"
  client writer simple
  says_of writer ok write 0 a
  hold
  other_writes o stop
  stop server
  server_port=$port start_server --export "disk0=$PWD/image"
  let_start
  says_of writer gone write 0 b
  [[ $(head -c 1 image) == o ]] || fail "the other client's write is gone"
}
it "a client is disconnected if the server has begun its records anew" forgetful_server
it "that is so with a bridge that reserves the disk when it opens it" forgetful_server --access rw

# A client that has only read may know old content, and must not write by it.
other_writer_of_reader() {
  serve
  keep "rnbd+tcp://$address/disk0"
  client reader simple
  says_of reader 0 read 0
  hold
  other_writes o stop
  let_start
  says_of reader o read 0
  says_of reader error write 0 b
  [[ $(head -c 1 image) == o ]] || fail "the other client's write is gone"
}
it "a client that had only read goes on reading, and writes nothing by what it knows" other_writer_of_reader

other_storage() {
  serve
  keep "rnbd+tcp://$address/disk0"
  client one simple
  says_of one ok write 0 a
  hold
  stop server
  rm -r image state
  truncate -s 32M image
  server_port=$port serve
  let_start
  wait_for_line kept.log "an NBD client of 'disk0' is disconnected: "
  says_of one gone read 0
}
it "a client is disconnected if its disk is another one" other_storage

# reboots: the server's machine, as far as the server can tell.
reboots() {
  stop server
  echo "11111111-2222-3333-4444-${RANDOM}0000000" | head -c 36 >boot
  # shellcheck disable=SC2016 # the inner shell's
  local server_command=(unshare -m sh -c 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"' "$PWD/boot" "${server_command[@]}")
  server_port=$port serve
}
has_unflushed() {
  ((EUID == 0)) || skip "only root can mount"
  unshare --mount true || skip "no mount namespaces here"
  serve
  keep "rnbd+tcp://$address/disk0" --connect-timeout 60s --reconnect-max 200ms
  client one simple
  client two simple
  says_of one ok write 0 a
}
flush_fails_once() {
  says_of one error flush
  says_of one ok flush
}
# What was answered and not flushed may have gone with the server's machine.
reboots_meanwhile() {
  has_unflushed
  hold
  reboots
  let_start
  flush_fails_once
}
it "the next flush fails once if the server's machine was restarted meanwhile" reboots_meanwhile

reboots_later() {
  has_unflushed
  restart
  restart
  says_of two a read 0
  reboots
  flush_fails_once
}
it "the next flush fails once if the server's machine is restarted after that" reboots_later

reboots_before() {
  has_unflushed
  reboots
  says_of two a read 0
  restart
  restart
  flush_fails_once
}
it "the next flush fails once if the server's machine was restarted before" reboots_before

nothing_lost() {
  has_unflushed
  says_of one ok flush
  hold
  reboots
  let_start
  says_of one ok flush
}
it "no flush fails if all was flushed before" nothing_lost

# Its keys are in the memory of the process that has ended.
with_tls() {
  clear_and_secret keep
  restart
  says_of secret gone read 0
  says_of clear a read 0
}
it "a client over TLS is disconnected, and one beside it goes on" with_tls

# ---- What is left -----------------------------------------------------------------------------------------

stopped() {
  serve
  keep "rnbd+tcp://$address/disk0"
  client one simple
  says_of one ok write 0 a
  stop kept
  says_of one gone read 0
}
it "a client is disconnected when the service is stopped" stopped

# fails_first OPTION...: which needs a folder that is not there for a while.
fails_first() {
  mkdir folder
  serve
  keep "rnbd+tcp://$address/disk0" "$@"
  client one simple
  says_of one ok write 0 a
  hold
  rm -r folder
  rm kept.held
  eventually 20 started_after 3
  mkdir folder
  eventually 20 test -s kept.pid
  says_of one a read 0
  says_of one ok write 0 b
}
it "a start that cannot listen keeps the clients for the next one" fails_first --listen unix:folder/sock
it "a start that ends when it is about to be ready does so, too" fails_first --pid-file folder/pid

finish
