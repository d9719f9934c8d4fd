#!/bin/bash
# A brick: blocks that clients allocate, in memory or in a tier, and a disk for everybody else.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

peer() {
  PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 "$source_dir/tests/integration/brick_peer.py" \
    "$port" "$1"
}

with_tier() {
  start_server --export "disk0=brick:4M,file=$PWD/tier" --export plain=memory:1M "$@"
}

four_times_memory() {
  requires fio
  fio --enghelp 2>/dev/null | grep -qw nbd || skip "fio has no nbd engine here"
  truncate -s 32M tier
  start_server --export "disk0=brick:8M,file=$PWD/tier"
  attach disk0
  limited fio --name=verify --ioengine=nbd --uri="$uri" --rw=randwrite --bs=16k --size=32M \
    --iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --fsync=256 --randseed=1 | tee fio.txt
  says fio.txt 'err= 0'
  stop nbdkit
  stop server
  # All of it is in the tier now.
  start_server --export "disk0=brick:8M,file=$PWD/tier"
  attach disk0
  limited fio --name=verify --ioengine=nbd --uri="$uri" --rw=randwrite --bs=16k --size=32M \
    --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_only --randseed=1 | tee again.txt
  says again.txt 'err= 0'
}
it "four times as much as memory has room for reads back as it was written, also later" four_times_memory

copied() {
  random_file image 8M
  truncate -s 8M tier
  with_tier
  attach disk0
  nbdcopy --flush image "$uri"
  nbdcopy "$uri" copy
  cmp image copy
}
it "nbdcopy copies an image to a brick and back" copied

killed() {
  truncate -s 8M tier
  with_tier
  peer fill
  kill_hard server
  with_tier
  peer check
}
it "after a crash LIST shows what was acknowledged, and what was synced is there" killed

killed_often() {
  local round churner rounds=${FULL:+1000}
  truncate -s 8M tier
  for ((round = 0; round < ${rounds:-5}; ++round)); do
    with_tier
    peer churn >said &
    churner=$!
    wait_for_line said '^end'
    kill_hard server
    wait "$churner"
    with_tier
    peer survived <said
    stop server
    rm said
  done
}
it "no block is lost or doubled when the server is killed while blocks come and go" killed_often

# flush_after stop|kill_hard ANSWER: the server goes with a write that was not flushed, and comes back.
flush_after() {
  requires_python nbd
  truncate -s 8M tier
  with_tier
  attach disk0
  spawn client /usr/bin/python3 -c '
import os, sys, time, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 4096, 0)
open("written", "x").close()
while not os.path.exists("back"): time.sleep(0.05)
try:
    h.flush()
    print("flushed")
except nbd.Error as error:
    print(error.errno)
h.flush()
' "$uri"
  eventually 20 test -e written
  local server_port=$port
  "$1" server
  with_tier
  touch back
  expect_gone client 0
  says client.out "^$2\$"
}
it "a server that is stopped loses nothing, and the next flush of its clients succeeds" \
  flush_after stop flushed
it "a server that is killed may have lost writes, and one flush of its clients fails" \
  flush_after kill_hard EIO

checked() {
  truncate -s 8M tier
  "$server_program" --check-config --export "disk0=brick:4M,file=$PWD/tier"
  [[ ! -e tier.brick ]] || fail "the check has begun a journal"
  with_tier
  [[ -s tier.brick ]] || fail "the server has no journal"
}
it "--check-config looks at a brick, and makes no journal" checked

# The brick is plain memory, or has a tier with more blocks than memory has.
onesided() {
  start_server --export "disk0=brick:$1"
  RNBD_BRICK=tcp:127.0.0.1:$port limited "$build_dir/bin/brick_client"
}
it "clients write and read blocks one-sided, in memory" onesided 8M
one_sided_with_tier() {
  truncate -s 16M tier
  onesided "4M,file=$PWD/tier"
}
it "clients write and read blocks one-sided, with a tier" one_sided_with_tier

revoked() {
  local i exports=()
  for i in {0..7}; do
    truncate -s 4M "tier$i"
    exports+=(--export "disk$i=brick:2M" --export "tiered$i=brick:2M,file=$PWD/tier$i")
  done
  start_server "${exports[@]}"
  RNBD_TRIALS=${FULL:+1000} limit=1800 RNBD_BRICK=tcp:127.0.0.1:$port limited "$build_dir/bin/brick_revoke"
}
it "no byte of a client lands that has lost its keys while it was writing" revoked

# through_library SPECIFICATION: likewise.
through_library() {
  start_server --export "disk0=brick:$1"
  RNBD_BRICK_URI=rnbd+tcp://127.0.0.1:$port/disk0 limited "$build_dir/bin/brick_library"
}
it "programs with librtrs have bricks, too, in memory" through_library 8M
library_with_tier() {
  truncate -s 16M tier
  through_library "4M,file=$PWD/tier"
}
it "programs with librtrs have bricks, too, with a tier" library_with_tier

refused() {
  truncate -s 8M tier
  with_tier
  peer mistakes
}
it "mistakes of clients are refused, and change nothing" refused

shown() {
  truncate -s 8M tier
  with_tier --export "scratch=brick:2M" --control "$PWD/control"
  peer fill
  limited "${ctl_command[@]}" "$PWD/control" brick | tee all.txt
  grep -Eq '^disk0 +4 +3 +2 +[0-2] +0 +file' all.txt || fail "disk0 is not as it was left"
  grep -Eq '^scratch +1 +0 +1 +0 +0 +none' all.txt || fail "scratch is not empty"
  limited "${ctl_command[@]}" "$PWD/control" brick disk0 | tee one.txt
  grep -Eq '^0x7000000000000000 +1' one.txt || fail "a block is missing"
  says_not_scratch one.txt
  status_of 1 "${ctl_command[@]}" "$PWD/control" brick plain
}
says_not_scratch() { ! grep -q scratch "$1" || fail "another brick is shown"; }
it "rnbd-ctl shows how full bricks are, and where blocks are" shown

finish
