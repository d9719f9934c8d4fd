#!/bin/bash
# Every backend behind rnbd-server, and those that break or slow down another one on purpose.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# carries STORAGE [SERVER ARGUMENTS...]: a 16 MiB export takes and gives back data.
carries() {
  local storage=$1
  shift
  start_server --export "disk0=$storage" "$@"
  attach disk0
  random_file new 16M
  nbdcopy --flush new "$uri"
  nbdcopy "$uri" back
  cmp new back
}

on_file() {
  truncate -s 16M image
  carries "$PWD/image$1" "${@:2}"
  stop nbdkit
  stop server
  cmp new image
}
it "a file" on_file ""
it "a file with O_DIRECT" on_file ",direct"
it "a file with threads instead of io_uring" on_file "" --no-uring
it "a file with O_DIRECT and threads" on_file ",direct" --no-uring
it "memory" carries memory:16M
it "a delay around memory" carries delay:read=1ms,write=1ms,jitter=1ms:memory:16M
it "a fault that never comes around memory" carries fault:read-eio=0:memory:16M
it "a fault around a delay around memory" carries fault:nth=0:delay:flush=1ms:memory:16M

on_tmpfs() {
  mountpoint -q /dev/shm || skip "/dev/shm is no file system of its own"
  local image=/dev/shm/rnbd-test.$$.img
  at_end rm -f "$image"
  truncate -s 16M "$image"
  carries "$image"
}
it "a file on tmpfs" on_tmpfs

block_device() {
  ((EUID == 0)) || skip "only root can make loop devices"
  truncate -s 16M image
  local device
  device=$(losetup --find --show "$PWD/image" 2>/dev/null) || skip "no loop devices here"
  at_end losetup -d "$device"
  carries "$device"
  stop nbdkit
  stop server
  cmp new image
}
it "a block device" block_device

null() {
  start_server --export disk0=null:1T
  attach disk0
  [[ $(nbdinfo --size "$uri") == $((1 << 40)) ]]
  nbdsh <<'PY'
h.pwrite(b"x" * 65536, 1 << 39)
assert h.pread(65536, 1 << 39) == bytes(65536)
h.flush()
PY
}
requires_nbd_null() { requires_python nbd && null; }
it "null reads zeroes and swallows writes" requires_nbd_null

behind_nbdkit() {
  nbdkit_name=inner start_nbdkit memory 16M
  carries "nbd:$uri"
}
it "nbd: an nbdkit" behind_nbdkit

behind_small_payload() {
  requires_python nbd
  nbdkit_name=behind start_nbdkit --filter=blocksize-policy memory 4M blocksize-maximum=64K \
    blocksize-error-policy=error
  start_server --export "disk0=$uri"
  attach disk0
  nbdsh <<'PY'
data = os.urandom(300 * 1024)
h.pwrite(data, 4096)
h.zero(1 << 20, 2 << 20)
assert h.pread(len(data), 4096) == data
PY
}
it "nbd: a server that takes small requests only gets small requests" behind_small_payload

behind_large_blocks() {
  requires_python nbd
  nbdkit_name=behind start_nbdkit --filter=blocksize-policy memory 4M blocksize-minimum=4096 \
    blocksize-error-policy=error
  start_server --export "disk0=$uri"
  attach disk0
  nbdsh <<'PY'
before = os.urandom(8192)
h.pwrite(before, 0)
h.pwrite(b"x" * 512, 512)
h.zero(512, 7680)
assert h.pread(8192, 0) == before[:512] + b"x" * 512 + before[1024:7680] + bytes(512)
assert h.pread(512, 1024) == before[1024:1536]
PY
}
it "nbd: storage with blocks of 4096 bytes takes requests of 512 bytes" behind_large_blocks

behind_qemu() {
  requires qemu-nbd qemu-img
  qemu-img create -q -f qcow2 image.qcow2 16M
  spawn inner qemu-nbd -f qcow2 -k "$PWD/inner.sock" -t -e 4 --pid-file=inner.pid image.qcow2
  eventually 10 test -S inner.sock
  carries "nbd:nbd+unix:///?socket=$PWD/inner.sock"
  stop nbdkit
  stop server
  # It ends with SIGTERM's status when it was told to.
  kill -TERM "${pid[inner]}"
  wait_end inner 10
  qemu-img convert -O raw image.qcow2 converted
  cmp new converted
}
it "nbd: a qcow2 image behind qemu-nbd" behind_qemu

