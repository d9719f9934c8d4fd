#!/bin/bash
# What a server tells of where to go: addresses that it advertises, exports that another server has. With
# paths=auto the addresses become paths, which have to prove what every path has to.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

here=$(realpath "${BASH_SOURCE[0]%/*}")

ctl() { limited "${ctl_command[@]}" "$@"; }
discover() { ctl discover "$@" "rnbd+tcp://$address"; }
reload() { ctl --json "$PWD/control" reload "$@"; }

# config LINES: the file; of a server with disk0.
config() {
  printf '%s\n' '[server]' "control = \"$PWD/control\"" "$@" '[export.disk0]' 'storage = "memory:1M"' >conf
}
# serve [ARGUMENTS...]: it listens at $address and at $second.
serve() {
  start_server --config "$PWD/conf" --listen tcp:127.0.0.2:0 --state-directory "$PWD/state" "$@"
  second=$(grep -oE '127\.0\.0\.2:[0-9]+' <<<"$line") # of what it has said when it was ready
}
# advertise ADDRESS...: from now on.
advertise() {
  local list
  list=$(printf '"tcp:%s", ' "$@")
  config "advertise = [${list%, }]" "${more[@]+"${more[@]}"}"
  reload >said
}
more=()

# ---- discover --------------------------------------------------------------------------------------

told() {
  config
  serve
  discover >found
  says found '^NAME +SIZE +ACCESS +STATE +USED-BY +UUID +DESCRIPTION$'
  advertise "$address" store.example "[2001:db8::1]:99"
  says said '"directions_changed":true'
  discover >found
  says found '^NAME .* PATHS +DESCRIPTION$'
  says found "^disk0 +1 MiB .* tcp:$address tcp:store\.example:1234 tcp:\[2001:db8::1\]:99 +-$"
  discover --json >found
  python3 -c '
import json, sys
told = json.load(sys.stdin)
assert told["paths"] == ["tcp:" + sys.argv[1], "tcp:store.example:1234", "tcp:[2001:db8::1]:99"], told
assert [each["name"] for each in told["exports"]] == ["disk0"] and told["referrals"] == [], told' "$address" <found
  ctl discover "$address" csv >found
  says found '^name,size,access,state,used_by,uuid,paths,description$'
  says found "^disk0,1048576,rw,free,,[^,]*,tcp:$address tcp:store"
  # As it has just told it.
  ctl discover "tcp:$address" csv >again
  cmp found again
  ctl discover "$address" --xml | python3 -c '
import sys, xml.etree.ElementTree as tree
exports = tree.parse(sys.stdin).getroot()
assert [each.findtext("name") for each in exports] == ["disk0"]
assert exports[0].findtext("paths").startswith("tcp:" + sys.argv[1])' "$address"
  ctl "$PWD/control" status >found
  says found '^tcp:store.example:1234$'
  stop server
  # Those of the command line win, as listeners do.
  serve --advertise tcp:192.0.2.7
  discover >found
  says found '^disk0 .* tcp:192\.0\.2\.7:1234 +-$'
}
it "addresses that a server advertises are in the table, in JSON, CSV and XML" told

mistaken() {
  config 'advertise = ["tcp:0.0.0.0:1234"]'
  status_of 2 "${server_command[@]}" --config "$PWD/conf" --check-config
  says said 'conf:3:.*nobody can connect to every address'
  status_of 2 "${server_command[@]}" --export x=memory:1M --advertise 10.0.0.1
  says said 'begins with its transport'
  config '[referral.disk0]' 'server = "rnbd+tcp://192.0.2.2/disk0"'
  status_of 2 "${server_command[@]}" --config "$PWD/conf" --check-config
  says said "referral 'disk0' has the name of an export"
}
it "addresses that mean nothing to clients, and names that are there twice, are refused" mistaken

# ---- paths=auto ------------------------------------------------------------------------------------

