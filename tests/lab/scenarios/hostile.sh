# shellcheck shell=bash
# Peers over RDMA that do harm, in both directions: one guest.
# SPDX-License-Identifier: BSD-3-Clause

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

clients() { limit=300 on server attack --source-file-exclude='*/server*_test*,*/proof_test*'; }
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

# The secrets are the last digit of the name, 32 times.
without_keys() {
  local before
  before=$(rdma resource show | tr -s ' ')
  (umask 077 && printf 'host%d:%s\n' 1 "$(printf '31%.0s' {1..32})" 2 "$(printf '32%.0s' {1..32})" >/tmp/keys.psk)
  rnbd_server --listen rdma:10.99.0.1:1234 --auth=psk --tls-psk /tmp/keys.psk --queue-depth 48 --max-io-size 64K \
    --max-sessions 8 --handshake-timeout 3s --heartbeat 1s --export disk0=memory:1M,rw=host1
  RNBD_TARGET=10.99.0.1:1234 run_doctest "$build_dir/bin/hostile_verbs" --duration=true --source-file='*/proof_test*'
  says rnbd-server.log 'auth refused peer=10.99.0.1:[0-9]+ listener=rdma:10.99.0.1:1234 user=host1 how=proof'
  stop rnbd-server
  [[ $(rdma resource show | tr -s ' ') == "$before" ]] || fail "the device holds more than before"
}
proofs() { limit=300 on server without_keys; }

boot server
it "clients that do harm lose their path or get an errno, the others notice nothing, nothing is left" clients
it_full "the same while every key is good for one request only" clients_with_new_keys
it "who does not prove a key over verbs gets no chunks, and nobody uses those of others" proofs
it_full "servers that do harm lose the path, the client says why, and neither crashes nor hangs" servers
finish
