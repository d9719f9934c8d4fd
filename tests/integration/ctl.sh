#!/bin/bash
# rnbd-ctl without a socket: it finds what runs, and shows all of it.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# ---- Helpers --------------------------------------------------------------------------------------

root=root
ctl() { limited "${ctl_command[@]}" --root "$root" "$@"; }

# two_programs: a server and a bridge, with their sockets where the units have them, and some I/O.
two_programs() {
  requires_python nbd
  mkdir -p "$root"/run/{rnbd,rnbd-server,rnbd-bridge/away} "$root/sys/block"
  start_server --export disk0=memory:16M --export vol1=memory:1M --control "$PWD/root/run/rnbd-server/control"
  start_bridge "rnbd+tcp://$address/disk0" --control "$PWD/root/run/rnbd/disk0.control"
  spawn client /usr/bin/python3 -c '
import nbd, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 65536, 0)
open("written", "w").close()
time.sleep(3600)' "$uri"
  eventually 60 test -e written
}

# ---- Cases ----------------------------------------------------------------------------------------

lists() {
  two_programs
  ctl list >list.txt
  cat list.txt
  says list.txt '^SESSNAME +MAPPING_PATH +STATE +ACCESS_MODE +USERS +HOSTNAME +DIRECTION$'
  says list.txt ' disk0 +open +rw +1 +- +import$'
  says list.txt ' disk0 +open +rw +1 +127.0.0.1 +export$'
  says list.txt '^- +vol1 +free +rw +0 +- +export$'
  ctl list csv >list.csv
  says list.csv '^sessname,mapping_path,devname,state,access_mode,users,hostname,direction,trouble$'
  says list.csv ',disk0,,open,rw,1,127.0.0.1,export,$'
  (($(wc -l <list.txt) == 4)) || fail "not three devices"
  ctl list size,direction >sums.txt
  cat sums.txt
  if grep -q '33M' sums.txt; then fail "imports are added to exports"; fi
  ctl client list sessions json | limited /usr/bin/python3 -c '
import json, sys
session, = json.load(sys.stdin)["sessions"]
path, = session["paths"]
assert path["state"] == "connected" and path["dst_addr"] == sys.argv[1], session' "$address"
  ctl list all json >all.json
  limited /usr/bin/python3 - <<'PY'
import json
rows = json.load(open("all.json"))["devices"]
assert all(row["trouble"] == "" for row in rows), rows
uuids = {row["direction"]: row["uuid"] for row in rows if row["mapping_path"] == "disk0"}
assert uuids["import"] == uuids["export"], rows
PY
  ctl client list sessions csv paths noheaders >paths.of
  says paths.of "^tcp:$address$"
  ctl client list sessions >sessions.txt
  cat sessions.txt
  says sessions.txt ' connected +U +mi +64K +0B? +0$'
  says sessions.txt "^\`- tcp:127.0.0.1:$port +connected"
  ctl list paths csv dst_addr,state,direction >paths.csv
  cat paths.csv
  says paths.csv "^127.0.0.1:$port,connected,import$"
  says paths.csv '^127.0.0.1:[0-9]+,connected,export$'
  ctl server list json mapping_path,size >devices.json
  [[ $(tr -d ' \n' <devices.json) == '{"devices":[{"mapping_path":"disk0","size":16777216},{"mapping_path":"vol1","size":1048576}]}' ]] || {
    cat devices.json
    fail "other JSON"
  }
  ctl list xml sessions | limited /usr/bin/python3 -c '
import sys, xml.etree.ElementTree as tree
sessions = tree.parse(sys.stdin).getroot()
assert sessions.tag == "sessions" and len(sessions) == 2, tree.tostring(sessions)
assert {session.find("path_uu").text for session in sessions} == {"U"}'
}
it "devices, sessions and paths of all programs are in one table, for people and for programs" lists

shows() {
  two_programs
  ctl client show disk0 >show.txt
  cat show.txt
  says show.txt '^size: +16M$'
  says show.txt '^tx_sect: +128$'
  says show.txt '^program: +disk0$'
  says show.txt '^version: +[0-9]+\.[0-9]'
  ctl server show disk0 >export.txt
  cat export.txt
  says export.txt '^version: +[0-9]+\.[0-9]'
  says export.txt "^openers: +'.*' \\(127.0.0.1:[0-9]+\\) rw$"
  ctl server show vol1 >unused.txt
  says unused.txt '^openers: +-$'
  status_of 1 "${ctl_command[@]}" --root "$root" show disk1
  says said "there is no device, session or path 'disk1'"
  status_of 2 "${ctl_command[@]}" --root "$root" show
  says said 'write rnbd-ctl .*show .*NAME'
  status_of 1 "${ctl_command[@]}" --root "$root" list sise
  says said 'did you mean size'
  mkdir "$root/sys/block/nbd5"
  echo 'rnbd:u:disk0' >"$root/sys/block/nbd5/backend"
  status_of 0 "${ctl_command[@]}" --root "$root" udev nbd5
  says said '^RNBD_NAME=disk0$'
  says said '^RNBD_UUID=u$'
  status_of 1 "${ctl_command[@]}" --root "$root" udev nbd6
}
it "one of them is shown with everything, and mistakes are told" shows

dead_ones() {
  two_programs
  kill_hard client
  kill_hard bridge
  mkdir "$root/sys/block/nbd5"
  echo 'rnbd:u:disk0' >"$root/sys/block/nbd5/backend"
  status_of 0 "${ctl_command[@]}" --root "$root" client list
  says said '^nbd5 +unattended$'
  /usr/bin/python3 -c '
import socket
s = socket.socket(socket.AF_UNIX)
s.bind("root/run/rnbd-bridge/away/control")
s.listen()
while True:
    c, _ = s.accept()
    c.recv(100)
    c.sendall(b"what?\n")
    c.close()' &
  local liar=$!
  at_end kill "$liar"
  eventually 20 test -S root/run/rnbd-bridge/away/control
  status_of 1 "${ctl_command[@]}" --root "$root" client list
  says said 'away/control: it does not answer as a program of rnbdkit does'
  says said 'nbd5'
}
it "a bridge that was killed leaves a device that is shown as unattended; who lies is told" dead_ones

nobody() {
  status_of 0 "${ctl_command[@]}" --root "$PWD/nowhere" list
  says said '^SESSNAME'
  status_of 2 "${ctl_command[@]}" lsit
  says said "'lsit' is no command; did you mean list\\? And it is no control socket"
  status_of 2 "${ctl_command[@]}" frobnicate
  says said "'frobnicate' is no command, and no control socket"
  status_of 2 "${ctl_command[@]}" umap disk0
  says said 'did you mean unmap\\?'
  status_of 2 "${ctl_command[@]}" path dele 10.0.0.1
  says said "'dele' is no command of .rnbd-ctl path.; did you mean delete\\?"
  status_of 2 "${ctl_command[@]}" server evict disk0
  says said "'evict' is told to the server itself, and no control socket of one is found; .* --control /run/rnbd-server/control"
  status_of 2 "${ctl_command[@]}" path del
  says said 'write rnbd-ctl path delete .SESSION. PATH'
  status_of 2 "${ctl_command[@]}" map store/disk0
  says said 'write map disk0 from store, or map rnbd.tcp://store/disk0'
  status_of 2 "${ctl_command[@]}" map from store disk0
  says said 'write rnbd-ctl map disk0 from store$'
  status_of 2 "${ctl_command[@]}" connect -t
  status_of 2 "${ctl_command[@]}" connect
  says said 'did you mean map DEVICE from SERVER\\?'
  status_of 0 "${ctl_command[@]}" --help
  says said 'map DEVICE from SERVER'
  says said 'discover URI'
  says said 'Exit status: 0, done'
  status_of 0 "${ctl_command[@]}" map --help
  says said '^rnbd-ctl map DEVICE from SERVER'
  status_of 0 "${ctl_command[@]}" map help
  says said '^rnbd-ctl map DEVICE from SERVER'
  status_of 0 "${ctl_command[@]}" discover help
  says said '^Usage: .*discover'
  for group in path session device client server; do
    status_of 0 "${ctl_command[@]}" "$group" --help
    says said '^Commands about '
    if grep -q 'rnbd-ctl SOCKET' said; then fail "the general help"; fi
  done
  status_of 0 "${ctl_command[@]}" --root "$PWD/nowhere" sessions
  says said '^SESSNAME'
  status_of 0 "${ctl_command[@]}" help
  says said 'list \[devices'
}
it "without any program the list is empty, and a mistyped word is no command" nobody

# With programs that run a word might be one of their commands, too.
mistyped() {
  requires unshare
  two_programs
  # shellcheck disable=SC2016
  local there=(unshare --mount bash -c 'mount -t tmpfs none /run && ln -s "$0"/run/* /run && exec "$@"' "$PWD/$root")
  "${there[@]}" true || skip "no mount namespaces here"
  status_of 2 "${there[@]}" "${ctl_command[@]}" umap disk0
  says said "'umap' is no command; did you mean unmap\\? And it is no control socket; write the name of a program first, one of: disk0 server$"
  status_of 1 "${ctl_command[@]}" "$PWD/$root/run/rnbd/disk0.control" staus
  says said "unknown command 'staus'; there are .*; did you mean status\\?$"
  rm "$root/run/rnbd-server/control"
  status_of 2 "${there[@]}" "${ctl_command[@]}" umap disk0
  says said "'umap' is no command; did you mean unmap\\? A command of the program that runs is written rnbd-ctl disk0 umap$"
  status_of 0 "${there[@]}" "${ctl_command[@]}" status
}
it "a mistyped verb is told with the one that is meant, also while programs run" mistyped

# knows_all_of SOCKET: what the program answers is in the help, and has a --help in its words.
knows_all_of() {
  local form name
  limited "${ctl_command[@]}" --json "$1" help >answer.json
  /usr/bin/python3 -c '
import json
for each in json.load(open("answer.json"))["commands"]: print(each["command"])' >forms
  (($(wc -l <forms) >= 6)) || fail "it knows next to nothing"
  while read -r form; do
    name=${form%% *}
    grep -qxF -e "  $form" help.txt || grep -qE "^  $form +[A-Z]" help.txt || fail "$form is not in the help"
    status_of 0 "${ctl_command[@]}" "$1" "$name" --help
    grep -qxF -e "rnbd-ctl server $form" -e "rnbd-ctl PROGRAM $form" said || fail "$form has no help of its own"
  done <forms
}
helps() {
  two_programs
  ctl help >help.txt
  knows_all_of root/run/rnbd-server/control
  knows_all_of root/run/rnbd/disk0.control
  # The others of that help, from their lines: [SIDE] [OBJECT] VERB ...
  sed -n '/^Commands for all/,/^$/s/^  \([a-z[].*\)/\1/p' help.txt |
    sed -E 's/^\[[a-z|]*\] //; s/^(path|server) //; s/ .*//' >verbs
  (($(wc -l <verbs) >= 18)) || fail "not all verbs: $(cat verbs)"
  local verb
  while read -r verb; do
    status_of 0 "${ctl_command[@]}" "$verb" --help
    grep -qE "^rnbd-ctl .*$verb|^Usage: .*$verb" said || fail "$verb has no help of its own"
  done <verbs
}
it "every command is in the help, also those of running programs, and has a --help of its own" helps

