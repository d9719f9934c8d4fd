#!/bin/bash
# TLS between client and server: who comes in, who does not, and why; with the keys of rnbd-ctl and of others.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

ctl() { "${ctl_command[@]}" "$@"; }

# keys NAME...: a shared key for each; keys.psk is the server's, NAME.psk the client's.
keys() {
  local name
  for name in "$@"; do ctl keygen "$name" keys.psk --out "$name.psk"; done
}
# certificates NAME: tls/ is the server's directory, NAME/ the client's.
certificates() {
  ctl certgen tls --server localhost,127.0.0.1
  ctl certgen tls --client "$1" --out "$1"
}
# uri_of USER@ QUERY: of the export x.
encrypted() { echo "rnbds+tcp://$1$address/x?$2"; }

shared_key() {
  random_file image 16M
  keys host1
  start_server --tls=require --tls-psk=keys.psk --export "x=$PWD/image,rw=*" --control "$PWD/control"
  attach_to "$(encrypted host1@ "tls-psk-file=$PWD/host1.psk")"
  nbdcopy "$uri" copy
  cmp image copy
  random_file other 16M
  nbdcopy --flush other "$uri"
  cmp other image
  ctl "$PWD/control" status | tee status
  says status 'tls13/aes128gcm host1'
  says status 'require'
  says server.log 'tls13/aes128gcm host1'
}
it "with a shared key everything is copied in and out, and the server knows the client's name" shared_key

by_keys() {
  keys host1
  start_server --tls=require --tls-psk=keys.psk --export x=memory:1M,rw=*
  attach_to "rnbd+tcp://$address/x" tls=require "tls-psk=$PWD/host1.psk" tls-username=host1
  nbdinfo --size "$uri"
}
it_plugin "TLS can be asked for with keys in place of the URI" by_keys

x509() {
  random_file image 16M
  certificates host7
  start_server --tls=require --tls-certificates=tls --export "x=$PWD/image,rw=*" --control "$PWD/control"
  attach_to "$(encrypted '' "tls-certificates=$PWD/host7")"
  nbdcopy "$uri" copy
  cmp image copy
  ctl --json "$PWD/control" status | tee status
  says status '"identity":"host7"'
  says status '"proven_by":"tls-x509"'
}
it_plugin "with certificates everything is copied, and the client's common name is its identity" x509

keys_of_others() {
  psktool -u host1 -p others.psk
  chmod 600 others.psk
  start_server --tls=require --tls-psk=others.psk --export x=memory:1M,rw=*
  attach_to "$(encrypted host1@ "tls-psk-file=$PWD/others.psk")"
  nbdinfo --size "$uri"
}
it_plugin "a file of psktool serves both ends" keys_of_others

# ---- Refusals --------------------------------------------------------------------------------------

wrong_key() {
  keys host1 host2
  ctl keygen host1 wrong.psk
  status_of 1 "${ctl_command[@]}" keygen '#1' comment.psk
  says said 'begins with #, which makes its line a comment'
  [[ ! -e comment.psk ]] || fail "a key that nobody can use was written"
  start_server --tls=require --tls-psk=keys.psk --export x=memory:1M,rw=*
  refused_client "$(encrypted host1@ "tls-psk-file=$PWD/wrong.psk")" \
    "it does not have the key 'host1', or another secret for it"
  ctl keygen host9 unknown.psk
  refused_client "$(encrypted host9@ "tls-psk-file=$PWD/unknown.psk")" \
    "it does not have the key 'host9', or another secret for it"
  local name
  for name in host1 host9; do
    says server.log "auth refused .* user=$name how=tls-psk why=\"it does not have a key that this server has\""
  done
}
it_plugin "a wrong key and a name that is not known are refused alike" wrong_key

plain_client() {
  keys host1
  start_server --tls=require --tls-psk=keys.psk --export x=memory:1M,rw=*
  refused_client "rnbd+tcp://$address/x" 'Protocol not supported' 'it wants TLS: write rnbds\+tcp://'
  says server.log 'auth refused .* user="" how=none why="it comes without TLS, which this listener requires'
}
it_plugin "a client in clear is told to use TLS, and does not come in" plain_client

