# shellcheck shell=bash
# Our bridge and our server over RDMA: a path that loses everything for a while, although its link is up.
# SPDX-License-Identifier: BSD-3-Clause

# shellcheck source=/dev/null
source "$lab_dir/lib/kernel_disk.sh"
# shellcheck source=/dev/null
source "$lab_dir/lib/two_hosts.sh"

longest=1.0 # seconds, as promised; of the guest's clock, which counts instructions
rounds=3
[[ -z ${FULL:-} ]] || rounds=30

# use [OPTION...]: two paths, and heartbeats and all else as by default.
use() {
  lay_cables
  make_disk
  mkdir -p /tmp/state
  rnbd_server --listen rdma:10.98.0.1:1234 --listen rdma:10.98.1.1:1234 --state-directory /tmp/state \
    --export disk0=/tmp/disk
  map one rnbd://10.98.0.1/disk0 --path rdma:10.98.1.1 --policy round-robin --control /run/control "$@"
  eventually 60 both_in_use
}
leave() {
  stop one
  stop rnbd-server
}
both_in_use() {
  [[ $("$build_dir/bin/rnbd-ctl" --json /run/control status |
    jq '[.paths[] | select(.state == "connected" and .in_use and .suspect == null)] | length') == 2 ]]
}
tells() { grep -E "$1" "$case_dir/one.log" || true; }

# ways_to_lose ROUND: the ends that hear nothing.
ways_to_lose() {
  local ways=(far near 'far near')
  echo "${ways[$1 % 3]}"
}
# silent_for SECONDS TIMES LONGEST [MILLISECONDS]: one cable after the other, with that way to each end. Soft-RoCE does not always send again what was lost: its path
# may be given up when the cable carries again, and comes back.
silent_for() {
  local i seen back ends
  use
  [[ -z ${4:-} ]] || take_time "$4"
  start_probes /dev/nbd0
  for ((i = 0; i < $2; ++i)); do
    eventually 30 both_in_use
    eventually 30 probed_after "$(count_probes)"
    seen=$(tells 'is silent for' | wc -l)
    read -ra ends < <(ways_to_lose "$i")
    lose $((i % 2)) "${ends[@]}"
    sleep "$1"
    carry $((i % 2)) "${ends[@]}"
    back=$EPOCHREALTIME
    (($(tells 'is silent for' | wc -l) > seen)) || fail "nobody has noticed that cable $((i % 2)) is silent"
    eventually 30 both_in_use
    echo "cable $((i % 2)), ${ends[*]}: both paths are used $(plus "$EPOCHREALTIME" "-$back") s after it carries again"
  done
  eventually 30 probed_after "$(count_probes)"
  stop probes
  tells 'silent|answers again|lost|is up'
  echo "the longest request took $(longest_after 0) s"
  at_most "$(longest_after 0)" "$3" || fail "not within $3 s, and one path always worked"
  leave
}

take_time() { # MILLISECONDS
  local end
  for end in near0 far0 near1 far1; do
    tc qdisc replace dev "$end" root netem delay "$1ms" limit 100000
  done
}

# Large messages wait for each other, and for their own bytes: that is no silence.
large() { # LANES
  use --lanes "$1"
  fio_verify /dev/nbd0 --size=32m --bssplit=1m/100 --iodepth=32
  [[ -z $(tells 'is silent|is lost') ]] || fail "a path that carries large messages was found silent"
  leave
}

instructions=1 memory=2048 limit=900
boot host
it "a path over RDMA that loses everything for 0.8 s, one way or both, holds up no request for more than $longest s" \
  on host within_memory silent_for 0.8 "$rounds" "$longest"
it_full "one that does so for 6 s is lost and comes back, and holds up none either" \
  on host within_memory silent_for 6 3 "$longest"
it "32 requests of 1 MiB at a time are sent over one path each" on host within_memory large 1
it_full "the same with four lanes" on host within_memory large 4
it_full "nor does the first where a round trip takes 100 ms" on host within_memory silent_for 0.8 6 "$longest" 50
finish
