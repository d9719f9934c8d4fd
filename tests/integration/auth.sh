#!/bin/bash
# The mutual proof without TLS, over plain TCP: who comes in, who does not, and why.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

ctl() { "${ctl_command[@]}" "$@"; }

# keys NAME...: a shared key for each; keys.psk is the server's, NAME.psk the client's.
keys() {
  local name
  for name in "$@"; do ctl keygen "$name" keys.psk --out "$name.psk"; done
}
# proven USER@ FILE: of the export x.
proven() { echo "rnbd+tcp://$1$address/x?auth-psk-file=$PWD/$2"; }
# start_proving [RIGHTS ARGUMENT...]: a server that takes proofs only.
start_proving() {
  start_server --tls=off --auth=psk --tls-psk=keys.psk --export "x=memory:16M,rw=${1:-*}" \
    --control "$PWD/control" "${@:2}"
}

right_key() {
  random_file image 16M
  keys host1
  start_proving host1
  attach_to "$(proven host1@ host1.psk)"
  nbdcopy --flush image "$uri"
  nbdcopy "$uri" copy
  cmp image copy
  ctl --json "$PWD/control" status | tee status
  says status '"identity":"host1"'
  says status '"proven_by":"proof"'
  says server.log 'connected with .*, proof host1'
  says server.log 'open ok .* identity=host1'
}
it "a client that proves a key is known by its user, and its data are right" right_key

by_keys() {
  keys host1 host2
  start_proving host2
  attach_to "rnbd+tcp://$address/x" "auth-psk=$PWD/keys.psk" auth-username=host2
  nbdinfo --size "$uri"
  says server.log 'proof host2'
}
it "the key can be named without the URI, and chosen from several" by_keys

wrong_key() {
  keys host1
  ctl keygen host1 wrong.psk
  ctl keygen nobody unknown.psk
  start_proving
  refused_client "$(proven host1@ wrong.psk)" "does not have this key.* .key 'host1'"
  refused_client "$(proven nobody@ unknown.psk)" "does not have this key.* .key 'nobody'"
  local by='auth refused peer=127\.0\.0\.1:[0-9]+ listener=tcp:127\.0\.0\.1:[0-9]+' name
  for name in host1 nobody; do
    wait_for_line server.log "$by user=$name how=proof why=\"it left and did not prove"
  done
}
it "a wrong key and a name that is not known are refused alike" wrong_key

long_name() {
  keys host1
  (umask 077 && printf '%060d/second:%064d\n' 1 1 >long.psk) # by another tool than ours
  start_proving
  refused_client "$(proven "" long.psk)" 'at most 64 characters'
}
it "a name that is too long for a proof is refused with the limit" long_name

no_proof() {
  keys host1
  start_proving
  refused_client "rnbd+tcp://$address/x" 'Permission denied' 'it wants a proof'
  says server.log 'auth refused .* user="" how=none why="it offers no proof of a key'
}
it "a client without a key is told that the server wants a proof" no_proof

no_server() {
  keys host1
  start_server --export x=memory:1M
  refused_client "$(proven host1@ host1.psk)" 'the server does not authenticate'
}
it "a client with a key refuses a server that proves nothing" no_server

listeners() {
  keys host1
  local -a common=("${server_command[@]}" --tls=off --tls-psk=keys.psk --export 'x=memory:1M,rw=@127.0.0.1')
  status_of 2 "${common[@]}" --auth=psk --listen tcp:127.0.0.1:0,auth=none
  says said 'write ,from='
  status_of 2 "${server_command[@]}" --auth=psk --export x=memory:1M,rw=*
  says said 'auth=psk needs keys'
  status_of 2 "${common[@]}" --listen tcp:127.0.0.1:0,auth=none,from=nowhere
  says said 'from=10.0.0.0/24'
  start_server --tls=off --tls-psk=keys.psk --auth=psk --export x=memory:1M,rw=@127.0.0.0/8 \
    --listen tcp:127.0.0.1:0,auth=none,from=127.0.0.0/8 --listen tcp:127.0.0.1:0,auth=none,from=10.0.0.0/8
  local -a ports
  mapfile -t ports < <(grep 'ready' server.log | grep -oE '127\.0\.0\.1:[0-9]+')
  refused_client "rnbd+tcp://${ports[0]}/x" 'it wants a proof'
  refused_client "rnbd+tcp://${ports[2]}/x" 'Permission denied'
  says server.log 'from= other networks'
  attach_to "rnbd+tcp://${ports[1]}/x"
  nbdinfo --size "$uri"
  says server.log 'open ok peer=127\.0\.0\.1:[0-9]+ identity="" session=.* export=x access=rw'
}
it "a client without a key comes in by a listener that says from where" listeners