plain_server() {
  keys host1
  start_server --export x=memory:1M,rw=*
  refused_client "$(encrypted host1@ "tls-psk-file=$PWD/host1.psk")" 'TLS'
  says server.log 'it begins with TLS, which this listener does not have'
}
it_plugin "a client with TLS sends nothing to a server without it" plain_server

bad_certificates() {
  certificates host1
  ctl certgen other --client host1 --out stranger
  cp tls/ca-cert.pem stranger/
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=*
  refused_client "$(encrypted '' "tls-certificates=$PWD/stranger")" "its log says why"
  says server.log 'its certificate does not hold'
  mkdir none
  cp tls/ca-cert.pem none/
  refused_client "$(encrypted '' "tls-certificates=$PWD/none")" 'it wants a certificate of this client'
  ctl certgen other --server wrong.example
  cp host1/client-* other/
  refused_client "$(encrypted '' "tls-certificates=$PWD/other")" 'its certificate does not hold'
}
it_plugin "certificates of another authority are refused, and so is a client without any" bad_certificates

wrong_host() {
  ctl certgen tls --server other.example
  ctl certgen tls --client host1 --out host1
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=*
  refused_client "$(encrypted '' "tls-certificates=$PWD/host1")" 'its certificate does not hold'
  attach_to "$(encrypted '' "tls-certificates=$PWD/host1&tls-verify=false")"
  nbdinfo --size "$uri"
}
it_plugin "a server whose certificate names another host is left, unless the client does not look" wrong_host

open_files() {
  keys host1
  chmod 644 keys.psk
  status_of 1 "${server_command[@]}" --listen tcp:127.0.0.1:0 --tls-psk=keys.psk --export x=memory:1M,rw=*
  says said 'chmod 600'
  chmod 600 keys.psk
  echo 'host2:1234' >>keys.psk
  status_of 1 "${server_command[@]}" --listen tcp:127.0.0.1:0 --tls-psk=keys.psk --export x=memory:1M,rw=*
  says said 'line 2: the key has 2 bytes'
  status_of 2 "${server_command[@]}" --listen tcp:127.0.0.1:0 --tls=require --export x=memory:1M,rw=*
  says said 'TLS needs keys'
  status_of 2 "${server_command[@]}" --listen rdma:127.0.0.1:0 --tls-psk=keys.psk --export x=memory:1M,rw=*
  says said 'RDMA does not encrypt'
}
it_plugin "keys that others can read, that are too short or that are missing are refused at the start" open_files

no_rdma() {
  if [[ $face == bridge ]]; then
    status_of 2 "${bridge_command[@]}" rnbds://127.0.0.1/x
  else
    status_of 1 nbdkit -U - "$plugin" rnbds://127.0.0.1/x
  fi
  says said 'RDMA does not encrypt'
}
it "rnbds:// is refused with what to write instead" no_rdma

# ---- On the way ------------------------------------------------------------------------------------

# recorded: a cable in front of the server, at $address, that keeps all it has carried in `wire`.
recorded() {
  local ready_read ready_write line
  pipe ready_read ready_write
  spawn cable python3 - "$port" "$ready_write" <<'PYTHON'
import os, socket, sys, threading
out = open("wire", "wb", buffering=0)
def pump(source, sink):
    try:
        while data := source.recv(1 << 16):
            out.write(data)
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
server = socket.create_server(("127.0.0.1", 0))
os.write(int(sys.argv[2]), f"{server.getsockname()[1]}\n".encode())
while True:
    near, _ = server.accept()
    far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
PYTHON
  exec {ready_write}>&-
  await_line "$ready_read" 20
  exec {ready_read}<&-
  address=127.0.0.1:$line
}
trap_stop_cable() { kill_hard cable; }

