#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The session is with the server that was named, and the disk is the one that was meant: paths that lead to
# another server, which has exports of the same names, and pinned identities.
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

# ---- Helpers --------------------------------------------------------------------------------------

# serve NAME LETTER: a server with an export `disk0` full of that letter, and a state directory of its own.
# `server_port=PORT serve ...` on a certain port.
serve() {
  [[ -e $1.img ]] || head -c 1M /dev/zero | tr '\0' "$2" >"$1.img"
  server_name=$1 start_server --export "disk0=$PWD/$1.img" --state-directory "$PWD/state-$1" \
    --control "$PWD/$1.ctl" --log-level debug
}
# serve_two: $right is the address that is named; $wrong leads to another server.
serve_two() {
  serve right R
  right=$address
  serve wrong W
  wrong=$address
}

# attach_to_disk ADDRESS [PARAMETERS...]: with a control socket, and pauses that are no matter.
attach_to_disk() {
  attach_to "rnbd+tcp://$1/disk0" "control=$PWD/control" reconnect-min=20ms reconnect-max=100ms "${@:2}"
}
ctl() { limited "${ctl_command[@]}" "$@"; }
# field SOCKET EXPRESSION: of the status, in Python, where `s` is all of it.
field() {
  ctl --json "$1" status | /usr/bin/python3 -c 'import json, sys; s = json.load(sys.stdin); print(eval(sys.argv[1]))' "$2"
}
field_is() { [[ $(field "$1" "$2" 2>/dev/null) == "$3" ]]; }
path_field() { field_is "$PWD/control" "[p['$2'] for p in s['paths'] if p['address'] == 'tcp:$1'][0]" "$3"; }
trouble_of() { field "$PWD/control" "[p['trouble'] for p in s['paths'] if p['address'] == 'tcp:$1'][0]"; }
has_foreign_trouble() { [[ $(trouble_of "$1" 2>/dev/null) == *"another server"* ]]; }

# letter: what the disk is full of, for a new NBD client.
letter() { nbdcopy "$uri" - | head -c 1; }
reads() { [[ $(letter 2>/dev/null) == "$1" ]]; }
uuid_of_disk() { nbdinfo --json "$uri" | grep -oE 'UUID [0-9a-f-]{36}' | cut -d ' ' -f 2; }
# untouched SERVER: no session has ever been there.
untouched() { ! grep -E 'connected with|opened' "$1.log" || fail "a client has come to the server '$1'"; }

# ---- A path to another server ------------------------------------------------------------------------

starts() {
  local i
  serve_two
  for i in {1..20}; do
    attach_to_disk "$right" "path=$wrong"
    [[ $(letter) == R ]] || fail "start $i has got another disk"
    stop nbdkit
  done
  untouched wrong
}
it "of twenty starts with a path to another server all get the disk of the one that was named" starts

complaint() {
  serve_two
  attach_to_disk "$right" "path=$wrong,preference=9"
  reads R || fail "another disk"
  eventually 20 has_foreign_trouble "$wrong"
  [[ -z $(trouble_of "$right") ]] || fail "the right path has trouble: $(trouble_of "$right")"
  eventually 20 grep -qE "path to $wrong: .*another server" nbdkit.log
  ! grep -E "path to $right: .*another server" nbdkit.log || fail "the log complains of the right path"
  stop nbdkit
  untouched wrong
}
it "the log and the status complain of the path that leads elsewhere, not of the right one" complaint

connect_now() {
  serve_two
  if [[ $face == bridge ]]; then
    status_of 1 "${bridge_command[@]}" -l "unix:$PWD/socket" --connect now --path "$wrong" \
      "rnbd+tcp://$right/disk0"
  else
    status_of 1 "${nbdkit_command[@]}" -f -U "$PWD/socket" "$plugin" connect=now "path=$wrong" \
      "rnbd+tcp://$right/disk0"
  fi
  says said "the path to tcp:$wrong does not work: .*another server.*correct the path"
  untouched wrong
}
it "connect=now fails for a path to another server, and names it" connect_now

