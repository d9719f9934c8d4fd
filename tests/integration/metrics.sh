#!/bin/bash
# Metrics: what server and bridge count, over HTTP and over the control socket, and who reads it badly.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# ---- Helpers --------------------------------------------------------------------------------------

reader=$source_dir/tests/integration/metrics_page.py
read_page() { PYTHONDONTWRITEBYTECODE=1 limited /usr/bin/python3 "$reader" "$@"; }

# scrape NAME PAGE [PYTHON]: the metrics of a started program, by HTTP; strictly read.
scrape() {
  local where
  where=$(grep -oE 'metrics at http://[^ ]+' "$case_dir/$1.log" | tail -n 1)
  limited /usr/bin/python3 -c '
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
    sys.stdout.buffer.write(answer.read())' "${where#metrics at }" >"$2"
  read_page "$2" "${@:3}"
}

# serve: a server and a bridge with both ways to their metrics, and some I/O.
serve() {
  requires_python nbd
  start_server --export 'di"sk\0=memory:16M' --export idle=memory:1M --control "$PWD/server.control" \
    --metrics 0 "$@"
  start_bridge "rnbd+tcp://$address" --control "$PWD/bridge.control" --metrics 127.0.0.1:0
}

io() {
  limited /usr/bin/python3 -c '
import nbd, sys
h = nbd.NBD()
h.set_export_name("di\"sk\\0")
h.connect_unix(sys.argv[1])
for i in range(20):
    h.pwrite(b"x" * 4096, i * 4096)
for i in range(10):
    assert h.pread(8192, i * 4096)[:1] == b"x"
h.flush()
h.shutdown()' "$socket"
}

# ---- Cases ----------------------------------------------------------------------------------------

counted() {
  serve
  io
  scrape server server.page
  read_page server.page "value('export_ops_total', export='di\"sk\\\\0', op='write') == 20"
  read_page server.page "value('export_bytes_total', export='di\"sk\\\\0', op='write') == 20 * 4096"
  read_page server.page "value('export_ops_total', export='di\"sk\\\\0', op='read') == 10"
  read_page server.page "value('export_bytes_total', export='di\"sk\\\\0', op='read') == 10 * 8192"
  # The first one, and every eighth.
  read_page server.page "value('export_latency_seconds_count', export='di\"sk\\\\0', op='write') == 3"
  read_page server.page "value('export_state', export='idle', state='served') == 1"
  read_page server.page "value('export_inflight', export='di\"sk\\\\0') == 0"
  read_page server.page "value('sessions') == 1 and value('chunk_memory_bytes') > 0"
  read_page server.page "value('chunk_memory_limit_bytes') >= value('chunk_memory_bytes')"
  scrape bridge bridge.page
  read_page bridge.page "value('device_ops_total', device='di\"sk\\\\0', op='write') == 20"
  read_page bridge.page "value('device_bytes_total', device='di\"sk\\\\0', op='read') == 10 * 8192"
  read_page bridge.page "value('device_latency_seconds_count', device='di\"sk\\\\0', op='read') == 2"
  read_page bridge.page "value('path_requests_total', path='tcp:$address') >= 30"
  read_page bridge.page "value('path_state', path='tcp:$address', state='connected') == 1"
  read_page bridge.page "value('requests_waiting_for_path') == 0 and value('no_path_seconds_total') == 0"
}
it "server and bridge count each operation and its bytes, and time one in eight" counted

# mirror_page PAGE: of a bridge in front of two servers.
mirror_page() {
  local name list=
  for name in first second; do
    truncate -s 1M "$name.img"
    server_name=$name start_server --state-directory "$PWD/state-$name" --export "disk0=$PWD/$name.img"
    list+=,$address
  done
  bridge_name=mirror start_bridge "rnbd-mirror+tcp://${list:1}/disk0" --metrics 127.0.0.1:0
  [[ $(nbdinfo --size "$uri") == 1048576 ]]
  eventually 60 scrape mirror "$1" "value('mirror_attached') == 1"
}

