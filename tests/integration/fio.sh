#!/bin/bash
# Load that checks what it reads. FULL=1 makes the mixed run 10 minutes long.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

requires_fio() {
  requires fio
  fio --enghelp 2>/dev/null | grep -qw nbd || skip "fio has no nbd engine here"
}

# verified NAME FIO-OPTIONS...: one fio job on $uri that must end without an error.
verified() {
  local name=$1
  shift
  limited fio --name="$name" --ioengine=nbd --uri="$uri" --verify=crc32c --verify_fatal=1 \
    --verify_dump=0 --randseed="${SEED:-1}" --group_reporting "$@" | tee "$name.txt"
  says "$name.txt" 'err= 0'
}

mixed() {
  requires_fio
  local seconds=5
  if [[ -n ${FULL:-} ]]; then
    seconds=600
    limit=900
  fi
  truncate -s 256M image
  start_server --export "$1"
  nbdkit_flags=(-t 64)
  attach disk0
  verified mixed --rw=randrw --bssplit=512/10:4k/40:16k/20:64k/20:1m/10 --size=256M \
    --iodepth=32 --time_based --runtime="$seconds" --do_verify=1 --verify_backlog=256
}
mixed_file() { mixed "disk0=$PWD/image"; }
it "random reads and writes of 512 bytes to 1 MiB read back what was written (file)" mixed_file
mixed_memory() { mixed disk0=memory:256M; }
it "random reads and writes of 512 bytes to 1 MiB read back what was written (memory)" mixed_memory

written_once() {
  requires_fio
  truncate -s 128M image
  start_server --export "disk0=$PWD/image"
  nbdkit_flags=(-t 64)
  attach disk0
  verified write --rw=randwrite --bs=16k --size=128M --iodepth=64 --fsync=64 \
    --do_verify=1
  stop nbdkit
  # Another nbdkit, after all memory of the first one is gone.
  attach disk0
  verified write --rw=randwrite --bs=16k --size=128M --iodepth=64 --verify_only
}
it "a whole disk written at random verifies through another nbdkit" written_once

trims() {
  requires_fio
  truncate -s 64M image
  start_server --export "disk0=$PWD/image"
  nbdkit_flags=(-t 64)
  attach disk0
  limited fio --name=trim --ioengine=nbd --uri="$uri" --rw=randtrimwrite --bs=16k --size=64M \
    --iodepth=16 --time_based --runtime=2 | tee trim.txt
  says trim.txt 'err= 0'
}
it "trims and writes mixed end without an error" trims

finish
