#!/bin/bash
# Security as somebody meets it who wants in, or to see something; and as who sets it up by the README.
# FULL=1 has the default deadline, and lets TLS make new keys by itself, which takes minutes.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/two_hosts.sh"

here=$(realpath "${BASH_SOURCE[0]%/*}")
ctl() { "${ctl_command[@]}" "$@"; }

# ---- By the README ---------------------------------------------------------------------------------

# readme N: the Nth of the five commands, in one line.
readme() {
  sed -n '/^## Encrypted, in five commands/,/^## [^E]/p' "$source_dir/README.md" |
    sed -n '/^    /{s/^    //;p}' | sed -e ':a' -e '/\\$/N; s/ *\\\n */ /; ta' | sed -n "$1p"
}

# On a host of its own: /etc, /run, /root and /srv are those of this case. The names of programs are as
# they are once everything is installed.
as_host=$(
  cat <<'END'
mount_own() { # HOST
  mkdir -p "$1"/{etc,work,run,root,srv}
  mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/work" /etc
  local name
  for name in run root srv; do mount --bind "$1/$name" "/$name"; done
}
rnbd-ctl() { $CTL "$@"; }
ssh() { # client COMMAND... FILE
  local command=("${@:2}")
  command[-1]=$CLIENT${command[-1]}
  "${command[@]}"
}
nbdkit() {
  local words=() word
  for word in "$@"; do
    if [[ $word == rnbd ]]; then word=$PLUGIN; fi
    words+=("$word")
  done
  $NBDKIT "${words[@]}"
}
END
)

five_commands() {
  requires unshare mount nbdinfo
  local near far tree=$PWD/tree
  two_hosts
  ip -n "$far" addr add 192.0.2.1/24 dev cable0
  ip -n "$near" addr add 192.0.2.2/24 dev cable0
  mkdir tree
  mount -t tmpfs none tree # an overlay may not have another one below its changes
  at_end umount "$tree"
  mkdir -p tree/client/root tree/server
  truncate -s 16M disk0.img
  [[ $(readme 5) == nbdinfo* && -z $(readme 6) ]] || fail "the README has no five commands"
  export SERVER="${server_command[*]: -1}" CTL="${ctl_command[*]}" CLIENT=$tree/client PLUGIN=$plugin NBDKIT
  NBDKIT=$(type -P nbdkit)
  # shellcheck disable=SC2016 # the inner shell's
  spawn server ip netns exec "$far" unshare --mount bash -ec "$as_host"'
    mount_own "$1"
    cp "$2" /srv/disk0.img
    cd /root
    eval "$3"
    eval "$4"
    rnbd-server() { exec $SERVER "$@"; }
    eval "$5"' host "$tree/server" "$PWD/disk0.img" "$(readme 1)" "$(readme 2)" "$(readme 3)"
  wait_for_line server.log 'ready'
  cat server.log
  # shellcheck disable=SC2016 # likewise
  limited ip netns exec "$near" unshare --mount --pid --fork --kill-child bash -ec "$as_host"'
    mount_own "$1"
    cd /root
    eval "$2"
    eval "$3"' host "$tree/client" "$(readme 4)" "$(readme 5)" >said 2>&1 || fail "$(cat said)"
  cat said
  says said 'export-size: 16777216'
  says server.log 'tls13/aes128gcm host1'
}
it "with the five commands of the README two hosts have a disk that is encrypted on the way" five_commands

# ---- On the wire -----------------------------------------------------------------------------------

