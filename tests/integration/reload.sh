#!/bin/bash
# Reload: the configuration and the keys are read again while clients work; all of it counts, or nothing.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

ctl() { "${ctl_command[@]}" "$@"; }
reload() { ctl --json "$PWD/control" reload "$@"; }

# config LINES: the file; serve: a server with it.
config() { printf '%s\n' '[server]' "control = \"$PWD/control\"" "$@" >conf; }
serve() { start_server --config "$PWD/conf" "$@"; }

# hold NAME [URI]: an NBD client that wrote, reads again on each SIGUSR1, and stays.
hold() {
  spawn "$1" /usr/bin/python3 -u -c '
import nbd, os, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"1" * 512, 0)
def look(*_):
    try: print("reads" if h.pread(512, 0) == b"1" * 512 else "reads otherwise")
    except nbd.Error as error: print("fails", error.string)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
signal.signal(signal.SIGUSR1, look)
print("holds")
while True: signal.pause()' "${2:-$uri}"
  wait_for_line "$1.out" holds
}
# looks NAME TEXT: what a holder finds now.
looks() {
  kill -USR1 "${pid[$1]}"
  wait_for_line "$1.out" "$2"
}

comes_and_goes() {
  truncate -s 1M a b
  config '[export.a]' "path = \"$PWD/a\"" '[export.old]' 'storage = "memory:1M"'
  serve
  attach a
  hold recovery
  config '[export.a]' "path = \"$PWD/a\"" 'description = "the first"' '[export.b]' "path = \"$PWD/b\""
  reload --check | tee said
  says said '"checked_only":true,"added":\["b"\],"changed":\["a"\],"removed":\["old"\]'
  ctl --json "$PWD/control" status | tee status
  says status '"export":"old"'
  reload | tee said
  says said '"checked_only":false,"added":\["b"\]'
  ctl --json "$PWD/control" status | tee status
  says status '"export":"b"'
  if grep -q '"export":"old"' status; then fail "what was removed is still there"; fi
  nbdkit_name=second attach b
  nbdsh <<<'h.pwrite(b"2" * 512, 0)'
  looks recovery reads$
}
it "exports come, change and go, and a client of one that stays notices nothing" comes_and_goes

hangs_up() {
  config '[export.a]' 'storage = "memory:1M"'
  serve
  config '[export.a]' 'storage = "memory:1M"' '[export.b]' 'storage = "memory:2M"'
  kill -HUP "${pid[server]}"
  wait_for_line server.log 'reloaded: added b'
  attach b
  [[ $(nbdinfo --size "$uri") == 2097152 ]]
  echo 'nonsense' >>conf
  kill -HUP "${pid[server]}"
  wait_for_line server.log 'reload: nothing was changed: .*conf:'
}
it "SIGHUP does it, too, and the log says what came of it" hangs_up

mistakes() {
  config '[export.a]' 'storage = "memory:1M"'
  serve
  ctl --json "$PWD/control" status >before
  local line
  for line in 'x' '[export.a]' '[export.b]' 'colour = 1' 'description = 7' 'ro = ["a*b"]' 'rw = []' \
    '[export.""]' '[search]' 'path = "/nowhere/at/all"'; do
    config '[export.b]' 'storage = "memory:1M"' '[export.a]' "path = \"$PWD/absent\"" "$line"
    status_of 1 "${ctl_command[@]}" "$PWD/control" reload
    says said 'nothing was changed'
  done
  config 'colour = 1' 'size = 2' '[export.b]' 'storage = "memory:1M"'
  status_of 1 "${ctl_command[@]}" "$PWD/control" reload
  says said "unknown key 'colour'.*unknown key 'size'"
  rm conf
  status_of 1 "${ctl_command[@]}" "$PWD/control" reload
  ctl --json "$PWD/control" status >after
  cmp before after
}
it "a file that is wrong, or whose storage does not open, changes nothing and says all" mistakes

