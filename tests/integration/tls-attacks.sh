#!/bin/bash
# Security as somebody meets it who wants in, or to see something; and as who sets it up by the README.
# FULL=1 exchanges keys 100 times, and lets TLS make its own new ones, which takes minutes.
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
scp() { cp -p "$1" "$CLIENT/${2#client:/}"; }
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
  between strips-offer
  refused_client "$proven" 'it wants a proof|the server does not authenticate'
  kill_hard between-strips-offer
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

# ---- Many at the door ------------------------------------------------------------------------------

timeout=2s
[[ -z ${FULL:-} ]] || timeout=10s # the default

half_open() {
  ctl keygen host1 keys.psk --out host1.psk
  start_server --tls=require --tls-psk=keys.psk --export x=memory:1M,rw=* --handshake-timeout "$timeout"
  echo "${pid[server]}" >server.pid
  attach_to "rnbds+tcp://host1@$address/x?tls-psk-file=$PWD/host1.psk"
  nbdsh <<<'for i in range(1000): h.pread(4096, 0)' # it has what memory it needs then
  local before after
  before=$(rss server)
  limited /usr/bin/python3 - "$port" "$uri" <<'END'
import socket, ssl, sys, threading, time, nbd
def hello():  # the beginning of a handshake that never goes on
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["rtrs/1"])
    try: context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError: return outgoing.read()
first = hello()
h = nbd.NBD()
h.connect_uri(sys.argv[2])
over, answers, errors = threading.Event(), [], []
def neighbour():
    try:
        while not over.is_set():
            began = time.monotonic()
            h.pread(4096, 0)
            answers.append(time.monotonic() - began)
    except nbd.Error as error:
        errors.append(error)
thread = threading.Thread(target=neighbour)
thread.start()
many = []
for i in range(1000):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    one.sendall(first[:1 + i % len(first)])
    many.append(one)
    if i == 999: open("rss", "w").write(open("/proc/%s/status" % open("server.pid").read().strip()).read())
began = time.monotonic()
for one in many:
    one.settimeout(120)
    try:
        while one.recv(65536): pass
    except ConnectionResetError: pass
print(f"the last one was gone after {time.monotonic() - began:.2f} s")
count = len(answers)
while len(answers) < count + 100 and thread.is_alive(): time.sleep(0.01)
over.set()
thread.join()
assert not errors, errors
answers.sort()
print(f"neighbour: {len(answers)} reads, 99 % within {answers[len(answers) * 99 // 100] * 1000:.2f} ms")
END
  after=$(awk '/^VmRSS/ { print $2 }' rss)
  echo "1,000 half-open handshakes took $((after - before)) KiB"
  [[ -n $sanitizer ]] || ((after - before < 8192)) || fail "that is too much: 64 of them should have a place"
  nbdinfo --size "$uri"
}
it "1,000 handshakes that are never finished cost less than 8 MiB, and a neighbour's reads go on" half_open

# ---- Keys that are exchanged -----------------------------------------------------------------------

rotations=3
[[ -z ${FULL:-} ]] || rotations=100

has_key() { ctl --json "$PWD/control" status | grep -qF "\"key\":\"$1\""; }
has_no_key() { ! has_key "$1"; }
rotated() {
  requires fio
  fio --enghelp 2>/dev/null | grep -qw nbd || skip "fio has no nbd engine here"
  ctl keygen host1 keys.psk --out host1.psk
  truncate -s 32M image
  start_server --tls=require --tls-psk=keys.psk --export "x=$PWD/image,rw=host1" --control "$PWD/control"
  attach_to "rnbds+tcp://host1@$address/x" "tls-psk=$PWD/host1.psk" tls-username=host1 \
    reconnect-min=20ms reconnect-max=200ms
  spawn load fio --name=rotate --ioengine=nbd --uri="$uri" --rw=randrw --bs=16k --size=32M --iodepth=16 \
    --time_based --runtime=3600 --verify=crc32c --verify_fatal=1 --verify_dump=0 --do_verify=1 \
    --verify_backlog=64 --randseed="${SEED:-1}"
  eventually 60 has_key host1
  local i old=host1 new
  for ((i = 0; i < rotations; i++)); do
    ctl keygen host1 keys.psk --out "fresh.psk"
    new=$(sed 's/:.*//' fresh.psk)
    mv fresh.psk host1.psk
    ctl keys keys.psk --remove "$old"
    ctl --json "$PWD/control" reload | tee said
    says said '"sessions_ended":\["'
    eventually 60 has_key "$new"
    eventually 60 has_no_key "$old"
    old=$new
  done
  kill -INT "${pid[load]}" # fio verifies and says how it went
  wait_end load $((60 * slow)) || fail "fio still runs"
  cat load.out load.log
  says load.out 'err= 0'
  if grep -E 'verify: bad|verify failed|I/O error|Input/output' load.log load.out; then fail "fio saw an error"; fi
  grep -oE 'issued rwts: total=[0-9]+,[0-9]+' load.out
}
it "a key is exchanged $rotations times under fio, which finds no error" rotated

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