not_in_clear() {
  keys host1
  start_server --tls=on --tls-psk=keys.psk --export x=memory:1M,rw=*,rw=@127.0.0.1
  recorded
  nbdkit_name=clear attach_to "rnbd+tcp://$address/x"
  nbdsh <<<'h.pwrite(b"planted-in-clear" * 256, 0, nbd.CMD_FLAG_FUA)'
  stop clear
  grep -q 'planted-in-clear' wire || fail "the cable does not see what is sent in clear"
  attach_to "$(encrypted host1@ "tls-psk-file=$PWD/host1.psk")"
  nbdsh <<<'h.pwrite(b"planted-with-tls" * 256, 0, nbd.CMD_FLAG_FUA)'
  nbdsh <<<'assert h.pread(16, 0) == b"planted-with-tls"'
  stop nbdkit
  trap_stop_cable
  if grep -q 'planted-with-tls' wire; then fail "what was written is readable on the way"; fi
}
it_plugin "what is written is not seen on the way" not_in_clear

fail_over() {
  keys host1
  server_port=0 start_server --tls=require --tls-psk=keys.psk --export x=memory:8M,rw=*
  local direct=$address
  recorded
  attach_to "$(encrypted host1@ "tls-psk-file=$PWD/host1.psk")" "path=$direct" \
    reconnect-min=50ms reconnect-max=100ms
  nbdsh <<<'h.pwrite(b"a" * 65536, 0)'
  trap_stop_cable
  nbdsh <<<'
for i in range(200): h.pwrite(bytes([i]) * 65536, i % 64 * 65536)
assert h.pread(65536, 0) == bytes([192]) * 65536'
}
it "a path with TLS that is cut is replaced by another one, without an error" fail_over

rotation() {
  keys host1
  start_server --tls=require --tls-psk=keys.psk --export x=memory:8M,rw=* --control "$PWD/control"
  nbdkit_name=before attach_to "$(encrypted host1@ "tls-psk-file=$PWD/host1.psk")"
  local before=$uri
  nbdsh "$before" <<<'h.pwrite(b"b" * 4096, 0)'
  ctl keygen host1 keys.psk --out renewed.psk
  nbdkit_name=after attach_to "$(encrypted host1@ "tls-psk-file=$PWD/renewed.psk")"
  nbdsh <<<'assert h.pread(4096, 0) == b"b" * 4096'
  nbdsh "$before" <<<'h.pwrite(b"c" * 4096, 0)'
  ctl --json "$PWD/control" status | tee status
  says status '"key":"host1/2"'
  grep -v '^host1:' keys.psk >fewer.psk
  chmod 600 fewer.psk
  mv fewer.psk keys.psk
  refused_client "$(encrypted host1@ "tls-psk-file=$PWD/host1.psk")" "it does not have the key 'host1'"
  nbdsh "$before" <<<'assert h.pread(4096, 0) == b"c" * 4096'
}
it "a key is exchanged without a restart and without a pause" rotation

sha256_of() { python3 -c 'import hashlib, sys; print(hashlib.sha256(bytes.fromhex(sys.argv[1])).hexdigest())' "$1"; }
# fingerprint FILE NAME: of the key, as it is shown.
fingerprint() { ctl keys "$1" | awk -v name="$2" '$1 == name { print $3 }'; }

shown_keys() {
  keys host1 host2
  ctl keygen host1 keys.psk
  local shown secret
  ctl keys keys.psk | tee said
  says said '^host1 +host1 +[0-9a-f]{16} +-$'
  says said '^host1/2 +host1 +[0-9a-f]{16} +-$'
  shown=$(fingerprint keys.psk host1)
  secret=$(sed 's/.*://' host1.psk)
  [[ $shown == "$(fingerprint host1.psk host1)" ]] || fail "one key has two fingerprints"
  [[ $shown == "$(sha256_of "$secret" | head -c 16)" ]] || fail "it is not of the secret"
  [[ $shown != "$(fingerprint keys.psk host1/2)" ]] || fail "two keys have one fingerprint"
  ctl keys --json keys.psk | tee -a said | python3 -c 'import json, sys; assert len(json.load(sys.stdin)["keys"]) == 3'
  if cut -d : -f 2 keys.psk | grep -qFf - said; then fail "a key is shown"; fi
}
it_plugin "the keys of a file are listed with fingerprints, and never shown" shown_keys