# Whatever bash offers first is a command.
completes() {
  local word
  # shellcheck disable=SC1091
  source "$source_dir/contrib/completion/rnbd-ctl"
  # shellcheck disable=SC2034
  COMP_WORDS=(rnbd-ctl '') COMP_CWORD=1
  _rnbd_ctl rnbd-ctl ''
  for word in "${COMPREPLY[@]}"; do
    [[ ! -e $word && $word != help ]] || continue
    status_of 0 "${ctl_command[@]}" "$word" --help
  done
  says said keys
}
# What the parser of map takes is offered, also what has no line in the help.
completes_map() {
  local word
  # shellcheck disable=SC1091
  source "$source_dir/contrib/completion/rnbd-ctl"
  # shellcheck disable=SC2034
  COMP_WORDS=(rnbd-ctl map disk0 '') COMP_CWORD=3
  _rnbd_ctl rnbd-ctl ''
  printf '%s\n' "${COMPREPLY[@]}" >offered
  status_of 0 "${ctl_command[@]}" map help
  sed -n '/^Words behind it/,/^$/s/^  \([a-z-][^ ]*\).*/\1/p' said | grep -vx root >words
  grep -qx from words
  for word in $(cat words) read-only readonly read-write; do
    grep -qx -e "$word" offered || fail "$word is not offered"
  done
  COMP_WORDS=(rnbd-ctl map disk0 read) COMP_CWORD=3
  _rnbd_ctl rnbd-ctl read
  ((${#COMPREPLY[@]} == 3)) || fail "not read-only, readonly and read-write: ${COMPREPLY[*]}"
  COMP_WORDS=(rnbd-ctl map disk0 --p) COMP_CWORD=3
  _rnbd_ctl rnbd-ctl --p
  [[ ${COMPREPLY[*]} == --persist ]] || fail "not --persist: ${COMPREPLY[*]}"
}
it "completion offers every word that map takes" completes_map

it "each word that completion offers first is a command with a help of its own" completes

# see_process NAME: the only processes of the machine are those; others run tests, too.
see_process() {
  mkdir -p "$root/proc"
  [[ -e $root/proc/net ]] || ln -s /proc/net "$root/proc/net"
  ln -s "/proc/${pid[$1]}" "$root/proc/"
}

# Who runs without a control socket, or has it elsewhere, is missing in a list: that is told.
hidden() {
  mkdir -p "$root/run/rnbd-server"
  start_server --export disk0=memory:1M
  see_process server
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" server list
  says said "^rnbd-ctl: rnbd-server, process ${pid[server]}, is not shown: it has no control socket; start it with --control /run/rnbd-server/control$"
  status_of 3 "${ctl_command[@]}" --root "$PWD/$root" check
  says said "^UNKNOWN: rnbd-server, process ${pid[server]}, is not shown"
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" client list
  if grep -q "process ${pid[server]}," said; then fail "a server is no client"; fi
  stop server
  start_server --export disk0=memory:1M --control "$PWD/elsewhere"
  see_process server
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" list
  says said "process ${pid[server]}, is not shown: its control socket is elsewhere; ask it with rnbd-ctl $PWD/elsewhere status$"
  stop server
  start_server --export disk0=memory:1M --control "$PWD/$root/run/rnbd-server/control"
  see_process server
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" list
  if grep -q "process ${pid[server]}," said; then fail "it is shown"; fi
}
it "a program that cannot be asked is named, with the option that it lacks" hidden

# Two servers in a PID namespace of their own; `root` has the view from outside.
contained() {
  ((EUID == 0)) || skip "only root makes namespaces"
  unshare --pid --fork true 2>/dev/null || skip "no PID namespaces here"
  [[ -z $sanitizer ]] || skip "it is about processes that are not asked"
  mkdir -p "$root"/proc
  ln -s /proc/net "$root/proc/net"
  local name inside=()
  for name in one two; do
    mkdir "$name"
    spawn "$name" env STATE_DIRECTORY="$PWD/$name" unshare --pid --fork --kill-child \
      "${server_command[@]}" --listen tcp:127.0.0.1:0 --export disk0=memory:1M
    wait_for_line "$name.log" ready
    inside+=("$(grep -oE '[0-9]+' "/proc/${pid[$name]}/task/${pid[$name]}/children")")
    ln -s "/proc/${inside[-1]}" "$root/proc/"
  done
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" list
  says said '^rnbd-ctl: 2 programs run in containers: rnbd-ctl there shows them \(process [0-9]+ and others\)$'
  (($(grep -c rnbd-ctl: said) == 1)) || fail "more than one line tells of them"
  local format
  for format in csv json xml; do
    ctl list "$format" >list.txt 2>said
    if grep . said; then fail "lists for programs come with a remark"; fi
  done
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" client list
  if grep containers said; then fail "a server is no client"; fi
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" check
  kill "${inside[@]}"
  expect_gone one 0
  expect_gone two 0
}
it "programs in containers are one line in front of a table, and none for programs" contained

# ---- Sessions and paths -----------------------------------------------------------------------------

# path_is STATE PATTERN: the only client has a path with this state whose address matches.
path_is() { ctl client list paths csv dst_addr,state noheaders | grep -qE "$2,$1$"; }

steers() {
  two_programs
  local again
  status_of 0 "${ctl_command[@]}" --root "$root" path add disk0 "ip:127.0.0.2:$port" --wait 0
  says said "^path tcp:127.0.0.2:$port of session .*: connecting$"
  status_of 1 "${ctl_command[@]}" --root "$root" path add disk0 "127.0.0.2:$port"
  says said 'is there already'
  status_of 1 "${ctl_command[@]}" --root "$root" path add disk0 127.0.0.1:1 --wait=0.3
  says said '^rnbd-ctl: path tcp:127.0.0.1:1 of session .* is not connected yet: .*Connection refused'
  eventually 20 path_is waiting '127.0.0.1:1'
  # Nobody listens at 127.0.0.2 or at port 1, so the session lives on the first path.
  status_of 0 "${ctl_command[@]}" --root "$root" path delete 127.0.0.1:1
  says said '^path tcp:127.0.0.1:1 of session .*: deleted$'
  status_of 0 "${ctl_command[@]}" --root "$root" reconnect "127.0.0.1:$port"
  says said "^path tcp:127.0.0.1:$port of session .*: connected$"
  path_is connected "127.0.0.1:$port"
  status_of 1 "${ctl_command[@]}" --root "$root" client disconnect disk0
  says said 'no path would be left .*: disk0 is open for 1 NBD client; .* --force'
  status_of 1 "${ctl_command[@]}" --root "$root" disconnect path disk0 "127.0.0.1:$port"
  path_is connected "127.0.0.1:$port"
  status_of 0 "${ctl_command[@]}" --root "$root" client disconnect disk0 --force
  says said "^path tcp:127.0.0.1:$port of session .*: out of service until reconnect or recover$"
  ctl client list >waits.txt
  cat waits.txt
  says waits.txt ' disk0 +waiting +rw +1 +no path for [0-9]+ s .*tcp:127.0.0.1:[0-9]+: disconnected by command.*$'
  path_is disconnected "127.0.0.1:$port"
  spawn waiting limited /usr/bin/python3 -c 'import nbd, sys; h = nbd.NBD(); h.connect_uri(sys.argv[1]); h.pread(512, 0)' "$uri"
  status_of 1 "${ctl_command[@]}" --root "$root" recover all --wait 1
  says said "^path tcp:127.0.0.1:$port of session .*: connected$"
  says said "^rnbd-ctl: path tcp:127.0.0.2:$port of .* is not connected yet"
  status_of 2 "${ctl_command[@]}" --root "$root" recover all --wait long
  says said "'long' is not a number of seconds"
  expect_gone waiting 0
  # The server closes the path: the client is back by itself, and has lost nothing.
  again=$(reconnects)
  status_of 0 "${ctl_command[@]}" --root "$root" server path disconnect "$(ctl server list paths csv pathname noheaders)"
  eventually 20 reconnected_since "$again"
  nbdsh <<<'h.pwrite(b"y" * 512, 0); assert h.pread(512, 0) == b"y" * 512'
  status_of 1 "${ctl_command[@]}" --root "$root" server path disconnect 127.0.0.1:2
  says said "there is no path '127.0.0.1:2'"
  ctl server list >who.txt
  says who.txt '^SESSNAME +MAPPING_PATH +STATE +ACCESS_MODE +USERS +HOSTNAME$'
  says who.txt ' disk0 +open +rw +1 +127.0.0.1$'
  says who.txt '^- +vol1 +free +rw +0 +-$'
  status_of 1 "${ctl_command[@]}" --root "$root" server close vol1
  says said "nobody has 'vol1' open"
  status_of 1 "${ctl_command[@]}" --root "$root" server close disk0
  says said "has 'disk0' open rw"
  status_of 0 "${ctl_command[@]}" --root "$root" server close disk0 force
  says said '^session .*: ended; its users of disk0 get EIO until they open it anew; its client opens nothing here until '
  says server.log 'evicted'
  status_of 0 "${ctl_command[@]}" "$root/run/rnbd-server/control" readmit @127.0.0.1
}
reconnects() { ctl client list paths csv dst_addr,reconnects noheaders | grep -E "^127.0.0.1:$port," | cut -d , -f 2; }
reconnected_since() { (($(reconnects) > $1)) && path_is connected "127.0.0.1:$port"; }
it "sessions and paths are added, taken out of service, and recovered at once by their names" steers

# Of IONOS's rnbd, so that its users' command lines work.
foreign_words() {
  mkdir -p "$root"/run/rnbd "$root/sys/block"
  start_server --export disk0=memory:16M
  start_bridge "rnbd+tcp://$address/disk0" --connect now --control "$PWD/root/run/rnbd/disk0.control"
  status_of 0 "${ctl_command[@]}" version
  says said '^rnbd-ctl [0-9]'
  status_of 0 "${ctl_command[@]}" --root "$root" client path show 127.0.0.1 hostname,dst_addr
  says said "^dst_addr: +$address$"
  says said "^hostname: +127.0.0.1$"
  status_of 0 "${ctl_command[@]}" --root "$root" client path disconnect 127.0.0.1 verbose
  status_of 0 "${ctl_command[@]}" --root "$root" client path reconnect 127.0.0.1 verbose
  status_of 0 "${ctl_command[@]}" --root "$root" client session recover all add-missing verbose
}
it "a path is shown by its host alone, and the words verbose and version are taken" foreign_words

# A second way to the server, which has two listeners, is removed and comes back.
missing() {
  requires_python nbd
  mkdir -p "$root"/run/rnbd "$root/sys/block"
  start_server --listen tcp:127.0.0.2:0 --export disk0=memory:16M
  local other
  other=$(grep -hoE '127\.0\.0\.2:[0-9]+' server.log | head -n 1)
  start_bridge "rnbd+tcp://$address/disk0" --path "$other,preference=-2" --connect now --control "$PWD/root/run/rnbd/disk0.control"
  nbdsh <<<'h.pwrite(b"z" * 512, 0)'
  eventually 20 path_is connected "$other"
  status_of 0 "${ctl_command[@]}" --root "$root" path delete "$other"
  eventually 20 lacks "$other"
  status_of 0 "${ctl_command[@]}" --root "$root" disconnect path "$address"
  status_of 0 "${ctl_command[@]}" "$root/run/rnbd/disk0.control" status
  says said "^tcp:$other +-2$"
  status_of 0 "${ctl_command[@]}" --root "$root" recover session disk0
  eventually 20 path_is connected "$address"
  lacks "$other" || fail "it was not asked for"
  status_of 1 "${ctl_command[@]}" --root "$root" recover path "$address" add-missing
  says said 'add-missing is for sessions'
  status_of 0 "${ctl_command[@]}" --root "$root" session recover all add-missing
  eventually 20 path_is connected "$other"
  [[ $(ctl client list paths csv dst_addr,preference noheaders | grep "^$other,") == "$other,-2" ]] || fail "another preference"
  status_of 0 "${ctl_command[@]}" "$root/run/rnbd/disk0.control" status
  ! grep -q MISSING-PATH said || fail "a path is still missing"
  # There is nothing to do any more.
  status_of 0 "${ctl_command[@]}" --root "$root" recover disk0 add-missing
}
lacks() { ! ctl client list paths csv dst_addr noheaders | grep -qF "$1"; }
it "a path that was removed by command comes back with add-missing, as it was" missing

watches() {
  two_programs
  spawn watcher "${ctl_command[@]}" --root "$root" client list interval 0.1 csv mapping_path
  eventually 20 has_lines watcher.out 6
  kill -TERM "${pid[watcher]}"
  wait_end watcher 10
  says watcher.out '^disk0$'
  spawn asker "${ctl_command[@]}" --json --watch --interval 0.1 "$root/run/rnbd/disk0.control" status
  eventually 20 has_lines asker.out 3
  kill -TERM "${pid[asker]}"
  wait_end asker 10
  head -n 1 asker.out | /usr/bin/python3 -c 'import json, sys; assert "paths" in json.loads(sys.stdin.read())'
  status_of 2 "${ctl_command[@]}" --root "$root" list interval never
  says said "'never' is not a number of seconds"
}
has_lines() { (($(wc -l <"$1") >= $2)); }
it "a list, and an answer of a program, may be watched" watches

# second_way: a server that listens at two addresses with the same port, and a bridge with one path.
second_way() {
  requires_python nbd
  mkdir -p "$root"/run/rnbd "$root/sys/block"
  start_server --export vol=memory:1M
  stop server
  local same=$port
  start_server --listen "tcp:127.0.0.1:$port" --listen "tcp:127.0.0.2:$port" --export vol=memory:1M
  port=$same
  start_bridge "rnbd+tcp://127.0.0.1:$port/vol" --session vm1 --control "$PWD/root/run/rnbd/b.control"
}

# What is left out of a path is as in the session's URI, and a session may be called by its device.
same_port() {
  second_way
  ctl client list sessions >idle.txt
  cat idle.txt
  says idle.txt '^- +idle +- +'
  # Nobody has asked for a session.
  status_of 0 "${ctl_command[@]}" --root "$root" path add b 127.0.0.2
  says said "^path tcp:127.0.0.2:$port of session b: idle, it connects when somebody opens a device$"
  status_of 0 "${ctl_command[@]}" "$root/run/rnbd/b.control" remove-path 127.0.0.2
  hold_open
  status_of 0 "${ctl_command[@]}" --root "$root" path add vol 127.0.0.2
  says said "^path tcp:127.0.0.2:$port of session vm1: connected$"
  # One of two may go: the session goes on.
  status_of 0 "${ctl_command[@]}" --root "$root" disconnect path vol 127.0.0.1
  status_of 0 "${ctl_command[@]}" --root "$root" recover vol
  says said "^path tcp:127.0.0.1:$port of session vm1: connected$"
  status_of 0 "${ctl_command[@]}" --root "$root" recover vm1
  says said 'all paths are connected already'
  status_of 0 "${ctl_command[@]}" --root "$root" path readd vm1 127.0.0.2
  says said "^path tcp:127.0.0.2:$port of session vm1: connected$"
  status_of 1 "${ctl_command[@]}" --root "$root" path add vul 127.0.0.2
  says said "there is no session or device 'vul'"
}
hold_open() {
  spawn holder /usr/bin/python3 -c '
import nbd, os, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 512, 0)
open("held", "w").close()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True: signal.pause()' "$uri"
  eventually 60 test -e held
}
it "a path needs its host only, and who adds one learns whether it is connected" same_port

# A reader that is thrown out is told so, and comes back when it is let in.
throws_out_a_reader() {
  requires_python nbd
  mkdir -p "$root"/run/{rnbd,rnbd-server} "$root/sys/block"
  truncate -s 1M image
  start_server --export "disk0=$PWD/image,ro" --control "$PWD/root/run/rnbd-server/control"
  start_bridge "rnbd+tcp://$address/disk0" --session vm1 --control "$PWD/root/run/rnbd/disk0.control"
  spawn reader /usr/bin/python3 -c '
import nbd, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    try:
        h = nbd.NBD()
        h.connect_uri(sys.argv[1])
        while True:
            h.pread(512, 0)
            open("read", "w").close()
            time.sleep(0.1)
    except nbd.Error:
        open("failed", "w").close()
        time.sleep(0.1)' "$uri"
  eventually 60 test -e read
  status_of 0 "${ctl_command[@]}" --root "$root" server close disk0
  says said '^session vm1: ended; its client opens nothing here until you write rnbd-ctl server readmit @127.0.0.1$'
  eventually 60 test -e failed
  status_of 0 "${ctl_command[@]}" "$root/run/rnbd-server/control" readmit @127.0.0.1
  rm read
  eventually 60 test -e read
  ctl server list >who.txt
  says who.txt '^vm1 +disk0 +open +ro +1 '
}
it "who only reads is out after close, which says so, until it is let in" throws_out_a_reader

# The file of an export becomes smaller while it is served.
shrinks() {
  requires_python nbd
  mkdir -p "$root"/run/{rnbd,rnbd-server} "$root/sys/block"
  truncate -s 2M image
  start_server --export "disk0=$PWD/image" --control "$PWD/root/run/rnbd-server/control"
  start_bridge "rnbd+tcp://$address/disk0" --control "$PWD/root/run/rnbd/disk0.control"
  hold_open
  status_of 0 "${ctl_command[@]}" --root "$root" check
  truncate -s 1M image
  status_of 2 "${ctl_command[@]}" --root "$root" server check
  says said '^CRITICAL: export disk0: its storage has shrunk to 1048576 bytes; clients have it with 2097152 bytes and get EIO behind that end; enlarge it again$'
  [[ $(nbdinfo --size "$uri") == 2097152 ]] # asks the server again
  status_of 2 "${ctl_command[@]}" --root "$root" client check
  says said '^CRITICAL: device disk0: its export has shrunk at the server: '
  ctl client list >devices.txt
  says devices.txt ' disk0 +shrunk +rw +1 +its export has shrunk'
  truncate -s 2M image
  [[ $(nbdinfo --size "$uri") == 2097152 ]]
  status_of 0 "${ctl_command[@]}" --root "$root" check
}
it "storage that shrinks beneath its export is critical at both ends, until it is large again" shrinks

# For monitoring: exit status 0, 1, 2 and 3.
checks() {
  second_way
  mkdir -p root/run/rnbd-server
  status_of 0 "${ctl_command[@]}" --root "$root" check
  says said '^RNBD OK - 1 session, 0 of 0 paths up, 0 devices, 0 exports | sessions=1 '
  hold_open
  status_of 0 "${ctl_command[@]}" --root "$root" path add vm1 127.0.0.2
  status_of 0 "${ctl_command[@]}" --root "$root" check vm1
  says said '^RNBD OK - 1 session, 2 of 2 paths up, 1 device, 0 exports '
  status_of 0 "${ctl_command[@]}" --root "$root" disconnect path vm1 127.0.0.2
  status_of 1 "${ctl_command[@]}" --root "$root" check
  says said '^RNBD WARNING - 1 warning, '
  says said '^WARNING: session vm1: 1 of 2 paths .tcp:127.0.0.2:[0-9]+: disconnected by command.$'
  kill_hard server
  eventually 20 is_critical
  says said '^CRITICAL: device vol: its requests wait, no path for [0-9]+ s '
  status_of 2 "${ctl_command[@]}" --root "$root" check json
  /usr/bin/python3 -c '
import json
check = json.load(open("said"))
assert check["status"] == "CRITICAL" and check["code"] == 2 and check["counts"]["paths_up"] == 0, check
assert {finding["kind"] for finding in check["findings"]} == {"session", "device"}, check'
  status_of 3 "${ctl_command[@]}" --root "$root" check vm2
  says said '^UNKNOWN: name vm2: nothing is called vm2$'
  status_of 3 "${ctl_command[@]}" --root "$root" check --csv
  status_of 0 "${ctl_command[@]}" --root "$PWD/nowhere" check
  says said '^RNBD OK - no disks are mapped, '
  status_of 3 "${ctl_command[@]}" --root "$PWD/nowhere" server check
  says said '^UNKNOWN: no server runs here that can be asked$'
  # Without its storage an export waits.
  start_server --export "late=$PWD/missing" --control "$PWD/root/run/rnbd-server/control"
  status_of 2 "${ctl_command[@]}" --root "$root" server check
  says said '^CRITICAL: export late: it waits for its storage: .*no such file'
  kill_hard server
  status_of 2 "${ctl_command[@]}" --root "$root" server check
  says said '^CRITICAL: program server: rnbd-server of .*/run/rnbd-server/control does not answer: it has ended$'
}
is_critical() { [[ $(ctl check | head -n 1) == "RNBD CRITICAL - "* ]] && { ctl check >said || true; }; }
it "check tells monitoring of paths that are down, devices that wait and storage that is not there" checks

fills() {
  ((EUID == 0)) || skip "only root can mount a small file system"
  mkdir -p "$root/run/rnbd-server" small
  mount -t tmpfs -o size=4M tmpfs small 2>/dev/null || skip "cannot mount tmpfs here"
  at_end umount "$PWD/small"
  head -c 3968K /dev/zero >small/other
  truncate -s 1G small/thin.img
  start_server --export "thin=$PWD/small/thin.img" --control "$PWD/$root/run/rnbd-server/control"
  checks_space() { [[ $(ctl server check || true) == *"$1: export thin: its file system has "* ]]; }
  eventually 20 checks_space WARNING
  status_of 1 "${ctl_command[@]}" --root "$root" server check
  says said 'WARNING: export thin: its file system has 128 KiB left of 4 MiB, and its file may take 1 GiB yet; make room'
  head -c 64K /dev/zero >>small/other
  eventually 20 checks_space CRITICAL
  rm small/other
  has_room() { "${ctl_command[@]}" --root "$root" server check thin; }
  eventually 20 has_room
}
it "check tells of a file system that fills beneath a file with holes" fills

# Two servers, of which the second has its socket where nobody looks, or none.
second_server() {
  mkdir -p "$root/run/rnbd-server"
  start_server --export disk0=memory:1M --control "$PWD/$root/run/rnbd-server/control"
  server_name=second start_server --export "late=$PWD/missing" --control elsewhere
  see_process server
  see_process second
  status_of 2 "${ctl_command[@]}" --root "$PWD/$root" server check
  says said "^CRITICAL: export late: at the server of $PWD/elsewhere: it waits for its storage: .*no such file"
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" client check
  status_of 0 "${ctl_command[@]}" --root "$PWD/$root" check disk0
  truncate -s 1M missing
  eventually 20 finds_two_exports
  stop second
  server_name=second start_server --export vol1=memory:1M
  see_process second
  status_of 3 "${ctl_command[@]}" --root "$PWD/$root" server check
  says said "^UNKNOWN: rnbd-server, process ${pid[second]}, is not shown: it has no control socket; .*start it with --control /run/rnbd/NAME.control$"
}
finds_two_exports() { [[ $("${ctl_command[@]}" --root "$PWD/$root" server check | head -n 1) == "RNBD OK - "*" 2 exports "* ]]; }
it "check looks at every server of the machine, wherever its control socket is" second_server

# status_of has patience for 20 s: asked one after the other they would take 28.
hang() {
  two_programs
  local i
  for i in 1 2 3 4 5 6; do
    server_name=frozen$i start_server --export "vol$i=memory:1M" --control "$PWD/root/run/rnbd/s$i.control"
    freeze "frozen$i"
  done
  freeze server
  status_of 2 "${ctl_command[@]}" --root "$root" server check
  says said '^RNBD CRITICAL - 7 critical, '
  says said '^CRITICAL: program server: rnbd-server of .*/run/rnbd-server/control hangs: no answer for 4 s$'
  says said '^CRITICAL: program s6: the program of .*/run/rnbd/s6.control hangs'
  thaw server
  for i in 1 2 3 4 5 6; do thaw "frozen$i"; done
  status_of 0 "${ctl_command[@]}" --root "$root" check
}
it "programs that hang are critical by name, and check waits for all of them together" hang

# The bridge cannot be asked, as on a machine that only serves.
counts_clients() {
  two_programs
  rm root/run/rnbd/disk0.control
  status_of 0 "${ctl_command[@]}" --root "$root" server check
  says said '^RNBD OK - 1 session, 1 of 1 path up, 1 device, 2 exports | sessions=1 paths=1 paths_up=1 devices=1 exports=2 '
  status_of 0 "${ctl_command[@]}" --root "$root" check disk0
  says said '^RNBD OK - 1 session, 1 of 1 path up, 1 device, 1 export '
  status_of 0 "${ctl_command[@]}" --root "$root" check vol1
  says said '^RNBD OK - 0 sessions, 0 of 0 paths up, 0 devices, 1 export '
  stop client
  stop bridge
  eventually 20 nobody_comes
}
nobody_comes() { [[ $(ctl server check | head -n 1) == "RNBD OK - 0 sessions, 0 of 0 paths up, 0 devices, 2 exports "* ]]; }
it "check of a server counts the sessions that write to it, and none when they have gone" counts_clients

storage_failed() {
  mkdir -p "$root/run/rnbd-server" "$root/sys/block"
  start_server --export "disk0=fault:write-enospc=1:memory:1M" --export vol1=memory:1M \
    --control "$PWD/root/run/rnbd-server/control"
  attach disk0
  status_of 0 "${ctl_command[@]}" --root "$root" server check
  nbdsh <<'PYTHON'
try:
    h.pwrite(b"x" * 512, 0)
    raise SystemExit("it has written")
except nbd.Error as error:
    assert error.errno == "ENOSPC", error
PYTHON
  status_of 1 "${ctl_command[@]}" --root "$root" server check
  says said "^WARNING: export disk0: its storage failed a write with ENOSPC [0-9]+ s ago, at 20[0-9-]+T[0-9:]+Z; see "
  status_of 1 "${ctl_command[@]}" --root "$root" check disk0
  status_of 0 "${ctl_command[@]}" --root "$root" check vol1
  status_of 0 "${ctl_command[@]}" "$PWD/$root/run/rnbd-server/control" status
  says said '^FAILED +OPERATION +ERRNO +AT '
  says said '^disk0 +write +ENOSPC '
}
it "check warns of storage that has failed a short while ago" storage_failed

unused_mirror() {
  mkdir -p "$root/run/rnbd" "$root/sys/block"
  start_bridge rnbd-mirror+tcp://127.0.0.1:1,127.0.0.1:2/disk0 --control "$PWD/root/run/rnbd/disk0.control"
  status_of 0 "${ctl_command[@]}" --root "$root" check
  says said "^RNBD OK - 1 session, 0 of 0 paths up"
  says <(ctl list sessions) 'idle'
}
it "a mirror that nobody has used yet is no trouble" unused_mirror

# Further clients would be turned away.
little_room() {
  mkdir -p root/run/rnbd
  server_name=full start_server --export disk0=memory:1M --max-sessions 2 --control "$PWD/root/run/rnbd/full.control"
  nbdkit_name=first attach disk0
  nbdsh <<<'h.pread(512, 0)'
  status_of 0 "${ctl_command[@]}" --root "$root" server check
  nbdkit_name=second attach disk0
  nbdsh <<<'h.pread(512, 0)'
  status_of 1 "${ctl_command[@]}" --root "$root" server check
  says said '^WARNING: limit max-sessions: 2 of 2 are used.*raise max-sessions'
  limited "${ctl_command[@]}" "$PWD/root/run/rnbd/full.control" metrics >page
  says page '^rnbd_limit_used.limit="max-sessions". 2'
  says page '^rnbd_limit.limit="LimitNOFILE". [0-9]+'
}
it "check warns of a server that has little room for further sessions" little_room

little_room_at_a_bridge() {
  requires_python nbd
  mkdir -p root/run/rnbd
  start_server --export disk0=memory:1M
  start_bridge "rnbd+tcp://$address" --max-connections 2 --control "$PWD/root/run/rnbd/vm.control" --metrics 127.0.0.1:0
  status_of 0 "${ctl_command[@]}" --root "$root" check
  spawn clients /usr/bin/python3 -c '
import nbd, signal, sys
clients = [nbd.NBD(), nbd.NBD()]
for client in clients:
    client.connect_uri(sys.argv[1])
print("there", flush=True)
signal.pause()' "${uri/\/\/\//\/\/\/disk0}"
  wait_for_line clients.out there
  status_of 1 "${ctl_command[@]}" --root "$root" check
  says said '^WARNING: limit max-connections: at the bridge of vm: 2 of 2 are used.*raise --max-connections$'
  limited "${ctl_command[@]}" "$PWD/root/run/rnbd/vm.control" status >limits
  says limits '^max-connections +2 +2'
  limited "${ctl_command[@]}" "$PWD/root/run/rnbd/vm.control" metrics >page
  says page '^rnbd_limit_used.limit="max-connections". 2'
  says page '^rnbd_limit.limit="LimitNOFILE". [0-9]+'
  kill_hard clients
}
it "check warns of a bridge that has little room for further NBD clients" little_room_at_a_bridge

# ---- map ------------------------------------------------------------------------------------------

# stand_ins: programs instead of systemctl and rnbd-bridge, which write what they are told into
# systemctl.txt and bridge.txt. The bridge has a device of the kernel below root, as long as it lives.
stand_ins() {
  mkdir -p "$root"/{sys/block,run,proc/self} bin
  : >"$root/proc/self/mountinfo"
  cat >bin/bridge <<'EOF'
#!/usr/bin/python3
import json, os, pathlib, re, shutil, signal, socket, sys, threading
def value(option):
    return sys.argv[sys.argv.index(option) + 1]
shared = value("--disks") if "--disks" in sys.argv else ""
disks = {}
def attach(name, export, kernel):
    trouble = "the server is broken" if export == "broken" else ""
    device = pathlib.Path("root/sys/block/nbd" + (kernel + ":7").split(":")[1])
    disks[name] = {"disk": name, "device": export, "devname": None if trouble else device.name,
                   "state": "waiting" if trouble else "serving", "trouble": trouble}
    if trouble: return
    device.mkdir(exist_ok=bool(shared))
    (device / "backend").write_text(f"rnbd:u-{name}:{name}\n")
    (device / "size").write_text("2048\n")
def detach(name):
    device = disks.pop(name)["devname"]
    if device: shutil.rmtree(f"root/sys/block/{device}", ignore_errors=True)
def read(name):
    for folder in ("etc", "run"):
        file = pathlib.Path(f"root/{folder}/rnbd/map.d/{name}.conf")
        if not file.exists(): continue
        lines = dict(re.findall('^([A-Z]+)="(.*)"$', file.read_text(), re.M))
        if lines.get("BRIDGE") == shared: attach(name, lines["URI"].split("/")[-1], lines["KERNEL"])
        return
open(os.environ["TOLD"], "a").write(" ".join(sys.argv[1:]) + "\n")
if sys.argv[-1].endswith("/broken"):
    print("the server is broken", flush=True)
    sys.exit(1)
def end(*_):
    for name in list(disks): detach(name)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
name = shared or value("--map-name")
if not shared: attach(name, name, value("--kernel"))
for file in pathlib.Path("root").glob("*/rnbd/map.d/*.conf") if shared else []: read(file.stem)
session = value("--session") if "--session" in sys.argv else "of-10.0.0.1" if shared else name
control = socket.socket(socket.AF_UNIX)
if os.path.exists(value("--control")): os.unlink(value("--control"))
control.bind(value("--control"))
control.listen()
def told(line):
    words = line.split()
    if words[0] == "add-disk":
        if words[1] not in disks: read(words[1])
        return {} if words[1] in disks else {"error": "EINVAL", "message": "it has no file"}
    if words[0] == "remove-disk":
        if words[1] not in disks: return {"error": "ENOENT", "message": "there is no disk of this name"}
        detach(words[1])
        return {}
    shrunk = os.path.exists("shrunk")
    answer = {"session": session, "paths": [{"address": "tcp:10.0.0.1:1234", "state": "connected"}],
              "devices": [{"device": each["device"], "size": 2 << 20, "shrunk": shrunk}
                          for each in disks.values() if not each["trouble"]]}
    if shared: answer["disks"] = list(disks.values())
    return answer
def answer():
    while True:
        asker, _ = control.accept()
        asker.sendall(json.dumps(told(asker.recv(1000).decode())).encode() + b"\n")
        asker.close()
threading.Thread(target=answer, daemon=True).start()
open(value("--pid-file"), "w").write(f"{os.getpid()}\n")
os.write(int(value("--ready-fd")), b"ready\n")
os.close(int(value("--ready-fd")))
while True:
    signal.pause()
EOF
  # A sanitizer is not for bash.
  # shellcheck disable=SC2016
  printf '%s\n' '#!/usr/bin/env -S -u LD_PRELOAD bash' 'echo "$*" >>systemctl.txt' '[[ " $* " == *" start "*broken* ]] && exit 3' \
    '[[ " $* " != *" start rnbd-map@vol.service "* ]] || { mkdir root/sys/block/nbd4 && echo rnbd:u:vol >root/sys/block/nbd4/backend; }' \
    '[[ " $* " != *" is-active "* ]]' >bin/systemctl
  printf '%s\n' '#!/usr/bin/env -S -u LD_PRELOAD bash' 'echo "$*" >>journalctl.txt' \
    '[[ " $* " != *" --priority=err "* ]] || echo "the kernel has no nbd driver"' >bin/journalctl
  chmod +x bin/*
  export TOLD=$PWD/bridge.txt
}
# mapping STATUS WORDS...: the command with these stand-ins, and its exit status.
mapping() { status_of "$1" env "PATH=$PWD/bin:$PATH" "${ctl_command[@]}" --root "$root" "${@:2}"; }

# kill_mapping NAME: its bridge is gone then, and nobody listens at its socket.
kill_mapping() {
  local bridge
  bridge=$(cat "root/run/rnbd/map/$1.pid")
  kill -KILL "$bridge"
  eventually 20 is_gone "$bridge"
}
is_gone() { [[ ! -e /proc/$1 ]]; }

alone() {
  stand_ins
  mapping 0 map disk0 from 10.0.0.1 10.0.1.1 ro own-process --bridge bin/bridge -- --lanes 1
  says said '^/dev/nbd7$'
  says bridge.txt '^--kernel nbd --map-name disk0 --control root/run/rnbd/map/disk0.control --pid-file .*/disk0.pid --ready-fd 3 --path 10.0.1.1 --access ro --lanes 1 rnbd.tcp://10.0.0.1/disk0$'
  says root/run/rnbd/map.d/disk0.conf '^URI="rnbd.tcp://10.0.0.1/disk0"$'
  at_end ctl unmap disk0 --force
  mapping 1 map disk0 from 10.0.0.1 10.0.1.1 ro own-process --persist -- --lanes 1
  says said 'there is no systemd'
  mapping 1 map disk0 from 10.0.0.1 own-process --bridge bin/bridge
  says said "something is mapped as 'disk0' already, nbd7"
  mapping 0 map vol from 10.0.0.1 paths=auto as nbd12 own-process --bridge bin/bridge
  says bridge.txt '^--kernel nbd:12 --map-name vol .* --paths auto rnbd.tcp://10.0.0.1/vol$'
  at_end ctl unmap vol --force
  says said '^/dev/nbd12$'
  mapping 0 list
  says said '^disk0 +disk0 +nbd7 +open$'
  # The kernel refuses writes: it came so, as another client writes.
  echo 1 >root/sys/block/nbd12/ro
  mapping 0 list devname,access_mode
  says said '^nbd12 +ro$'
  says said '^nbd7 +-$'
  rm root/sys/block/nbd12/ro
  echo '30 20 43:7 / /mnt rw - ext4 /dev/nbd7 rw' >root/proc/self/mountinfo
  echo 43:7 >root/sys/block/nbd7/dev
  mapping 1 unmap nbd7
  says said 'nbd7 is used: mounted at /mnt; end that first, or write --force'
  mapping 1 remap disk0
  says said 'mounted at /mnt'
  mapping 1 client disconnect disk0
  says said 'no path would be left for what is in use: disk0 is /dev/nbd7, mounted at /mnt; .* --force'
  mapping 1 disconnect session nbd7
  says said 'mounted at /mnt'
  mapping 0 check disk0
  says said '^RNBD OK - 1 session, 1 of 1 path up, 1 device, '
  mapping 0 remap disk0 force --bridge bin/bridge
  says said '^/dev/nbd7$'
  (($(grep -c -- '--map-name disk0' bridge.txt) == 2)) || fail "not mapped anew"
  : >root/proc/self/mountinfo
  mapping 0 resize disk0 1M
  says said '^nbd7 has 1048576 bytes$'
  mapping 1 resize disk0 512K
  says said 'cannot shrink'
  (eventually 60 grep -q 'waiting for' said && echo 4096 >root/sys/block/nbd7/size) &
  mapping 0 resize nbd7 2 M
  says said 'nbd7 has 1048576 bytes; waiting for 2097152 bytes, 30 s at most'
  mapping 1 resize nbd7 4M --wait 0.2
  says said 'nbd7 has 2097152 bytes, not 4194304 bytes, after 0.2 s; its server has 2097152 bytes: enlarge what that exports first'
  mapping 2 resize nbd7 --wait ever
  says said "'ever' is not a number of seconds"
  # Its server has become smaller: the stand-in says so while there is this file.
  touch shrunk
  mapping 1 resize disk0
  says said 'disk0: its export has shrunk at the server: .* enlarge it there again'
  mapping 1 resize disk0 2M
  says said 'has shrunk'
  mapping 2 check disk0
  says said '^CRITICAL: device nbd7: its export has shrunk'
  rm shrunk
  mapping 0 resize disk0
  kill_mapping disk0
  mapping 0 list
  says said '^- +disk0 +nbd7 +unattended$'
  # A bridge takes the device over; this one makes its own.
  rm -r root/sys/block/nbd7
  mapping 0 recover all --bridge bin/bridge
  says said '^/dev/nbd7$'
  mapping 1 recover device disk1
  says said "nothing is mapped as 'disk1'"
  mapping 0 show device disk0
  says said '^openers: +-$'
  echo '30 20 43:7 / /mnt rw - ext4 /dev/nbd7 rw' >root/proc/self/mountinfo
  echo 43:7 >root/sys/block/nbd7/dev
  mapping 0 show nbd7
  says said '^openers: +mounted at /mnt$'
  mapping 0 show nbd7 users openers
  says said '^users: +'
  says said '^openers: +mounted at /mnt$'
  mapping 0 list devname,openers
  says said '^nbd7 +mounted at /mnt$'
  # A mount of the boot that has failed.
  mkdir root/etc
  echo '/dev/rnbd/by-name/disk0 /mnt ext4 _netdev 0 0' >root/etc/fstab
  # It was mapped without --persist.
  mapping 1 check
  says said '^RNBD WARNING - 1 warning, '
  says said '^WARNING: mount /mnt: /etc/fstab has a line for /dev/rnbd/by-name/disk0, which each boot awaits, but the disk is mapped until the next boot only; write rnbd-ctl map rnbd.tcp://10.0.0.1/disk0 --name disk0 --own-process --persist -- --path 10.0.1.1 --access ro --lanes 1$'
  mkdir -p root/etc/rnbd/map.d
  cp root/run/rnbd/map.d/disk0.conf root/etc/rnbd/map.d
  mapping 0 check
  echo '/dev/rnbd/by-name/disk0 /mnt/disk0 ext4 _netdev 0 0' >root/etc/fstab
  mapping 1 check
  says said '^WARNING: mount /mnt/disk0: /etc/fstab has it for nbd7, and it is not mounted; write mount /mnt/disk0$'
  mapping 1 check disk0
  rm root/etc/rnbd/map.d/disk0.conf
  mapping 0 check vol
  sed -i s/_netdev/_netdev,noauto/ root/etc/fstab
  mapping 0 check
  : >root/proc/self/mountinfo
  mkdir -p root/dev/rnbd/by-{name,uuid}
  ln -s ../../nbd7 root/dev/rnbd/by-name/disk0
  ln -s ../../nbd7 root/dev/rnbd/by-uuid/u-disk0
  local link
  for link in /dev/rnbd/by-{name/disk0,uuid/u-disk0}; do
    mapping 0 show "$link"
    says said '^devname: +nbd7$'
    mapping 0 check "$link"
    mapping 0 resize "$link" 1M
    mapping 0 recover "$link"
    mapping 0 remap "$link" --bridge bin/bridge
    says said '^/dev/nbd7$'
  done
  mapping 1 unmap /dev/rnbd/by-name/disk1
  says said "nothing is mapped as 'disk1'"
  mapping 0 unmap /dev/rnbd/by-uuid/u-disk0
  says said '^nbd7 of disk0: unmapped$'
  mapping 0 map disk0 from 10.0.0.1 own-process --bridge bin/bridge
  mapping 0 unmap /dev/nbd7
  says said '^nbd7 of disk0: unmapped$'
  mapping 0 unmap vol
  mapping 1 unmap vol
  says said "nothing is mapped as 'vol'"
  mapping 1 resize vol
  says said "nothing is mapped as 'vol'"
  mapping 0 check
  says said '^RNBD OK - no disks are mapped, '
  # A line that was left over.
  sed -i s/,noauto// root/etc/fstab
  mapping 1 check
  says said '^RNBD WARNING - 1 warning, no disks are mapped, '
  says said '^WARNING: mount /mnt/disk0: /etc/fstab has a line for /dev/rnbd/by-name/disk0, which each boot awaits, and nothing is mapped as that; remove the line, or write rnbd-ctl map DEVICE from SERVER --name disk0 --persist$'
  [[ -z $(find root/run/rnbd/map.d -name '*.conf') ]] || fail "a file of a mapping is left"
}
it "without systemd the bridge is started and ended, and nobody loses a disk that is in use" alone

# key_of NAME: of the bridge that it shares.
key_of() { sed -n 's/^BRIDGE="\(.*\)"$/\1/p' "$root/run/rnbd/map.d/$1.conf"; }
bridges() { wc -l <bridge.txt; }

together() {
  stand_ins
  local key
  mapping 0 map disk0 from 10.0.0.1 10.0.1.1 --bridge bin/bridge
  at_end ctl unmap disk0 --force
  key=$(key_of disk0)
  [[ $key == 10.0.0.1:1234-* ]] || fail "the key is $key"
  says bridge.txt "^--disks $key --disk-files root/run/rnbd/map.d --disk-files root/etc/rnbd/map.d --control root/run/rnbd/map/$key.control --pid-file .* --ready-fd 3$"
  mapping 0 map vol from 10.0.0.1 10.0.1.1 as nbd8 ro --bridge bin/bridge
  at_end ctl unmap vol --force
  says said '^/dev/nbd8$'
  (($(bridges) == 1)) || fail "a bridge for each disk"
  # Other paths are another session, and an export that is mapped twice needs two.
  mapping 0 map third from 10.0.0.1 as nbd9 --bridge bin/bridge
  at_end ctl unmap third --force
  mapping 0 map disk0 from 10.0.0.1 10.0.1.1 name twice as nbd10 --bridge bin/bridge
  at_end ctl unmap twice --force
  says bridge.txt '^--kernel nbd:10 --map-name twice '
  (($(bridges) == 3)) || fail "not three bridges"
  mapping 0 client list devices csv devname,program
  says said '^nbd7,disk0$'
  says said '^nbd8,vol$'
  mapping 0 client list sessions csv sessname,program
  says said "^of-10.0.0.1,$key$"
  mapping 0 session show vol
  says said '^sessname: +of-10.0.0.1$'
  mapping 1 client disconnect vol
  says said 'disk0 is /dev/nbd7; vol is /dev/nbd8; end that first'
  mapping 1 resize vol 4M --wait 0.2
  says said '^rnbd-ctl: nbd8 has 1048576 bytes, not .* its server has 2097152 bytes: enlarge'
  # One that does not come changes nothing for the others.
  mapping 1 map broken from 10.0.0.1 10.0.1.1 --bridge bin/bridge
  says said "^rnbd-ctl: broken: the server is broken .the log of its bridge: root/run/rnbd/map/$key.log.$"
  [[ ! -e root/run/rnbd/map.d/broken.conf ]] || fail "its file is left"
  mapping 0 check
  says said '^RNBD OK - 3 sessions, '
  (($(bridges) == 3)) || fail "the bridge was started again"
  # What a file says is served by the bridge that it names, or told.
  sed s/disk0/broken/ root/run/rnbd/map.d/disk0.conf >root/run/rnbd/map.d/broken.conf
  mapping 1 recover broken --bridge bin/bridge
  says said 'broken: the server is broken'
  mapping 2 check
  says said '^CRITICAL: device broken: it is tried again and again: the server is broken$'
  # The bridge has not joined what the kernel has of it, and forgets it; nobody here can take that away.
  mkdir root/sys/block/nbd11
  echo rnbd:u-broken:broken >root/sys/block/nbd11/backend
  local force
  for force in '' --force; do
    # shellcheck disable=SC2086
    mapping 1 unmap broken $force
    says said "^rnbd-ctl: nbd11: not a device of this machine's kernel; its bridge does not serve it now: the server is broken$"
    [[ -e root/run/rnbd/map.d/broken.conf ]] || fail "its file is gone"
    mapping 1 check
    says said '^WARNING: device nbd11: it recovers: the bridge of broken has not opened its device yet, the server is broken$'
  done
  mapping 1 remap broken --bridge bin/bridge
  says said "^rnbd-ctl: nbd11: not a device of this machine's kernel; its bridge"
  rm -r root/sys/block/nbd11
  mapping 0 unmap broken
  echo '30 20 43:8 / /mnt rw - ext4 /dev/nbd8 rw' >root/proc/self/mountinfo
  echo 43:8 >root/sys/block/nbd8/dev
  mapping 1 unmap vol
  says said 'nbd8 is used: mounted at /mnt; end that first, or write --force'
  [[ -e root/run/rnbd/map.d/vol.conf ]] || fail "its file is gone"
  : >root/proc/self/mountinfo
  # All of a bridge are lost, and come again, together.
  kill_mapping "$key"
  mapping 0 list
  says said '^- +disk0 +nbd7 +unattended$'
  says said '^- +vol +nbd8 +unattended$'
  mapping 0 recover all --bridge bin/bridge
  (($(bridges) == 4)) || fail "not one more bridge"
  mapping 0 list
  says said 'nbd7 +open$'
  says said 'nbd8 +open$'
  mapping 0 remap vol --bridge bin/bridge
  says said '^/dev/nbd8$'
  (($(bridges) == 4)) || fail "the bridge was started again for one of its disks"
  mapping 0 session remap vol --bridge bin/bridge
  says said '^/dev/nbd7$'
  says said '^/dev/nbd8$'
  (($(bridges) == 5)) || fail "the session goes on"
  kill_mapping "$key"
  rm -r root/sys/block/nbd[78]
  mapping 0 session remap vol --bridge bin/bridge
  says said '^/dev/nbd7$'
  says said '^/dev/nbd8$'
  (($(bridges) == 6)) || fail "the dead bridge was not replaced by one"
  # The last one ends it.
  mapping 0 unmap vol
  [[ -e root/sys/block/nbd7 && ! -e root/sys/block/nbd8 ]] || fail "not this disk alone"
  [[ -e root/run/rnbd/map.d/$key.lock && -e root/run/rnbd/map/$key.log ]] || fail "its files are gone"
  mapping 0 unmap disk0
  says said '^nbd7 of disk0: unmapped$'
  eventually 20 ended_all "$key"
  [[ -z $(find root/run/rnbd -name "$key.lock" -o -name "$key.log") ]] || fail "files of the bridge are left"
}
ended_all() { ! ctl list sessions program noheaders nototals | grep -F "$1"; }
it "disks of one server share a bridge, come and go by themselves, and the last one ends it" together

# The bridge itself, where the kernel has no driver: each disk waits for that, and says so.
without_driver() {
  if [[ -e /sys/module/nbd ]] || modinfo nbd >/dev/null 2>&1; then skip "this machine has the driver"; fi
  local key disk ready_read ready_write
  start_server --export disk0=memory:1M --export disk1=memory:1M
  mkdir -p "$root"/{run,sys/block} files
  status_of 1 "${ctl_command[@]}" --root "$root" map disk0 from "$address" --bridge "$bridge_program"
  says said '^rnbd-ctl: disk0: the kernel has no nbd driver: .*the log of its bridge: root/run/rnbd/map/127.0.0.1:'
  [[ -z $(find root -name '*.conf') ]] || fail "its file is left"
  key=$(basename "$root"/run/rnbd/map/*.log .log)
  eventually 20 not_running "$root/run/rnbd/map/$key.pid"
  for disk in disk0 disk1; do
    printf 'BRIDGE="%s"\nURI="rnbd+tcp://%s/%s"\nKERNEL="nbd"\nOPTIONS=""\n' "$key" "$address" "$disk" >"files/$disk.conf"
  done
  sed 's/OPTIONS=""/OPTIONS="--frobnicate"/' files/disk1.conf >files/another.conf
  sed 's/OPTIONS=""/OPTIONS="--access rx"/' files/disk1.conf >files/mistyped.conf
  pipe ready_read ready_write
  spawn many "${bridge_command[@]}" --disks "$key" --disk-files files --control "$PWD/control" --ready-fd "$ready_write"
  exec {ready_write}>&-
  await_line "$ready_read" 20 || fail "it is not ready"
  exec {ready_read}<&-
  says many.log "mistyped: --access: 'rx' is none of ro, rw, migration"
  says many.log 'another: what files/another.conf says belongs to another bridge; write .rnbd-ctl unmap another., and map it anew'
  says many.log 'ready, 0 of 4 disks, in front of rnbd.tcp://127.0.0.1:'
  states_are 'another refused disk0 waiting disk1 waiting mistyped refused'
  mkdir -p there/run/rnbd/map
  ln -s "$PWD/control" "there/run/rnbd/map/$key.control"
  status_of 0 "${ctl_command[@]}" --root there list devices program,state,trouble
  says said '^disk0 +waiting +the kernel has no nbd driver'
  says said '^mistyped +refused +.*none of ro, rw, migration'
  status_of 2 "${ctl_command[@]}" --root there check
  says said "^CRITICAL: device another: .*write 'rnbd-ctl unmap another', and map it anew$|^CRITICAL: device another: .*map it anew$"
  if grep 'another.*recover' said; then fail "two ways out are told"; fi
  limited "${ctl_command[@]}" "$PWD/control" remove-disk disk0
  eventually 20 states_are 'another refused disk1 waiting mistyped refused'
  status_of 1 "${ctl_command[@]}" "$PWD/control" remove-disk disk0
  says said "there is no disk 'disk0' here"
  status_of 1 "${ctl_command[@]}" "$PWD/control" add-disk nothing
  says said 'files/nothing.conf cannot be read'
  # A file that was mended is taken.
  cp files/disk1.conf files/mistyped.conf
  limited "${ctl_command[@]}" "$PWD/control" add-disk mistyped
  limited "${ctl_command[@]}" "$PWD/control" add-disk disk0
  eventually 20 states_are 'another refused disk0 waiting disk1 waiting mistyped waiting'
  stop many
}
not_running() { ! pgrep -F "$1" >/dev/null 2>&1; }
states_are() {
  [[ $(limited "${ctl_command[@]}" --json "$PWD/control" status | python3 -c '
import json, sys
print(*sorted(each["disk"] + " " + each["state"] for each in json.load(sys.stdin)["disks"]))') == "$1" ]]
}
it "a bridge without the kernel's driver says of each disk why it waits, and takes and gives disks" without_driver

# at_once FUNCTION: for six disks.
at_once() {
  local number running=()
  for number in {20..25}; do "$1" "$number" >"said.$number" 2>&1 & running+=("$!"); done
  for number in "${running[@]}"; do wait "$number" || { cat said.*; fail "one of them has failed"; }; done
}
map_number() { limited "${ctl_command[@]}" --root "$root" map "d$1" from 10.0.0.1 as "nbd$1" --bridge bin/bridge; }
unmap_number() { limited "${ctl_command[@]}" --root "$root" unmap "d$1"; }
together_at_once() {
  stand_ins
  local key number
  sed -i 's/^control.listen()/control.listen(20)/' bin/bridge
  for number in {20..25}; do at_end ctl unmap "d$number" --force; done
  at_once map_number
  key=$(key_of d20)
  (($(bridges) == 1)) || fail "$(bridges) bridges"
  mapping 0 client list devices csv devname noheaders nototals
  (($(grep -c '^nbd2[0-5]$' said) == 6)) || fail "not six disks"
  at_once unmap_number
  eventually 20 ended_all "$key"
  [[ -z $(find root/run/rnbd/map.d -name '*.conf') ]] || fail "a file of a mapping is left"
}
it "many map and unmap at the same time: one bridge comes, and goes with the last disk" together_at_once

# begin_waiting NAME WORDS...: a command that waits for the bridge with this $key.
begin_waiting() {
  spawn "$1" env "PATH=$PWD/bin:$PATH" "${ctl_command[@]}" --root "$root" "${@:2}"
  eventually 20 has_open "${pid[$1]}" "$key.lock"
}
has_open() { find "/proc/$1/fd" -lname "*/$2" 2>/dev/null | grep -q .; }
hold_bridge() {
  spawn holder /usr/bin/python3 -c '
import fcntl, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_EX)
open("held", "w").close()
signal.pause()' "$root/run/rnbd/map.d/$key.lock"
  eventually 20 test -e held
  rm held
}
# Whatever was looked at before another command ended may have changed with that.
looks_again() {
  stand_ins
  local key statuses='' waiting
  mapping 0 map disk0 from 10.0.0.1 --bridge bin/bridge
  at_end ctl unmap disk0 --force
  key=$(key_of disk0)
  [[ $(stat -c %a "$root/run/rnbd/map.d/$key.lock") == 600 ]] || fail "others can hold it up"
  hold_bridge
  # Another server's bridge is not concerned.
  mapping 0 map disk0 from 10.0.0.2 name elsewhere as nbd9 --bridge bin/bridge
  at_end ctl unmap elsewhere --force
  begin_waiting first map one from 10.0.0.1 name d as nbd8 --bridge bin/bridge
  begin_waiting second map two from 10.0.0.1 name d as nbd10 --bridge bin/bridge
  at_end ctl unmap d --force
  stop holder
  for waiting in first second; do
    wait_end "$waiting" 60 || fail "$waiting still waits"
    statuses+=$status
    cat "$waiting.out" "$waiting.log"
  done
  [[ $statuses == 01 || $statuses == 10 ]] || fail "two disks with one name: $statuses"
  cat first.log second.log >said
  says said "^rnbd-ctl: something is mapped as 'd' already(, nbd(8|10))?; unmap it, or write another --name NAME$"
  (($(cat first.out second.out | grep -c '^/dev/nbd') == 1)) || fail "two devices are told"
  # A disk that is mounted meanwhile stays.
  hold_bridge
  begin_waiting first unmap disk0
  echo '30 20 43:7 / /mnt rw - ext4 /dev/nbd7 rw' >root/proc/self/mountinfo
  echo 43:7 >root/sys/block/nbd7/dev
  stop holder
  wait_end first 60 || fail "it still waits"
  ((status == 1)) || fail "a mounted disk is cut"
  says first.log 'nbd7 is used: mounted at /mnt'
  [[ -e root/sys/block/nbd7 && -e root/run/rnbd/map.d/disk0.conf ]] || fail "it is gone"
  : >root/proc/self/mountinfo
  # A name is no other disk's than its bridge serves under it.
  mv root/sys/block/nbd7 root/run/rnbd/map.d/disk0.conf .
  mapping 1 map three from 10.0.0.1 name disk0 as nbd11 --bridge bin/bridge
  says said '^rnbd-ctl: disk0: its bridge serves another export under this name, disk0 .the log'
  mv nbd7 root/sys/block
  mv disk0.conf root/run/rnbd/map.d
  mapping 0 list
  says said 'disk0 +nbd7 +open$'
}
it "who has waited for another command looks again: no name is taken twice, no mount is cut" looks_again

recover_waits() {
  stand_ins
  local key
  mapping 0 map disk0 from 10.0.0.1 --bridge bin/bridge
  key=$(key_of disk0)
  kill_mapping "$key"
  hold_bridge
  begin_waiting first recover disk0 --bridge bin/bridge
  # As another command does that takes the disk away, and with it the bridge.
  rm -r root/sys/block/nbd7 root/run/rnbd/map.d/disk0.conf
  stop holder
  wait_end first 60 || fail "it still waits"
  ((status == 1)) || fail "a bridge was started for nobody"
  says first.log "nothing is mapped as 'disk0'"
}
it "recover waits for others that map and unmap, and starts no bridge for a disk that has gone" recover_waits

together_by_systemd() {
  stand_ins
  mkdir -p root/run/systemd/system
  local key name
  # The stand-in for the unit starts nothing, so nobody serves it.
  mapping 1 map disk0 from 10.0.0.1 --persist
  says said '^rnbd-ctl: disk0: root/run/rnbd/map/10.0.0.1:1234-[0-9a-f]{8}.control: .* .the log of its bridge: journalctl -u rnbd-maps@10.0.0.1:1234-'
  key=$(sed -n 's/^--quiet enable rnbd-maps@\(.*\)\.service$/\1/p' systemctl.txt)
  says systemctl.txt "^--quiet start rnbd-maps@$key.service$"
  says systemctl.txt "^--quiet stop rnbd-maps@$key.service$"
  says systemctl.txt "^--quiet disable rnbd-maps@$key.service$"
  [[ ! -e root/etc/rnbd/map.d/disk0.conf ]] || fail "its file is left"
  # One that the unit would serve.
  mkdir -p root/{run,etc}/rnbd/map.d root/run/rnbd/map
  for name in disk0 vol; do
    printf 'BRIDGE="%s"\nURI="rnbd+tcp://10.0.0.1/%s"\nKERNEL="nbd"\nOPTIONS=""\n' "$key" "$name" >"root/run/rnbd/map.d/$name.conf"
  done
  spawn served env -C "$PWD" bin/bridge --disks "$key" --control "root/run/rnbd/map/$key.control" --pid-file pid --ready-fd 1
  eventually 20 test -s pid
  rm systemctl.txt
  mapping 0 map vol from 10.0.0.1 --persist
  says systemctl.txt "^--quiet enable rnbd-maps@$key.service$"
  if grep -qE 'start|stop' systemctl.txt; then fail "the running disks are disturbed"; fi
  says said "^/dev/rnbd/by-name/vol /mnt/vol ext4 _netdev,x-systemd.after=rnbd-maps@$key.service 0 0$"
  rm systemctl.txt
  mapping 0 unmap vol
  says systemctl.txt "^--quiet disable rnbd-maps@$key.service$"
  if grep -q 'stop' systemctl.txt; then fail "disk0 needs the bridge"; fi
  mapping 0 unmap disk0
  says systemctl.txt "^--quiet stop rnbd-maps@$key.service$"
  # Nobody listens any more, and the disk of the kernel is none here: the others need their bridge.
  stop served
  for name in disk0 vol; do
    printf 'BRIDGE="%s"\nURI="rnbd+tcp://10.0.0.1/%s"\nKERNEL="nbd"\nOPTIONS=""\n' "$key" "$name" >"root/run/rnbd/map.d/$name.conf"
  done
  mkdir root/sys/block/nbd7
  echo rnbd:u:vol >root/sys/block/nbd7/backend
  rm systemctl.txt
  mapping 1 unmap vol --force
  says said "^rnbd-ctl: nbd7: not a device of this machine's kernel; its bridge does not serve it now: "
  says systemctl.txt "^--quiet start rnbd-maps@$key.service$"
  [[ -e root/run/rnbd/map.d/vol.conf ]] || fail "its file is gone"
}
it "with systemd a bridge is enabled as long as a disk of it lasts, and stopped with its last one" together_by_systemd

by_export() {
  stand_ins
  mapping 2 map disk1 from 10.0.0.1 own-process raed-only --bridge bin/bridge
  says said "'raed-only' is no word of map; did you mean read-only.; write "
  [[ ! -e root/run/rnbd/map.d && ! -e bridge.txt ]] || fail "something is mapped"
  mapping 0 map disk0 from 10.0.0.1 own-process name two read-only --bridge bin/bridge
  at_end ctl unmap two --force
  says bridge.txt '--map-name two .* --access ro '
  mapping 0 map disk0 from 10.0.0.1 own-process name three as nbd9 ro --bridge bin/bridge
  at_end ctl unmap three --force
  mapping 1 unmap disk0
  says said "'disk0' is the export of several disks; write the name of one: three, two$"
  mapping 0 unmap three
  mapping 0 unmap disk0
  [[ ! -e root/sys/block/nbd7 ]] || fail "it is still there"
  mapping 1 unmap disk0
  says said "nothing is mapped as 'disk0'"
  # What the kernel keeps of a disk that was mounted then.
  mkdir root/sys/block/nbd7
  echo rnbd:u-two:two >root/sys/block/nbd7/backend
  echo 43:7 >root/sys/block/nbd7/dev
  echo '30 20 43:7 / /mnt rw - ext4 /dev/nbd7 rw' >root/proc/self/mountinfo
  mapping 1 map disk0 from 10.0.0.1 own-process name two --bridge bin/bridge
  says said "nbd7 is left of 'two', .* unmap --force; it goes when nobody uses it: mounted at /mnt; or write another"
  mapping 1 recover two
  says said "nbd7 is left of 'two'"
  mapping 2 check
  says said "^CRITICAL: device nbd7: it is left of 'two'"
}
it "a disk is found by its export, too, and what unmap --force leaves is told; no typo maps anything" by_export

fails_to_start() {
  stand_ins
  mapping 1 map broken from 10.0.0.1 own-process --bridge bin/bridge
  says said 'the bridge has ended: the server is broken .its log: root/run/rnbd/map/broken.log'
  says root/run/rnbd/map/broken.log 'the server is broken'
  mapping 1 map broken from 10.0.0.1 own-process --bridge bin/none
  says said 'bin/none: No such file'
  mapping 1 map disk0 from 10.0.0.1 own-process --persist --bridge bin/bridge
  says said 'there is no systemd'
  mapping 2 map disk0
  says said 'write map disk0 from SERVER'
  [[ -z $(find root -name '*.conf') ]] || fail "a file of a mapping is left"
}
it "a mapping that cannot begin leaves nothing behind, and says where the reason is" fails_to_start

# Two disks of one session, and one of another.
of_session() {
  stand_ins
  local name
  for name in a:7:vms b:8:vms c:9:alone; do
    IFS=: read -r disk number session <<<"$name"
    mapping 0 map "$disk" from 10.0.0.1 own-process as "nbd$number" --bridge bin/bridge -- --session "$session"
    at_end ctl unmap "$disk" --force
  done
  mapping 0 client list sessions csv sessname,program
  says said '^vms,a$'
  says said '^vms,b$'
  # One of them is used: both stay as they are.
  echo '30 20 43:8 / /mnt rw - ext4 /dev/nbd8 rw' >root/proc/self/mountinfo
  echo 43:8 >root/sys/block/nbd8/dev
  mapping 1 session remap vms --bridge bin/bridge
  says said 'nbd8 is used: mounted at /mnt'
  (($(wc -l <bridge.txt) == 3)) || fail "something was mapped anew"
  mapping 0 session remap vms force --bridge bin/bridge
  says said '^/dev/nbd7$'
  says said '^/dev/nbd8$'
  (($(grep -c -- '--session vms' bridge.txt) == 4 && $(grep -c -- '--session alone' bridge.txt) == 1)) ||
    { cat bridge.txt; fail "not the disks of the session"; }
  : >root/proc/self/mountinfo
  mapping 0 remap alone --bridge bin/bridge
  says said '^/dev/nbd9$'
  # A bridge that has died tells no session. What it was called stands for it.
  kill_mapping c
  rm -r root/sys/block/nbd9
  mapping 1 session remap alone
  says said "there is no session 'alone'"
  mapping 0 session remap c --bridge bin/bridge
  says said '^/dev/nbd9$'
  mapping 1 remap nothing
  says said "there is no disk or session 'nothing'"
  mapping 1 path remap a
  says said 'write path readd'
}
it "all disks of a session are mapped anew together, or none while one of them is used" of_session

no_disk_of_session() {
  two_programs
  local session
  session=$(ctl client list sessions csv sessname noheaders)
  status_of 1 "${ctl_command[@]}" --root "$root" session remap "$session"
  says said "has no disk of the kernel"
  status_of 1 "${ctl_command[@]}" --root "$root" unmap disk0
  says said "'disk0' is no disk of the kernel: disk0 serves it to NBD clients; end that program"
  status_of 1 "${ctl_command[@]}" --root "$root" resize "$session" 32M
  says said "is no disk of the kernel: disk0 serves it to NBD clients; they see its size when they connect anew"
}
it "a session whose devices belong to NBD clients cannot be mapped anew" no_disk_of_session

by_systemd() {
  stand_ins
  mkdir -p root/run/systemd/system
  # The unit of the stand-in starts nothing: the device is there already.
  mapping 1 map disk0 from 10.0.0.1 own-process --persist
  says said "the kernel has no device of 'disk0'"
  if grep -q fstab said; then fail "how to mount what is not there"; fi
  says systemctl.txt '^--quiet enable rnbd-map@disk0.service$'
  says systemctl.txt '^--quiet start rnbd-map@disk0.service$'
  says root/etc/rnbd/map.d/disk0.conf '^URI='
  mkdir root/sys/block/nbd3
  echo 'rnbd:u:disk0' >root/sys/block/nbd3/backend
  mapping 1 map disk0 from 10.0.0.1 own-process
  says said 'already, nbd3'
  rm -r root/sys/block/nbd3
  mapping 0 unmap disk0
  says systemctl.txt '^--quiet stop rnbd-map@disk0.service$'
  says systemctl.txt '^--quiet disable rnbd-map@disk0.service$'
  [[ ! -e root/etc/rnbd/map.d/disk0.conf ]] || fail "the file is still there"
  # Its unit brings a device.
  mapping 0 map vol from 10.0.0.1 own-process --persist
  says said '^/dev/nbd4$'
  if grep -q 'stays in' said; then fail "a line that is not there"; fi
  says said '^/dev/rnbd/by-name/vol /mnt/vol ext4 _netdev,x-systemd.after=rnbd-map@vol.service 0 0$'
  mapping 1 map vol from 10.0.0.1 own-process --persist
  says said "something is mapped as 'vol' already, nbd4; unmap it, or write another --name NAME$"
  # One that would end with the boot is kept; nothing is started again.
  mkdir -p root/run/rnbd/map.d
  mv root/etc/rnbd/map.d/vol.conf root/run/rnbd/map.d
  rm systemctl.txt
  mapping 1 map vol from 10.0.0.1 own-process ro --persist
  says said 'already, nbd4; .*; rnbd-ctl map rnbd.tcp://10.0.0.1/vol --name vol --own-process --persist makes it last as it is$'
  mapping 1 map vol from 10.0.0.1 own-process
  if grep -q 'enable ' systemctl.txt; then fail "it is kept unasked"; fi
  mapping 0 map rnbd+tcp://10.0.0.1/vol --name vol --own-process --persist
  says said '^/dev/nbd4$'
  says said '^/dev/rnbd/by-name/vol /mnt/vol '
  says systemctl.txt '^--quiet enable rnbd-map@vol.service$'
  if grep -qE 'start|stop' systemctl.txt; then fail "the running disk is disturbed"; fi
  [[ -e root/etc/rnbd/map.d/vol.conf && ! -e root/run/rnbd/map.d/vol.conf ]] || fail "it is not kept"
  # What unmap leaves there is told, and stays as it is.
  printf '%s\n' '/dev/rnbd/by-name/vol /mnt/vol ext4 _netdev 0 0' '/dev/rnbd/by-uuid/u-part1 /mnt/part ext4 noauto 0 0' \
    '/dev/rnbd/by-name/vol2 /mnt/vol2 ext4 _netdev 0 0' >root/etc/fstab
  cp root/etc/fstab before
  sed -i 's/" start rnbd-map@vol.service "/" stop rnbd-map@vol.service "/; s/mkdir root.*backend;/rm -r root\/sys\/block\/nbd4;/' bin/systemctl
  mapping 0 unmap vol
  says said '^nbd4 of vol: unmapped$'
  says said 'this line stays in /etc/fstab, and the next boot waits for its disk; remove it'
  says said '^/dev/rnbd/by-name/vol /mnt/vol ext4 _netdev 0 0$'
  says said '^rnbd-ctl: this line stays in /etc/fstab:$'
  says said '^/dev/rnbd/by-uuid/u-part1 /mnt/part ext4 noauto 0 0$'
  if grep -q vol2 said; then fail "a line of another disk"; fi
  cmp before root/etc/fstab
  rm systemctl.txt
  mapping 1 map broken from 10.0.0.1 own-process --persist
  says said 'systemctl start rnbd-map@broken.service failed with status 3: the kernel has no nbd driver .its log: journalctl -u'
  says journalctl.txt '--identifier=rnbd-bridge --unit=rnbd-map@broken.service'
  says systemctl.txt '^--quiet disable rnbd-map@broken.service$'
  [[ ! -e root/etc/rnbd/map.d/broken.conf ]] || fail "the file is still there"
}
it "with systemd the unit is started, enabled, stopped and disabled" by_systemd

# udev makes a link late, or not at all; udev_makes_links is its rule.
links() {
  stand_ins
  mkdir -p root/run/{udev,systemd/system} root/dev/rnbd/by-name
  : >root/run/udev/control
  # shellcheck disable=SC2016
  printf '%s\n' '[[ " $* " != *" start "* ]] || { [[ ! -e late ]] || sleep 0.5; ln -sf ../../nbd4 root/dev/rnbd/by-name/vol; } >&- 2>&- &' >rule
  sed -i '1r rule' bin/systemctl
  touch late
  mapping 0 map vol from 10.0.0.1 own-process
  [[ $(readlink root/dev/rnbd/by-name/vol) == ../../nbd4 ]] || fail "map returns before the link is there"
  if grep -q udev said; then fail "a warning about a link that is there"; fi
  mapping 0 udev vol --wait 5
  [[ ! -s said ]] || fail "who waits for a link says something"
  rm root/dev/rnbd/by-name/vol
  mapping 1 udev nbd4 --wait 0.1
  says said 'udev has not made /dev/rnbd/by-name/vol within 0.1 s; use /dev/nbd4'
  mapping 1 udev vol1 --wait 5
  says said 'vol1 is no device of rnbd-bridge'
  mapping 2 map vol1 from 10.0.0.1 own-process --wait long
  says said "'long' is not a number of seconds"
  rm -r root/sys/block/nbd4
  mapping 0 unmap vol
  # Without a rule, and without udev.
  sed -i 2d bin/systemctl
  mapping 0 map vol from 10.0.0.1 own-process --wait 0.1
  says said '^/dev/nbd4$'
  says said 'udev has not made /dev/rnbd/by-name/vol within 0.1 s; use /dev/nbd4'
  rm -r root/sys/block/nbd4 root/run/udev
  mapping 0 unmap vol
  mapping 0 map vol from 10.0.0.1 own-process --wait 600
  [[ $(<said) == /dev/nbd4 ]] || fail "it says more than the device"
}
it "map returns when the link of udev is there; it does not wait for an udev that does not run" links

# ---- The server -----------------------------------------------------------------------------------

# hold NAME: an NBD client that writes on each SIGUSR1, and stays.
hold() {
  spawn "$1" /usr/bin/python3 -u -c '
import nbd, os, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"1" * 512, 0)
def write(*_):
    try: h.pwrite(b"2" * 512, 0); print("writes")
    except nbd.Error as error: print("fails", error.errno)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
signal.signal(signal.SIGUSR1, write)
print("holds")
while True: signal.pause()' "$uri"
  wait_for_line "$1.out" holds
}
# writes_now NAME TEXT: what it comes to now.
writes_now() {
  kill -USR1 "${pid[$1]}"
  wait_for_line "$1.out" "$2"
}

# counts NAME TEXT NUMBER: it has said so this often.
counts() { (($(grep -c "$2" "$1.out") == $3)); }

evicts() {
  requires_python nbd
  truncate -s 1M image
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/state" --control "$PWD/control"
  start_bridge "rnbd+tcp://$address/disk0" --session vm1 --control "$PWD/bridge.control"
  hold writer
  writes_now writer '^writes'
  status_of 1 "${ctl_command[@]}" "$PWD/control" evict disk1
  says said "no session is called 'disk1'"
  status_of 1 "${ctl_command[@]}" "$PWD/control" evict disk0
  says said "'vm1' .127.0.0.1:[0-9]+. has 'disk0' open rw, with 0 requests under way; if you write --force, all of its I/O fails with EIO, also that of a file system .* until that is unmounted and the disk is mapped or opened anew$"
  status_of 0 "${ctl_command[@]}" --json "$PWD/control" evict disk0 --force
  says said '"sessions_ended":."vm1".'
  wait_for_line server.log "evicted 'vm1'"
  writes_now writer '^fails EIO'
  status_of 0 "${ctl_command[@]}" "$PWD/bridge.control" status
  says said "'disk0' is not what it was: the server's operator has closed it"
  LIBNBD_DEBUG=1 status_of 1 nbdinfo --size "$uri" # shows the server's text
  says said "the server's operator has evicted this client; .*rnbd-ctl server readmit @127.0.0.1"
  if grep -q 'open it ro' said; then fail "reading would be refused, too"; fi
  says bridge.log "the server's operator has evicted this client; .*rnbd-ctl server readmit @127.0.0.1"
  wait_for_line server.log 'open refused.*evicted; the command readmit @127.0.0.1 lets it in again'
  status_of 0 "${ctl_command[@]}" "$PWD/control" status
  says said '@127.0.0.1.*vm1.*readmit'
  status_of 1 "${ctl_command[@]}" "$PWD/control" readmit host1
  says said "'host1' is not out; @127.0.0.1 .session 'vm1'. is"
  status_of 0 "${ctl_command[@]}" "$PWD/control" readmit "$readmit_as"
  nbdsh <<<'h.pwrite(b"3" * 512, 0)'
  kill -USR1 "${pid[writer]}"
  eventually 60 counts writer '^fails EIO' 2
  [[ $(head -c 1 image) == 3 ]] || fail "who was evicted has written"
}
readmit_as=@127.0.0.1
it "evict ends a session for good: what it had open is EIO, and it is out until it is let in" evicts
readmit_as=127.0.0.1
it "readmit takes an address without its @" evicts
readmit_as=vm1
it "readmit takes the name of the session that was evicted" evicts

evicts_away() {
  requires_python nbd
  truncate -s 1M image
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/state" --control "$PWD/control"
  start_bridge "rnbd+tcp://$address/disk0" --session vm1
  hold writer
  writes_now writer '^writes'
  freeze bridge
  wait_for_line server.log 'no path is left'
  status_of 0 "${ctl_command[@]}" --json "$PWD/control" evict vm1 --force
  says said '"client":"@127.0.0.1"'
  thaw bridge
  writes_now writer '^fails EIO'
  status_of 1 nbdinfo --size "$uri"
}
it "evict puts out also a client whose paths are all away" evicts_away

# evicts_with_full_disk SPARES: are there files for that?
evicts_with_full_disk() {
  requires_python nbd
  ((EUID == 0)) || skip "only root can mount a small file system"
  truncate -s 1M image
  mkdir state
  mount -t tmpfs -o size=4M tmpfs state 2>/dev/null || skip "cannot mount tmpfs here"
  at_end umount "$PWD/state"
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/state" --control "$PWD/control"
  start_bridge "rnbd+tcp://$address/disk0" --session vm1
  hold writer
  writes_now writer '^writes'
  [[ $1 == spares ]] || rm -f state/.spare-*
  head -c 5M /dev/zero >state/other 2>/dev/null && fail "5 MiB went into 4 MiB"
  if [[ $1 == spares ]]; then
    status_of 0 "${ctl_command[@]}" "$PWD/control" evict vm1 --force
    grep -q '@127.0.0.1 vm1$' state/evicted
  else
    status_of 1 "${ctl_command[@]}" "$PWD/control" evict vm1 --force
    says said 'clients are out, but the next start of the server may not know that: .*state/evicted: No space left'
  fi
  writes_now writer '^fails EIO'
  status_of 1 nbdinfo --size "$uri"
}
it "evict keeps its list also on a full disk" evicts_with_full_disk spares
it "evict ends sessions also when it cannot keep its list, and says so" evicts_with_full_disk nothing

# However a client proves its name.
evicts_proven() {
  requires_python nbd
  truncate -s 1M image
  keys
  local auth=(--auth psk --tls off) scheme=rnbd+tcp key=auth-psk-file
  [[ $1 == proof ]] || auth=(--tls require) scheme=rnbds+tcp key=tls-psk-file
  start_server --export "disk0=$PWD/image,rw=host1,rw=host2" --state-directory "$PWD/state" \
    --control "$PWD/control" "${auth[@]}" --tls-psk "$PWD/keys.psk"
  start_bridge "$scheme://host1@$address/disk0?$key=$PWD/host1.psk" --session vm1
  hold writer
  writes_now writer '^writes'
  status_of 0 "${ctl_command[@]}" --json "$PWD/control" evict "$2" --force
  says said '"client":"host1"'
  writes_now writer '^fails EIO'
  status_of 1 nbdinfo --size "$uri"
  # Another one is not meant.
  bridge_name=other start_bridge "$scheme://host2@$address/disk0?$key=$PWD/host2.psk"
  nbdsh <<<'h.pwrite(b"3" * 512, 0)'
}
keys() {
  local host
  for host in host1 host2; do
    "${ctl_command[@]}" keygen "$host" keys.psk --out "$host.psk" >/dev/null
  done
}
it "evict by device: a client that has proven a key over TLS is out" evicts_proven tls disk0
it "evict by session: a client that has proven a key without TLS is out" evicts_proven proof vm1

# The client sleeps meanwhile, and only meets the server's next process.
evicted_before_restart() {
  requires_python nbd
  truncate -s 1M image
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/state" --control "$PWD/control"
  start_bridge "rnbd+tcp://$address/disk0" --session vm1 --control "$PWD/bridge.control"
  hold writer
  writes_now writer '^writes'
  # The part of a session has nothing behind its number, as servers before this have written it.
  local record
  record=$(find state -name "$(printf '?%.0s' {1..32})")
  [[ $(od -An -tx1 -j 36 -N 4 "$record" | tr -d ' ') == 00000000 ]] || fail "another record"
  freeze bridge
  status_of 0 "${ctl_command[@]}" "$PWD/control" evict vm1 --force
  stop server
  server_port=$port start_server --export "disk0=$PWD/image" --state-directory "$PWD/state" --control "$PWD/control"
  thaw bridge
  writes_now writer '^fails EIO'
  status_of 0 "${ctl_command[@]}" "$PWD/bridge.control" status
  says said "'disk0' is not what it was: the server's operator has closed it"
  if grep -q 'another client' said; then fail "nobody else has written"; fi
  status_of 1 nbdinfo --size "$uri"
  status_of 0 "${ctl_command[@]}" "$PWD/control" readmit all
  nbdsh <<<'h.pwrite(b"3" * 512, 0)'
}
it "who was evicted is told so also by a server that has been restarted since" evicted_before_restart

ended_by_server() {
  requires_python nbd
  mkdir -p "$root"/run/{rnbd,rnbd-server} "$root/sys/block"
  truncate -s 1M image
  start_server --export "disk0=$PWD/image" --state-directory "$PWD/state" --control "$PWD/root/run/rnbd-server/control"
  start_bridge "rnbd+tcp://$address/disk0" --session vm1 --control "$PWD/root/run/rnbd/disk0.control"
  hold writer
  writes_now writer '^writes'
  ctl recover all >said
  says said 'all paths are connected already'
  ctl server close disk0 --force
  writes_now writer '^fails EIO'
  status_of 1 "${ctl_command[@]}" --root "$root" recover all
  says said "disk0 is closed: .*the server's operator has closed it: its session was evicted; its NBD clients have to connect anew"
  status_of 1 "${ctl_command[@]}" --root "$root" reconnect vm1
  says said "^path tcp:$address of session vm1: connected$"
  says said '^rnbd-ctl: disk0 is closed: .* its session was evicted; its NBD clients have to connect anew$'
  mkdir "$root/sys/block/nbd5"
  echo "rnbd:$(ctl client list csv noheaders uuid):disk0" >"$root/sys/block/nbd5/backend"
  status_of 1 "${ctl_command[@]}" --root "$root" recover disk0
  says said "nbd5 is closed: .*; unmount it, then write rnbd-ctl remap disk0"
  status_of 1 "${ctl_command[@]}" --root "$root" reconnect nbd5
  says said '^rnbd-ctl: nbd5 is closed: .* its session was evicted; unmount it, then write rnbd-ctl remap disk0$'
  status_of 2 "${ctl_command[@]}" --root "$root" client check
  says said "^CRITICAL: device nbd5: .*; unmount it, then write rnbd-ctl remap disk0"
}
it "no path brings a device back that the server has ended: recover and check say what does" ended_by_server

# Who is refused learns who has the disk, and so does whoever looks at the list.
told() {
  requires_python nbd
  start_server --export disk0=memory:1M --export "secret=memory:1M,rw=@192.0.2.0/24"
  start_bridge "rnbd+tcp://$address/disk0" --session vm1
  hold writer
  writes_now writer '^writes'
  local name="'vm1' \\(127.0.0.1:[0-9]+\\) writes to it"
  status_of 1 "${bridge_command[@]}" --listen "unix:$PWD/second.sock" --access rw --connect now \
    --connect-timeout 2s "rnbd+tcp://$address/disk0"
  says said "Operation not permitted.*$name"
  status_of 0 "${ctl_command[@]}" discover "$address"
  says said 'USED-BY'
  says said "^disk0 .* in use +$name"
  if grep -q secret said; then fail "a stranger is told of an export"; fi
  status_of 0 "${ctl_command[@]}" discover --json "rnbd+tcp://$address"
  says said '"used_by":".vm1. '
}
it "a refusal and the list of exports tell who has a disk" told

by_default() {
  mkdir place
  export RUNTIME_DIRECTORY=$PWD/place:/nowhere
  start_server --export disk0=memory:1M
  status_of 0 "${ctl_command[@]}" "$PWD/place/control" status
  says said 'disk0'
  stop server
  start_server --export disk0=memory:1M --control none
  [[ ! -e place/control && ! -e none ]] || fail "there is a control socket"
}
it "where the service manager has a place for it, the server has a control socket" by_default

drains() {
  requires_python nbd
  start_server --export disk0=memory:1M --control "$PWD/control"
  start_bridge "rnbd+tcp://$address/disk0" --control "$PWD/bridge.control"
  hold writer
  writes_now writer '^writes'
  status_of 1 "${ctl_command[@]}" "$PWD/control" drain tcp:127.0.0.1:1
  says said 'there is no listener'
  status_of 0 "${ctl_command[@]}" "$PWD/control" drain
  limited "${ctl_command[@]}" --json "$PWD/bridge.control" status >status.json
  says status.json '"access":"inaccessible"'
  kill -USR1 "${pid[writer]}" # waits for a path
  limited "${ctl_command[@]}" "$PWD/control" access "tcp:$address" optimized
  eventually 60 counts writer '^writes' 2
}
it "drain returns when no client sends any more, and they wait" drains

# answers SOCKET ANSWER: a program that gives this answer to every question.
answers() {
  mkdir -p "${1%/*}"
  /usr/bin/python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
while True:
    c, _ = s.accept()
    c.recv(100)
    c.sendall(sys.argv[2].encode() + b"\n")
    c.close()' "$1" "$2" &
  at_end kill "$!"
  eventually 20 test -S "$1"
}

# shellcheck disable=SC2016 # the text of an answer
odd_answers() {
  two_programs
  local answer
  for answer in '{"devices": ["x"]}' '{"paths": ["x"]}' '{"paths": {"a": 1}}' '{"sessions": [1]}' \
    '{"sessions": [], "exports": [[]]}' '{"error": "E", "message": 7}' '[1]' '7' \
    "{\"devices\": $(printf '[%.0s' {1..5000})$(printf ']%.0s' {1..5000})}"; do
    rm -f root/run/rnbd/odd.control
    answers root/run/rnbd/odd.control "$answer"
    local format
    for format in '' csv json xml paths sessions; do
      # shellcheck disable=SC2086
      status_of 1 "${ctl_command[@]}" --root "$root" list $format
      says said 'disk0|vm-'
      says said 'odd.control: it does not answer as a program of rnbdkit does'
      if grep -q 'exception' said; then fail "the text of an exception is shown"; fi
    done
    status_of 3 "${ctl_command[@]}" --root "$root" check
    status_of 1 "${ctl_command[@]}" root/run/rnbd/odd.control status
    status_of 1 "${ctl_command[@]}" root/run/rnbd/odd.control top --once
    if grep -q 'exception' said; then fail "the text of an exception is shown"; fi
  done
}
it "one odd answer of a program spoils nothing of the others" odd_answers

is_clean() { ! LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' "$1"; }
clean_texts() {
  local answer option
  for answer in '{"text": "one\u001b[2J\u009b2Jtwo\n"}' '{"a\u001b[2J": "b\u009b"}' \
    '{"error": "E", "message": "\u001b[2J"}' '{"devices": [{"a\u009b": "\u001b"}], "paths": []}'; do
    rm -f ./program.control
    answers ./program.control "$answer"
    answers_raw "$answer"
    for option in '' --json; do
      # shellcheck disable=SC2086
      "${ctl_command[@]}" $option ./program.control status >said 2>&1 || true
      cat -v said
      is_clean said || fail "control characters reach the terminal"
    done
  done
}
answers_raw() {
  rm -f ./raw.control
  answers ./raw.control "$(/usr/bin/python3 -c 'import json, sys; print(json.dumps(json.loads(sys.argv[1]), ensure_ascii=False))' "$1")"
  "${ctl_command[@]}" --json ./raw.control status >said 2>&1 || true
  is_clean said || fail "control characters of JSON reach the terminal"
  /usr/bin/python3 -c 'import json; json.load(open("said"))' || fail "it is no JSON any more"
}
it "no text of a program steers the terminal" clean_texts

not_written() {
  two_programs
  local command
  while read -r command; do
    # shellcheck disable=SC2086
    if "${ctl_command[@]}" $command >/dev/full 2>said; then fail "$command: status 0 on a full disk"; fi
    says said 'standard output: No space left on device'
    # shellcheck disable=SC2086
    if "${ctl_command[@]}" $command >&- 2>said; then fail "$command: status 0 without an output"; fi
  done <<EOF
$root/run/rnbd/disk0.control status
--json $root/run/rnbd/disk0.control status
$root/run/rnbd/disk0.control metrics
$root/run/rnbd/disk0.control counters
$root/run/rnbd/disk0.control top --once
--root $root list
--root $root show vol1
discover rnbd+tcp://$address
discover rnbd+tcp://$address json
help
--help
list --help
EOF
  local status=0
  "${ctl_command[@]}" --root "$root" check >/dev/full 2>said || status=$?
  ((status == 3)) || fail "check: status $status on a full disk"
}
it "what could not be written is an error, and unknown to monitoring" not_written

closed_folders() {
  ((EUID == 0)) || skip "not root"
  requires setpriv
  mkdir -p open/run/rnbd open/run/rnbd-server
  chmod a+rx "$work_dir" "$case_dir" .
  local nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  "${nobody[@]}" test -x "${ctl_command[0]}" || skip "nobody may not run ${ctl_command[0]}"
  status_of 0 "${nobody[@]}" "${ctl_command[@]}" --root "$PWD/open" client check
  chmod 700 open/run/rnbd
  local side
  for side in '' client server; do
    # shellcheck disable=SC2086
    status_of 3 "${nobody[@]}" "${ctl_command[@]}" --root "$PWD/open" $side check
    says said '^UNKNOWN: .*/run/rnbd: Permission denied; what runs there is not known'
  done
  status_of 1 "${nobody[@]}" "${ctl_command[@]}" --root "$PWD/open" list
  chmod 755 open/run/rnbd
  chmod 700 open/run/rnbd-server
  status_of 0 "${nobody[@]}" "${ctl_command[@]}" --root "$PWD/open" client check
  status_of 3 "${nobody[@]}" "${ctl_command[@]}" --root "$PWD/open" check
}
it "check that may not look is unknown, and never OK" closed_folders

finish
