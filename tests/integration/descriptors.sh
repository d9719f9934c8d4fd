#!/bin/bash
# Strangers who connect until there are no descriptors left harm nobody who is there.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

here=$(realpath "${BASH_SOURCE[0]%/*}")

# Enough for the programs and some clients.
few=(prlimit --nofile=128:128)

# crowd HOW WHERE: 300 strangers who connect and say nothing, until the end of the case.
crowd() {
  local ready_read ready_write
  pipe ready_read ready_write
  spawn crowd /usr/bin/python3 -c '
import os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
how, where, ready = sys.argv[1], sys.argv[2], int(sys.argv[3])
strangers = []
for _ in range(300):
    stranger = socket.socket(socket.AF_UNIX if how == "unix" else socket.AF_INET)
    stranger.settimeout(5)
    try:
        stranger.connect(where if how == "unix" else ("127.0.0.1", int(where)))
    except OSError:
        continue  # it was not even let in
    strangers.append(stranger)
os.write(ready, b"all there\n")
signal.sigwait([signal.SIGTERM])
' "$1" "$2" "$ready_write"
  exec {ready_write}>&-
  await_line "$ready_read" 60 || fail "the crowd did not gather"
  exec {ready_read}<&-
}

# The first changes and flushes, for which descriptors and threads might be wanted.
works() {
  nbdsh <<'PY'
for offset in range(0, 1 << 20, 65536):
    h.pwrite(b"x" * 65536, offset, nbd.CMD_FLAG_FUA if offset % 131072 else 0)
h.zero(65536, 0)
h.trim(65536, 65536)
h.flush()
assert h.pread(65536, 131072) == b"x" * 65536
PY
}

at_the_server() {
  requires prlimit
  requires_python nbd
  truncate -s 4M image other
  server_command=("${few[@]}" "${server_command[@]}")
  # shellcheck disable=SC2086 # options
  start_server $1 --export "disk0=$PWD/image" --export "disk1=$PWD/other"
  attach disk0
  nbdinfo --size "$uri"
  crowd tcp "$port"
  works
  nbdkit_name=second attach disk1
  works
}
it "at the server: attached clients write and flush, and others are let in" at_the_server ""
it "the same with threads instead of io_uring" at_the_server --no-uring

# start_with_files LIMIT COUNT: two reactors, so that each file takes three descriptors.
start_with_files() {
  local i
  exports=()
  for ((i = 1; i <= $2; i++)); do
    truncate -s 1M "image$i"
    exports+=(--export "e$i=$PWD/image$i")
  done
  server_command=(prlimit "--nofile=$1:$1" "${server_command[@]}")
  start_server --reactors 2 "${exports[@]}"
  says server.log "warning: export 'e$2' is not served yet.*of the $1 descriptors.*LimitNOFILE="
  attach e1
  works
}
files_wait() {
  requires prlimit
  requires_python nbd
  local exports
  start_with_files "$1" "$2"
  stop nbdkit
  stop server
  status_of 1 "${server_command[@]}" --listen tcp:127.0.0.1:0 --reactors 2 "${exports[@]}" \
    --check-config
  says said "export 'e[0-9]+' and [0-9]+ more exports: .*of the $1 descriptors.*LimitNOFILE="
  (($(grep -c 'LimitNOFILE=' said) == 1)) || fail "the same is said many times"
}
it "files that would take the last descriptors wait, and clients are served" files_wait 1024 350
it "... also where there are 128 in all" files_wait 128 50