removed_keys() {
  keys host1 host2
  { echo '# the second floor' && cat keys.psk; } >more.psk
  chmod 640 more.psk
  chown nobody:nogroup more.psk
  ctl keys more.psk --remove host1
  [[ $(stat -c '%U %a' more.psk) == 'nobody 640' ]] || fail "it has another owner or other rights"
  diff <(echo '# the second floor' && tail -n 1 keys.psk) more.psk
  status_of 1 "${ctl_command[@]}" keys more.psk --remove host1
  says said "has no key 'host1'"
  status_of 1 "${ctl_command[@]}" keys more.psk --remove host2
  says said 'is its only key'
  chmod 644 more.psk
  status_of 1 "${ctl_command[@]}" keys more.psk
  says said 'chmod 600'
}
it_plugin "a key is taken out of a file, which keeps all else" removed_keys

shown_certificates() {
  certificates host1
  ctl keys tls | tee said
  says said '^server-cert\.pem +localhost +[0-9a-f]{16} +20[0-9]{2}-'
  says said '^ca-cert\.pem '
  ctl keys host1 | grep -E '^client-cert\.pem +host1 '
  status_of 1 "${ctl_command[@]}" keys .
  says said 'certgen'
}
it_plugin "the certificates of a directory are listed with their end" shown_certificates

ending() {
  ctl certgen tls --server localhost,127.0.0.1 --days 10
  ctl certgen tls --client host1 --out host1
  ctl keys tls | tee said
  says said '^server-cert\.pem .*Z \(ends in (9|10) days\)$'
  says said '^ca-cert\.pem .*Z$'
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=* --control "$PWD/control"
  says server.log 'warning: [^ ]*/tls/server-cert\.pem ends in (9|10) days: make new certificates'
  ctl --json "$PWD/control" status | tee status
  says status '"certificates":"[^ ]*/tls/server-cert\.pem ends in (9|10) days"'
  ctl certgen tls --server localhost,127.0.0.1
  ctl --json "$PWD/control" status | tee status
  if grep -q '"certificates"' status; then fail "the new one is not seen"; fi
}
it_plugin "a certificate that ends within 30 days is warned of in the log, in status and by rnbd-ctl keys" ending

# list_of DATES: a revocation list for bad/, as others make it.
list_of() {
  printf 'crl_number=1\n%s\n' "$1" >template
  certtool --generate-crl --load-ca-certificate tls/ca-cert.pem --load-ca-privkey tls/ca-key.pem \
    --load-certificate bad/client-cert.pem --template template --outfile new.pem
  mv new.pem tls/ca-crl.pem
}
list_is_over() {
  certificates host1
  ctl certgen tls --client bad --out bad
  list_of $'crl_this_update_date="2020-01-01 00:00:00 UTC"\ncrl_next_update_date="2020-02-01 00:00:00 UTC"'
  ctl keys tls | tee said
  says said '^ca-crl\.pem +\(1 withdrawn\) +- +2020-02-01T00:00:00Z \(is over\)$'
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=* --control "$PWD/control" --metrics 0
  says server.log 'warning: [^ ]*/tls/ca-crl\.pem is over: get a new list'
  ctl --json "$PWD/control" status | tee status
  says status '"certificates":"[^ ]*/tls/ca-crl\.pem is over"'
  ctl "$PWD/control" metrics >page
  says page '^rnbd_certificate_end_timestamp_seconds.file="[^ ]*/tls/ca-crl\.pem". 1580515200$'
  says page '^rnbd_certificate_end_timestamp_seconds.file="[^ ]*/tls/server-cert\.pem". [0-9]{10}$'
  # It goes on to count.
  refused_client "$(encrypted '' "tls-certificates=$PWD/bad")" 'its log says why'
  attach_to "$(encrypted '' "tls-certificates=$PWD/host1")"
  nbdinfo --size "$uri"
  list_of crl_next_update=90
  ctl --json "$PWD/control" status | tee status
  if grep -q '"certificates"' status; then fail "the new list is not seen"; fi
}
it_plugin "a revocation list that is over is told in the log, in status, by rnbd-ctl keys and in metrics, and counts" list_is_over