field() { ctl --json "$PWD/client" status | python3 -c 'import json, sys; s = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }
field_is() { [[ $(field "$1") == "$2" ]]; }
paths_are() { field_is 'sorted((p["address"][4:], p["state"]) for p in s["paths"])' "$1"; }
# come [PARAMETERS...]: a client of disk0 that has written, which makes its session.
come() {
  attach disk0 "control=$PWD/client" reconnect-min=20ms reconnect-max=100ms "$@"
  nbdsh <<<'h.pwrite(b"1" * 4096, 0)'
}

taken() {
  config
  serve
  advertise "$address" "$second"
  nbdkit_flags=(-v) # what is no warning is told so only
  come paths=auto
  eventually 20 paths_are "[('$address', 'connected'), ('$second', 'connected')]"
  says nbdkit.log "the server advertises tcp:$second, which becomes a further path"
  # It is a path as any other: the first one goes, and I/O goes on.
  ctl "$PWD/client" disconnect "tcp:$address"
  nbdsh <<<'assert h.pread(4096, 0) == b"1" * 4096; h.pwrite(b"2" * 4096, 0)'
  ctl "$PWD/client" reconnect "tcp:$address"
  # Once: what is taken away stays away, also when the server was restarted and tells it again.
  ctl "$PWD/client" remove-path "tcp:$second"
  stop server
  server_port=${address#*:} start_server --config "$PWD/conf" --state-directory "$PWD/state"
  eventually 20 writes
  paths_are "[('$address', 'connected')]" || fail "it came back: $(field 's["paths"]')"
}
it "paths=auto: a server's addresses become paths, when the session is first connected" taken

not_taken() {
  config
  serve
  # A server that tells nothing keeps nobody waiting, nor one that is asked by nobody.
  come paths=auto
  paths_are "[('$address', 'connected')]" || fail "paths from nowhere: $(field 's["paths"]')"
  stop nbdkit
  advertise "$second"
  come
  paths_are "[('$address', 'connected')]" || fail "it was not asked for: $(field 's["paths"]')"
  stop nbdkit
  nbdkit_name=auto come paths=auto extensions=true
  eventually 20 paths_are "[('$address', 'connected'), ('$second', 'connected')]"
}
it "without paths=auto, and from a server without addresses, no path is added" not_taken

same() {
  config
  start_server --config "$PWD/conf" --listen 'tcp:[::1]:0'
  advertise "127.0.0.1:$port"
  attach_to "rnbd+tcp://localhost:$port/disk0" "control=$PWD/client" paths=auto
  nbdsh <<<'h.pwrite(b"1" * 4096, 0)'
  paths_are "[('localhost:$port', 'connected')]" || fail "it is there twice: $(field 's["paths"]')"
}
it "an address that a path has under another name is not added" same

foreign() {
  server_name=other start_server --export disk0=memory:1M --state-directory "$PWD/other" --log-level debug
  local other=$address
  config
  serve
  advertise "$second" "$other"
  come paths=auto
  eventually 20 field_is '["another server" in p["trouble"] for p in s["paths"] if p["address"] == "tcp:'"$other"'"]' '[True]'
  eventually 20 field_is '[p["state"] for p in s["paths"] if p["address"] == "tcp:'"$second"'"]' "['connected']"
  nbdsh <<<'assert h.pread(4096, 0) == b"1" * 4096'
  stop nbdkit
  if grep -E 'connected with|opened' other.log; then fail "a client came to the other server"; fi
}
it "an address that leads to another server is not used, and the session lives" foreign

safe() {
  "${ctl_command[@]}" keygen host1 keys.psk --out host1.psk
  "${ctl_command[@]}" keygen host2 keys.psk --out host2.psk
  config 'advertise = ["tcp:192.0.2.7"]' "tls-psk = \"$PWD/keys.psk\""
  echo 'rw = ["host1"]' >>conf
  printf '%s\n' '[referral.vm7]' 'server = "rnbds+tcp://192.0.2.2/vm7"' >>conf
  status_of 2 "${server_command[@]}" --config "$PWD/conf" --check-config
  says said 'users = \["host1"\] below \[referral.vm7\]'
  echo 'users = ["host2"]' >>conf
  serve
  ctl discover --json "rnbds+tcp://host1@$address?tls-psk-file=$PWD/host1.psk" >found
  says found '"name":"disk0".*"referrals":\[\],"paths":\["tcp:192.0.2.7:1234"\]'
  # Nothing here is for the other one, who need not know of addresses either.
  ctl discover --json "rnbds+tcp://host2@$address?tls-psk-file=$PWD/host2.psk" >found
  says found '"exports":\[\],"referrals":\[\{"name":"vm7","server":"rnbds\+tcp://192.0.2.2/vm7"\}\],"paths":\[\]'
  ! ctl discover "rnbd+tcp://$address" connect-timeout=2s 2>said || fail "it was told without TLS"
}
it "a server that authenticates tells addresses to those who may open something" safe

# ---- Referrals -------------------------------------------------------------------------------------

referred() {
  requires_python nbd
  mkdir srv
  truncate -s 1M srv/vm7 srv/other
  config '[search]' "path = \"$PWD/srv\"" '[referral.vm7]' 'server = "rnbd+tcp://192.0.2.2/vm7"'
  serve
  discover >found
  says found '^vm7 +- +- +elsewhere .* rnbd\+tcp://192\.0\.2\.2/vm7 +-$'
  refused_client "rnbd+tcp://$address/vm7" "'vm7'.*No such file.*elsewhere: use rnbd\+tcp://192\.0\.2\.2/vm7"
  # The file of that name is what was left behind, however it is spelt.
  refused_client "rnbd+tcp://$address//vm7" 'No such file'
  says server.log "'vm7': it is a referral to rnbd\+tcp://192"
  attach other
  nbdsh <<<'h.pwrite(b"1" * 512, 0)'
  # It has come back.
  config '[search]' "path = \"$PWD/srv\""
  reload >said
  nbdkit_name=back attach vm7
  nbdsh <<<'h.pwrite(b"1" * 512, 0)'
}
it "a referral is shown and named in the refusal, and nothing of that name is opened" referred

# What a user may not see is no guess for him.
mistyped() {
  config '[export.secret]' 'storage = "memory:1M"' 'rw = ["@192.0.2.0/24"]'
  serve
  refused_client "rnbd+tcp://$address/dsik0" "'dsik0'.*No such file.*; the most similar name of an export there is 'disk0'"
  refused_client "rnbd+tcp://$address/secrte" "'secrte'.*No such file"
  if grep -q similar said; then fail "it tells the name of an export that is not for this client"; fi
  refused_client "rnbd+tcp://$address/backup" "'backup'.*No such file"
  if grep -q similar said; then fail "a name that is not similar"; fi
}
it "a mistyped export is refused with the name that is meant, if the client may see that" mistyped

alone() {
  printf '%s\n' '[referral.vm7]' 'server = "rnbd+tcp://192.0.2.2/vm7"' >conf
  serve
  says server.log 'exporting nothing but referrals'
  discover >found
  says found '^vm7 '
}
it "a server may have nothing but referrals" alone

# ---- Watching --------------------------------------------------------------------------------------

watched() {
  requires_python nbd
  config
  serve
  spawn watcher "${ctl_command[@]}" discover --watch --interval 0.1 "$address"
  spawn lines "${ctl_command[@]}" discover --watch --interval 0.1 --json "$address"
  wait_for_line watcher.out '^disk0 +1 MiB +rw +free'
  more=('[export.disk1]' 'storage = "memory:2M"' '[referral.vm7]' 'server = "rnbd+tcp://192.0.2.2/vm7"')
  advertise "$second"
  wait_for_line watcher.out '^\+ path tcp:127\.0\.0\.2'
  wait_for_line watcher.out '^\+ disk1: 2 MiB, rw, free$'
  wait_for_line watcher.out '^\+ vm7: elsewhere, rnbd\+tcp://192\.0\.2\.2/vm7$'
  attach disk0
  # It writes, and keeps the disk open.
  spawn writer /usr/bin/python3 -c '
import nbd, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"1" * 512, 0)
signal.pause()' "$uri"
  wait_for_line watcher.out '^~ disk0: state free -> in use'
  wait_for_line watcher.out "^~ disk0: .*used_by - -> '.* writes to it"
  stop writer
  stop nbdkit
  wait_for_line watcher.out '^~ disk0: state in use -> free'
  # A server that is away for a moment is waited for.
  kill_hard server
  more=()
  config
  server_port=$port start_server --config "$PWD/conf" --state-directory "$PWD/state"
  wait_for_line watcher.out '^- vm7$'
  wait_for_line watcher.out '^- disk1$'
  wait_for_line lines.out '"name":"disk1"'
  # A line for each change, and no other.
  python3 - lines.out <<'PY'
import itertools, json, sys
told = [json.loads(line) for line in open(sys.argv[1])]
assert all(a != b for a, b in itertools.pairwise(told)), told
PY
  for name in watcher lines; do
    kill "${pid[$name]}" # it has no end of its own
    wait_end "$name" 5 || fail "$name does not leave"
  done
}
it "discover --watch tells what comes, goes and changes, and waits for a server that is away" watched

# A server that shows life and leaves the question unanswered.
unanswered() {
  spawn silent /usr/bin/python3 -B -c '
import signal, sys
sys.path.insert(0, sys.argv[1])
import hostile_peer
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
server = hostile_peer.Server()
server.order(hostile_peer.DIRECTORY, lambda request: None, times=None)
print(server.ports[0], flush=True)
signal.sigwait([signal.SIGTERM])
' "$here"
  eventually 20 test -s "$case_dir/silent.out"
  status_of 1 "${ctl_command[@]}" discover "127.0.0.1:$(<"$case_dir/silent.out")" connect-timeout=2s
  says said 'the server is there, and does not answer'
}
it "discover ends at a server that is there and does not answer" unanswered

# A port that was free a moment ago.
closed() {
  local port
  port=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  spawn asker "${ctl_command[@]}" discover "127.0.0.1:$port" connect-timeout=1h
  wait_for_line asker.log 'Connection refused .*; it is tried again until 3600 s have passed \(connect-timeout\)'
  kill "${pid[asker]}"
  wait_end asker 5 || fail "discover does not leave"
}
it "discover says at once that nobody listens at the address, and tries on" closed

finish