# Without a device it waits, which is enough.
over_rdma() {
  keys host1
  start_server --tls-psk=keys.psk --export 'x=memory:1M,rw=*' --control "$PWD/control" \
    --listen rdma:10.99.0.1:1234,auth=psk
  ctl "$PWD/control" status | tee status
  says status '^rdma:10\.99\.0\.1:1234 .* off +psk '
  says server.log 'at rdma:10\.99\.0\.1:1234, but without TLS nothing is encrypted'
}
it_plugin "a listener over RDMA is shown, and warned of, as not encrypted, whatever keys there are" over_rdma

limited_user() {
  keys host1 host2
  start_proving '*' --max-sessions-per-user 1
  attach_to "$(proven host1@ host1.psk)" session=first
  nbdinfo --size "$uri"
  refused_client "$(proven host1@ host1.psk)" 'Cannot allocate memory' 'what one user may have'
  wait_for_line server.log 'too many sessions of one user \(--max-sessions-per-user\)'
  nbdinfo --size "$uri"
  nbdkit_name=second attach_to "$(proven host2@ host2.psk)" session=second
  nbdinfo --size "$uri"
}
it "a user who has all that one may have is told so, and another one comes in" limited_user

attacks() {
  keys host1 host2
  start_proving
  limited /usr/bin/python3 "$source_dir/tests/integration/auth_peer.py" "$port" keys.psk
  wait_for_line server.log 'auth refused .* user=host1 how=proof why="the client does not have the key"'
  wait_for_line server.log "auth refused .* user=host2 how=proof why=\"the key 'host2' was withdrawn"
  wait_for_line server.log 'auth refused .* how=proof why="its connections have proven different users"'
  wait_for_line server.log 'auth refused .* how=proof why="the session belongs to another user"'
}
it_plugin "replays, changed records, reflections and other users' keys are refused" attacks

# A quarter of the connections may wait to come in, which are 64 here. All come before anybody has said a byte.
crowd() {
  keys host1
  start_proving '*' --handshake-timeout 5min --max-connections 256
  limited /usr/bin/python3 - "$port" <<'END'
import socket, sys

def come(host):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])), source_address=(host, 0))
    one.settimeout(120)
    return one

def is_open(one):
    one.setblocking(False)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False

def wait_for_end(one):
    try:
        assert one.recv(1) == b""
    except ConnectionResetError:
        pass

honest = come("127.0.0.1")
many = [come("127.0.0.9") for _ in range(200)]
for one in many[: 201 - 64]:
    wait_for_end(one)
assert is_open(honest), "a host with one connection was turned away for one with many"
assert all(map(is_open, many[201 - 64:])), "more were turned away than had to be"
END
  attach_to "$(proven host1@ host1.psk)"
  nbdinfo --size "$uri"
}
it_plugin "a host that takes all places pushes only itself out" crowd

withdrawn() {
  keys host1 host2
  start_proving
  nbdkit_name=first attach_to "$(proven host1@ host1.psk)"
  nbdinfo --size "$uri"
  nbdkit_name=second attach_to "$(proven host2@ host2.psk)"
  ctl keys keys.psk --remove host1
  ctl --json "$PWD/control" reload | tee said
  wait_for_line server.log "the key 'host1' was withdrawn"
  nbdinfo --size "$uri"
  refused_client "$(proven host1@ host1.psk)" "does not have this key"
}
it "a key that is withdrawn ends its sessions at the reload, and no others" withdrawn

many_writers() {
  local i
  keys host1
  for i in {1..20}; do ctl keygen "u$i" keys.psk & done
  wait
  [[ $(grep -c : keys.psk) == 21 ]] || fail "$(cut -d: -f1 keys.psk)"
  for i in {1..20}; do
    ctl keys keys.psk --remove "u$i" &
    ctl keygen "v$i" keys.psk &
  done
  wait
  [[ $(cut -d: -f1 keys.psk | grep -c '^v') == 20 && $(grep -c : keys.psk) == 21 ]] || fail "$(cut -d: -f1 keys.psk)"
}
it "several who change a file of keys at the same time undo nothing of each other" many_writers

finish
