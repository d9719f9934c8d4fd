#!/bin/bash
# TLS between NBD clients and rnbd-bridge: nbdinfo, nbdcopy and qemu, with shared keys and certificates.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

ctl() { "${ctl_command[@]}" "$@"; }

# bridge_with OPTIONS...: rnbd-bridge on TCP in front of the server's export x; sets $front.
bridge_with() {
  local ready_read ready_write
  pipe ready_read ready_write
  spawn bridge "${bridge_command[@]}" --listen tcp:127.0.0.1:0 --ready-fd "$ready_write" "$@" \
    "rnbd+tcp://$address/x"
  exec {ready_write}>&-
  await_line "$ready_read" 20 || fail "rnbd-bridge did not become ready"
  exec {ready_read}<&-
  front=$(grep -oE '127\.0\.0\.1:[0-9]+' <<<"$line" | head -n 1)
}
with_psk() {
  ctl keygen host1 keys.psk --out host1.psk
  random_file image 8M
  start_server --export "x=$PWD/image"
  bridge_with --tls=require --tls-psk=keys.psk
}
with_certificates() {
  ctl certgen tls --server localhost,127.0.0.1
  ctl certgen tls --client host1 --out host1
  random_file image 8M
  start_server --export "x=$PWD/image"
  bridge_with --tls=require --tls-certificates=tls
}

psk() {
  with_psk
  local there="nbds://host1@$front/x?tls-psk-file=$PWD/host1.psk"
  nbdinfo "$there" | tee info
  says info 'protocol: newstyle-fixed with TLS, using structured packets'
  nbdcopy "$there" copy
  cmp image copy
  random_file other 8M
  nbdcopy --flush other "$there"
  cmp other image
  says bridge.log 'auth ok identity=host1 how=tls-psk'
}
it "nbdinfo and nbdcopy come in with a shared key" psk

x509() {
  with_certificates
  local there="nbds://localhost:${front#*:}/x?tls-certificates=$PWD/host1"
  nbdcopy "$there" copy
  cmp image copy
  says bridge.log 'auth ok identity=host1 how=tls-x509'
}
it "nbdcopy comes in with a certificate" x509

# As Python's ssl verifies since 3.13.
strict() {
  requires openssl
  ctl certgen tls --server localhost
  ctl certgen tls --client host1 --out host1
  openssl verify -x509_strict -CAfile tls/ca-cert.pem tls/server-cert.pem host1/client-cert.pem
}
it "certificates satisfy those who verify them strictly" strict

many_in_flight() {
  with_psk
  limited /usr/bin/python3 -m nbd -c 'h.set_uri_allow_local_file(True)' \
    -c "h.connect_uri('nbds://host1@$front/x?tls-psk-file=$PWD/host1.psk')" -c - <<<'
import hashlib
blocks = {}
for turn in range(20):
    buffers = []
    for i in range(32):
        data = hashlib.sha256(f"{turn}-{i}".encode()).digest() * 2048
        blocks[i] = data
        buffers.append(h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), i * 65536))
    while h.aio_in_flight() > 0: h.poll(-1)
    for cookie in buffers: assert h.aio_command_completed(cookie)
for i, data in blocks.items(): assert h.pread(65536, i * 65536) == data'
}
it "many requests at a time are right" many_in_flight

qemu_psk() {
  with_psk
  mkdir creds
  cp host1.psk creds/keys.psk
  qemu-img convert --object "tls-creds-psk,id=t,dir=$PWD/creds,endpoint=client,username=host1" \
    --image-opts "driver=nbd,host=127.0.0.1,port=${front#*:},export=x,tls-creds=t" -O raw copy
  cmp image copy
}
it "qemu comes in with a shared key" qemu_psk

qemu_x509() {
  with_certificates
  qemu-img convert --object "tls-creds-x509,id=t,dir=$PWD/host1,endpoint=client" \
    --image-opts "driver=nbd,host=localhost,port=${front#*:},export=x,tls-creds=t" -O raw copy
  cmp image copy
}
it "qemu comes in with a certificate" qemu_x509

refusals() {
  with_psk
  status_of 1 nbdinfo "nbd://$front/x"
  says said 'TLS'
  says bridge.log 'it comes without TLS, which is required'
  ctl keygen host1 wrong.psk
  status_of 1 nbdinfo "nbds://host1@$front/x?tls-psk-file=$PWD/wrong.psk"
  says bridge.log 'refused: it does not have a key that this server has'
}
it "an NBD client in clear, or with a wrong key, does not come in" refusals