# Each: what is wrong, its place, and the hint. The file is right up to line 4.
bad_files() {
  mkdir directory
  config '[export.a]' 'storage = "memory:1M"'
  serve
  ctl --json "$PWD/control" status >before
  local wrong place hint count=0
  while IFS='|' read -r wrong place hint; do
    config '[export.a]' 'storage = "memory:1M"'
    printf '%b\n' "${wrong//HERE/$PWD}" >>conf
    status_of 1 "${ctl_command[@]}" "$PWD/control" reload
    says said "nothing was changed: .*conf:$place: .*$hint"
    status_of 1 "${ctl_command[@]}" "$PWD/control" reload --check
    says said "conf:$place: "
    count=$((count + 1))
  done <<'EOF'
x|[56]:[0-9]+|this is TOML
colour = 1|5:1|known are: path storage
descripton = "x"|5:1|did you mean 'description'
storage = "memory:2M"|5:[0-9]+|this is TOML
path = "/dev/null"|3:[0-9]+|keep one of them
description = 7|5:15|is a string
read-only = 1|5:13|write read-only = true
read-only = "true"|5:13|is a switch
direct = "yes"|5:10|is a switch
rw = []|5:6|name a user
rw = 7|5:6|write e\.g\. rw =
rw = ["a*b"]|5:7|write e\.g\. rw =
ro = ["@10.0.0.0/99"]|5:7|write e\.g\. ro =
iops-limit = 0|5:14|iops-limit = 1000
iops-limit = "fast"|5:14|iops-limit = 1000
bandwidth-limit = "10Q"|5:19|bandwidth-limit = "100M"
bandwidth-limit = true|5:19|leave it out for no limit
description = "no end|5:15|no closing quote
[export.a]|5:[0-9]+|this is TOML
[export.b]|5:[0-9]+|says not what to export
[export.b]\npath = ""|6:8|is a string
[export.b]\npath = /srv/x|6:[0-9]+|texts stand between quotes
[export.b]\nstorage = "memory:"|5:[0-9]+|memory
[export.b]\nstorage = "memory:12Q"|5:[0-9]+|memory
[export.b]\npath = "HERE/directory"|5:[0-9]+|directory
[export.b]\npath = "HERE/absent"|5:[0-9]+|truncate -s
[export.b]\nstorage = "fault:nonsense=1:memory:1M"|5:[0-9]+|nonsense
[export."a/../b"]\nstorage = "memory:1M"|5:[0-9]+|use a plain name
[exports.b]\nstorage = "memory:1M"|5:[0-9]+|did you mean 'export'
[search]\npath = 7|6:8|path = "/srv/rnbd"
[search]\npfad = "/srv"|6:1|path
EOF
  ((count >= 30)) || fail "only $count files"
  ctl --json "$PWD/control" status >after
  cmp before after
}
it "each of 30 bad files is refused with its line and a hint, and changes nothing" bad_files

# 10 reloads, with FULL=1 200, some of them of bad files, while a client writes and reads back.
random_reloads() {
  requires_python nbd
  local rounds=10 writes
  [[ -z ${FULL:-} ]] || rounds=200
  truncate -s 8M stay other-1 other-2
  config '[export.stay]' "path = \"$PWD/stay\""
  serve
  attach stay
  spawn writer /usr/bin/python3 "$source_dir/tests/integration/stamps.py" write "$uri" 0
  eventually 20 test -e acked.0
  PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 "$source_dir/tests/integration/reload_dice.py" \
    "$PWD" "$rounds" "${SEED:-$RANDOM}" "${ctl_command[@]}"
  writes=$(od -An -t u8 acked.0)
  ((writes > rounds)) || fail "only $writes writes in $rounds reloads"
  : >enough
  wait_end writer 60
  ((status == 0)) || fail "the writer ended with $status"
  stop nbdkit
  /usr/bin/python3 "$source_dir/tests/integration/stamps.py" check stay
  if grep -q 'sessions ended' server.log; then fail "a session was ended"; fi
}
it "random reloads under load lose nothing of an export that stays" random_reloads

