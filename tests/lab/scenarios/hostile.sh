# shellcheck shell=bash
# Peers over RDMA that do harm, in both directions, and what goes wrong without any: one guest.

# 48 chunks, so that not every number of an immediate is one; short deadlines, because tests wait for
# them.
# `crude` has 4096-byte blocks and neither DISCARD nor WRITE ZEROES.
start_victim() { # [OPTION...]
  truncate -s 16M /tmp/image /tmp/doomed
  truncate -s 1M /tmp/crude
  background crude nbdkit -f -U /run/crude.sock -P /run/crude.pid --filter=blocksize-policy \
    --filter=nozero split /tmp/crude blocksize-minimum=4096
  eventually 30 ready_or_ended crude
  rnbd_server --log-level debug --listen rdma:10.99.0.1:1234 --queue-depth 48 --max-io-size 64K --max-sessions 8 \
    --handshake-timeout 3s --heartbeat 1s --export disk0=/tmp/image --export doomed=/tmp/doomed \
    --export small=memory:1M --export readonly=memory:1M,ro \
    --export slow=delay:read=2s:memory:1M --export slow-writes=delay:write=2s:memory:1M --export crude='nbd+unix:///?socket=/run/crude.sock' "$@"
}

# attack [--always-invalidate] DOCTEST-ARGUMENTS...: afterwards nothing is held but what each of the server's threads keeps from
# its first use of an export on.
attack() {
  local options=()
  export RNBD_TARGET=10.99.0.1:1234 RNBD_SERVER_LOG=$case_dir/rnbd-server.log
  if [[ $1 == --always-invalidate ]]; then
    options=("$1")
    export RNBD_NEW_KEYS=1
    shift
  fi
  start_victim "${options[@]}"
  held rnbd-server >/tmp/empty
  for _ in 1 2; do
    run_doctest "$build_dir/bin/hostile_verbs" --no-skip --test-case='helper: an honest client'
  done
  eventually 20 no_connection_left
  remember_held rnbd-server
  run_doctest "$build_dir/bin/hostile_verbs" --duration=true "$@"
  holds_no_more rnbd-server
  stop rnbd-server
  stop crude
}
no_connection_left() { [[ $(rdma resource show | tr -s ' ') == "$(grep rxe /tmp/empty)" ]]; }

clients() { limit=300 on server attack --source-file-exclude='*/server*_test*'; }
clients_with_new_keys() {
  limit=300 on server attack --always-invalidate \
    --source-file='*/request_test*,*/flood_test*,*/message_test*'
}

# The servers are the test's own.
attack_client() {
  local before
  before=$(rdma resource show | tr -s ' ')
  RNBD_TARGET=10.99.0.1:1 run_doctest "$build_dir/bin/hostile_verbs" --duration=true \
    --source-file='*/server*_test*'
  [[ $(rdma resource show | tr -s ' ') == "$before" ]] || fail "the device holds more than before"
}
servers() { limit=300 on server attack_client; }

# ---- Nobody does harm, but it cannot work ------------------------------------------------------------

server_says() {
  fails "$build_dir/bin/rnbd-server" --export disk0=memory:1M "${@:2}"
  says fails.out "$1"
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
  server_says "rdma link" --listen rdma:10.99.0.1:1234
  plugin_says "rdma link" rnbd://10.99.0.1/disk0
  modprobe -r rdma_rxe rdma_ucm
  server_says "rdma link" --listen rdma:10.99.0.1:1234
  plugin_says "rdma link" rnbd://10.99.0.1/disk0
}

no_address() {
  rnbd_server --listen rdma:10.99.0.1:1234 --export disk0=memory:1M
  server_says "rdma:10.99.0.1:1234: Address already in use .*rdma resource show" \
    --listen rdma:10.99.0.1:1234
  server_says "cannot listen on rdma:10.99.0.77:1234: .*no RDMA device" --listen rdma:10.99.0.77:1234
  server_says "cannot listen on rdma:127.0.0.1:1234: .*no RDMA device" --listen rdma:127.0.0.1:1234
  server_says "cannot listen on rdma:gid:fe80::77:1234: .*no RDMA device" \
    --listen 'rdma:[gid:fe80::77]:1234'
  plugin_says "10.99.0.1:4321 over RDMA: Connection refused .*is rnbd-server" rnbd://10.99.0.1:4321/disk0
  plugin_says "cannot connect to 10.99.0.77:1234 over RDMA" rnbd://10.99.0.77/disk0
  plugin_says "cannot connect to 192.0.2.1:1234 over RDMA" rnbd://192.0.2.1/disk0
  plugin_says "cannot connect to .gid:fe80::77.:1234 over RDMA: .*no RDMA device" "rnbd://[gid:fe80::77]/disk0"
  plugin_says "no-such-host.invalid" rnbd://no-such-host.invalid/disk0
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

boot server
it "clients that do harm lose their path or get an errno, the others notice nothing, nothing is left" clients
it_full "the same while every key is good for one request only" clients_with_new_keys
it "servers that do harm lose the path, the client says why, and neither crashes nor hangs" servers
it "no RDMA device" on server no_device
it "no such address, and a port that is in use" on server no_address
it "too little memory may be locked: both sides name the limit" on server no_memory
it "a device without memory windows: always-invalidate is refused with the reason" on server no_windows
finish