off() {
  start_server --export x=memory:1M
  ctl keygen host1 host1.psk
  bridge_with
  status_of 1 nbdinfo "nbds://host1@$front/x?tls-psk-file=$PWD/host1.psk"
  nbdinfo --size "nbd://$front/x"
}
it "an NBD client that needs TLS leaves a bridge without it" off

# haggle: Python that speaks NBD's handshake; `say` sends an option, `hear` its answers.
haggle() {
  limited python3 - "${front#*:}" <<PYTHON
import socket, struct, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def read(n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more: raise EOFError
        data += more
    return data
assert read(16) == b"NBDMAGICIHAVEOPT"
read(2)
s.sendall(struct.pack(">I", 3))
def option(number, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data
def hear():
    magic, number, kind, length = struct.unpack(">QIII", read(20))
    return kind, read(length)
STARTTLS, LIST, STRUCTURED, ABORT, EXPORT_NAME = 5, 3, 8, 2, 1
ACK, TLS_REQUIRED, POLICY, INVALID = 1, 0x80000005, 0x80000002, 0x80000003
$1
PYTHON
}

options_in_clear() {
  with_psk
  haggle '
for number in (LIST, STRUCTURED, 6, 7, 9, 10, 99):
    s.sendall(option(number))
    kind, _ = hear()
    assert kind == TLS_REQUIRED, (number, hex(kind))
s.sendall(option(STARTTLS, b"x"))
assert hear()[0] == INVALID
s.sendall(option(ABORT))
assert hear()[0] == ACK'
  haggle '
s.sendall(option(EXPORT_NAME, b"x"))
try:
    read(1)
    raise SystemExit("an export was opened in clear")
except EOFError:
    pass'
}
it "where TLS is required nothing but STARTTLS and ABORT is answered in clear" options_in_clear

injected() {
  with_psk
  haggle '
s.sendall(option(STARTTLS) + option(STRUCTURED))
try:
    while True: read(1)
except (EOFError, ConnectionError):
    pass'
  says bridge.log 'it sent something in clear behind STARTTLS|refused'
}
it "what lies in clear behind STARTTLS ends the connection" injected

# Debian's has TLS 1.2 and nothing newer.
nbd_client() {
  requires nbd-client
  with_certificates
  local tls=(-certfile host1/client-cert.pem -keyfile host1/client-key.pem -cacertfile host1/ca-cert.pem)
  status_of 0 nbd-client -l localhost "${front#*:}" "${tls[@]}" -tlshostname localhost
  says said '^x$'
  says bridge.log 'auth ok identity=host1 how=tls-x509'
  status_of 1 nbd-client -l localhost "${front#*:}"
  if grep -q '^x$' said; then fail "the list is told in clear"; fi
}
it "nbd-client comes in with a certificate; in clear it sees nothing" nbd_client

# convert KEYS PRIORITY: all that an export has, by TLS as GnuTLS's words say.
convert() {
  qemu-img convert --object "tls-creds-x509,id=t,dir=$PWD/$1,endpoint=client,priority=$2" \
    --image-opts "driver=nbd,host=localhost,port=${front#*:},export=x,tls-creds=t" -O raw copy
}
tls12() {
  with_certificates
  convert host1 NORMAL:-VERS-ALL:+VERS-TLS1.2
  cmp image copy
  local weak
  for weak in -VERS-ALL:+VERS-TLS1.1 -VERS-ALL:+VERS-TLS1.2:-KX-ALL:+RSA \
    -VERS-ALL:+VERS-TLS1.2:-CIPHER-ALL:+AES-128-CBC; do
    if convert host1 "NORMAL:$weak" 2>said; then fail "$weak is let in"; fi
  done
  says bridge.log 'refused: it offers no TLS 1.2 or 1.3 that is good enough'
  mkdir nobody
  cp host1/ca-cert.pem nobody
  if convert nobody NORMAL:-VERS-ALL:+VERS-TLS1.2 2>said; then fail "it has no certificate and is let in"; fi
  says bridge.log 'refused: it has shown no certificate'
}
it "TLS 1.2 does for a client with a certificate, and only with forward secrecy and AEAD" tls12

# Somebody on the way may have said it.
forgotten() {
  local option
  with_certificates
  kill_hard bridge
  bridge_with --tls=on --tls-certificates=tls
  for option in STRUCTURED 11; do # extended headers
    forgets "$option"
  done
}

# forgets OPTION: what it asked for.
forgets() {
  haggle '
import ssl
s.sendall(option('"$1"'))
assert hear()[0] == ACK
contexts = struct.pack(">I", 1) + b"x" + struct.pack(">II", 1, 15) + b"base:allocation"
s.sendall(option(10, contexts))
while (kind := hear()[0]) != ACK: assert kind == 4, hex(kind)
s.sendall(option(STARTTLS))
assert hear()[0] == ACK
context = ssl.create_default_context(cafile="host1/ca-cert.pem")
context.load_cert_chain("host1/client-cert.pem", "host1/client-key.pem")
s = context.wrap_socket(s, server_hostname="localhost")
s.sendall(option(10, contexts))
assert hear()[0] == INVALID, "what was agreed on in clear counts within TLS"
s.sendall(option(7, struct.pack(">I", 1) + b"x" + struct.pack(">H", 0)))
while (kind := hear()[0]) != ACK: assert kind == 3, hex(kind)
s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, 7, 0, 512))
assert read(16) == struct.pack(">IIQ", 0x67446698, 0, 7), "the reply is structured"
assert read(512) == open("image", "rb").read(512)'
}
it "what was agreed on before STARTTLS is forgotten" forgotten