# capture: all that a host sees on its first cable, in the file `seen`.
capture() {
  spawn capture ip netns exec "$near" /usr/bin/python3 -uc '
import os, signal, socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
wire.bind(("cable0", 0))
wire.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print("listens")
with open("seen", "wb", buffering=0) as seen:
    while True: seen.write(wire.recv(1 << 18))'
  wait_for_line capture.out listens
}
# seen TEXT: it went over the wire, as text, or as the bytes of these hexadecimal digits.
seen() {
  /usr/bin/python3 - "$1" <<'END'
import re, sys
text, wire = sys.argv[1], open("seen", "rb").read()
assert len(wire) > 10000, "nothing was captured"
forms = [text.encode()]
if re.fullmatch("([0-9a-f]{2}){4,}", text): forms += [bytes.fromhex(text), bytes.fromhex(text)[::-1]]
sys.exit(not any(form in wire for form in forms))
END
}
captured() {
  local near far secret text id
  two_hosts
  ctl keygen host1 keys.psk --out host1.psk
  secret=$(sed 's/.*://' host1.psk)
  start_server --listen tcp:10.99.0.1:1234,tls=require --listen tcp:10.99.0.1:1235,auth=psk,tls=off \
    --tls=on --tls-psk=keys.psk --export 'x=memory:1M,rw=host1' --control "$PWD/control"
  id=$(ctl --json "$PWD/control" status | grep -oP '"server_id":"\K[^"]+')
  capture
  writes_planted "rnbd+tcp://host1@10.99.0.1:1235/x?auth-psk-file=$PWD/host1.psk"
  # The hello has the numbers of the session, the path and the server.
  for text in planted-data planted-name RTRS-TCP host1 "$id"; do
    eventually 20 seen "$text" || fail "the capture does not see $text, which is sent in clear"
  done
  if seen "$secret"; then fail "the key of a proof is on the wire"; fi
  stop capture
  capture
  writes_planted "rnbds+tcp://host1@10.99.0.1:1234/x?tls-psk-file=$PWD/host1.psk"
  stop capture
  for text in planted-data planted-name RTRS-TCP "$id" "$secret"; do
    if seen "$text"; then fail "$text is on the wire"; fi
  done
}
# writes_planted URI
writes_planted() {
  attach_to "$1" session=planted-name
  nbdsh <<<'h.pwrite(b"planted-data" * 4096, 0, nbd.CMD_FLAG_FUA)'
  nbdsh <<<'assert h.pread(12, 0) == b"planted-data"'
  stop nbdkit
}
it "a packet capture has neither data nor numbers of sessions with TLS, nor a key with a proof" captured

# ---- Who stands in between -------------------------------------------------------------------------

# between MODE: somebody at 10.99.0.1:4321 who is no server; what the client has sent him is in `sent`.
between() {
  spawn "between-$1" ip netns exec "$far" /usr/bin/python3 -Bu "$here/between.py" "$1" 10.99.0.1 4321 1234
  wait_for_line "between-$1.out" ready
}
downgraded() {
  local near far
  two_hosts
  ctl keygen host1 keys.psk --out host1.psk
  start_server --listen tcp:10.99.0.1:1234,auth=psk,tls=off --tls=on --tls-psk=keys.psk \
    --export 'x=memory:1M,rw=host1'
  between answers-in-clear
  refused_client "rnbds+tcp://host1@10.99.0.1:4321/x?tls-psk-file=$PWD/host1.psk" 'TLS'
  /usr/bin/python3 -c '
sent = open("sent", "rb").read()
assert sent[:1] == b"\x16", "the client did not begin with TLS"
assert b"RTRS" not in sent, "the client said hello in clear"'
  kill_hard between-answers-in-clear
  local proven="rnbd+tcp://host1@10.99.0.1:4321/x?auth-psk-file=$PWD/host1.psk" mode
  for mode in strips-offer drops-extension; do
    between "$mode"
    refused_client "$proven" 'it wants a proof|the server does not authenticate'
    kill_hard "between-$mode"
  done
  between strips-answer
  refused_client "$proven" 'the server does not authenticate'
  kill_hard between-strips-answer
  for mode in flips-request flips-response replays; do
    between "$mode"
    refused_client "$proven" "does not have this key"
    kill_hard "between-$mode"
  done
  between passes-on
  attach_to "$proven"
  nbdinfo --size "$uri"
  stop nbdkit
  kill_hard between-passes-on
}
it "who stands in between cannot talk two ends out of TLS or a proof, nor change what they say first" downgraded

# ---- Who is refused --------------------------------------------------------------------------------

# A server with both kinds of keys; both/ has its certificates.
with_both() {
  requires certtool openssl gnutls-cli
  ctl keygen host1 keys.psk --out host1.psk
  ctl certgen both --server localhost,127.0.0.1
  local user
  for user in host1 host2 revoked; do ctl certgen both --client "$user" --out "$user"; done
  printf '%s\n' 'crl_next_update = 30' 'crl_number = 1' >template
  certtool --generate-crl --load-ca-privkey both/ca-key.pem --load-ca-certificate both/ca-cert.pem \
    --load-certificate revoked/client-cert.pem --template template --outfile both/ca-crl.pem
  start_server --tls=require --tls-psk=keys.psk --tls-certificates=both --export 'x=memory:1M,rw=*'
}