read_only_behind() {
  nbdkit_name=inner start_nbdkit -r memory 1M
  local behind=$uri
  for options in "" ,ro; do
    start_server --export "disk0=nbd:$behind$options"
    attach disk0
    nbdinfo "$uri" | tee info
    says info 'is_read_only: true'
    (($(grep -c 'so it is served read-only' server.log) == (${#options} == 0))) ||
      fail "the log tells wrongly of what is read-only: $(<server.log)"
    stop nbdkit
    stop server
  done
}
it "nbd: what another server exports read-only is served read-only, and the log says so" read_only_behind

server_behind_dies() {
  requires_python nbd
  nbdkit_name=inner start_nbdkit memory 1M
  start_server --export "disk0=nbd:$uri" --export other=memory:1M
  attach disk0
  nbdsh <<PY
assert h.pread(512, 0) == bytes(512)
os.kill(${pid[inner]}, 9)
fails_with(errno.EIO, h.pread, 512, 0)
fails_with(errno.EIO, h.pwrite, bytes(512), 0)
fails_with(errno.EIO, h.flush)
PY
  wait_end inner 10
  says server.log 'the NBD server is lost \((it closed the connection|.*(reset|pipe).*)\); .* open it anew'
  nbdkit_name=second attach other
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
}
it "nbd: when the server behind dies, requests fail with EIO and other exports live on" server_behind_dies

# successor_is_used SIGNAL: a server behind ends of it while somebody has the export open, and comes back.
successor_is_used() {
  requires_python nbd
  nbdkit_name=inner start_nbdkit memory 1M
  local behind=$uri
  start_server --export "disk0=nbd:$behind"
  attach disk0
  nbdsh <<PY
h.pwrite(bytes(512), 0)
os.kill(${pid[inner]}, signal.$1)
h.set_strict_mode(0)
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    try:
        h.pread(512, 0)
    except nbd.Error as error:
        assert error.errno == "EIO", error
        break
else:
    raise AssertionError("the server behind has not ended")
PY
  wait_end inner 10
  nbdkit_name=inner start_nbdkit memory 1M
  [[ $uri == "$behind" ]]
  uri="nbd+unix:///?socket=$case_dir/nbdkit.sock"
  nbdsh <<PY
h.pwrite(b"n" * 512, 0)
assert h.pread(512, 0) == b"n" * 512
PY
  stop nbdkit
  stop server # first: an nbdkit does not leave while it has a client
}

server_behind_is_told_to_end() {
  successor_is_used SIGTERM
  says server.log 'the NBD server is lost \((it is shutting down|.*closed the connection|.*(reset|pipe).*)\)'
}
it "nbd: a server behind that is told to end is let go, and its successor used" server_behind_is_told_to_end
it "nbd: when the server behind is back, who opens the export is served again" successor_is_used SIGKILL

# The server behind might carry out later what it was given.
cut_while_it_writes() {
  requires_python nbd
  nbdkit_name=inner start_nbdkit --filter=delay memory 1M wdelay=60
  local behind=$uri
  start_server --export "disk0=nbd:$behind"
  attach disk0 access=rw # so that the first write goes to the storage at once
  nbdsh <<PY
h.aio_pwrite(bytes(512), 0)
h.pread(512, 0) # it has had the write, too
os.kill(${pid[inner]}, 9)
fails_with(errno.EIO, h.pwrite, bytes(512), 0)
PY
  wait_end inner 10
  says server.log 'the NBD server is lost .* changes under way \([12]\) .* until rnbd-server is restarted'
  nbdkit_name=inner start_nbdkit memory 1M
  [[ $uri == "$behind" ]]
  uri="nbd+unix:///?socket=$case_dir/nbdkit.sock"
  nbdsh <<PY
assert h.pread(512, 0) == bytes(512)
fails_with(errno.EIO, h.pwrite, b"n" * 512, 0)
fails_with(errno.EIO, h.trim, 512, 0)
PY
  stop nbdkit
  stop server
  start_server --export "disk0=nbd:$behind"
  attach disk0
  nbdsh <<PY
h.pwrite(b"n" * 512, 0)
PY
  stop nbdkit
  stop server
}
it "nbd: when the connection is cut with changes under way, nothing is changed until a restart" \
  cut_while_it_writes

faults() {
  requires_python nbd
  start_server --export "disk0=fault:$1=1:memory:1M"
  attach disk0
  nbdsh <<PY
fails_with(errno.$2, $3)
$4
PY
}
it "fault: a read's EIO is EIO at the client, and writes still work" \
  faults read-eio EIO 'h.pread, 512, 0' 'h.pwrite(bytes(512), 0)'
it "fault: a write's EIO is EIO at the client, and reads still work" \
  faults write-eio EIO 'h.pwrite, bytes(512), 0' 'h.pread(512, 0)'
it "fault: ENOSPC is ENOSPC at the client" \
  faults write-enospc ENOSPC 'h.pwrite, bytes(512), 0' 'h.pread(512, 0)'
it "fault: ENOMEM is ENOMEM at the client" \
  faults read-enomem ENOMEM 'h.pread, 512, 0' 'h.pwrite(bytes(512), 0)'
it "fault: EPERM is EPERM at the client" \
  faults write-eperm EPERM 'h.pwrite, bytes(512), 0' 'h.pread(512, 0)'
it "fault: EINVAL is EINVAL at the client" \
  faults read-einval EINVAL 'h.pread, 512, 0' 'h.pwrite(bytes(512), 0)'
it "fault: a flush that fails is EIO at the client" \
  faults flush-eio EIO 'h.flush' 'h.pread(512, 0)'
it "fault: a trim that fails is EIO at the client" \
  faults discard-eio EIO 'h.trim, 4096, 0' 'h.pread(512, 0)'
it "fault: zeroing that fails is EIO at the client" \
  faults zero-eio EIO 'h.zero, 4096, 0' 'h.pread(512, 0)'

same_seed() {
  requires_python nbd
  local turn
  for turn in 1 2; do
    start_server --reactors 1 --export disk0=fault:seed=7,read-eio=0.3:memory:1M
    attach disk0 lanes=1
    nbdsh >"failed.$turn" <<'PY'
for i in range(200):
    try:
        h.pread(512, 0)
    except nbd.Error:
        print(i)
PY
    stop nbdkit
    stop server
  done
  cmp failed.1 failed.2
  (($(wc -l <failed.1) > 20 && $(wc -l <failed.1) < 120)) || fail "$(wc -l <failed.1) of 200 failed"
}
it "fault: one seed fails the same requests every time" same_seed

held_write() {
  requires_python nbd
  : >hold
  start_server --export "disk0=delay:hold-file=$PWD/hold,hold=1s:memory:1M"
  attach disk0
  limited /usr/bin/python3 - "$uri" <<'PY'
import os, sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
held = h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"h" * 512)), 0)
order = []
while os.path.exists("hold"):
    h.poll(100)
quick = h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"q" * 512)), 4096)
waiting = {held: "held", quick: "quick"}
while waiting:
    h.poll(-1)
    for cookie in list(waiting):
        if h.aio_command_completed(cookie):
            order.append(waiting.pop(cookie))
