# shellcheck shell=bash
# Bricks over RDMA: blocks that clients read and write one-sided, and keys that end under load: one guest.
# SPDX-License-Identifier: BSD-3-Clause

# serve REQUESTS EXPORT...: in a guest that may be slow. Memory for so many requests is locked for each session
# that comes. A client whose requests are all under way cannot give back what is recalled for them.
serve() {
  rnbd_server --listen rdma:10.99.0.1 --handshake-timeout 60s --heartbeat 5s --queue-depth "$1" "${@:2}"
}

# new_tier FILE SIZE: without a journal of an earlier try.
new_tier() {
  rm -f "$1" "$1.brick"
  truncate -s "$2" "$1"
}

# For each of the workers of brick_revoke.
start_bricks() {
  local i exports=()
  for i in {0..7}; do
    new_tier "/tmp/tier$i" 4M
    exports+=(--export "disk$i=brick:2M" --export "tiered$i=brick:2M,file=/tmp/tier$i")
  done
  serve 16 "${exports[@]}"
}
export_of() { serve 128 --export "disk0=brick:$1"; }

one_sided() {
  export_of "$1"
  RNBD_BRICK=rdma:10.99.0.1:1234 run_doctest "$build_dir/bin/brick_client"
  stop rnbd-server
}
with_tier() {
  new_tier /tmp/blocks 16M
  one_sided 4M,file=/tmp/blocks
}

# brick.sh makes 50 over TCP. Here each takes a second, because sessions come and go for it.
trials=10
[[ -z ${FULL:-} ]] || trials=1000

# revoked TRIALS: of each way to lose keys.
revoked() {
  start_bricks
  RNBD_TRIALS=$1 RNBD_BRICK=rdma:10.99.0.1:1234 run_doctest "$build_dir/bin/brick_revoke" --duration=true
  stop rnbd-server
}

passive() {
  new_tier /tmp/passive 32M
  export_of 16M,file=/tmp/passive
  attach rnbd://10.99.0.1/disk0 mode=passive
  nbd_device
  fio_verify /dev/nbd0 --size=32M
  nbd-client -d /dev/nbd0
  stop nbdkit
  stop rnbd-server
}

# Of 4 KiB, one after the other, in the same guest as the server.
latency() {
  export_of 8M
  RNBD_SERVER_PID=$(</run/rnbd-server.pid) RNBD_BRICK=rdma:10.99.0.1:1234 \
    run_doctest "$build_dir/bin/brick_client" --no-skip -tc='measure: *'
  stop rnbd-server
}

boot server
it "blocks are read and written one-sided, in memory" on server one_sided 8M
it_full "... and with a tier" on server with_tier
limit=5400 it "no byte lands behind the end of its key, in $trials trials of each kind" on server revoked "$trials"
it "a disk in mode=passive reads back what was written" on server passive
it_full "one-sided reads and writes take less than two-sided ones, and no time of the server" on server latency
finish