# issued NAME LINE...: a client's directory with a certificate of the server's authority, of this template.
issued() {
  local name=$1
  mkdir "$name"
  printf '%s\n' "${@:2}" >template
  (umask 077 && certtool --generate-privkey --key-type=ecdsa --outfile "$name/client-key.pem")
  certtool --generate-certificate --load-privkey "$name/client-key.pem" --load-ca-certificate both/ca-cert.pem \
    --load-ca-privkey both/ca-key.pem --template template --outfile "$name/client-cert.pem"
  cp both/ca-cert.pem "$name/"
} 2>/dev/null

# The client's sentence, the server's line for the audit.
by_certificate() { # DIRECTORY WHY
  refused_client "rnbds+tcp://localhost:$port/x?tls-certificates=$PWD/$1" 'does not let this client in|does not accept' 'alert'
  wait_for_line server.log "auth refused peer=127\.0\.0\.1:[0-9]+ listener=tcp:127\.0\.0\.1:$port user=.* how=tls-x509 why=\"$2"
}
certificates_refused() {
  with_both
  local client='tls_www_client' now day=86400
  printf -v now '%(%s)T' -1
  local bad='its certificate does not hold: .*'
  issued expired 'cn = "host1"' "$client" "activation_date = \"$(date -d "@$((now - 9 * day))" '+%F %T')\"" \
    "expiration_date = \"$(date -d "@$((now - day))" '+%F %T')\""
  by_certificate expired "${bad}expired"
  issued future 'cn = "host1"' "$client" "activation_date = \"$(date -d "@$((now + day))" '+%F %T')\"" \
    "expiration_date = \"$(date -d "@$((now + 9 * day))" '+%F %T')\""
  by_certificate future "${bad}not yet"
  by_certificate revoked "${bad}revoked"
  issued purpose 'cn = "host3"' tls_www_server
  by_certificate purpose "${bad}purpose"
  issued nameless 'organization = "nobody"' "$client"
  by_certificate nameless 'its certificate has no single common name'
  issued star 'cn = "vm-*"' "$client"
  by_certificate star 'its certificate has no single common name \(CN\) that can be a user.s: the name has one of'
  issued twice 'dn = "cn=host1,cn=host2"' "$client"
  by_certificate twice 'its certificate has no single common name'
  ctl certgen other --client host4 --out stranger
  cp both/ca-cert.pem stranger/
  by_certificate stranger "${bad}issuer is unknown"
  issued alone 'cn = "host5"' "$client"
  certtool --generate-self-signed --load-privkey alone/client-key.pem --template template \
    --outfile alone/client-cert.pem 2>/dev/null
  by_certificate alone "${bad}issuer is unknown"
}
it "each certificate that does not hold is refused: with a sentence at the client, and a line of why at the server" \
  certificates_refused

# Who connects looks for the host among the names that a certificate gives for hosts; only without
# any its common name counts.
hosts_refused() {
  with_both
  local server=tls_www_server
  named() { # NAME LINE...: a server's certificate, and a server with it; sets $port
    issued "$1" "${@:2}" "$server"
    mkdir "at-$1"
    mv "$1/client-key.pem" "at-$1/server-key.pem"
    mv "$1/client-cert.pem" "at-$1/server-cert.pem"
    cp both/ca-cert.pem "at-$1/"
    server_name=$1 start_server --tls=require --tls-certificates="at-$1" --export 'x=memory:1M,rw=*'
  }
  named other 'cn = "localhost"' 'dns_name = "other.example"'
  refused_client "rnbds+tcp://localhost:$port/x?tls-certificates=$PWD/host1" 'its certificate does not hold: .*name'
  named wild 'cn = "x"' 'dns_name = "*"'
  refused_client "rnbds+tcp://localhost:$port/x?tls-certificates=$PWD/host1" 'its certificate does not hold: .*name'
  named number 'cn = "x"' 'dns_name = "127.0.0.1"'
  refused_client "rnbds+tcp://127.0.0.1:$port/x?tls-certificates=$PWD/host1" 'its certificate does not hold: .*name'
  named other-number 'cn = "127.0.0.1"' 'ip_address = "127.0.0.2"'
  refused_client "rnbds+tcp://127.0.0.1:$port/x?tls-certificates=$PWD/host1" 'its certificate does not hold: .*name'
  named right 'cn = "x"' 'dns_name = "localhost"' 'ip_address = "127.0.0.1"'
  local host
  for host in localhost 127.0.0.1 LOCALHOST; do
    nbdkit_name=$host attach_to "rnbds+tcp://$host:$port/x?tls-certificates=$PWD/host1"
    nbdinfo --size "$uri"
  done
}
it "a server is left whose certificate names another host, in whichever way" hosts_refused