assert order == ["quick", "held"], order
PY
}
it "delay: a held write is overtaken by the next one" held_write

full_disk() {
  requires_python nbd
  ((EUID == 0)) || skip "only root can mount a small file system"
  mkdir small
  mount -t tmpfs -o size=4M tmpfs small 2>/dev/null || skip "cannot mount tmpfs here"
  at_end umount "$PWD/small"
  truncate -s 16M small/image
  start_server --export "disk0=$PWD/small/image"
  attach disk0
  nbdsh <<'PY'
h.pwrite(b"x" * (1 << 20), 0)
try:
    for i in range(16):
        h.pwrite(b"x" * (1 << 20), i << 20)
except nbd.Error as error:
    assert error.errnum == errno.ENOSPC, error
else:
    raise AssertionError("16 MiB went into 4 MiB")
assert h.pread(1 << 20, 0) == b"x" * (1 << 20)
PY
}
it "a full file system is ENOSPC at the client, and reads still work" full_disk

file_size_limit() {
  requires_python nbd
  truncate -s 8M image
  ulimit -S -f 2048
  start_server --export "disk0=$PWD/image" "$@"
  ulimit -S -f unlimited
  attach disk0
  nbdsh <<'PY'
fails_with(errno.ENOSPC, h.pwrite, b"x" * 4096, 4 << 20)
h.pwrite(b"y" * 4096, 0)
h.flush()
assert h.pread(4096, 0) == b"y" * 4096
PY
}
it "a limit of file sizes (ulimit -f) is an error of the write, not the end of the server" \
  file_size_limit
it "the same with threads instead of io_uring" file_size_limit --no-uring

# Holes are looked for on threads that are started when they are first needed.
no_more_threads() {
  ((EUID == 0)) || skip "only root can become a user who has no other process"
  requires setpriv
  requires_python nbd
  random_file image 1M
  truncate -s 4M image
  cp "$server_program" server
  chmod 666 image
  chmod 755 "$work_dir" "$case_dir" server
  local user=$((1000000000 + $$))
  install -d -o "$user" state
  export STATE_DIRECTORY=$PWD/state
  server_command=(setpriv "--reuid=$user" "--regid=$user" --clear-groups prlimit --nproc=9
    "${server_command[@]/#*rnbd-server/$PWD/server}")
  start_server --export "disk0=$PWD/image" --reactors 1 "$@"
  attach disk0
  nbdinfo --map "$uri" | tee map
  says map '1048576 +3145728 .*hole'
  nbdsh <<'PY'
h.pwrite(b"y" * 4096, 0)
h.flush()
assert h.pread(4096, 0) == b"y" * 4096
PY
}
it "a limit of threads makes a server slower and does not end it" no_more_threads
it "the same without io_uring" no_more_threads --no-uring

truncated() {
  requires_python nbd
  random_file image 4M
  start_server --export "disk0=$PWD/image"
  attach disk0
  nbdsh <<'PY'
before = h.pread(4096, 0)
os.truncate("image", 1 << 20)
try:
    data = h.pread(4096, 2 << 20)
    raise AssertionError("read beyond the end of a truncated image")
except nbd.Error as error:
    assert error.errnum == errno.EIO, error
assert h.pread(4096, 0) == before
PY
  fails nbdcopy "$uri" copy
}
it "an image that is truncated while it is served gives EIO where it ended" truncated

finish
