#!/bin/bash
# rnbd-bridge is replaced by the program that is installed by then: its NBD clients notice nothing.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/kept_bridge.sh"

dying_heir=${RNBD_DYING_HEIR:-$build_dir/tests/integration/libdying_heir.so}
replacements=${FULL:+100}
replacements=${replacements:-6}

# ---- Helpers ----------------------------------------------------------------------------------------

# install: both builds, of which the bridge's path has one at a time. The later one differs by its version.
install_builds() {
  cp "$bridge_program" old
  sed 's/\x000\.1\.0\x00/\x000.1.9\x00/g' old >new
  chmod +x new
  use old
}
use() {
  cp "$1" incoming
  mv incoming rnbd-bridge
}
# keep_it [OPTION...]: the bridge of that path, with the library for faults.
keep_it() {
  install_builds
  bridge_command=(env "LD_PRELOAD=${RNBD_PRELOAD:-} $dying_heir" "RNBD_HEIR_FAULT=$PWD/fault"
    "$PWD/rnbd-bridge")
  keep "$@" --control "$PWD/control"
}
# is_replaced: and the service manager knows by whom.
is_replaced() {
  local before
  before=$(<kept.pid)
  status_of 0 "${ctl_command[@]}" upgrade "$PWD/control"
  eventually 20 is_other "$before"
  [[ $(<said) == "replaced by process $(<kept.pid), version "* ]] || fail "it says $(<said), and the main process is $(<kept.pid)"
}
is_other() { [[ -s kept.pid && $(<kept.pid) != "$1" ]]; }
# is_refused TEXT: the same process goes on.
is_refused() {
  local before
  before=$(<kept.pid)
  status_of 1 "${ctl_command[@]}" upgrade "$PWD/control"
  grep -qE -- "$1" said || fail "it does not say $1"
  [[ $(<kept.pid) == "$before" && -e /proc/$before ]] || fail "it is another process now"
}

# ---- Clients notice nothing ---------------------------------------------------------------------------

goes_on() {
  local name
  serve
  keep_it "rnbd+tcp://$address/disk0" "$@"
  for name in simple structured extended; do client "$name" "$name"; done
  for name in simple structured extended; do says_of "$name" ok write 0 a; done
  use new
  is_replaced
  for name in simple structured extended; do
    says_of "$name" a read 0
    says_of "$name" ok write 1 b
    says_of "$name" ok flush
  done
  says_of structured ok status
  client later simple
  says_of later b read 1
  [[ $(wc -l <kept.starts) == 1 ]] || fail "it was started anew"
}
it "clients of every kind go on with the new program" goes_on
it "so they do with one that reserves the disk when it opens it" goes_on --access rw
only_reads() {
  serve
  keep_it "rnbd+tcp://$address/disk0" --access ro
  client one simple
  says_of one 0 read 0
  is_replaced
  says_of one 0 read 0
}
it "so they do with one that only reads" only_reads

# The right of a client that writes nothing for a while.
keeps_right() {
  serve
  keep_it "rnbd+tcp://$address/disk0" "$@"
  client one simple
  client two simple
  says_of one ok write 0 a
  is_replaced
  says_of two a read 0
  other_is_refused
  says_of one ok write 0 b
  echo "die 4" >fault
  is_refused 'the new program has ended'
  says_of two b read 0
  other_is_refused
  says_of one ok write 0 c
}
it "a client that has written keeps its right, also if the heir fails" keeps_right
it "so it does with a bridge that reserves the disk when it opens it" keeps_right --access rw

# Clients of a disk that another host writes.
only_readers() {
  local kept name begin
  serve
  keep_it "rnbd+tcp://$address/disk0"
  kept=$uri
  bridge_name=other start_bridge "rnbd+tcp://$address/disk0"
  client early simple
  client writer simple
  says_of writer ok write 0 a
  uri=$kept
  for name in one two three four; do client "$name" simple; done
  is_replaced
  for name in one two three four; do says_of "$name" a read 0; done
}
it "clients that only read, since another host writes, go on at once" only_readers

under_load() {
  local number builds=(old new)
  serve
  keep_it "rnbd+tcp://$address/disk0"
  begin_load
  for ((number = 0; number < replacements; ++number)); do
    use "${builds[number % 2]}"
    is_replaced
  done
  end_load
  [[ $(wc -l <kept.starts) == 1 ]] || fail "it was started anew"
}
it "no answer is lost or wrong while old and new builds follow each other" under_load

# By the signal of `systemctl reload`, and without a service manager.
alone() {
  local before
  serve
  keep_it "rnbd+tcp://$address/disk0"
  client one simple
  says_of one ok write 0 a
  before=$(<kept.pid)
  kill -USR2 "$before"
  eventually 20 is_other "$before"
  says_of one a read 0
  eventually 20 is_gone "$before"
  stop kept
  says_of one gone read 0
}
it "SIGUSR2 replaces it, too" alone