held() {
  truncate -s 1M a
  config '[export.a]' "path = \"$PWD/a\"" '[export.b]' 'storage = "memory:1M"'
  serve
  attach_to "rnbd+tcp://$address/a" session=holder
  hold client
  config '[export.b]' 'storage = "memory:1M"' '[export.c]' 'storage = "memory:1M"'
  status_of 1 "${ctl_command[@]}" "$PWD/control" reload
  says said "export 'a' is open: session 'holder' \(127\.0\.0\.1:[0-9]+\) has it"
  ctl --json "$PWD/control" status >exports.json
  if grep -q '"export":"c"' exports.json; then fail "a part of it was done"; fi
  reload --force
  looks client reads$
  ctl --json "$PWD/control" status >exports.json
  if grep -q '"export":"a"' exports.json; then fail "it is still there"; fi
}
it "an export that is open is not removed, and its holder is named" held

restart() {
  config 'queue-depth = 64' '[export.a]' 'storage = "memory:1M"'
  serve
  config 'queue-depth = 32' '[export.a]' 'storage = "memory:1M"'
  reload | tee said
  says said '"needs_restart":\["queue-depth"\]'
}
it "what only a restart changes is named" restart

withdrawn() {
  ctl keygen host1 keys.psk --out host1.psk
  ctl keygen host2 keys.psk --out host2.psk
  config "tls-psk = \"$PWD/keys.psk\"" '[export.a]' 'storage = "memory:1M"' 'rw = ["host1"]' \
    '[export.b]' 'storage = "memory:1M"' 'rw = ["host2"]' '[export.c]' 'storage = "memory:1M"' 'rw = ["*"]'
  serve
  local name each
  for each in host1/a host2/b host2/c; do
    name=${each%/*}
    nbdkit_name=${each#*/} attach_to \
      "rnbds+tcp://$name@$address/${each#*/}?tls-psk-file=$PWD/$name.psk" "session=s-${each#*/}"
    hold "client-${each#*/}"
  done
  grep -v '^host1' keys.psk >fewer
  chmod 600 fewer
  mv fewer keys.psk
  sed -i 's/rw = \["host2"\]/rw = ["host3"]/' conf
  reload | tee said
  says said '"sessions_ended":\["s-[ab]","s-[ab]"\]'
  wait_for_line server.log "session 's-a'.*the key 'host1/?1?' was withdrawn"
  wait_for_line server.log "session 's-b'.*its right to 'b' was withdrawn"
  wait_for_line server.log 'open refused peer=.* identity=host2 session=s-b export=b access=rw why="not in rw or ro"'
  looks client-c reads$
  chmod 644 keys.psk
  status_of 1 "${ctl_command[@]}" "$PWD/control" reload
  says said 'chmod 600'
}
it "who lost his key or his right loses his session, and the others go on" withdrawn

revoked() {
  requires certtool
  ctl certgen tls --server localhost,127.0.0.1
  ctl certgen tls --client host1 --out host1
  ctl certgen tls --client host2 --out host2
  config "tls-certificates = \"$PWD/tls\"" '[export.a]' 'storage = "memory:1M"' 'rw = ["host1"]' \
    '[export.b]' 'storage = "memory:1M"' 'rw = ["host2"]'
  serve
  nbdkit_name=a attach_to "rnbds+tcp://$address/a?tls-certificates=$PWD/host1" session=s-a
  hold client-a
  nbdkit_name=b attach_to "rnbds+tcp://$address/b?tls-certificates=$PWD/host2" session=s-b
  hold client-b
  printf '%s\n' 'crl_next_update = 30' 'crl_number = 1' >template
  # A list that another authority has signed is none.
  ctl certgen other --server localhost
  certtool --generate-crl --load-ca-privkey other/ca-key.pem --load-ca-certificate other/ca-cert.pem \
    --load-certificate host2/client-cert.pem --template template --outfile tls/ca-crl.pem
  status_of 1 "${ctl_command[@]}" "$PWD/control" reload
  says said 'no revocation list in it that the authority has signed'
  looks client-b reads$
  certtool --generate-crl --load-ca-privkey tls/ca-key.pem --load-ca-certificate tls/ca-cert.pem \
    --load-certificate host1/client-cert.pem --template template --outfile tls/ca-crl.pem
  reload | tee said
  says said '"sessions_ended":\["s-a"\]'
  wait_for_line server.log "session 's-a'.*the certificate of 'host1' was revoked"
  looks client-b reads$
}
it "a certificate that is revoked ends its session, and no other" revoked

finish