both_ways() {
  serve
  io
  local program
  for program in server bridge; do
    limited "${ctl_command[@]}" "$PWD/$program.control" metrics >"$program.ctl"
    scrape "$program" "$program.http"
    read_page "$program.ctl"
    diff <(grep '^#' "$program.ctl") <(grep '^#' "$program.http")
    grep -E '_ops_total' "$program.http" | diff - <(grep -E '_ops_total' "$program.ctl")
  done
  mirror_page mirror.http
  read_page --names "$source_dir/contrib/grafana/rnbd.json" \
    "$source_dir/contrib/prometheus/rnbd-alerts.yml" "$source_dir/docs/metrics.md" -- \
    server.http bridge.http mirror.http
  # The page of the manual leaves none out.
  local name
  sed -n 's/^# TYPE \(rnbd_[a-z_]*\) .*/\1/p' server.http bridge.http mirror.http >names
  while read -r name; do
    grep -q "\`$name\`" "$source_dir/docs/metrics.md" || fail "docs/metrics.md does not tell of $name"
  done <names
}
it "rnbd-ctl prints what HTTP serves, and board, alerts and manual use names that are there" both_ways

space() {
  truncate -s 8M thin.img
  head -c 65536 /dev/urandom | dd of=thin.img conv=notrunc status=none
  sync thin.img # or the file system may not have allocated it
  cp thin.img iso.img
  start_server --export "thin=$PWD/thin.img" --export "iso=$PWD/iso.img,ro" --export m=memory:1M --metrics 0
  eventually 20 scrape server page "value('export_unallocated_bytes', export='thin') in range(1, 8 << 20)"
  read_page page "0 < value('export_filesystem_free_bytes', export='thin') < value('export_filesystem_bytes', export='thin')"
  [[ $(grep -c '^rnbd_export_unallocated_bytes{' page) == 1 ]] || fail "of what else?"
}
it "of a file with holes that clients may write the room is told that it and its file system have" space

hung() {
  requires_python nbd
  start_server --export slow=delay:write=3600s:memory:1M --metrics 0
  start_bridge "rnbd+tcp://$address/slow"
  spawn client /usr/bin/python3 -m nbd -u "$uri" -c 'h.pwrite(b"x" * 512, 0)'
  grows() { scrape server page "value('export_inflight', export='slow') == 1 and value('export_oldest_request_seconds', export='slow') > 0"; }
  eventually 20 grows
  kill_hard client
  kill_hard bridge
  kill_hard server
}
it "a request that hangs in its storage is in flight, and its age is told" hung

live() {
  serve
  io
  local program
  for program in server bridge; do
    limited "${ctl_command[@]}" "$PWD/$program.control" top --once --interval 0.2 >shown
    says shown 'DEVICE +R/S +W/S'
    says shown '^di"sk'
    says shown "^PATH +SESSION +STATE"
    limited "${ctl_command[@]}" --json "$PWD/$program.control" top --once --interval 0.2 >json
    limited /usr/bin/python3 -c '
import json
answer = json.load(open("json"))
assert answer["paths"][0]["state"] == "connected", answer
assert [d["r/s"] for d in answer["devices"] if d["device"] == "di\"sk\\0"] == [0.0], answer'
  done
  status_of 1 "${ctl_command[@]}" "$PWD/nothing.control" top
}
it "rnbd-ctl top shows devices and paths, once and as JSON" live

refused() {
  start_server --export x=memory:1M --metrics 0
  start_bridge "rnbd+tcp://$address"
  nbdinfo "nbd+unix:///nothing?socket=$socket" && fail "there is such an export"
  scrape server page "value('refused_total', reason='no_such_export') >= 1"
}
it "a refusal to open is counted with its reason" refused

