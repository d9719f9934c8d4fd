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
  local kept
  "${ctl_command[@]}" keygen host1 keys.psk --out host1.psk
  serve
  keep_it "rnbd+tcp://$address/disk0" --listen tcp:127.0.0.1:0 --tls on --tls-psk keys.psk
  client clear simple
  kept=$uri
  uri="nbds://host1@$(grep -oE -m 1 '127\.0\.0\.1:[0-9]+, in front' kept.log | cut -d, -f1)/?tls-psk-file=$PWD/host1.psk"
  client secret structured
  uri=$kept
  says_of secret ok write 0 a
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

finish
