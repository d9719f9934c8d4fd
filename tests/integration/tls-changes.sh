#!/bin/bash
# Sessions with TLS under load, while keys and certificates are exchanged and paths fall silent. FULL=1 does
# each 100 times.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

ctl() { "${ctl_command[@]}" "$@"; }

times=3 outages=1
[[ -z ${FULL:-} ]] || times=100 outages=100

# ---- Under fio ---------------------------------------------------------------------------------------

needs_fio() {
  requires fio
  fio --enghelp 2>/dev/null | grep -qw nbd || skip "fio has no nbd engine here"
}
# fio_begins: it writes and verifies at $uri until fio_ends.
fio_begins() {
  spawn load fio --name=change --ioengine=nbd --uri="$uri" --rw=randrw --bs=16k --size=32M --iodepth=16 \
    --time_based --runtime=36000 --verify=crc32c --verify_fatal=1 --verify_dump=0 --do_verify=1 \
    --verify_backlog=64 --randseed="${SEED:-1}"
}
# It verifies what is left, and says how it went.
fio_ends() {
  kill -INT "${pid[load]}"
  wait_end load $((60 * slow)) || fail "fio still runs"
  cat load.out load.log
  says load.out 'err= 0'
  if grep -E 'verify: bad|verify failed|I/O error|Input/output' load.log load.out; then fail "fio saw an error"; fi
  grep -oE 'issued rwts: total=[0-9]+,[0-9]+' load.out
}

# in_use KEY: a session has come in by it.
in_use() { ctl --json "$PWD/control" status | grep -qF "\"key\":\"$1\""; }
out_of_use() { ! in_use "$1"; }
# exchanged OLD NEW: a reload ends the session of the old key, and the client comes back with the new one.
exchanged() {
  ctl --json "$PWD/control" reload | tee said
  says said '"sessions_ended":\["'
  eventually 60 in_use "$2"
  eventually 60 out_of_use "$1"
}
patient=(reconnect-min=20ms reconnect-max=200ms)

keys() {
  needs_fio
  ctl keygen host1 keys.psk --out host1.psk
  truncate -s 32M image
  start_server --tls=require --tls-psk=keys.psk --export "x=$PWD/image,rw=host1" --control "$PWD/control"
  attach_to "rnbds+tcp://host1@$address/x" "tls-psk=$PWD/host1.psk" tls-username=host1 "${patient[@]}"
  fio_begins
  eventually 60 in_use host1
  local i old=host1 new
  for ((i = 0; i < times; i++)); do
    ctl keygen host1 keys.psk --out fresh.psk
    new=$(sed 's/:.*//' fresh.psk)
    mv fresh.psk host1.psk
    ctl keys keys.psk --remove "$old"
    exchanged "$old" "$new"
    old=$new
  done
  fio_ends
}
it "a key is exchanged $times times under fio, which finds no error" keys

serial_of() { openssl x509 -in "$1/client-cert.pem" -noout -serial | sed 's/.*=//' | tr '[:upper:]' '[:lower:]'; }
# new_client N: another certificate for host1, which is in use from now on, with its key at once.
new_client() {
  ctl certgen tls --client host1 --out "host1-$1"
  ln -s "host1-$1" next
  mv -T next host1
}
# revoke DIRECTORY...: with all that were before.
revoke() {
  cat "$1/client-cert.pem" >>revoked.pem
  printf '%s\n' 'crl_next_update = 30' "crl_number = $2" >template
  certtool --generate-crl --load-ca-privkey tls/ca-key.pem --load-ca-certificate tls/ca-cert.pem \
    --load-certificate revoked.pem --template template --outfile crl.pem
  mv crl.pem tls/ca-crl.pem
}
# Both ends' certificates change; the server's own is another one for who connects next.
certificates() {
  needs_fio
  requires certtool openssl
  ctl certgen tls --server localhost,127.0.0.1
  new_client 0
  truncate -s 32M image
  start_server --tls=require --tls-certificates=tls --export "x=$PWD/image,rw=host1" --control "$PWD/control"
  attach_to "rnbds+tcp://$address/x" "tls-certificates=$PWD/host1" "${patient[@]}"
  fio_begins
  local i old new
  old=$(serial_of host1-0)
  eventually 60 in_use "$old"
  for ((i = 1; i <= times; i++)); do
    ctl certgen tls --server localhost,127.0.0.1
    new_client "$i"
    new=$(serial_of "host1-$i")
    [[ $new != "$old" ]] || fail "both certificates have the number $new"
    revoke "host1-$((i - 1))" "$i"
    exchanged "$old" "$new"
    old=$new
  done
  fio_ends
}
it "the certificates of both ends are exchanged $times times under fio, which finds no error" certificates

# ---- Two paths ---------------------------------------------------------------------------------------

# FULL=1: with the heartbeats that users have, for 3.5 s are about them.
silent() {
  requires_python nbd
  [[ -n ${FULL:-} ]] || patient+=("heartbeat=$((100 * slow))ms")
  ctl keygen host1 keys.psk --out host1.psk
  truncate -s 16M image
  start_server --tls=require --tls-psk=keys.psk --export "disk0=$PWD/image,rw=host1"
  start_forward 127.0.0.1
  local first=$forward_port i host
  start_forward 127.0.0.2
  attach_to "rnbds+tcp://host1@127.0.0.1:$first/disk0?tls-psk-file=$PWD/host1.psk" \
    "path=127.0.0.2:$forward_port" policy=round-robin "${patient[@]}"
  start_writers 65536
  for ((i = 0; i < outages; i++)); do
    host=127.0.0.$((1 + i % 2))
    freeze "forward$host"
    progress 20
    thaw "forward$host"
    carries 127.0.0.1 2000000
    carries 127.0.0.2 2000000
  done
  end_writers
  at_most "$longest" 3.5 || fail "a write took $longest s, and one path always worked"
  stop nbdkit
  end_forward 127.0.0.1
  end_forward 127.0.0.2
}
it "of two paths with TLS one says nothing any more, $outages times: the other takes over, no error, nothing lost" \
  silent

finish