# let_in NAME: the certificates in NAME/ open the export; kept_out NAME: they do not.
let_in() {
  nbdkit_name=client-$1 attach_to "$(encrypted '' "tls-certificates=$PWD/$1")"
  nbdinfo --size "$uri"
  stop "client-$1"
}
kept_out() { refused_client "$(encrypted '' "tls-certificates=$PWD/$1")" 'its log says why'; }

withdrawn_by_name() {
  certificates host1
  ctl certgen tls --client host2 --out host2
  ctl certgen tls --client host2 --out host2-renewed
  ctl certgen tls --client host3 --out host3
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=* --control "$PWD/control"
  attach_to "$(encrypted '' "tls-certificates=$PWD/host2")"
  nbdinfo --size "$uri"
  ctl certgen tls --withdraw host2 | tee said
  says said "withdrew 2 certificates of 'host2' in tls/ca-crl.pem"
  ctl certgen tls --withdraw host3/client-cert.pem
  ctl keys tls | grep -E '^ca-crl\.pem +\(3 withdrawn\)'
  ctl "$PWD/control" reload | tee said
  says said 'sessions_ended: +\["[^"]+"\]'
  let_in host1
  local name
  for name in host2 host2-renewed host3; do kept_out "$name"; done
  ctl certgen tls --client host2 --out host2-again
  let_in host2-again
  status_of 1 "${ctl_command[@]}" certgen tls --withdraw host9
  says said "has no certificate of 'host9'; name the file"
  status_of 1 "${ctl_command[@]}" certgen nowhere --withdraw host1
  says said 'nowhere'
  [[ ! -e nowhere/ca-cert.pem ]] || fail "it has made an authority"
  echo spoilt >tls/ca-crl.pem
  status_of 1 "${ctl_command[@]}" certgen tls --withdraw host1
  says said 'no revocation list in it'
  [[ $(<tls/ca-crl.pem) == spoilt ]] || fail "the list was replaced"
}
it_plugin "a command withdraws all certificates of a name, or one by its file" withdrawn_by_name

two_authorities() {
  local one order
  for one in a b; do
    ctl certgen "$one" --server 127.0.0.1
    ctl certgen "$one" --client "good-$one" --out "good-$one"
    ctl certgen "$one" --client "bad-$one" --out "bad-$one"
    ctl certgen "$one" --withdraw "bad-$one"
    cp a/ca-cert.pem "good-$one/" # the server's certificate is that of a
    cp a/ca-cert.pem "bad-$one/"
  done
  mkdir both
  cp a/server-*.pem both
  for order in 'a b' 'b a'; do
    # shellcheck disable=SC2086 # two words
    printf '%s/ca-cert.pem\n' $order | xargs cat >both/ca-cert.pem
    # shellcheck disable=SC2086
    printf '%s/ca-crl.pem\n' $order | xargs cat >both/ca-crl.pem
    server_name=server-${order/ /-} start_server --tls=require --tls-certificates=both --export x=memory:1M,rw=*
    for one in a b; do
      let_in "good-$one"
      kept_out "bad-$one"
    done
    ! grep 'several authorities' "server-${order/ /-}.log" || fail "they have names of their own"
  done
  # A list keeps what another authority has withdrawn.
  cp a/ca-cert.pem a/ca-key.pem a/issued.txt both
  ctl certgen both --withdraw good-a
  ctl keys both | grep -E '^ca-crl\.pem +\(3 withdrawn\)'
}
it_plugin "two authorities and their lists are trusted at a time, in either order" two_authorities

