# shellcheck shell=bash
# Servers with copies of one disk, in a scenario's first guest, and the mirror over them: for guests.
# SPDX-License-Identifier: BSD-3-Clause

# member NAME PORT [WRAPPER]: the server of a copy, /tmp/NAME.img, as `disk0`, over TCP, and over RDMA at PORT + 100.
member() {
  [[ -e /tmp/$1.img ]] || truncate -s 32M "/tmp/$1.img"
  background "server-$1" "$build_dir/bin/rnbd-server" --listen "tcp:10.99.0.1:$2" \
    --listen "rdma:10.99.0.1:$(($2 + 100))" --pid-file "/run/server-$1.pid" \
    --state-directory "/tmp/state-$1" --export "disk0=${3-}/tmp/$1.img"
  eventually 60 ready_or_ended "server-$1"
}

# mirror_uri: over TCP; in a case that begins with over_rdma, to one member over RDMA.
mirror_uri() {
  local members=rnbd-mirror+tcp://10.99.0.1:1234,10.99.0.1:1235
  [[ ! -e over_rdma ]] || members=rnbd-mirror://10.99.0.1:1334,tcp:10.99.0.1:1235
  echo "$members/disk0"
}

# map_mirror: /dev/nbdN, the mapping `one`, and its control socket.
map_mirror() {
  map one "$(mirror_uri)" --control /run/one.control --no-path-timeout 5min --reconnect-max 500ms
}
mirror_says() { "$build_dir/bin/rnbd-ctl" --json /run/one.control mirror status | jq -r "$1"; }
all_in_step() {
  [[ $(mirror_says '[.unequal_mib] + ([.members[].state] | unique) | map(tostring) | join(",")') == "0,in step" ]]
}
