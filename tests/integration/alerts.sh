#!/bin/bash
# The alert rules of contrib/prometheus: a real Prometheus reads real programs in trouble, and each rule fires.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
rules=$source_dir/contrib/prometheus/rnbd-alerts.yml

# ---- Helpers --------------------------------------------------------------------------------------

# page_of NAME: where the started program has its metrics, HOST:PORT.
page_of() { sed -n 's#.*metrics at http://\([^/]*\)/.*#\1#p' "$case_dir/$1.log" | tail -n 1; }

# watch NAME...: starts Prometheus, which reads the pages of these programs each second. The rules are the
# shipped ones with shorter times.
watch() {
  local name
  {
    printf 'global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n'
    printf 'scrape_configs:\n  - job_name: storage\n    static_configs:\n      - targets:\n'
    for name; do printf "          - '%s'\n" "$(page_of "$name")"; done
  } >prometheus.yml
  sed -E 's/for: [15]m/for: 2s/; s/\[(1|5|15)m\]/[20s]/; s/offset 5m/offset 20s/' "$rules" >rules.yml
  spawn prometheus prometheus --config.file=prometheus.yml --storage.tsdb.path=tsdb \
    --web.listen-address=127.0.0.1:0 --log.level=info
  eventually $((60 * slow)) prometheus_listens
}
prometheus_listens() {
  prometheus=$(sed -n 's/.*msg="Listening on" address=\(127[0-9.:]*\).*/\1/p' "$case_dir/prometheus.log" | tail -n 1)
  [[ -n $prometheus ]] && ask /-/ready
}
ask() { limited /usr/bin/python3 -c 'import sys, urllib.request
sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())' "http://$prometheus$1"; }

# fired: the names of the alerts that have fired, and whose, also when they are over.
fired() {
  ask '/api/v1/query?query=last_over_time(ALERTS%7Balertstate="firing"%7D%5B1h%5D)' |
    /usr/bin/python3 -c 'import json, sys
for alert in json.load(sys.stdin)["data"]["result"]:
    print(alert["metric"]["alertname"], alert["metric"].get("instance"))' | sort -u
}

# all_read N: Prometheus has read so many pages, several times.
all_read() {
  local samples
  samples=$(ask '/api/v1/query?query=count(count_over_time(rnbd_build_info%5B1h%5D)%20%3E%205)')
  [[ $samples == *"\"$1\""* ]]
}

# use NAME SOCKET...: a client that opens them, writes to each and stays.
use() {
  spawn "$1" /usr/bin/python3 -c '
import nbd, sys, time
handles = []
for path in sys.argv[1:]:
    h = nbd.NBD()
    h.connect_unix(path)
    handles.append(h)
print("ready", flush=True)
while True:
    time.sleep(0.02)
    for h in handles:
        if h.aio_in_flight() == 0 and h.aio_is_ready() and not h.is_read_only():
            h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(65536)), 0)
        h.poll(0)' "${@:2}"
  eventually $((30 * slow)) grep -q ready "$case_dir/$1.out"
}
ready_for_alerts() {
  requires prometheus promtool
  requires_python nbd
  [[ -z $sanitizer ]] || skip "times are short"
}

# ---- Cases ----------------------------------------------------------------------------------------

accepted() {
  requires promtool
  limited promtool check rules "$rules"
}
it "promtool accepts the rules" accepted

healthy() {
  ready_for_alerts
  local name list=''
  for name in first second; do
    truncate -s 1M "$name.img"
    server_name=$name start_server --state-directory "$PWD/state-$name" --export "disk0=$PWD/$name.img" --metrics 0
    list+=,$address
  done
  start_server --export a=memory:1M --metrics 0
  for name in used idle; do
    bridge_name=$name start_bridge "rnbd+tcp://$address/a" --metrics 0
    bridge_name=mirror-$name start_bridge "rnbd-mirror+tcp://${list:1}/disk0" --metrics 0
    [[ $name != used ]] || use client "$PWD/used.sock" "$PWD/mirror-used.sock"
  done
  watch first second server used idle mirror-used mirror-idle
  eventually $((60 * slow)) all_read 7
  [[ -z $(fired) ]] || fail "nothing is wrong, but: $(fired)"
  kill_hard client
}
it "no alert fires while all is well, of what is used and of what is idle" healthy

