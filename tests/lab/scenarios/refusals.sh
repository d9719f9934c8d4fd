# shellcheck shell=bash
# What cannot work over RDMA is refused with the reason, on either side: one guest.
# SPDX-License-Identifier: BSD-3-Clause

server_says() {
  fails "$build_dir/bin/rnbd-server" --export disk0=memory:1M "${@:2}"
  says fails.out "$1"
}
# What may come later keeps the server waiting.
server_waits() {
  rnbd_server --export disk0=memory:1M "${@:2}"
  says rnbd-server.log "$1.*it is tried again every second"
  stop rnbd-server
  rm rnbd-server.log
}
# shellcheck disable=SC2016 # for nbdkit
ask_plugin() {
  "${as[@]+"${as[@]}"}" nbdkit -U - "$build_dir/nbdkit-plugin/nbdkit-rnbd-plugin.so" "$@" --run 'nbdinfo "$uri"'
}
plugin_says() {
  fails ask_plugin "${@:2}"
  says fails.out "$1"
}

no_device() {
  rxe_down
  server_waits "rdma link" --listen rdma:10.99.0.1:1234
  plugin_says "rdma link" rnbd://10.99.0.1/disk0
  modprobe -r rdma_rxe rdma_ucm
  server_waits "rdma link" --listen rdma:10.99.0.1:1234
  plugin_says "rdma link" rnbd://10.99.0.1/disk0
}

no_address() {
  rnbd_server --listen rdma:10.99.0.1:1234 --export disk0=memory:1M
  server_says "rdma:10.99.0.1:1234: Address already in use .*rdma resource show" \
    --listen rdma:10.99.0.1:1234
  stop rnbd-server
  server_waits "cannot listen on rdma:10.99.0.77:1234: .*no RDMA device" --listen rdma:10.99.0.77:1234
  server_waits "cannot listen on rdma:gid:fe80::77:1234: .*no RDMA device" \
    --listen 'rdma:[gid:fe80::77]:1234'
  plugin_says "10.99.0.1:4321 over RDMA: Connection refused .*is a server listening" rnbd://10.99.0.1:4321/disk0 connect-timeout=1s
  plugin_says "cannot connect to 10.99.0.77:1234 over RDMA" rnbd://10.99.0.77/disk0
  plugin_says "cannot connect to 192.0.2.1:1234 over RDMA" rnbd://192.0.2.1/disk0
  plugin_says "cannot connect to .gid:fe80::77.:1234 over RDMA: .*no RDMA device" "rnbd://[gid:fe80::77]/disk0"
  plugin_says "no-such-host.invalid" rnbd://no-such-host.invalid/disk0 connect-timeout=1s
}

# As somebody who may lock little memory only.
unprivileged() { (ulimit -l 64 && exec setpriv --reuid=1234 --regid=1234 --clear-groups "$@"); }

no_memory() {
  rnbd_server --listen rdma:10.99.0.1:1234 --export disk0=memory:1M
  as=(unprivileged)
  plugin_says "ulimit -l" rnbd://10.99.0.1/disk0
  as=()
  stop rnbd-server
  background small unprivileged "$build_dir/bin/rnbd-server" --listen rdma:10.99.0.1:1234 \
    --export disk0=memory:1M
  eventually 20 grep -q ready small.log
  says small.log 'warning: a path over RDMA locks 65 MiB, and only 64 KiB may be locked: .*ulimit -l'
  plugin_says "the peer closed the connection" rnbd://10.99.0.1/disk0
  says small.log "ulimit -l"
}

without_windows() { env LD_PRELOAD="$build_dir/tests/hostile/libno_windows.so" "$@"; }

# Only a server that listens on one address knows its device before a client comes.
no_windows() {
  local export=(--export disk0=memory:1M) windowless="RDMA device rxe0 does not have .leave always-invalidate out"
  fails without_windows "$build_dir/bin/rnbd-server" --listen rdma:10.99.0.1:1234 "${export[@]}" --always-invalidate
  says fails.out "$windowless"
  background windowless without_windows "$build_dir/bin/rnbd-server" --listen 'rdma:*:1234' \
    "${export[@]}" --always-invalidate --pid-file /run/windowless.pid
  eventually 20 grep -q ready windowless.log
  plugin_says "refused the session: Operation not supported .*its log says what" rnbd://10.99.0.1/disk0
  says windowless.log "$windowless"
  stop windowless
  # It is the option, not the device.
  background plain without_windows "$build_dir/bin/rnbd-server" --listen rdma:10.99.0.1:1234 "${export[@]}"
  eventually 20 grep -q ready plain.log
  ask_plugin rnbd://10.99.0.1/disk0
}

# The queue pairs' own numbers are part of it, which only a device has.
proofs() {
  local ctl="$build_dir/bin/rnbd-ctl"
  umask 077
  "$ctl" keygen host1 keys.psk --out host1.psk
  "$ctl" keygen host1 wrong.psk
  rnbd_server --listen rdma:10.99.0.1:1234 --listen rdma:10.99.0.1:1235,auth=none,from=192.0.2.0/24 \
    --listen rdma:10.99.0.1:1236,auth=none,from=10.99.0.0/24 --auth=psk --tls-psk "$PWD/keys.psk" \
    --export disk0=memory:1M,rw=host1,ro=@10.99.0.0/24
  ask_plugin "rnbd://host1@10.99.0.1/disk0?auth-psk-file=$PWD/host1.psk"
  says rnbd-server.log "connected with .* connections, proof host1"
  plugin_says "does not have this key, or another secret" "rnbd://host1@10.99.0.1/disk0?auth-psk-file=$PWD/wrong.psk" \
    connect-timeout=2s
  plugin_says "Permission denied .it wants a proof" rnbd://10.99.0.1/disk0
  plugin_says "Permission denied" rnbd://10.99.0.1:1235/disk0
  plugin_says "the server does not authenticate" \
    "rnbd://host1@10.99.0.1:1236/disk0?auth-psk-file=$PWD/host1.psk" connect-timeout=2s
  ask_plugin rnbd://10.99.0.1:1236/disk0
}

boot server
it "no RDMA device" on server no_device
it "no such address, and a port that is in use" on server no_address
it "too little memory may be locked: both sides name the limit" on server no_memory
it "a device without memory windows: always-invalidate is refused with the reason" on server no_windows
it "who proves no key comes in only by a listener that says from where" on server proofs
finish
