#!/bin/bash
# mode=passive: blocks of a brick that a client has mapped are read and written one-sided, and whatever
# happens to server, paths and maps meanwhile, every byte is the one that was written. FULL=1 kills more.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

quick=("heartbeat=$((100 * slow))ms" reconnect-min=20ms reconnect-max=200ms)
kills=3
[[ -z ${FULL:-} ]] || kills=200

# start_brick SPECIFICATION: exported as disk0.
start_brick() { start_server --export "disk0=brick:$1" --control "$PWD/control"; }
attach_passive() { attach disk0 mode=passive "$@"; }

# maps: how many blocks of disk0 are mapped.
maps() { limited "${ctl_command[@]}" "$PWD/control" brick | awk '$1 == "disk0" { print $6 }'; }
has_maps() { (($(maps) > 0)); }
has_no_maps() { (($(maps) == 0)); }

# verified NAME FIO-OPTIONS...: one fio job on $uri that must end without an error.
verified() {
  local name=$1
  shift
  limited fio --name="$name" --ioengine=nbd --uri="$uri" --verify=crc32c --verify_fatal=1 --verify_dump=0 \
    --randseed=1 --iodepth=16 "$@" | tee "$name.txt"
  says "$name.txt" 'err= 0'
}
requires_fio() {
  requires fio
  fio --enghelp 2>/dev/null | grep -qw nbd || skip "fio has no nbd engine here"
}

# A second run, over an ordinary client, reads all that the first one has written.
verify_load() {
  requires_fio
  local size=$1
  attach_passive
  verified load --rw=randwrite --bs=16k --size="$size" --do_verify=1 --fsync=128
  verified mixed --rw=randrw --bssplit=512/10:4k/40:64k/30:1m/20 --size="$size" --do_verify=1 \
    --verify_backlog=64 --time_based --runtime=3 &
  local load=$!
  eventually 20 has_maps
  wait "$load"
  verified load --rw=randwrite --bs=16k --size="$size" --do_verify=1
  stop nbdkit
  eventually 20 has_no_maps
  attach disk0
  verified load --rw=randwrite --bs=16k --size="$size" --verify_only
}
in_memory() {
  start_brick 32M
  verify_load 32M
}
it "what is written one-sided reads back, also two-sided, in memory" in_memory
with_tier() {
  truncate -s 32M tier
  start_brick "8M,file=$PWD/tier"
  verify_load 32M
}
it "what is written one-sided reads back, also two-sided, of four times as much as memory has" with_tier

copied() {
  random_file image 16M
  truncate -s 16M tier
  start_brick "8M,file=$PWD/tier"
  attach_passive
  nbdcopy --flush image "$uri"
  nbdcopy "$uri" copy
  cmp image copy
  stop nbdkit
  attach disk0
  nbdcopy "$uri" again
  cmp image again
}
it "nbdcopy copies an image to a brick and back" copied

without_server() {
  requires_python nbd
  start_brick 8M
  attach_passive
  ctl="${ctl_command[*]} $PWD/control" nbdsh <<'PY'
def ctl(command, row):
    return [line.split() for line in os.popen(f"{os.environ['ctl']} {command}") if line.startswith(row)]
def maps():
    return int(ctl("brick", "disk0")[0][5])
def requests():
    return sum(int(row[-1]) for row in ctl("metrics", "rnbd_export_ops_total{"))
deadline = time.monotonic() + 20
while maps() == 0:
    assert time.monotonic() < deadline
    for i in range(10): h.pwrite(b"a" * 4096, 0)
before = requests()
assert before > 0
for i in range(1000):
    h.pwrite(bytes([i % 256]) * 4096, 4096 * (i % 16))
    assert h.pread(4096, 4096 * (i % 16)) == bytes([i % 256]) * 4096
after = requests()
assert after - before < 100, f"the server has carried out {after - before} requests"
PY
}
it "requests to mapped blocks do not come to the server" without_server

# A user whose writes are of another size, at odd places, beside trims and zeroes: all of that is two-sided.
patchwork() {
  requires_python nbd
  truncate -s 8M tier
  start_brick "4M,file=$PWD/tier"
  attach_passive
  nbdsh <<'PY'
import random
h.set_strict_mode(0)
dice = random.Random(3)
size = 4 << 20
model = bytearray(size)
for step in range(1500):
    at, what = dice.randrange(size), dice.randrange(10)
    length = min(dice.choice((1, 77, 512, 4096, 65536, 3 << 20)), size - at)
    if what < 4: at, length = at // 4096 * 4096, min(4096, size - at // 4096 * 4096)
    if what < 7:
        data = dice.randbytes(min(length, 65536))
        length = len(data)
        h.pwrite(data, at, nbd.CMD_FLAG_FUA if dice.randrange(20) == 0 else 0)
        model[at:at + length] = data
    elif what == 7:
        h.zero(length, at)
        model[at:at + length] = bytes(length)
    elif what == 8 and step % 10 == 0:
        h.flush()
    else:
        assert h.pread(length, at) == model[at:at + length], f"step {step}"
assert h.pread(size, 0) == model
PY
}
it "requests of all kinds see each other's bytes" patchwork