# ---- An heir that fails ---------------------------------------------------------------------------------

fails() {
  local step
  serve
  keep_it "rnbd+tcp://$address/disk0" "${@:3}"
  begin_load
  for step in $2; do
    echo "$1 $step" >fault
    is_refused 'it goes on as before: the new program has (ended|not answered within)'
  done
  rm fault
  is_replaced
  end_load
}
it "an heir that dies at any step leaves everything to the old one" fails die "0 1 2 3 4"
it "also of a bridge that reserves the disk when it opens it" fails die "2 4 4" --access rw
it "an heir that hangs when it opens the disks leaves everything to the old one" fails hang "2 4"

not_there() {
  serve
  keep_it "rnbd+tcp://$address/disk0"
  client one simple
  says_of one ok write 0 a
  rm rnbd-bridge
  is_refused "cannot start $PWD/rnbd-bridge: No such file or directory"
  printf '#!/bin/sh\nexit 7\n' >rnbd-bridge
  chmod +x rnbd-bridge
  is_refused 'the new program has ended'
  says_of one ok write 0 b
}
it "a program that is missing or wrong is refused" not_there

misconfigured() {
  "${ctl_command[@]}" keygen host1 keys.psk --out host1.psk
  serve
  keep_it "rnbd+tcp://$address/disk0" --tls on --tls-psk keys.psk
  client one simple
  says_of one ok write 0 a
  mv keys.psk away
  is_refused 'the new program refuses: .*keys.psk'
  says_of one ok write 0 b
  mv away keys.psk
  is_replaced
  says_of one b read 0
}
it "an heir that cannot read its keys says which" misconfigured

no_server() {
  serve
  keep_it "rnbd+tcp://$address/disk0" --connect-timeout 1s --reconnect-max 200ms
  client one simple
  says_of one ok write 0 a
  stop server
  is_refused 'the new program refuses: '
  server_port=$port serve
  says_of one a read 0
  is_replaced
  says_of one ok write 0 b
}
it "an heir that cannot reach the server is refused" no_server

# ---- What stands in the way ---------------------------------------------------------------------------

with_tls() {
  clear_and_secret keep_it
  is_refused '1 NBD client came over TLS'
  says_of secret a read 0
  says_of clear a read 0
}
it "a client over TLS stands in the way, and notices nothing" with_tls

fixed_name() {
  serve
  keep_it "rnbd+tcp://$address/disk0" --session mine
  is_refused 'its session has a fixed name'
}
it "so does a session with a fixed name" fixed_name

slow_storage() {
  truncate -s 64M image
  start_server --export "disk0=delay:write=700ms:$PWD/image" --state-directory "$PWD/state"
  keep_it "rnbd+tcp://$address/disk0"
  begin_load
  is_refused 'requests under way do not end'
  end_load
}
it "so do requests that take long, and they are answered" slow_storage

twice() {
  serve
  keep_it "rnbd+tcp://$address/disk0"
  client one simple
  says_of one ok write 0 a
  echo hang 2 >fault
  spawn first "${ctl_command[@]}" upgrade "$PWD/control"
  wait_for_line kept.log 'begins as the new program'
  is_refused 'an upgrade is under way already'
  wait_end first 20
  ((status == 1)) || fail "the first one ends with status $status"
  says_of one a read 0
}
it "there is one upgrade at a time" twice

# restarted_meanwhile STEP: SIGTERM ends the heir, and leaves the clients to the next start.
restarted_meanwhile() {
  serve
  keep_it "rnbd+tcp://$address/disk0"
  begin_load
  echo "hang $1" >fault
  kill -USR2 "$(<kept.pid)"
  wait_for_line kept.log 'begins as the new program'
  sleep "$2"
  restart
  end_load
}
it "a restart while the heir gets ready keeps the clients" restarted_meanwhile 1 0.3
it "a restart while the heir opens the disks keeps the clients" restarted_meanwhile 4 0.8

# heir_hangs: the old program has ended, and the heir does not serve yet; sets $heir.
heir_hangs() {
  local old
  old=$(<kept.pid)
  echo "hang 5" >fault
  kill -USR2 "$old"
  wait_for_line kept.log 'replaced by process'
  heir=$(grep -oE 'replaced by process [0-9]+' kept.log | grep -oE '[0-9]+$')
  eventually 20 is_gone "$old"
  rm fault
}

# The right is taken between OPEN and CLAIM of the heir.
taken_in_gap() {
  local heir kept
  serve
  keep_it "rnbd+tcp://$address/disk0"
  kept=$uri
  client one simple
  says_of one ok write 0 a
  heir_hangs
  bridge_name=other start_bridge "rnbd+tcp://$address/disk0"
  client two simple
  says_of two ok write 0 x
  kill -CONT "$heir"
  uri=$kept
  says_of one gone read 0
  client three simple
  says_of three x read 0
  [[ $(<kept.pid) == "$heir" ]] || fail "the bridge has ended"
}
it "a client whose right another host takes meanwhile is disconnected, and the bridge goes on" taken_in_gap

