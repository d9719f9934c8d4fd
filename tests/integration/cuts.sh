#!/bin/bash
# Of two cables one is cut after the other, under verified writes: requests move to the other one, none fails,
# and no write is undone. FULL=1: 1,000 cuts, 1,000 more with a round trip of 100 ms, and ten hours without a
# cut beside 30 busy loops, in which no request may leave its path. Only FULL=1 judges the time that writes wait.
# CUTS, LONG_CUTS and BUSY are other numbers of cuts and seconds; LOAD busy loops run beside the cuts, too.
# SPDX-License-Identifier: BSD-3-Clause
face=bridge
export RNBD_FACE=$face
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/two_hosts.sh"

here=$(realpath "${BASH_SOURCE[0]%/*}")
writers=4
# Seconds that a write may take in 999 of 1,000 cuts, beyond what one took on this machine before them.
moved=1
# In both directions, each cable.
cuts=${CUTS:-4} long_cuts=${LONG_CUTS:-0} busy=${BUSY:-0}
[[ -z ${FULL:-} ]] || cuts=${CUTS:-1000} long_cuts=${LONG_CUTS:-1000} busy=${BUSY:-36000}
# Seconds of each cut, in turn. One of 4 s ends its path.
down=(0.5 0.5 0.8)
# From one cut to the next. A path that falls silent three times within 10 s is not used for a while.
apart=1.3
if ((cuts + long_cuts > 20)); then
  down=(0.5 0.8 0.5 0.8 0.5 0.8 0.5 0.8 0.5 4) apart=2.7
fi
ways=(to-server to-client both)

# ---- Cables ---------------------------------------------------------------------------------------------

# long_cables SECONDS: instead of the two of two_hosts, each so long one way.
long_cables() {
  local i ready_read ready_write
  [[ -c /dev/net/tun ]] || skip "no /dev/net/tun here"
  for i in 0 1; do
    ip -n "$near" link del "cable$i"
    mkfifo "wire$i.fifo"
    pipe ready_read ready_write
    spawn "wire$i" "$here/wire.py" "$near" "$far" "cable$i" "$1" "wire$i.fifo" "$ready_write"
    exec {ready_write}>&-
    await_line "$ready_read" 20 || skip "no TAP devices here: $(<"wire$i.log")"
    exec {ready_read}<&-
    ip -n "$near" addr add "10.99.$i.2/24" dev "cable$i"
    ip -n "$far" addr add "10.99.$i.1/24" dev "cable$i"
    ip -n "$near" link set "cable$i" up
    ip -n "$far" link set "cable$i" up
  done
}

# cut CABLE WAY, mend CABLE: nobody is told. A FIFO that is open both ways needs no reader.
cut() {
  if [[ -p wire$1.fifo ]]; then
    echo "lose $2" 1<>"wire$1.fifo"
    return
  fi
  [[ $2 == to-client ]] || send_to "$near" "$1" 1 02:00:00:00:00:01
  [[ $2 == to-server ]] || send_to "$far" "$1" 2 02:00:00:00:00:01
}
mend() {
  if [[ -p wire$1.fifo ]]; then
    echo carry 1<>"wire$1.fifo"
    return
  fi
  send_to "$near" "$1" 1 "$(address_of "$far" "$1")"
  send_to "$far" "$1" 2 "$(address_of "$near" "$1")"
}
address_of() { ip netns exec "$1" cat "/sys/class/net/cable$2/address"; }
send_to() { ip -n "$1" neigh replace "10.99.$2.$3" dev "cable$2" lladdr "$4" nud permanent; }

# ---- Programs -------------------------------------------------------------------------------------------