# compare_copy: what the writers were told, against all that an ordinary client reads.
compare_copy() {
  stop nbdkit
  attach disk0
  nbdcopy "$uri" copy
  "$here/stamps.py" check copy
}
server_killed() {
  requires_python nbd
  truncate -s 16M tier
  start_brick "8M,file=$PWD/tier"
  attach_passive "${quick[@]}"
  start_writers 65536
  local i
  local server_port=$port
  for ((i = 0; i < kills; i++)); do
    eventually 20 has_maps
    kill_hard server
    start_brick "8M,file=$PWD/tier"
    progress 5
  done
  end_writers
  compare_copy
}
it "the server is killed $kills times under durable writes: no error, nothing lost" server_killed

# The last user leaves before anybody knows whether its one-sided writes can still land.
left_in_doubt() {
  requires_python nbd
  start_brick 8M
  attach_passive "${quick[@]}"
  spawn client /usr/bin/python3 -c '
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
while True:
    h.pwrite(b"a" * 4096, 0)
' "$uri"
  eventually 20 has_maps
  kill_hard server
  kill_hard client
  says nbdkit.log "'disk0': its users have left before the server has said that a lost memory path is over"
}
it "who leaves before the end of a lost memory path is known says so in the log" left_in_doubt

# The preferred path, which carries the memory path too, is cut; the other one remains.
path_cut() {
  requires_python nbd
  truncate -s 16M tier
  start_brick "8M,file=$PWD/tier"
  start_forward 127.0.0.2
  attach_to "rnbd+tcp://127.0.0.2:$forward_port/disk0?mode=passive" "${quick[@]}" settle-time=100ms \
    "path=127.0.0.1:$port,preference=-1"
  start_writers 65536
  local i
  for ((i = 0; i < kills; i++)); do
    eventually 20 has_maps
    end_forward 127.0.0.2
    progress 5
    start_forward 127.0.0.2 "$forward_port"
    progress 5
  done
  end_writers
  end_forward 127.0.0.2
  compare_copy
}
it "the memory path is lost $kills times under durable writes: no error, nothing lost" path_cut

# Each of three clients would map half of the memory: blocks are recalled all the time.
readers() {
  requires_python nbd
  random_file image 16M
  truncate -s 16M tier
  start_brick "8M,file=$PWD/tier"
  attach disk0
  nbdcopy --flush image "$uri"
  stop nbdkit
  local i
  for i in 1 2 3; do
    nbdkit_name=nbdkit$i attach_passive access=ro
    spawn "reader$i" /usr/bin/python3 -c '
import random, sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
image = open("image", "rb").read()
dice = random.Random(int(sys.argv[2]))
for round in range(20):
    block = dice.randrange(8) << 21
    for i in range(30):
        at = block + 4096 * dice.randrange(512)
        assert h.pread(4096, at) == image[at:at + 4096], at
' "$uri" "$i"
  done
  for i in 1 2 3; do
    wait_end "reader$i" 120 || fail "reader $i does not end"
    cat "reader$i.log"
    ((status == 0)) || fail "reader $i read something else"
  done
}
it "clients that want more maps than memory has take turns, and read what was written" readers

elsewhere() {
  start_server --export disk0=memory:4M
  attach_passive
  nbdcopy --flush -- /dev/null "$uri" || true
  says nbdkit.log 'mode=passive has no effect'
}
it "a disk that is no brick is used as without it, with a warning" elsewhere

mistakes() {
  local wrong
  for wrong in mode=active mode=; do
    status_of 1 "${nbdkit_command[@]}" -f -U "$PWD/x.sock" "$plugin" rnbd+tcp://127.0.0.1/disk0 "$wrong"
    says said "is none of two-sided, passive"
  done
  status_of 1 "${nbdkit_command[@]}" -f -U "$PWD/x.sock" "$plugin" rnbd+tcp://127.0.0.1/disk0?mode=passive \
    extensions=false
  says said "mode=passive contradicts extensions=false"
}
[[ $face == bridge ]] || it "what contradicts mode=passive is refused" mistakes

finish