# The session that nobody uses must not move. Each time the wrong server is asked, its log says so.
asked_again() { (($(wc -l <wrong.log) > $1)); }
renewal() {
  serve_two
  local port_of_right=${right##*:}
  attach_to_disk "$right" "path=$wrong"
  reads R || fail "another disk"
  stop right
  eventually 20 path_field "$right" state waiting
  eventually 20 asked_again "$(($(wc -l <wrong.log) + 2))"
  untouched wrong
  server_port=$port_of_right serve right R
  eventually 20 path_field "$right" state connected
  reads R || fail "another disk, after the server was started again"
  stop nbdkit
  untouched wrong
}
it "a session with nothing open is not renewed at another server while its own is down" renewal

removal() {
  serve_two
  attach_to_disk "$right" "path=$wrong"
  reads R || fail "another disk"
  status_of 1 "${ctl_command[@]}" "$PWD/control" remove-path "$right"
  says said 'no other path has led to the server'
  ctl "$PWD/control" remove-path "$wrong"
  ctl "$PWD/control" add-path "$wrong"
  eventually 20 has_foreign_trouble "$wrong"
  reads R || fail "another disk"
  stop nbdkit
}
it "the path to the named server stays while others lead elsewhere, and one that is added joins nothing there" removal

# ---- The same server by another address ----------------------------------------------------------------

identity() {
  serve right R
  local id
  id=$(field "$PWD/right.ctl" "s['server_id']")
  [[ $id =~ ^[0-9a-f]{16}$ ]] || fail "no identity: $id"
  attach_to_disk 127.0.0.1:1 "path=$address" "server-id=$id"
  reads R || fail "not reached by the other address"
  field_is "$PWD/control" "s['server_id']" "$id" || fail "the client has another one"
  stop nbdkit
  attach_to_disk 127.0.0.1:1 "path=$address" connect-timeout=1s
  fails nbdinfo "$uri"
  says nbdkit.log "$address may join its session only.*server-id="
  stop nbdkit
  start_nbdkit "$plugin" "rnbd+tcp://127.0.0.1:1/disk0?server-id=$id" "path=$address"
  reads R || fail "not reached by the other address, with the identity in the URI"
  stop nbdkit
  attach_to_disk "$address" server-id=00000000000000ab
  fails nbdinfo "$uri"
  says nbdkit.log "another server than the session's: server $id instead of server 00000000000000ab"
  stop nbdkit
  stop right
  serve right R
  field_is "$PWD/right.ctl" "s['server_id']" "$id" || fail "another identity after a restart"
  server_name=second start_server --export disk0=memory:1M --state-directory "$PWD/state-right" --control "$PWD/second.ctl"
  says second.log 'cannot keep the identity of this server'
  ! field_is "$PWD/second.ctl" "s['server_id']" "$id" || fail "two servers have one identity"
}
it "with server-id= another address will do when the named one is down, and no other server" identity

remembered() {
  serve right R
  start_forward 127.0.0.1
  local named=127.0.0.1:$forward_port
  attach_to_disk "$named" "path=$address"
  reads R || fail "not reached"
  eventually 20 path_field "$address" state connected
  end_forward 127.0.0.1
  reads R || fail "lost with its first path"
  server_port=$port
  stop right
  serve right R
  eventually 20 path_field "$address" state connected
  reads R || fail "not renewed over the path that is left"
  stop nbdkit
}
it "a server that was restarted is known again by its other address, by what it keeps" remembered

# ---- Which disk ----------------------------------------------------------------------------------------

disks() {
  local uuid other
  serve_two
  attach_to_disk "$wrong"
  other=$(uuid_of_disk)
  stop nbdkit
  attach_to_disk "$right"
  uuid=$(uuid_of_disk)
  [[ -n $uuid && -n $other && $uuid != "$other" ]] || fail "no UUIDs: '$uuid', '$other'"
  nbdsh <<PYTHON
import subprocess
status = subprocess.check_output(["$ctl_program", "$PWD/control", "status"], text=True)
assert "$uuid" in status, status
PYTHON
  stop nbdkit
  attach_to_disk "$right" "uuid=$uuid"
  reads R || fail "refused, and is the right one"
  stop nbdkit
  start_nbdkit "$plugin" "rnbd+tcp://$right/disk0?uuid=$uuid"
  reads R || fail "refused, and is the right one, with the UUID in the URI"
  stop nbdkit
  attach_to_disk "$wrong" "uuid=$uuid"
  fails nbdinfo "$uri"
  says nbdkit.log "'disk0' is another disk: its UUID is $other; wanted is $uuid"
  stop nbdkit
}
it "the UUID of a disk is shown, and with uuid= no other disk is used" disks

finish
