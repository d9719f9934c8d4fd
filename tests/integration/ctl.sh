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
  says list.txt '^SESSNAME +MAPPING_PATH +STATE +ACCESS_MODE +DIRECTION$'
  says list.txt ' disk0 +open +rw +import$'
  says list.txt ' disk0 +open +rw +export$'
  (($(wc -l <list.txt) == 3)) || fail "not two devices"
  ctl client list sessions >sessions.txt
  cat sessions.txt
  says sessions.txt ' connected +U +mi +64K +0B? +0$'
  says sessions.txt "^\`- tcp:127.0.0.1:$port +connected"
  ctl list paths csv dst_addr,state,direction >paths.csv
  cat paths.csv
  says paths.csv "^127.0.0.1:$port,connected,import$"
  says paths.csv '^127.0.0.1:[0-9]+,connected,export$'
  ctl server list json mapping_path,size >devices.json
  [[ $(tr -d ' \n' <devices.json) == '{"devices":[{"mapping_path":"disk0","size":16777216}]}' ]] || {
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
  says said "'lsit' is no control socket"
  status_of 0 "${ctl_command[@]}" help
  says said 'list \[devices'
}
it "without any program the list is empty, and a mistyped word is no command" nobody

finish