same_name() {
  certificates host1
  cp tls/ca-cert.pem first.pem
  certtool --generate-privkey --key-type ecdsa --outfile other-key.pem
  printf 'cn="%s"\nca\ncert_signing_key\nexpiration_days=9\nserial=1\n' \
    "$(certtool -i --infile first.pem | sed -n 's/.*Subject: CN=//p')" >template
  certtool --generate-self-signed --load-privkey other-key.pem --template template --outfile other.pem
  cat first.pem other.pem >tls/ca-cert.pem
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=*
  says server.log 'warning: [^ ]*/tls/ca-cert\.pem: several authorities are called CN=rnbdkit CA [0-9a-f]+,'
}
it_plugin "two authorities of one name are warned of" same_name

# server_certificate BEGIN: as date(1) has it.
server_certificate() {
  printf 'cn=srv\nip_address=127.0.0.1\ntls_www_server\nsigning_key\nactivation_date="%s"\nexpiration_days=50\nserial=2\n' \
    "$(date -u -d "$1" '+%F %T UTC')" >template
  certtool --generate-certificate --load-privkey tls/server-key.pem --load-ca-certificate tls/ca-cert.pem \
    --load-ca-privkey tls/ca-key.pem --template template --outfile young.pem
  mv young.pem tls/server-cert.pem
}
not_yet() {
  certificates host1
  server_certificate '+1 day'
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=*
  refused_client "$(encrypted '' "tls-certificates=$PWD/host1")" \
    'not yet valid.*it holds from 20.* to 20.*; here it is 20.*: look at the clocks'
  server_certificate '+4 seconds'
  attach_to "$(encrypted '' "tls-certificates=$PWD/host1")" connect=now "connect-timeout=$((60 * slow))s"
  nbdinfo --size "$uri"
}
it_plugin "a certificate that does not hold yet is waited for, and a clock that is wrong is told" not_yet

# handed_over NAME FILE: a credential as systemd makes it.
handed_over() {
  mkdir -p credentials
  cp "$2" "credentials/$1"
  chmod 400 "credentials/$1"
  export CREDENTIALS_DIRECTORY=$PWD/credentials
}

credential() {
  keys host1
  local -a server=("${server_command[@]}" --tls=require --export 'x=memory:1M,rw=*')
  status_of 2 "${server[@]}" --tls-psk=credential:keys.psk
  says said 'LoadCredential=keys\.psk:'
  handed_over keys.psk keys.psk
  status_of 2 "${server[@]}" --tls-psk=credential:../keys.psk
  says said 'names no credential'
  start_server --tls=require --tls-psk=credential:keys.psk --export x=memory:1M,rw=*
  attach_to "$(encrypted host1@ "tls-psk-file=$PWD/host1.psk")"
  nbdinfo --size "$uri"
}
it_plugin "the server's keys may be a credential of systemd" credential

credential_of_client() {
  keys host1
  start_server --tls=require --tls-psk=keys.psk --export x=memory:1M,rw=*
  local -a client=("${bridge_command[@]}" --listen "unix:$PWD/b.sock")
  [[ $face == bridge ]] || client=("${nbdkit_command[@]}" -f -U "$PWD/b.sock" "$plugin")
  local wrong=2
  [[ $face == bridge ]] || wrong=1
  status_of "$wrong" "${client[@]}" "$(encrypted host1@ tls-psk-file=credential:psk)"
  says said 'LoadCredential=psk:/etc/rnbd/psk'
  handed_over psk host1.psk
  status_of "$wrong" "${client[@]}" "$(encrypted host1@ tls-psk-file=credential:a/b)"
  says said 'names no credential'
  attach_to "$(encrypted host1@ tls-psk-file=credential:psk)"
  nbdinfo --size "$uri"
  nbdkit_name=by-keys attach_to "rnbd+tcp://$address/x" tls=require tls-psk=credential:psk tls-username=host1
  nbdinfo --size "$uri"
  refused_client "$(encrypted host1@ tls-psk-file=credential:other)" \
    'credential:other: .*systemd has handed over no credential of this name'
}
it "a client's key may be a credential of systemd" credential_of_client

