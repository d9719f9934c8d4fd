#!/bin/bash
# The tier of a brick and its journal belong together: what does not match is not served.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

export_of() { echo "disk0=brick:4M,file=$PWD/tier${1:-}"; }
serve() { start_server --export "$(export_of "${1:-}")"; }

# run_once BYTE: a life of the brick, in which 6 MiB are written.
run_once() {
  serve
  attach disk0
  nbdsh <<<"h.pwrite(b'$1' * (6 << 20), 0); h.flush()"
  stop nbdkit
  stop server
}
made() {
  truncate -s 8M tier
  run_once 7
}
reads() {
  attach disk0
  nbdsh <<<"assert h.pread(6 << 20, 0) == b'$1' * (6 << 20)"
  stop nbdkit
}
# still_has BYTE: nothing of it was lost.
still_has() {
  serve
  reads "$1"
}
# waits REGEX [OPTIONS]: the export waits, the log says why, and neither file changes.
waits() {
  local before
  before=$(md5sum tier*)
  serve "${2:-}"
  wait_for_line server.log "warning: export 'disk0' is not served yet.*try again later.*$1"
  [[ $(md5sum tier*) == "$before" ]] || fail "a file has changed"
  refused_client "rnbd+tcp://$address/disk0" 'not there yet'
  stop server
  [[ $(md5sum tier*) == "$before" ]] || fail "a file has changed"
}

lost() {
  made
  mv tier.brick kept
  waits "$PWD/tier.brick: the tier .* has data, but its journal is not there.*meta=PATH"
  mv kept tier.brick
  still_has 7
}
it "a tier with data waits for its journal" lost

comes_back() {
  made
  mv tier.brick kept
  serve
  wait_for_line server.log 'its journal is not there'
  mv kept tier.brick
  wait_for_line server.log "export 'disk0' is served now"
  reads 7
}
it "a journal that is mounted later is found" comes_back

elsewhere() {
  made
  waits "$PWD/absent/journal: the tier .* its journal is not there" ",meta=$PWD/absent/journal"
  still_has 7
}
it "a tier with data is not begun anew under a journal of another name" elsewhere

emptied() {
  made
  cp tier.brick kept
  : >tier.brick
  waits 'damaged; restore it'
  truncate -s 4096 tier.brick
  waits 'damaged; restore it'
  cp kept tier.brick
  still_has 7
}
it "an empty journal, or one that was cut, is damage" emptied

# The file of an earlier day is served with nothing that is newer.
earlier() {
  local file=$1 reason=$2
  made
  cp "$file" kept
  run_once 8
  cp "$file" newest
  cp kept "$file"
  waits "$reason"
  cp newest "$file"
  still_has 8
}
it "a journal of an earlier day is not served with the tier of today" \
  earlier tier.brick 'this journal is older than the tier'
it "a tier of an earlier day is not served with the journal of today" \
  earlier tier 'the tier .* is older than this journal'

live_copy() {
  truncate -s 8M tier
  serve
  attach disk0
  nbdsh <<<"h.pwrite(b'6' * 4096, 0); h.flush()"
  cp tier.brick kept
  nbdsh <<<"h.pwrite(b'7' * (6 << 20), 0); h.flush()"
  stop nbdkit
  stop server
  cp tier.brick newest
  cp kept tier.brick
  waits 'this journal is older than the tier'
  cp newest tier.brick
  still_has 7
}
it "a journal that was copied while the server ran is not served after its end" live_copy

replaced() {
  made
  mv tier kept
  truncate -s 8M tier
  waits 'the tier .* lacks the mark of this journal'
  mv kept tier
  still_has 7
}
it "a journal does not make an empty tier its own" replaced

strangers() {
  made
  mkdir other
  mv tier tier.brick other
  made
  mv tier.brick kept
  cp other/tier.brick .
  waits 'the tier .* belongs to another journal'
  mv kept tier.brick
  still_has 7
}
it "the journal of another brick is refused" strangers

both_restored() {
  made
  mkdir backup
  cp tier tier.brick backup
  run_once 8
  cp backup/* .
  still_has 7
}
it "tier and journal of one earlier day are served together" both_restored

zeros() {
  dd if=/dev/zero of=tier bs=1M count=8 status=none
  run_once 7
  still_has 7
}
it "a tier of zeros is empty" zeros

begun_new() {
  made
  rm tier.brick
  serve ,new
  attach disk0
  nbdsh <<<"assert h.pread(8 << 20, 0) == bytes(8 << 20); h.pwrite(b'8' * (6 << 20), 0); h.flush()"
  stop nbdkit
  stop server
  waits "a journal is there; leave 'new' out" ,new
  still_has 8
}
it "'new' begins with an empty brick, and only once" begun_new

in_vain() {
  made
  waits 'make its directory first' ",new,meta=$PWD/absent/journal"
  mv tier.brick kept
  waits 'its journal is not there'
  mv kept tier.brick
  still_has 7
}
it "'new' with a journal that cannot be made changes nothing" in_vain

# The server died between the two files.
begun_again() {
  : >tier.brick
  made
  still_has 7
  stop server
  : >tier.brick
  waits 'damaged; restore it'
  serve ,new
  attach disk0
  nbdsh <<<"assert h.pread(8 << 20, 0) == bytes(8 << 20)"
  stop nbdkit
}
it "a start that died while it made the journal is repeated with the same words" begun_again

adopted() {
  made
  truncate -s 8M tier # as a script may that makes the tier before each start
  waits "lacks the mark.*adopt"
  serve ,adopt
  reads 7
  stop server
  waits "it matches its tier; leave 'adopt' out" ,adopt
  still_has 7
}
it "'adopt' serves what tier and journal have, and only once" adopted

checked() {
  made
  mv tier.brick kept
  status_of 1 "$server_program" --check-config --export "$(export_of)"
  says said 'its journal is not there'
  [[ ! -e tier.brick ]] || fail "the check has begun a journal"
  mv kept tier.brick
  local before
  before=$(md5sum tier*)
  status_of 0 "$server_program" --check-config --export "$(export_of)"
  [[ $(md5sum tier*) == "$before" ]] || fail "the check has changed a file"
  still_has 7
}
it "--check-config tells that a journal is lost, and changes neither file" checked

on_device() {
  truncate -s 8M image
  device=$(losetup --find --show "$PWD/image" 2>/dev/null) || skip "no loop devices here"
  at_end losetup -d "$device"
  ln -s "$device" tier
  run_once 7
  mv tier.brick kept
  waits 'its journal is not there'
  mv kept tier.brick
  cp tier.brick kept
  still_has 7
  stop server
  cp kept tier.brick
  waits 'this journal is older than the tier'
}
it "all that is so for a block device, too" on_device

killed() {
  local round
  truncate -s 8M tier
  for round in 1 2 3 4 5; do
    serve
    attach disk0
    nbdsh <<<"h.pwrite(b'$round' * (6 << 20), 0); h.flush()"
    kill_hard server
    stop nbdkit
  done
  still_has 5
}
it "after a crash tier and journal match" killed

finish
