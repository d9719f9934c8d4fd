# shellcheck shell=bash
# Our plugin and our server, whose machine loses its power: what was not on its disk is gone.
# SPDX-License-Identifier: BSD-3-Clause

cuts=1
[[ -z ${FULL:-} ]] || cuts=10

serve() {
  modprobe virtio_blk
  # What nobody flushes stays in memory for as long as the case takes.
  echo 360000 >/proc/sys/vm/dirty_expire_centisecs
  rnbd_server --listen rdma:10.99.0.1:1234 --listen tcp:10.99.1.1:1234 --heartbeat 2s --export a=/dev/vda
}

use() {
  on server serve
  on client attach rnbd://10.99.0.1/a path=tcp:10.99.1.1:1234 heartbeat=2s no-path-timeout=0
}

power_comes_back() {
  cut_power server
  on client sleep 3
  power_on server
  on server serve
}

# ---- What was durable ----------------------------------------------------------------------------------

# Not in the case's folder, which is slow and cannot be mapped. See stamps.py.
stamps() {
  mkdir -p /tmp/stamps
  cd /tmp/stamps || exit
  python3 "$source_dir/tests/integration/stamps.py" "$@"
}
write_stamps() { stamps write "$nbd_uri" "$1"; }
answered() { # MORE-THAN
  [[ $(python3 -c 'print(int.from_bytes(open("/tmp/stamps/acked.0", "rb").read(), "little"))') -gt $1 ]]
}
enough_stamps() { touch /tmp/stamps/enough; }
hand_over() { cp /tmp/stamps/blocks.* "$case_dir"; }
disk_has_stamps() { python3 "$source_dir/tests/integration/stamps.py" check /dev/vda; }

durable_writes() {
  local writer cut writers=()
  use
  for writer in 0 1; do
    limit=900 on client write_stamps "$writer" & writers+=($!)
  done
  on client eventually 20 answered 50
  for ((cut = 1; cut <= cuts; cut++)); do
    power_comes_back
    on client eventually 60 answered $((50 + 50 * cut))
  done
  on client enough_stamps
  for writer in "${writers[@]}"; do wait "$writer"; done
  on client hand_over
  on server disk_has_stamps
}

# ---- What was not ----------------------------------------------------------------------------------------

flush() { python3 -c 'import os, sys; os.fsync(os.open(sys.argv[1], os.O_RDWR))' "$1"; }
# flush_fails DEVICE: with EIO
flush_fails() {
  python3 -c '
import errno, os, sys
try:
    os.fsync(os.open(sys.argv[1], os.O_RDWR))
except OSError as error:
    assert error.errno == errno.EIO, error
else:
    sys.exit("the flush succeeded, though what it was to make durable is lost")' "$1"
}

unflushed_writes() {
  use
  on client nbd_device
  on client write_block /dev/nbd0 0 D
  on client flush /dev/nbd0
  on client write_block /dev/nbd0 1 U
  power_comes_back
  on client block_is /dev/nbd0 0 D
  fails on client block_is /dev/nbd0 1 U # else the power was not cut
  on client flush_fails /dev/nbd0
  on client write_block /dev/nbd0 1 N
  on client flush /dev/nbd0
  power_comes_back
  on client block_is /dev/nbd0 1 N
  on client flush /dev/nbd0
}

boot server client
it_full "durable writes survive the power of the server's machine, and cost no error" durable_writes
it "the next flush fails when answered writes are lost with the power, and the one behind it works" unflushed_writes
finish
