#!/bin/bash
# librnbd: a disk inside a program. Rules and wrong uses are cases of librnbd_test.cpp; here are servers, paths
# and mirrors that come and go under a load that checks what it reads.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/mirror_members.sh"

program=$build_dir/bin/librnbd
test -x "$program" || {
  echo "SKIPPED: built without librnbd"
  exit 77
}
ctl() { limited "${ctl_command[@]}" "$@"; }

# serve_disks: what the cases need.
serve_disks() {
  truncate -s 64M image
  : >conf
  start_server --control "$PWD/control" --export "disk0=$PWD/image" \
    --export slow=delay:read=1s,write=1s:memory:64M \
    --export slower=delay:read=15s:memory:64M "$@"
  export RNBD_URI=rnbd+tcp://$address/disk0 RNBD_SLOW_URI=rnbd+tcp://$address/slow
  export RNBD_SLOWER_URI=rnbd+tcp://$address/slower
  export RNBD_FILE=$PWD/image RNBD_SERVER_PID=${pid[server]}
}

cases() {
  serve_disks
  limited "$program" "$@"
}
needs_more='growth*,without a server*,the server is killed*,a disk that is withdrawn*,load*'
it "disks are read, written, shared and closed, and wrong use ends with an errno" cases -tce="$needs_more"
it "a disk that has grown is larger when the program asks for it" cases -tc='growth*'

no_server() {
  serve_disks
  limited "$program" -tc="without a server $1*"
  wait_end server 10 || fail "the server still runs"
}
it "without a server requests end when no-path-timeout has passed" no_server requests
it "... and a loop that has nothing to do sleeps" no_server 'a loop'

child_of_parent() {
  serve_disks
  cat >restart <<EOF
kill -9 ${pid[server]}
sleep 0.5
"$server_program" --control "$PWD/control" --export "disk0=$PWD/image" --listen tcp:127.0.0.1:$port >again.log 2>&1 &
echo \$! >again.pid
sleep 1
EOF
  RNBD_RESTART="bash $PWD/restart" limited "$program" -tc='the server is killed*'
  wait_end server 10 || fail "the server still runs"
  kill "$(<again.pid)"
}
it "... also when a child of the program has its descriptors" child_of_parent

withdrawn() {
  truncate -s 64M image
  printf '%s\n' '[server]' "control = \"$PWD/control\"" '[export.slow]' 'storage = "memory:64M"' >after
  printf '%s\n' '[export.disk0]' "path = \"$PWD/image\"" | cat after - >conf
  start_server --config "$PWD/conf"
  export RNBD_URI=rnbd+tcp://$address/disk0 RNBD_SLOW_URI=rnbd+tcp://$address/slow
  local ctl="${ctl_command[*]} $PWD/control"
  export RNBD_WITHDRAW="$ctl evict disk0 --force && cp $PWD/after $PWD/conf && $ctl reload && $ctl readmit all"
  limited "$program" -tc='a disk that is withdrawn*'
}
it "a disk that the server withdraws fails, and others of it do not" withdrawn

# start_load SECONDS SETTINGS: in the background.
start_load() {
  RNBD_SECONDS=$1 RNBD_SETTINGS=$2 spawn load "$program" -tc=load
  eventually 20 has_written
}
has_written() { [[ -n $(find . -name '*image' -newer started) || -s acked ]] || sleep 0.5; }
end_load() {
  wait_end load $((90 * slow)) || fail "the load does not end"
  cat load.out load.log
  ((status == 0)) || fail "the load failed with status $status"
}

loaded() {
  serve_disks
  touch started
  start_load 5 "control=$PWD/program.control $1"
  ctl "$PWD/program.control" status | tee status.txt
  says status.txt 'connected'
  end_load
}
it "random requests at depth 32 read what was written, and rnbd-ctl shows the paths" loaded ''
it "... also when it looks for answers before it sleeps" loaded spin=50us

fails_over() {
  serve_disks
  start_forward 127.0.0.1
  local first=$forward_port i
  start_forward 127.0.0.2
  local second=$forward_port
  touch started
  RNBD_URI=rnbd+tcp://127.0.0.1:$first/disk0 start_load 12 \
    "path=127.0.0.2:$second heartbeat=100ms reconnect-max=200ms"
  for i in 1 2 3; do
    end_forward 127.0.0.1
    sleep 1
    start_forward 127.0.0.1 "$first"
    sleep 1
    end_forward 127.0.0.2
    sleep 1
    start_forward 127.0.0.2 "$second"
    sleep 0.5
  done
  end_load
  end_forward 127.0.0.1
  end_forward 127.0.0.2
}
it "a path is lost six times under load, and no request fails" fails_over

