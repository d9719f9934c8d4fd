# shellcheck shell=bash
# Our plugin and our server over a bad network: loss, delay, disorder, duplicates, damage, little bandwidth.
# SPDX-License-Identifier: BSD-3-Clause

# Of what each guest sends, so there and back it is twice as bad. Source: tc-netem(8)
weathers=(
  "loss 1% delay 20ms"
  "delay 20ms reorder 25% duplicate 1%"
  "corrupt 1%"
  "rate 10mbit delay 1ms limit 10000"
)
seconds=3
if [[ -n ${FULL:-} ]]; then
  # Soft-RoCE sends everything again from what came out of order: the jitter is hard on it.
  weathers+=("delay 20ms 10ms" "loss 0.1%" "loss 5%")
  seconds=60
fi

# Emulated guests are slow: four times the defaults.
timers=(heartbeat=2s)

serve() {
  truncate -s "${disk_mib}M" /tmp/a
  rnbd_server --listen rdma:10.99.0.1:1234 --listen tcp:10.99.0.1:1234 --heartbeat 2s --export a=/tmp/a
}

set_weather() {
  on server weather "$@"
  on client weather "$@"
}

# verify [FIO-OPTION...]
verify() {
  local load
  rm -f enough
  limit=$((seconds + 400)) on client verify_until enough /dev/nbd0 --size=2M --iodepth=8 "$@" & load=$!
  sleep "$seconds"
  touch enough
  wait "$load"
}

lost_paths() { { nbdkit_says 'path to .* is lost' || true; } | wc -l; }
# Soft-RoCE comes to a stop for a minute where packets overtake each other or many are lost.
may_be_lost() { [[ $1 == rnbd://* && $2 =~ reorder|loss\ 5%|10ms$ ]]; } # URI WEATHER

# bad_weather URI: one session in every weather.
bad_weather() {
  local weather began before lost=0 smaller
  on server serve
  on client attach "$1" "${timers[@]}"
  on client nbd_device
  for weather in "${weathers[@]}"; do
    began=$SECONDS
    # shellcheck disable=SC2086 # several words
    set_weather $weather
    smaller=()
    ! may_be_lost "$1" "$weather" || smaller=(--size=512k) # it takes minutes, then
    verify "${smaller[@]}"
    before=$lost lost=$(on client lost_paths)
    echo "$weather: $((SECONDS - began)) s, the path was given up $((lost - before)) times"
    ((lost == before)) || may_be_lost "$1" "$weather" || fail "$weather: the path was given up"
  done
  set_weather
  same_data /dev/nbd0 /tmp/a
}

# Bits flip on the way, and the receiver's kernel gets a checksum that says they did not.
damage() {
  on server serve
  on client attach rnbd+tcp://10.99.0.1/a "${timers[@]}"
  on client nbd_device
  on server mend_checksums
  on client mend_checksums
  set_weather corrupt 1%
  verify
  set_weather
  grep -h 'CRC32C mismatch' nbdkit.log rnbd-server.log || fail "nobody has noticed anything"
  same_data /dev/nbd0 /tmp/a
}

boot server client
it "over TCP no weather costs an error, or the path" bad_weather rnbd+tcp://10.99.0.1/a
it "over RDMA no weather costs an error, and most of them not the path" bad_weather rnbd://10.99.0.1/a
it "flipped bits that TCP takes for good are found by our checksums, and cost no error" damage
finish