# serve_over_cables CABLES [SECONDS]: a disk over so many, so long if said, and writers.
serve_over_cables() {
  local i paths=()
  requires_python nbd
  two_hosts "$1"
  [[ -z ${2:-} ]] || long_cables "$2"
  for ((i = 1; i < $1; i++)); do paths+=(--path "10.99.$i.1"); done
  # In memory: a disk that others use takes longer for a durable write than any cut.
  image=$(mktemp -p /dev/shm rnbd-cuts.XXXXXX) || skip "no /dev/shm here"
  at_end rm "$image"
  truncate -s 16M "$image"
  start_server --listen tcp:0.0.0.0:1234 --export "disk0=$image"
  start_bridge rnbd+tcp://10.99.0.1/disk0 "${paths[@]}" --policy round-robin --connect now \
    --control "$PWD/control"
  for ((i = 0; i < writers; i++)); do
    spawn "writer$i" /usr/bin/python3 -B "$here/stamps.py" write "$uri" "$i" 4096 0.002
  done
  eventually 20 test -e acked.$((writers - 1))
  eventually 20 can_be_cut 0
}
# busy_loops COUNT
busy_loops() {
  local i
  for ((i = 0; i < $1; i++)); do spawn "loop$i" bash -c 'trap "exit 0" TERM; while :; do :; done'; done
}
# end_writers: without an error, and what they have written is there.
end_writers() {
  local i
  touch enough
  for ((i = 0; i < writers; i++)); do
    wait_end "writer$i" $((60 * slow)) || fail "writer$i still waits"
    cat "writer$i.log"
    ((status == 0)) || fail "writer$i ended with status $status"
  done
  "$here/stamps.py" check "$image"
  "$here/stamps.py" cuts cuts | tee report
}
# can_be_cut CABLE: all paths answer. The one to cut is in $cable: this one, if it takes requests.
can_be_cut() {
  "${ctl_command[@]}" "$PWD/control" --json status >status.json 2>/dev/null || return 1
  cable=$(/usr/bin/python3 -c '
import json, sys
paths = json.load(open("status.json"))["paths"]
if any(path["state"] != "connected" or path.get("suspect") for path in paths):
    sys.exit(1)
used = [i for i, path in enumerate(paths) if path["in_use"]]
cable = int(sys.argv[1])
print(cable if cable in used else used[0])' "$1")
}
# sum METRIC: of all paths.
sum() {
  "${ctl_command[@]}" "$PWD/control" metrics | awk -v name="rnbd_$1{" 'index($0, name) == 1 { n += $2 } END { print n + 0 }'
}
told() { echo "$(sum path_silences_total) silences, $(sum requests_moved_total) requests moved, $(sum path_losses_total) paths lost"; }

# ---- Cases ----------------------------------------------------------------------------------------------

# cables_are_cut COUNT [SECONDS]: cables are so long.
cables_are_cut() {
  local near far image cable i at
  serve_over_cables 2 "${2:-}"
  busy_loops "${LOAD:-0}"
  [[ -z ${FULL:-} ]] || sleep 60 # what writes take without a cut
  for ((i = 0; i < $1; i++)); do
    eventually 60 can_be_cut $((i % 2))
    at=$EPOCHREALTIME
    cut "$cable" "${ways[i / 2 % 3]}"
    sleep "${down[i % ${#down[@]}]}"
    mend "$cable"
    echo "$at $EPOCHREALTIME" >>cuts
    sleep "$(awk -v a="$apart" -v b="${down[i % ${#down[@]}]}" 'BEGIN { print(a > b ? a - b : 0) }')"
  done
  eventually 60 can_be_cut 0
  end_writers
  told
  (($(sum requests_moved_total) > 0)) || fail "no request has moved to the other cable"
  [[ -z ${FULL:-} ]] || judge_waits
}
# judge_waits: of all cuts but one in a thousand.
judge_waits() {
  local longest before
  longest=$(sed -n 's/.* cuts, .*p99\.9 \([0-9.]*\).*/\1/p' report)
  before=$(sed -n 's/^before .* took \([0-9.]*\) s$/\1/p' report)
  # Where programs wait for a CPU, writes do so with and without a cut.
  awk -v a="${longest:-99}" -v b="$moved" -v c="${before:-0}" -v slow="$slow" 'BEGIN { exit !(a <= b * slow + c) }' ||
    fail "in 999 of 1,000 cuts writes took up to $longest s, before all cuts $before s"
}
title="one of two cables is cut $cuts times: requests move, none fails, no write is undone"
[[ -z ${FULL:-} ]] || title+="; in 999 of 1,000 cuts none takes $moved s longer than before them"
if ((cuts > 0)); then
  it "$title" cables_are_cut "$cuts"
fi
if ((long_cuts > 0)); then
  it "... and $long_cuts times with a round trip of 100 ms" cables_are_cut "$long_cuts" 0.05
fi

# cut_all WAY CABLE...: at the same moment.
cut_all() {
  local way=$1 i
  shift
  : >near.batch
  : >far.batch
  for i; do
    [[ $way == to-client ]] || neighbour "$i" 1 >>near.batch
    [[ $way == to-server ]] || neighbour "$i" 2 >>far.batch
  done
  ip -n "$near" -batch near.batch
  ip -n "$far" -batch far.batch
}
neighbour() { echo "neigh replace 10.99.$1.$2 dev cable$1 lladdr 02:00:00:00:00:01 nud permanent"; }
# some_die CABLES DEAD: of so many, until their paths are lost. A request that moved from one silent path to the next
# would wait, and be counted, for each of them.
some_die() {
  local near far image cable way at before i
  serve_over_cables "$1"
  for way in "${ways[@]}"; do
    eventually 60 can_be_cut 0
    before=$(sum requests_moved_total) at=$EPOCHREALTIME
    # shellcheck disable=SC2046 # a word for each
    cut_all "$way" $(seq 0 $(($2 - 1)))
    sleep 4
    for ((i = 0; i < $2; i++)); do mend "$i"; done
    echo "$at $EPOCHREALTIME" >>cuts
    told
    (($(sum requests_moved_total) - before <= 2 * writers)) ||
      fail "$writers writers had $(($(sum requests_moved_total) - before)) requests moved"
  done
  eventually 60 can_be_cut 0
  end_writers
  [[ -z ${FULL:-} ]] || judge_waits
}
it "of two paths one dies: each waiting request moves once" some_die 2 1
it "of eight paths seven die at the same moment: each waiting request moves once, and waits no longer" some_die 8 7

# nothing_is_cut SECONDS
nothing_is_cut() {
  local near far image cable
  serve_over_cables 2
  busy_loops 30
  sleep "$1"
  : >cuts
  end_writers
  told | tee moves
  grep -qx '0 silences, 0 requests moved, 0 paths lost' moves || fail "nothing was cut"
}
if ((busy > 0)); then
  it "beside 30 busy loops for $busy s, without a cut: no path is found silent, none is lost" nothing_is_cut "$busy"
fi

finish