of_others() {
  requires certtool
  random_file image 8M
  mkdir ca tls host1
  printf '%s\n' 'cn = "CA"' ca cert_signing_key crl_signing_key >ca/template
  (umask 077 && certtool --generate-privkey --outfile ca/key.pem) 2>/dev/null
  certtool --generate-self-signed --load-privkey ca/key.pem --template ca/template --outfile ca/cert.pem 2>/dev/null
  issue() { # DIRECTORY KIND LINE...
    cp ca/cert.pem "$1/ca-cert.pem"
    printf '%s\n' "${@:3}" signing_key >template
    (umask 077 && certtool --generate-privkey --key-type=rsa --outfile "$1/$2-key.pem") 2>/dev/null
    certtool --generate-certificate --load-privkey "$1/$2-key.pem" --load-ca-certificate ca/cert.pem \
      --load-ca-privkey ca/key.pem --template template --outfile "$1/$2-cert.pem" 2>/dev/null
  }
  issue tls server 'cn = "x"' 'dns_name = "localhost"' tls_www_server
  issue host1 client 'cn = "host1"' tls_www_client
  start_server --tls=require --tls-certificates=tls --export "x=$PWD/image,rw=host1"
  bridge_with_tls_both_ways
  nbdcopy "nbds://localhost:${front#*:}/x?tls-certificates=$PWD/host1" copy
  cmp image copy
}
bridge_with_tls_both_ways() {
  local ready_read ready_write
  pipe ready_read ready_write
  spawn bridge "${bridge_command[@]}" --listen tcp:127.0.0.1:0 --ready-fd "$ready_write" \
    --tls=require --tls-certificates=tls "rnbds+tcp://localhost:$port/x?tls-certificates=$PWD/host1"
  exec {ready_write}>&-
  await_line "$ready_read" 20 || fail "rnbd-bridge did not become ready"
  exec {ready_read}<&-
  front=$(grep -oE '127\.0\.0\.1:[0-9]+' <<<"$line" | head -n 1)
}
it "certificates of certtool, with RSA, serve on both halves of the way" of_others

both_halves() {
  ctl keygen host1 keys.psk --out host1.psk
  random_file image 4M
  start_server --tls=require --tls-psk=keys.psk --export "x=$PWD/image,rw=*"
  local ready_read ready_write
  pipe ready_read ready_write
  spawn bridge "${bridge_command[@]}" --listen tcp:127.0.0.1:0 --ready-fd "$ready_write" \
    --tls=require --tls-psk=keys.psk "rnbds+tcp://host1@$address/x?tls-psk-file=$PWD/host1.psk"
  exec {ready_write}>&-
  await_line "$ready_read" 20 || fail "rnbd-bridge did not become ready"
  exec {ready_read}<&-
  front=$(grep -oE '127\.0\.0\.1:[0-9]+' <<<"$line" | head -n 1)
  nbdcopy "nbds://host1@$front/x?tls-psk-file=$PWD/host1.psk" copy
  cmp image copy
}
it "both halves of the way can be encrypted" both_halves

finish
