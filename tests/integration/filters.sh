#!/bin/bash
# The plugin under the nbdkit filters that people use: each attaches and carries verified data.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

requires_filter() {
  local filter directory
  directory=$(nbdkit --dump-config | sed -n 's/^filterdir=//p')
  for filter in "$@"; do
    [[ -f $directory/nbdkit-$filter-filter.so ]] || skip "nbdkit has no $filter filter here"
  done
}

# Starts the server with a 16 MiB image of random bytes.
serve_image() {
  random_file image 16M
  start_server --export "disk0=$PWD/image" "$@"
}

# round_trip: writes new data through $uri and reads it back.
round_trip() {
  random_file new 16M
  nbdcopy --flush new "$uri"
  nbdcopy "$uri" back
  cmp new back
}

# carries FILTER [PARAMETERS...]: data survive there and back, and have arrived in the image.
carries() {
  local filter=$1
  shift
  requires_filter "$filter"
  serve_image
  nbdkit_flags=("--filter=$filter")
  attach disk0 "$@"
  nbdcopy "$uri" copy
  cmp image copy
  round_trip
  stop nbdkit
  stop server
  cmp new image
}
it "cache: data go there and back, and reach the image with a flush" carries cache
it "cache in writethrough mode" carries cache cache=writethrough
it "readahead" carries readahead
it "blocksize with 4096-byte blocks" carries blocksize minblock=4096 maxdata=64K maxlen=1M
it "rate" carries rate rate=4G
it "delay" carries delay rdelay=1ms wdelay=1ms
it "retry" carries retry
it "retry-request" carries retry-request
it "scan" carries scan
it "fua emulates" carries fua fuamode=emulate
it "nozero emulates" carries nozero
it "log" carries log logfile=requests.log
it "stats" carries stats statsfile=stats.txt
it "multi-conn emulates" carries multi-conn multi-conn-mode=emulate

cow() {
  requires_filter cow
  serve_image
  cp image before
  nbdkit_flags=(--filter=cow)
  attach disk0
  round_trip
  stop nbdkit
  cmp before image || fail "writes above the cow filter reached the image"
}
it "cow: writes are seen above the filter and never reach the image" cow

cow_read_only() {
  requires_filter cow
  random_file image 16M
  start_server --export "disk0=$PWD/image,ro"
  nbdkit_flags=(--filter=cow)
  attach disk0
  round_trip
}
it "cow: a read-only export becomes writable above the filter" cow_read_only

partition() {
  requires sfdisk mkfs.ext4 e2fsck debugfs
  requires_filter partition
  truncate -s 64M image
  sfdisk --quiet image <<<$'label: gpt\nstart=2048, size=65536\nstart=69632, size=32768'
  mkdir files
  cp -a "$source_dir/LICENSE" files/
  mkfs.ext4 -q -d files filesystem 32M
  dd if=filesystem of=image bs=1M seek=1 conv=notrunc status=none
  start_server --export "disk0=$PWD/image"
  nbdkit_flags=(--filter=partition)
  attach disk0 partition=1
  [[ $(nbdinfo --size "$uri") == 33554432 ]]
  nbdcopy "$uri" copy
  cmp filesystem copy
  e2fsck -fn copy
  debugfs -R 'cat /LICENSE' copy 2>/dev/null | cmp - "$source_dir/LICENSE"
  stop nbdkit
  attach disk0 partition=2
  random_file new 16M
  nbdcopy --flush new "$uri"
  stop nbdkit
  cmp <(dd if=image bs=1M skip=34 count=16 status=none) new
  cmp <(dd if=image bs=1M skip=1 count=32 status=none) filesystem
}
it "partition: each partition is a disk of its own" partition

failing_reads() {
  requires_python nbd
  requires_filter error
  serve_image
  nbdkit_flags=(--filter=error)
  attach disk0 "error-pread=$1" error-pread-rate=100% "error-pread-file=$PWD/broken"
  : >broken
  nbdsh <<PY
fails_with(errno.$1, h.pread, 512, 0)
h.pwrite(b"x" * 512, 0)
os.unlink("broken")
assert h.pread(512, 0) == b"x" * 512
PY
}
it "error: EIO goes through to the client, and the next request works" failing_reads EIO
it "error: ENOSPC goes through to the client, and the next request works" failing_reads ENOSPC

retry_over_restart() {
  requires_python nbd
  requires_filter retry
  serve_image
  nbdkit_flags=(--filter=retry)
  attach disk0 retries=8 retry-delay=1 retry-exponential=false
  limited /usr/bin/python3 - "$uri" "${pid[server]}" "$PWD" <<'PY' &
import os, signal, sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"before" + bytes(506), 0)
h.flush()
os.kill(int(sys.argv[2]), signal.SIGKILL)
open(sys.argv[3] + "/killed", "w").close()
assert h.pread(512, 0)[:6] == b"before"
h.pwrite(b"after!" + bytes(506), 0, nbd.CMD_FLAG_FUA)
PY
  local client=$!
  wait_end server 20
  server_port=$port server_name=second start_server --export "disk0=$PWD/image"
  wait "$client"
  [[ $(head -c 6 image) == after! ]]
}
it "retry: a request outlives a server that is killed and started again" retry_over_restart

exit_when() {
  requires_filter exitwhen
  serve_image
  nbdkit_flags=(--filter=exitwhen)
  attach disk0 "exit-when-file-created=$PWD/enough" exit-when-poll=1
  nbdcopy "$uri" copy
  cmp image copy
  : >enough
  nbdinfo --size "$uri" >/dev/null 2>&1 || true
  wait_end nbdkit 20 || fail "nbdkit still runs"
  ((status == 0)) || fail "nbdkit left with status $status"
}
it "exitwhen: nbdkit leaves when it should" exit_when

luks() {
  requires qemu-img
  requires_filter luks
  # 1.32.5's filter crashes on a disk that is not LUKS, whatever the plugin: it gets a real one.
  printf secret >passphrase
  # qemu-img times its key derivation by the CPU clock and gives up when that did not tick.
  eventually 20 qemu-img create -q -f luks --object secret,id=key,file=passphrase \
    -o key-secret=key,iter-time=10 image 8M
  start_server --export "disk0=$PWD/image"
  nbdkit_flags=(--filter=luks)
  attach disk0 passphrase=secret
  random_file new 8M
  nbdcopy --flush new "$uri"
  nbdcopy "$uri" back
  cmp new back
  stop nbdkit
  stop server
  qemu-img convert --object secret,id=key,file=passphrase --image-opts \
    driver=luks,key-secret=key,file.filename=image -O raw opened
  cmp new opened
}
it "luks: what is written through the filter is what qemu decrypts" luks

stacked() {
  requires_filter cow readahead cache
  serve_image
  nbdkit_flags=(--filter=cow --filter=cache --filter=readahead)
  attach disk0
  nbdcopy "$uri" copy
  cmp image copy
  round_trip
}
it "cow over cache over readahead" stacked

finish