bad_readers() {
  requires_python nbd
  serve
  local where
  where=$(logged "$case_dir/server.log" 'metrics at http://127.0.0.1:[0-9]+' | sed 's/.*://')
  limited /usr/bin/python3 -c '
import os, socket, sys
port = int(sys.argv[1])
def connect():
    return socket.create_connection(("127.0.0.1", port), timeout=20)
def ask(text):
    with connect() as s:
        s.sendall(text)
        answer = b""
        while piece := s.recv(65536):
            answer += piece
        return answer.split(b"\r\n")[0]
assert ask(b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404"), "404"
assert ask(b"POST /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405"), "405"
assert ask(b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400"), "400"
assert ask(b"GET /metrics?x=1 HTTP/1.0\n\n").startswith(b"HTTP/1.1 200"), "200"
assert ask(b"x" * 8192).startswith(b"HTTP/1.1 431"), "431"
silent = [connect() for _ in range(40)]
for s in silent[:20]:
    try:
        s.sendall(os.urandom(100).replace(b"\n", b"x"))
    except OSError:
        pass
assert ask(b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200"), "beside silent ones"
left = connect()
left.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
left.close()
' "$where"
  scrape server page
  io
}
it "garbage, silent readers and those that leave keep nobody from the metrics" bad_readers

wrong_addresses() {
  local text
  for text in '' 70000 x:y '::1:9234' '[::1]' '[::1'; do
    status_of 2 "$server_program" --export x=memory:1M --metrics "$text"
    says said 'metrics'
  done
  start_server --export x=memory:1M --metrics 0
  local taken
  taken=$(logged "$case_dir/server.log" 'metrics at http://127.0.0.1:[0-9]+' | sed 's/.*://')
}
it "an address for metrics that is wrong is refused" wrong_addresses

many_exports() {
  local i exports=()
  for i in {100..699}; do exports+=(--export "e$i=null:1M"); done
  start_server "${exports[@]}" --control "$PWD/server.control" --export "zz=$PWD/missing"
  attach e698
  spawn holder /usr/bin/python3 -c 'import nbd, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pread(512, 0)
print("open", flush=True)
signal.pause()' "$uri"
  wait_for_line holder.out open
  limited "${ctl_command[@]}" "$PWD/server.control" metrics >page
  (($(grep -c '^rnbd_export_size_bytes' page) == 513)) || fail "not 512 exports and the others"
  (($(grep -c '^rnbd_export_state' page) == 3 * 513)) || fail "other exports have states"
  says page '^rnbd_export_openers.export="e698",access="(ro|unclaimed)". 1'
  says page '^rnbd_export_state.export="zz",state="waiting". 1'
  says page '^rnbd_export_size_bytes.export="\(others\)". 93323264'
  ! grep -q 'throttled_total.export="(others)"' page || fail "a sum that may shrink is a counter"
  kill_hard holder
}
it "beyond 512 exports those that matter have lines, and the others are told together" many_exports

serves_without_metrics() {
  local taken program
  spawn holder /usr/bin/python3 -u -c '
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
s = socket.socket()
s.bind(("", 0))
s.listen()
print(s.getsockname()[1])
signal.pause()'
  wait_for_line "$case_dir/holder.out" '^[0-9]+$'
  taken=$(<"$case_dir/holder.out")
  start_server --export disk0=memory:1M --control "$PWD/server.control" --metrics "$taken"
  start_bridge "rnbd+tcp://$address/disk0" --control "$PWD/bridge.control" \
    --metrics "127.0.0.2:$taken"
  [[ $(nbdinfo --size "$uri") == 1048576 ]] || fail "the disk is not served"
  for program in server bridge; do
    says "$program.log" "warning: cannot serve metrics at 127.0.0.[12]:$taken: Address already in use;"
    limited "${ctl_command[@]}" "$PWD/$program.control" status >said
    says said '^metrics .*waiting +cannot serve metrics'
  done
  mkdir -p root/run/rnbd root/run/rnbd-server
  ln -s "$PWD/server.control" root/run/rnbd-server/control
  ln -s "$PWD/bridge.control" root/run/rnbd/disk0.control
  status_of 1 "${ctl_command[@]}" --root "$PWD/root" check
  says said '^WARNING: listener metrics: it waits: cannot serve metrics'
  stop holder
  for program in server bridge; do eventually 20 grep -q 'metrics at http' "$program.log"; done
  eventually 20 limited "${ctl_command[@]}" --root "$PWD/root" check
}
it "a port for metrics that is taken keeps no disk waiting, and is tried again" serves_without_metrics

finish