# A server whose disk is nearly full, which takes a file system of its own.
start_full_server() {
  mkdir small
  # shellcheck disable=SC2016 # expanded by that shell
  server_command=(unshare --mount sh -c 'mount -t tmpfs -o size=4m none "$0" && head -c 3900k /dev/zero >"$0/other" &&
    truncate -s 8M "$0/thin.img" && exec "$@"' "$PWD/small" "${server_command[@]}")
  server_name=filling start_server --export "thin=$PWD/small/thin.img" --memory-limit 5500K --metrics 0
  bridge_name=filling-bridge start_bridge "rnbd+tcp://$address/thin" --access ro
}

troubles() {
  ready_for_alerts
  requires certtool
  ((EUID == 0)) || skip "only root mounts a small file system"
  unshare --mount true || skip "no mount namespaces here"
  local list='' name ready_read ready_write far
  # A certificate that ends, and a revocation list that is over.
  "${ctl_command[@]}" certgen tls --server 127.0.0.1 --days 10
  printf 'crl_this_update_date="2020-01-01 00:00:00 UTC"\ncrl_next_update_date="2020-02-01 00:00:00 UTC"\ncrl_number=1\n' >template
  "${ctl_command[@]}" certgen tls --client bad --out bad
  certtool --generate-crl --load-ca-certificate tls/ca-cert.pem --load-ca-privkey tls/ca-key.pem \
    --load-certificate bad/client-cert.pem --template template --outfile tls/ca-crl.pem
  server_name=secure start_server --tls=require --tls-certificates=tls --export 'x=memory:1M,rw=*' --metrics 0
  # A mirror whose second member dies.
  for name in first second; do
    truncate -s 1M "$name.img"
    server_name=$name start_server --state-directory "$PWD/state-$name" --export "disk0=$PWD/$name.img"
    list+=,$address
  done
  bridge_name=mirror start_bridge "rnbd-mirror+tcp://${list:1}/disk0" --no-path-timeout 0 --metrics 0
  # A server that dies, and its client.
  server_name=dead start_server --export a=memory:1M --metrics 0
  bridge_name=lonely start_bridge "rnbd+tcp://$address/a" --no-path-timeout 0 --metrics 0
  # Storage that hangs, that is missing, that is deleted, that fails; a cable that damages, and breaks.
  truncate -s 1M deleted.img
  start_server --export hanging=delay:write=3600s:memory:1M --export "missing=$PWD/missing.img" \
    --export "deleted=$PWD/deleted.img" --export full=fault:write-enospc=1:memory:1M --export a=memory:1M \
    --metrics 0
  bridge_name=hanging start_bridge "rnbd+tcp://$address/hanging"
  bridge_name=full start_bridge "rnbd+tcp://$address/full" --metrics 0
  pipe ready_read ready_write
  spawn cable /usr/bin/python3 -B "$here/damage.py" "$port" 2 "$ready_write"
  exec {ready_write}>&-
  await_line "$ready_read" 20
  exec {ready_read}<&-
  far=$line
  bridge_name=paths start_bridge "rnbd+tcp://127.0.0.1:$far/a" --path "$address,preference=-1" --metrics 0 \
    --settle-time 0 --reconnect-max 200ms
  start_full_server
  watch secure mirror dead lonely server full paths filling
  eventually $((60 * slow)) all_read 8
  use client "$PWD"/{mirror,lonely,hanging,full,paths,filling-bridge}.sock
  touch begin
  rm deleted.img
  eventually 60 test -e flipped
  kill_hard cable
  kill_hard dead
  kill_hard second
  local rule
  sed -n 's/^ *- alert: //p' "$rules" >names
  while read -r rule; do
    eventually $((90 * slow)) has_fired "$rule"
  done <names
  kill_hard client
  kill_hard hanging
  kill_hard server
}
has_fired() { fired | grep "^$1 "; }
it "each rule fires when that happens which it is about" troubles

finish
