# shellcheck shell=bash
# Connecting, I/O and disconnecting again and again, in every pairing, leaves nothing behind.
# SPDX-License-Identifier: BSD-3-Clause

cycles=4
[[ -z ${FULL:-} ]] || cycles=50

# The first ones may leave what is used again.
warm_up=2

our_cycles() {
  local i
  for ((i = 0; i < $1; i++)); do
    attach "$2"
    qemu-io -f raw -c 'write -P 0x5a 0 300k' -c 'read -P 0x5a 0 300k' "$nbd_uri"
    stop nbdkit
  done
}
kernel_cycles() {
  local i device
  for ((i = 0; i < $1; i++)); do
    device=$(kernel_map cycle a ip:10.99.0.2@ip:10.99.0.1)
    dd if=/dev/urandom of="$device" bs=300k count=1 oflag=direct status=none
    dd if="$device" of=/dev/null bs=300k count=1 iflag=direct status=none
    kernel_unmap "$device"
    eventually 20 test ! -e "$device"
  done
}

# repeat_on_client CYCLES-FUNCTION [ARGUMENT] -- [PROGRAM-ON-SERVER]
repeat_on_client() {
  local what=("$1") and=()
  shift
  while [[ $1 != -- ]]; do and+=("$1") && shift; done
  shift
  on client "${what[@]}" "$warm_up" "${and[@]}"
  on client remember_held
  on server remember_held "$@"
  limit=600 on client "${what[@]}" "$cycles" "${and[@]}"
  on client holds_no_more
  on server holds_no_more "$@"
}

# What soft-RoCE still knows of it complains about now.
unload_all() {
  local module
  for module in rnbd_client rtrs_client rnbd_server rtrs_server; do
    [[ ! -e /sys/module/$module ]] || modprobe -r "$module"
  done
  rxe_down
  modprobe -r rdma_ucm rdma_rxe
}

ours_to_kernel() {
  on server ramdisk 16
  on server kernel_server
  repeat_on_client our_cycles rnbd://10.99.0.1/dev/ram0 --
  on client unload_all
  on server unload_all
}

serve() { rnbd_server --listen rdma:10.99.0.1:1234 --export a=memory:16M; }

kernel_to_ours() {
  on server serve
  repeat_on_client kernel_cycles -- rnbd-server
  on server stop rnbd-server
  on client unload_all
  on server unload_all
}

ours_to_ours() {
  on server serve
  repeat_on_client our_cycles rnbd://10.99.0.1/a -- rnbd-server
  on server stop rnbd-server
  on client unload_all
  on server unload_all
}

# One nbdkit, which makes a new session whenever the old one is lost.
use() { qemu-io -f raw -c 'write -P 0x5a 0 300k' -c 'read -P 0x5a 0 300k' "$nbd_uri"; }
restart() {
  stop rnbd-server
  serve
}
reload() {
  modprobe -r rnbd_server rtrs_server
  kernel_server
}

# renew CYCLES FUNCTION: the server comes anew by that, and is used.
renew() {
  local i
  for ((i = 0; i < $1; i++)); do
    on server "$2"
    on client use
  done
}
new_sessions() { # URI FUNCTION
  on client attach "$1"
  on client use
  renew "$warm_up" "$2"
  on client remember_held nbdkit
  renew "$cycles" "$2"
  on client holds_no_more nbdkit
}
new_sessions_with_ours() {
  on server serve
  new_sessions rnbd://10.99.0.1/a restart
}
new_sessions_with_kernel() {
  on server ramdisk 16
  on server kernel_server
  new_sessions rnbd://10.99.0.1/dev/ram0 reload
}

boot server client
it "$cycles sessions of our plugin with Linux's server leave nothing behind" ours_to_kernel
it "$cycles sessions of Linux's client with our server leave nothing behind" kernel_to_ours
it "$cycles sessions of our plugin with our server leave nothing behind" ours_to_ours
it "one nbdkit keeps nothing of $cycles sessions that our server ended" new_sessions_with_ours
it "one nbdkit keeps nothing of $cycles sessions that Linux's server ended" new_sessions_with_kernel
finish