# Behind the old program's end a signal leaves the clients to the next start, as at any other time.
restarted_at_once() {
  local heir before
  serve
  keep_it "rnbd+tcp://$address/disk0" "$@"
  client one simple
  says_of one ok write 0 a
  heir_hangs
  before=$(wc -l <kept.starts)
  kill -HUP "${pid[kept]}"
  sleep 0.3
  kill -CONT "$heir"
  eventually 20 started_after "$before"
  says_of one a read 0
  says_of one ok write 0 b
}
it "a restart before the heir is told to serve keeps the clients" restarted_at_once
it "so it does with a bridge that reserves the disk when it opens it" restarted_at_once --access rw

# As `systemctl restart`, whose signal is for all processes of the service.
all_are_ended() {
  local number before
  serve
  keep_it "rnbd+tcp://$address/disk0"
  begin_load
  for number in 0 1 2 3 4 5 6 7; do
    before=$(wc -l <kept.starts)
    kill -USR2 "$(<kept.pid)"
    sleep "0.0$((number * 2))"
    # shellcheck disable=SC2046 # several processes
    kill -TERM $(pgrep -P "${pid[kept]}")
    eventually 20 started_after "$before"
    eventually 20 test -s kept.pid
    sleep 0.2
  done
  end_load
}
it "a signal to the old and the new program keeps the clients, whenever it comes" all_are_ended

# ---- An old program that does not end -------------------------------------------------------------------

stays() {
  serve
  keep_it "rnbd+tcp://$address/disk0"
  client one simple
  says_of one ok write 0 a
  old=$(<kept.pid)
  echo "stay 0" >fault
  kill -USR2 "$old"
  wait_for_line kept.log "go on after the restart" # what the old one logs may stop with it
}
stays_for_long() {
  local old heir
  stays
  says_of one a read 0
  eventually 20 is_other "$old"
  kill -KILL "$old"
  rm fault
  heir=$(<kept.pid)
  kill -USR2 "$heir"
  eventually 20 is_other "$heir"
  says_of one a read 0
}
it "an old program that stops while it leaves holds up nothing for long" stays_for_long
stays_at_restart() {
  local old
  stays
  says_of one a read 0
  restart
  kill -KILL "$old"
  says_of one a read 0
}
it "a restart meanwhile keeps the clients" stays_at_restart

# ---- What a replacement lacks ---------------------------------------------------------------------------

no_thread() {
  serve
  keep_it "rnbd+tcp://$address/disk0"
  client one simple
  says_of one ok write 0 a
  echo "alone 0" >fault
  kill -USR2 "$(<kept.pid)"
  wait_for_line kept.log 'not replaced by the new program: there is no thread'
  is_refused 'there is no thread'
  says_of one a read 0
  rm fault
  is_replaced
  says_of one a read 0
}
it "a bridge that gets no thread goes on, and is replaced later" no_thread

no_pid_file() {
  local before
  mkdir folder
  serve
  keep_it "rnbd+tcp://$address/disk0" --pid-file "$PWD/folder/pid"
  client one simple
  says_of one ok write 0 a
  rm -r folder
  is_replaced
  says_of one a read 0
  [[ $(wc -l <kept.starts) == 1 ]] || fail "it was started anew"
}
it "an heir that cannot write its file with the process ID serves" no_pid_file

# half_sent: a client that has sent a part of a request.
half_sent() {
  serve
  keep_it "rnbd+tcp://$address/disk0"
  client one simple
  says_of one ok write 0 a
  spawn half /usr/bin/python3 -B -c '
import os, struct, sys, time, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
os.write(h.aio_get_fd(), struct.pack(">IHHQQI", 0x25609513, 0, 1, 7, 8192, 4096) + b"z" * 100)
print("half", flush=True)
time.sleep(60)' "$uri"
  wait_for_line half.out half
  sleep 0.2
  is_refused '1 NBD client sends no more of a request, or reads no answers'
  says_of one a read 0
  kill -KILL "${pid[half]}"
  wait_end half 5
  is_replaced
}
it "a client that does not end its request is named as what stands in the way" half_sent

# Its answer comes when the upgrade has begun.
slow_handshake() {
  serve
  keep_it "rnbd+tcp://$address/disk0"
  spawn slow /usr/bin/python3 -B -c '
import socket, struct, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.recv(18)
print("met", flush=True)
time.sleep(0.7)
s.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
print("answer", len(s.recv(10)), flush=True)
s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, 7, 0, 4096))
time.sleep(1)
print("data", len(s.recv(4096 + 16, socket.MSG_WAITALL)), flush=True)' "$socket"
  wait_for_line slow.out met
  is_replaced
  wait_end slow 10
  [[ $(tail -n 1 slow.out) == "data 4112" ]] || fail "it says $(<slow.out)"
}
it "a client in its handshake ends that before, and goes on" slow_handshake

finish