# with_gnutls PRIORITY USER KEY [OPTION...]: gnutls-cli, which must not come in.
with_gnutls() {
  limited gnutls-cli --port "$port" --no-ca-verification --pskusername "$2" --pskkey "$3" "${@:4}" \
    --priority "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:$1" 127.0.0.1 </dev/null >said 2>&1 || true
  if grep -q 'Simple Client Mode' said && ! grep -qi 'alert' said; then fail "it came in: $(cat said)"; fi
}
audited() { wait_for_line server.log "auth refused peer=.* listener=tcp:127\.0\.0\.1:$port user=$1 how=$2 why=\"$3"; }
handshakes_refused() {
  with_both
  local key wrong protocol=(--alpn rtrs/1) by_key=+ECDHE-PSK
  key=$(sed 's/.*://' host1.psk)
  wrong=$(printf '%064d' 1)
  with_gnutls "$by_key" host9 "$key" "${protocol[@]}"
  audited host9 tls-psk 'it does not have a key that this server has'
  with_gnutls "$by_key" HOST1 "$key" "${protocol[@]}"
  audited HOST1 tls-psk 'it does not have a key that this server has'
  with_gnutls "$by_key" host1 "$wrong" "${protocol[@]}"
  audited host1 tls-psk 'it does not have a key that this server has'
  with_gnutls "$by_key" host1 "${key:0:30}" "${protocol[@]}"
  with_gnutls "$by_key" host1 "$key"
  audited host1 tls-psk "it does not name the protocol 'rtrs/1'"
  with_gnutls "$by_key" host1 "$key" --alpn h2
  wait_for_line server.log "it names another protocol than 'rtrs/1'"
  with_gnutls +PSK host1 "$key" "${protocol[@]}"
  wait_for_line server.log 'auth refused .* how=tls why="it (offers no TLS|has shown no)'
  # A shared key belongs to SHA-256, which no cipher with AES-256 does.
  with_gnutls "$by_key:-CIPHER-ALL:+AES-256-GCM" host1 "$key" "${protocol[@]}"
  with_gnutls "$by_key" "" "$key" "${protocol[@]}"
  openssl s_client -connect "$address" -alpn rtrs/1 -CAfile both/ca-cert.pem </dev/null >said 2>&1 || true
  audited '""' tls 'it has shown no certificate'
  openssl s_client -connect "$address" -alpn rtrs/1 -tls1_2 </dev/null >said 2>&1 && fail "TLS 1.2 was accepted"
  audited '""' tls 'it offers no TLS 1.3 that is good enough'
  # Nobody of them is a reason to refuse an honest one.
  attach_to "rnbds+tcp://host1@localhost:$port/x?tls-psk-file=$PWD/host1.psk"
  nbdinfo --size "$uri"
}
it "each handshake that proves nothing, or too little, is refused with a line of why" handshakes_refused

others_sessions() {
  with_both
  limited /usr/bin/python3 -B "$here/tls_peer.py" "$port"
  wait_for_line server.log 'auth refused .* user=host2 .*why="the session belongs to another user"'
}
it "a user with a good certificate gets into no session of another one" others_sessions

# ---- Many that wait --------------------------------------------------------------------------------

timeout=2s
[[ -z ${FULL:-} ]] || timeout=10s # the default

half_open() {
  ctl keygen host1 keys.psk --out host1.psk
  ctl certgen tls --server localhost # whoever comes is answered with it, and never answers
  start_server --tls=require --tls-psk=keys.psk --tls-certificates=tls --export x=memory:1M,rw=* \
    --handshake-timeout "$timeout"
  attach_to "rnbds+tcp://host1@$address/x?tls-psk-file=$PWD/host1.psk"
  nbdsh <<<'for i in range(1000): h.pread(4096, 0)' # it has what memory it needs then
  local before after
  before=$(rss server)
  echo 5 >"/proc/${pid[server]}/clear_refs" # the highest is that from now on
  limited /usr/bin/python3 - "$port" "$uri" <<'END'
import multiprocessing, socket, ssl, sys, time, nbd
def hello():  # the beginning of a handshake that never goes on
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["rtrs/1"])
    try: context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError: return outgoing.read()
