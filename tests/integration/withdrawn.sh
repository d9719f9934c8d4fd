#!/bin/bash
# Keys and certificates that are withdrawn while their client shakes hands: wherever it is, it does not get
# in. FULL=1 stops it at each byte.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

ctl() { limited "${ctl_command[@]}" "$@"; }

# Bytes between two places where a handshake is stopped.
step=61
[[ -z ${FULL:-} ]] || step=1

# ---- Helpers --------------------------------------------------------------------------------------

# hold_at BYTES: a cable to the server that stops there, at $held_port.
hold_at() {
  local ready_read ready_write
  rm -f held go
  pipe ready_read ready_write
  spawn cable "$source_dir/tests/integration/holding.py" "$port" "$1" "$ready_write"
  exec {ready_write}>&-
  await_line "$ready_read" 20 || fail "there is no cable"
  held_port=$line
  exec {ready_read}<&-
}
held_or_over() { [[ -e held ]] || ! kill -0 "${pid[client]}" 2>/dev/null; }

# Lines of the server since the client came.
news() { tail -n "+$((before + 1))" server.log; }
is_in() { news | grep -q 'connected with'; }

# stops_everywhere: each time a client comes by $client_command, with `host1` in force. It is held, `withdraw`
# takes its key away, and it goes on. Until it is held only when it is in.
stops_everywhere() {
  local at stops=0
  for ((at = 0;; at += step)); do
    ((at < 20000)) || fail "the client never comes in"
    give
    before=$(wc -l <server.log)
    hold_at "$at"
    spawn client limited "${client_command[@]//PORT/$held_port}"
    eventually 60 held_or_over
    [[ -e held ]] || fail "the client is through after $at bytes, and its key was not withdrawn"
    is_in && break
    withdraw
    ctl --json "$PWD/control" reload >reloaded
    # What it has sent may be enough, and be read just now. One that is half open has no name.
    ! grep -q '"sessions_ended":\["[^"]' reloaded || break
    says reloaded '"sessions_ended":\[(""|)\]'
    : >go
    wait_end client $((60 * slow)) || fail "the client still runs, $at bytes after its beginning"
    ((status == 1)) || { cat client.out client.log; fail "status $status, after $at bytes"; }
    ! is_in || { news; fail "it came in after $at bytes, when its key was withdrawn"; }
    kill_hard cable
    stops=$((stops + 1))
  done
  if ! grep -q '"sessions_ended":\["[^"]' reloaded; then
    withdraw
    ctl --json "$PWD/control" reload >reloaded
    says reloaded '"sessions_ended":\["'
  fi
  : >go
  wait_end client $((60 * slow)) || fail "the client still runs"
  kill_hard cable
  echo "$stops places, $at bytes"
  ((stops > 3)) || fail "only $stops places"
}

# ---- Cases ----------------------------------------------------------------------------------------

# shared_key CLIENT...: the server is told $how.
shared_key() {
  ctl keygen host1 spare.psk --out host1.psk
  ctl keygen host2 keys.psk --out host2.psk
  give() { cat spare.psk >>keys.psk; }
  withdraw() { ctl keys keys.psk --remove host1; }
  start_server "${how[@]}" --tls-psk=keys.psk --export 'x=memory:1M,rw=*' --control "$PWD/control"
  client_command=("${ctl_command[@]}" discover "$@" connect-timeout=60s no-path-timeout=1s)
  stops_everywhere
}
over_tls() {
  local how=(--tls=require)
  shared_key "rnbds+tcp://host1@127.0.0.1:PORT?tls-psk-file=$PWD/host1.psk"
  says server.log "the key 'host1' was withdrawn"
}
it "TLS with a shared key that is withdrawn during the handshake lets nobody in" over_tls

certificate() {
  requires certtool
  ctl certgen tls --server localhost,127.0.0.1
  ctl certgen tls --client host1 --out host1
  printf '%s\n' 'crl_next_update = 30' 'crl_number = 1' >template
  certtool --generate-crl --load-ca-privkey tls/ca-key.pem --load-ca-certificate tls/ca-cert.pem \
    --load-certificate host1/client-cert.pem --template template --outfile revoked.pem
  give() { rm -f tls/ca-crl.pem; }
  withdraw() { cp revoked.pem crl.pem && mv crl.pem tls/ca-crl.pem; }
  # Certificates take more bytes.
  [[ -n ${FULL:-} ]] || step=151
  start_server --tls=require --tls-certificates=tls --export 'x=memory:1M,rw=host1' --control "$PWD/control"
  client_command=("${ctl_command[@]}" discover "rnbds+tcp://127.0.0.1:PORT?tls-certificates=$PWD/host1" connect-timeout=60s no-path-timeout=1s)
  stops_everywhere
  says server.log "the certificate of 'host1' was revoked"
}
it "TLS with a certificate that is revoked during the handshake lets nobody in" certificate

proof() {
  local how=(--tls=off --auth=psk)
  shared_key "rnbd+tcp://host1@127.0.0.1:PORT?auth-psk-file=$PWD/host1.psk"
  says server.log "the key 'host1' was withdrawn"
}
it "a proof of a shared key that is withdrawn during the handshake lets nobody in" proof

# ---- Another key of the same user -----------------------------------------------------------------

# A session of two paths. The second one comes again by a newer key, which is withdrawn.
newer_key() {
  requires_python nbd
  ctl keygen host1 keys.psk --out host1.psk
  start_server "${how[@]}" --tls-psk=keys.psk --export 'x=memory:1M,rw=*' --control "$PWD/control" --listen tcp:127.0.0.2:0
  local other
  other=$(grep -hoE '127\.0\.0\.2:[0-9]+' server.log | head -n 1)
  start_bridge "$scheme://host1@$address/x?$parameter=$PWD/host1.psk" --path "$other" --session two --control "$PWD/bridge.control"
  spawn client /usr/bin/python3 -c '
import nbd, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 512, 0)
time.sleep(3600)' "$uri"
  eventually 60 connected 2
  ctl keygen host1 keys.psk --out fresh.psk
  mv fresh.psk host1.psk
  ctl "$PWD/bridge.control" disconnect "$other"
  eventually 60 connected 1
  ctl "$PWD/bridge.control" reconnect "$other"
  eventually 60 connected 2
  ctl --json "$PWD/control" reload >reloaded
  says reloaded '"sessions_ended":\[\]'
  ctl keys keys.psk --remove host1/2
  ctl --json "$PWD/control" reload >reloaded
  says reloaded '"sessions_ended":\["two"\]'
  wait_for_line server.log "session 'two'.*the key 'host1/2' was withdrawn"
}
connected() { (($(ctl --json "$PWD/control" status | grep -o '"state":"connected"' | wc -l) == $1)); }
tls_path() {
  local how=(--tls=require) scheme=rnbds+tcp parameter=tls-psk-file
  newer_key
}
it "a path with TLS that came by another key of its user ends when that is withdrawn" tls_path
proven_path() {
  local how=(--tls=off --auth=psk) scheme=rnbd+tcp parameter=auth-psk-file
  newer_key
}
it "a path that has proven another key of its user ends when that is withdrawn" proven_path

finish