credential_of_directory() {
  certificates host1
  local file
  for file in tls/server-*.pem tls/ca-cert.pem; do handed_over "s_${file##*/}" "$file"; done
  for file in host1/*.pem; do handed_over "c_${file##*/}" "$file"; done
  start_server --tls=require --tls-certificates=credential:s --export x=memory:1M,rw=*
  attach_to "$(encrypted '' tls-certificates=credential:c)"
  nbdinfo --size "$uri"
}
it_plugin "certificates of both ends may be a directory that systemd hands over" credential_of_directory

# ---- Others' ends ----------------------------------------------------------------------------------

interop_gnutls() {
  keys host1
  start_server --tls=require --tls-psk=keys.psk --export x=memory:1M,rw=*
  local secret
  secret=$(sed 's/.*://' host1.psk)
  gnutls-cli --port "$port" --pskusername host1 --pskkey "$secret" --alpn rtrs/1 \
    --priority NORMAL:-KX-ALL:+ECDHE-PSK:-VERS-ALL:+VERS-TLS1.3 127.0.0.1 </dev/null >said 2>&1 || true
  cat said
  says said 'TLS1.3'
  says said 'AES-128-GCM'
  says said 'Application protocol: rtrs/1'
}
it_plugin "gnutls-cli shakes hands with a shared key, and gets AES-128-GCM and the protocol" interop_gnutls

only_p384() {
  certificates host1
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=*
  gnutls-cli --port "$port" --alpn rtrs/1 --x509cafile tls/ca-cert.pem \
    --x509certfile host1/client-cert.pem --x509keyfile host1/client-key.pem \
    --priority NORMAL:-VERS-ALL:+VERS-TLS1.3:-GROUP-ALL:+GROUP-SECP384R1 127.0.0.1 </dev/null >said 2>&1 || true
  cat said
  says said 'TLS1.3.*SECP384R1'
  says said 'Handshake was completed'
}
it_plugin "who has P-384 only, as strict policies have it, shakes hands, too" only_p384

interop_openssl() {
  certificates host1
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=*
  openssl s_client -connect "$address" -alpn rtrs/1 -CAfile tls/ca-cert.pem \
    -cert host1/client-cert.pem -key host1/client-key.pem </dev/null >said 2>&1 || true
  cat said
  says said 'Verify return code: 0'
  says said 'ALPN protocol: rtrs/1'
  says said 'TLS_AES_128_GCM_SHA256'
}
it_plugin "openssl s_client shakes hands with certificates" interop_openssl

no_alpn() {
  certificates host1
  start_server --tls=require --tls-certificates=tls --export x=memory:1M,rw=*
  openssl s_client -connect "$address" -CAfile tls/ca-cert.pem \
    -cert host1/client-cert.pem -key host1/client-key.pem </dev/null >said 2>&1 || true
  wait_for_line server.log 'it does not name the protocol'
  openssl s_client -connect "$address" -tls1_2 </dev/null >said 2>&1 && fail "TLS 1.2 was accepted"
  wait_for_line server.log 'it offers no TLS 1.3 that is good enough'
}
it_plugin "who names no protocol, or has no TLS 1.3, is refused" no_alpn

# ---- Secrets ---------------------------------------------------------------------------------------

silent() {
  keys host1
  local secret
  secret=$(sed 's/.*://' host1.psk)
  start_server --tls=require --tls-psk=keys.psk --export x=memory:1M,rw=* --control "$PWD/control" \
    --log-level debug
  attach_to "$(encrypted host1@ "tls-psk-file=$PWD/host1.psk")"
  nbdinfo --size "$uri"
  # shellcheck disable=SC2094 # "status" is the command
  ctl --json "$PWD/control" status >status
  if grep -l "$secret" ./*.log ./*.out status; then fail "the key is written there"; fi
  if tr '\0' ' ' <"/proc/${pid[server]}/cmdline" | grep -q "$secret"; then fail "the key is in argv"; fi
}
it "no log, status or command line has a key in it" silent

finish
