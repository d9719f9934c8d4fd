#!/bin/bash
# A server as a member of a mirror group: what it promised, and what it knows, outlives kill -9.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

member_program=$(realpath "${BASH_SOURCE[0]%/*}")/mirror_member.py

start_member() {
  start_server --state-directory "$PWD/state" --export "disk0=$PWD/disk.img"
}

# talk STEP: the client's side of it.
talk() {
  limit=60 limited /usr/bin/python3 -B "$member_program" "$port" "$1" >"$1.log" 2>&1 || {
    cat "$1.log"
    fail "the client of the member"
  }
}

it "keeps promise, views and maps over kill -9, and refuses lower terms"
truncate -s 8M disk.img
start_member
talk first
kill_hard server
start_member
talk again
stop server

it "recognises a torn record, and takes the one before"
record=$(find state/members -type f)
printf 'torn' | dd of="$record" bs=1 seek=100 conv=notrunc status=none
start_member
talk any
kill_hard server
printf 'torn' | dd of="$record" bs=1 seek=4196 conv=notrunc status=none
printf 'torn' | dd of="$record" bs=1 seek=100 conv=notrunc status=none
start_member
talk damaged
stop server

it "is no member without a state directory that is usable"
server_name=nameless start_server --export disk0=memory:8M --state-directory "$PWD/other"
talk refused
stop nameless