server_restarts() {
  serve_disks --state-directory "$PWD/state"
  touch started
  start_load 8 'reconnect-max=200ms'
  local i own_port=$port
  for i in 1 2 3; do
    sleep 1
    kill_hard server
    sleep 0.3
    server_port=$own_port start_server --state-directory "$PWD/state" --export "disk0=$PWD/image"
  done
  end_load
}
it "the server is killed three times under load, and no request fails" server_restarts

over_mirror() {
  "$server_program" --help >help 2>&1
  grep -q -e '--votes' -e 'rnbd-mirror' help || { cat help; skip "built without mirrors"; }
  disk_size=64M
  start_members a b
  export RNBD_URI=$mirror
  touch started
  start_load 8 'no-path-timeout=0 reconnect-max=200ms'
  sleep 1
  kill_hard b
  sleep 2
  start_member b
  end_load
  ctl --json "$PWD/control-a" status >/dev/null
  limited "$program" -tc='a program that is elsewhere*'
}
it "a member of a mirror is lost and comes back under load, and no request fails" over_mirror

example() {
  requires cc
  serve_disks
  cc -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wpedantic -Werror "$source_dir/examples/disk/disk.c" -o disk \
    -I "$source_dir/bridge/librnbd/include" -L "$build_dir/bridge/librnbd" -lrnbd \
    "-Wl,-rpath,$build_dir/bridge/librnbd" ${sanitizer:+"-fsanitize=$sanitizer"}
  limited ./disk "$RNBD_URI"
  cmp <(head -c 65536 /dev/zero | tr '\0' a) <(head -c 65536 image)
  status_of 1 ./disk "${RNBD_URI}x"
  says said 'cannot open'
}
it "the example writes and reads a disk" example

python_face() {
  requires_python ctypes
  serve_disks
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$source_dir/python LD_LIBRARY_PATH=$build_dir/bridge/librnbd \
    ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=${RNBD_PRELOAD-} limited /usr/bin/python3 "$source_dir/tests/integration/librnbd_python.py"
}
it "a program in Python reads and writes, alone and with asyncio" python_face

# FIO_SOURCE: that of the installed fio, after its ./configure; no package has it.
fio_engine() {
  requires fio cc make
  [[ -n ${FIO_SOURCE-} ]] || skip "FIO_SOURCE names no source of fio"
  serve_disks
  make -C "$source_dir/contrib/fio" FIO="$FIO_SOURCE" OUT="$PWD" \
    LIBRNBD="-I$source_dir/bridge/librnbd/include -L$build_dir/bridge/librnbd -lrnbd -Wl,-rpath,$build_dir/bridge/librnbd"
  limited fio --name=verify --ioengine="external:$PWD/rnbd.so" --uri="$RNBD_URI" --settings='lanes=1 spin=20us' \
    --rw=randrw --bssplit=512/10:4k/60:64k/20:1m/10 --size=64M --iodepth=32 --iodepth_batch=8 \
    --iodepth_batch_complete_max=32 --fsync=100 --verify=crc32c --verify_fatal=1 --do_verify=1 | tee fio.txt
  says fio.txt 'err= 0'
  sed 's/^FIO_VERSION = .*/FIO_VERSION = fio-0.1/' "$FIO_SOURCE/FIO-VERSION-FILE" >other
  gcc -shared -fPIC -std=gnu99 -D_GNU_SOURCE -include "$FIO_SOURCE/config-host.h" -I "$FIO_SOURCE" \
    "-DRNBD_FIO_VERSION=\"$(sed 's/.* //' other)\"" -o other.so "$source_dir/contrib/fio/rnbd.c" \
    -I "$source_dir/bridge/librnbd/include" -L "$build_dir/bridge/librnbd" -lrnbd "-Wl,-rpath,$build_dir/bridge/librnbd"
  status_of 1 fio --name=other --ioengine="external:$PWD/other.so" --uri="$RNBD_URI" --rw=read --size=1M
  says said 'was built for fio-0.1'
}
it "the engine for fio reads what it wrote, and runs in no other fio" fio_engine

exports() {
  [[ -z $sanitizer ]] || skip "a sanitizer adds to what the library exports"
  requires nm
  nm -D --defined-only "$build_dir/bridge/librnbd/librnbd.so.0" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >exported
  grep -oE '\brnbd_[a-z_]+\(' "$source_dir/bridge/librnbd/include/rnbd.h" | tr -d '(' | sort -u >declared
  comm -23 exported declared | tee undeclared
  [[ -s exported && ! -s undeclared ]] || fail "rnbd.h does not declare what is exported"
}
it "the library exports what rnbd.h declares, and nothing foreign" exports

finish