# Each limit beside each number of files: the check finds what a start finds.
check_knows() {
  requires prlimit
  local limit reactors count checked started arguments i
  truncate -s 1M image{1..20}
  for limit in 48 64 100 128 160; do
    for reactors in 2 8; do
      for count in 1 3 6 10 15 20; do
        arguments=(--listen tcp:127.0.0.1:0 --reactors "$reactors" --state-directory "$PWD/state"
          --control "$PWD/control")
        for ((i = 1; i <= count; i++)); do arguments+=(--export "e$i=$PWD/image$i"); done
        # Both inherit the same.
        spawn start prlimit "--nofile=$limit:$limit" "${server_command[@]}" "${arguments[@]}" --check-config
        wait_end start 20 || fail "the check does not end"
        checked=$((status != 0)) started=1
        spawn start prlimit "--nofile=$limit:$limit" "${server_command[@]}" "${arguments[@]}"
        eventually 20 starts_or_ends
        ! grep ' ready, ' start.log | grep -vq 'waiting for its storage' || started=0
        if has_ended start; then wait_end start 5; else kill_hard start; fi
        ((checked == started)) ||
          fail "$limit descriptors, $reactors reactors, $count files: --check-config ends with $checked, the start $started"
      done
    done
  done
}
has_ended() { [[ ! -e /proc/${pid[$1]}/exe ]]; }
starts_or_ends() { grep -q ' ready, ' start.log || has_ended start; }
it "--check-config finds out whether descriptors are enough for the server and its exports" check_knows

# Strangers take all descriptors before a client that is there makes its first change. That may be
# refused, but it ends nothing.
first_change() {
  requires prlimit
  requires_python nbd
  truncate -s 4M image
  server_command=(prlimit --nofile="$1:$1" "${server_command[@]}")
  start_server --export "disk0=$PWD/image"
  attach disk0
  limited /usr/bin/python3 - "$uri" <<'PY' &
import errno, os, sys, time, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
open("attached", "w").close()
while not os.path.exists("gathered"):
    time.sleep(0.05)
try:
    h.pwrite(b"x" * 65536, 0)
except nbd.Error as refused:
    print("refused:", refused)
h.pread(65536, 0)
PY
  local client=$!
  eventually 20 test -e attached
  crowd tcp "$port"
  touch gathered
  wait "$client"
}
it "with 48 descriptors: a client that is there makes its first change" first_change 48
it "with 64 descriptors: a client that is there makes its first change" first_change 64

# One client opens as many files of the search path as it gets; another one gets one, too.
one_opens_many() {
  requires prlimit
  mkdir files
  (cd files && for n in {1..100}; do echo >"$n"; done && truncate -s 64K -- *)
  server_command=("${few[@]}" "${server_command[@]}")
  start_server --search-path "$PWD/files" --heartbeat 30s
  limited /usr/bin/python3 -B - "$port" "$here" <<'PY'
import sys
sys.path.insert(0, sys.argv[2])
from raw_peer import Session
greedy, opened = Session(int(sys.argv[1])), 0
for n in range(1, 101):
    try:
        greedy.open(str(n).encode())
        opened += 1
    except OSError:
        pass
print("it has opened", opened)
assert 4 <= opened < 100
modest = [Session(int(sys.argv[1])) for _ in range(3)]
for n, session in enumerate(modest):
    session.open(str(100 - n).encode())
PY
  says server.log 'the last descriptors are for clients that have fewer files open'
}
it "one client that opens all files leaves descriptors to others" one_opens_many

at_the_bridge() {
  requires prlimit
  requires_python nbd
  truncate -s 4M image
  start_server --export "disk0=$PWD/image"
  bridge_command=("${few[@]}" "${bridge_command[@]}")
  start_bridge "rnbd+tcp://$address/disk0"
  limited /usr/bin/python3 - "$uri" <<'PY' &
import os, sys, time, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
open("attached", "w").close()
while not os.path.exists("restarted"):
    time.sleep(0.05)
h.pwrite(b"x" * 65536, 0)
h.flush()
PY
  local client=$!
  eventually 20 test -e attached
  crowd unix "$socket"
  says bridge.log 'a client was turned away'
  stop server
  server_port=$port start_server --export "disk0=$PWD/image"
  touch restarted
  wait "$client"
}
[[ $face != bridge ]] || it "at the bridge: it comes back to its server, and its client goes on" at_the_bridge

finish
