# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
# A disk for a virtual machine, by vhost-user-blk. Source it behind lib.sh.

# serve_disk [BRIDGE-OPTIONS...]: a disk of 64 MiB, with random content in its first half, for a machine at vm.sock.
serve_disk() {
  truncate -s 64M image
  head -c 32M /dev/urandom | dd of=image conv=notrunc status=none
  start_server --export "disk0=$PWD/image"
  start_vhost "$@"
}
# start_vhost [BRIDGE-OPTIONS...]: the bridge in front of disk0.
start_vhost() {
  local ready_read ready_write
  pipe ready_read ready_write
  spawn bridge "${bridge_command[@]}" --listen "vhost:$PWD/vm.sock" --control "$PWD/bridge.control" \
    --ready-fd "$ready_write" "$@" "rnbd+tcp://$address/disk0"
  exec {ready_write}>&-
  await_line "$ready_read" 20 || fail "rnbd-bridge did not become ready"
  says <(echo "$line") 'listening on vhost:'
  exec {ready_read}<&-
}
