#!/bin/bash
# A server as a member of a mirror group: what it promised, and what it knows, outlives kill -9.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

member_program=$(realpath "${BASH_SOURCE[0]%/*}")/mirror_member.py

start_member() {
  start_server --control "$PWD/control" --state-directory "$PWD/state" --export "disk0=$PWD/disk.img"
}

# talk STEP: the client's side of it.
talk() {
  limit=60 limited /usr/bin/python3 -B "$member_program" "$port" "$1" >"$1.log" 2>&1 || {
    cat "$1.log"
    fail "the client of the member"
  }
}

outlives() {
  truncate -s 8M disk.img
  start_member
  talk first
  kill_hard server
  start_member
  talk again
}
it "promise, views and maps outlive kill -9, and lower terms are refused" outlives

# tear OFFSET...: a few bytes of the record are others.
tear() {
  local offset
  for offset; do
    printf 'torn' | dd of="$(find state/members -type f)" bs=1 seek="$offset" conv=notrunc status=none
  done
}

torn() {
  truncate -s 8M disk.img
  start_member
  talk first
  kill_hard server
  tear 100
  start_member
  talk any
  kill_hard server
  tear 100 4196
  start_member
  talk damaged
}
it "a torn record is recognised: the one before counts, and with neither nobody is served" torn

refused() {
  start_server --state-directory "$PWD/state" --export disk0=memory:8M
  talk refused
}
it "storage that ends with its server is no member" refused

# The client answers no heartbeats while it waits.
unanswered() {
  truncate -s 8M disk.img other.img
  start_server --state-directory "$PWD/state" --export "disk0=$PWD/disk.img" \
    --export "disk1=$PWD/other.img" --pull on --heartbeat 30s
  talk silent
  says server.log 'it does not answer in time'
  says server.log 'its rnbd-server is too old to tell which disk it has'
  talk many
}
it "copies from servers that do not answer end, and keep neither copies of others nor claims" \
  unanswered

beside_a_writer() {
  truncate -s 8M disk.img
  start_member
  talk plain
  says server.log "refused a claim of 'disk0': another session has it open for writing"
  says server.log "refused a claim of 'disk0': its session has not reserved it for writing"
}
it "only the session with the writer's reservation claims a disk" beside_a_writer

far_terms() {
  truncate -s 8M disk.img
  start_member
  talk terms
  says server.log "refused a claim of 'disk0': its term [0-9]* is so far ahead of [0-9]*, which is promised"
  says server.log "refused to open 'disk0': it is a member of a mirror"
}
it "a term that would shut others out is refused, and plain clients are told of the mirror" \
  far_terms

older_client() {
  truncate -s 8M disk.img
  start_member
  talk older
  says server.log "refused to make 'disk0' a member of a mirror group: its client is of an older version"
}
it "a client that does not tell disks apart is refused, and the log says why" older_client

# member_says FILTER: of what `member list` answers.
member_says() { "${ctl_command[@]}" --json "$PWD/control" member list | jq -r "$1"; }
freed() {
  truncate -s 8M disk.img
  start_member
  [[ $(member_says '.members | length') == 0 ]] || fail "a disk is a member before a client comes"
  spawn talk /usr/bin/python3 -B "$member_program" "$port" held
  wait_for_line talk.out ready
  member_says .members
  [[ $(member_says '.members[0] | [.export, .member, .members, .in_step, .promised, .served] | @csv') == \
    '"disk0",2,3,"1,2,3",5,true' ]] || fail "the list says something else"
  status_of 1 "${ctl_command[@]}" "$PWD/control" member free disk0 --force
  says said "a client of the mirror has it"
  kill_hard talk
  eventually 30 is_unused
  status_of 1 "${ctl_command[@]}" "$PWD/control" member free disk1
  status_of 1 "${ctl_command[@]}" "$PWD/control" member free disk0
  says said "its record has it in step, as member 2 of 3 of the mirror group"
  status_of 0 "${ctl_command[@]}" "$PWD/control" member free disk0 --force
  [[ $(member_says '.members | length') == 0 ]] || fail "it is still a member"
  compgen -G 'state/members/*.freed' >/dev/null || fail "nothing is left of the record"
  talk plain # any client
  talk first # any mirror
  kill_hard server
  rm state/members/*.freed
  tear 100 4196
  start_member
  says_damaged
  status_of 0 "${ctl_command[@]}" "$PWD/control" member free disk0
  talk plain
}
is_unused() { [[ $(member_says '.members[0].served') == false ]]; }
says_damaged() { [[ $(member_says '.members[0].trouble') == *"is damaged"* ]] || fail "nobody knows the damage"; }
it "an operator sees what a server is a member of, and takes a record away" freed

which_disk() {
  truncate -s 8M disk.img
  start_member
  talk disks
}
it "no view counts on another disk, and the record knows how far all members have come" which_disk

finish