first = hello()
count, attacked, over = multiprocessing.Value("L"), multiprocessing.Event(), multiprocessing.Event()
def p99(times): return f"99 % of {len(times)} reads within {sorted(times)[len(times) * 99 // 100] * 1000:.2f} ms"
def neighbour():
    h = nbd.NBD()
    h.connect_uri(sys.argv[2])
    answers = [], []  # before, and while strangers come
    while not over.is_set():
        began = time.monotonic()
        h.pread(4096, 0)
        answers[attacked.is_set()].append(time.monotonic() - began)
        count.value += 1
    print("neighbour: before", p99(answers[0]) + ", then", p99(answers[1]), flush=True)
process = multiprocessing.Process(target=neighbour)
process.start()
def wait_for_answers(more):
    until = count.value + more
    while count.value < until and process.is_alive(): time.sleep(0.01)
wait_for_answers(3000)
attacked.set()
def record(data): return b"\x16\x03\x01" + len(data).to_bytes(2, "big") + data
def begun(size): return record(b"\x01" + size.to_bytes(3, "big") + bytes(16380))  # a hello of this size
# The whole of it, a part, a hello that is large and never whole, and one that is not to be kept.
kinds = first, first, begun(32000), begun(100000) + record(bytes(16384)) * 4
many = []
for i in range(1000):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    data = kinds[i % 4]
    try: one.sendall(data[:1 + i % len(data)] if i % 4 == 1 else data)
    except OSError: pass  # it was sent away already
    many.append(one)
began = time.monotonic()
for one in many:
    one.settimeout(120)
    try:
        while one.recv(65536): pass
    except ConnectionResetError: pass
print(f"the last one was gone after {time.monotonic() - began:.2f} s")
wait_for_answers(100)
over.set()
process.join()
assert process.exitcode == 0, process.exitcode
END
  after=$(awk '/^VmHWM/ { print $2 }' "/proc/${pid[server]}/status")
  echo "1,000 half-open handshakes took $((after - before)) KiB"
  [[ -n $sanitizer ]] || ((after - before < 256 * 32)) || fail "that is too much: 256 of them have a place"
  nbdinfo --size "$uri"
}
it "1,000 handshakes that are never finished cost less than 8 MiB, and a neighbour's reads go on" half_open

# ---- What is kept in memory ------------------------------------------------------------------------

in_core() {
  requires gdb gcore
  [[ -z $sanitizer ]] || skip "a sanitizer's memory is too large for a core"
  [[ $face != bridge ]] || skip "a core of the server is the same behind either"
  ctl keygen host1 keys.psk --out host1.psk
  start_server --tls=require --tls-psk=keys.psk --export x=memory:1M,rw=* --log-level debug --control "$PWD/control"
  attach_to "rnbds+tcp://host1@$address/x?tls-psk-file=$PWD/host1.psk"
  nbdsh <<<'h.pwrite(b"planted-in-memory-" * 256, 0)'
  # As the kernel does: without what may not be dumped.
  limited gcore -o core "${pid[server]}" >said 2>&1 || skip "gcore cannot look here: $(tail -n 1 said)"
  /usr/bin/python3 - "core.${pid[server]}" "$(sed 's/.*://' host1.psk)" <<'END'
import sys
core, secret = open(sys.argv[1], "rb").read(), sys.argv[2]
assert b"planted-in-memory-" in core, "the core does not have the server's memory"
assert secret.encode() not in core, "the core has the key as text"
assert bytes.fromhex(secret) not in core, "the core has the key"
END
  local name
  for name in server nbdkit; do
    if tr '\0' ' ' <"/proc/${pid[$name]}/cmdline" | grep -qF "$(sed 's/.*://' host1.psk)"; then
      fail "the key is in argv"
    fi
  done
  if grep -lF "$(sed 's/.*://' host1.psk)" ./*.log ./*.out; then fail "the key is written there"; fi
}
it "a core of the server has the data and no key" in_core

if [[ -n ${FULL:-} ]]; then
  new_keys() {
    local program=$build_dir/bin/unit_transport
    [[ -x $program ]] || skip "$program is not built"
    limit=3600 limited "$program" -tc='*2^24*' --no-skip >said 2>&1 || fail "$(cat said)"
    says said 'test cases: +1 +\| +1 passed'
  }
  it "TLS makes new keys by itself after 2^24 records, and no byte is lost" new_keys
fi

finish
