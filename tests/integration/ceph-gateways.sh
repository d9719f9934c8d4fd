#!/bin/bash
# Two servers with one identity in front of one image: a client moves from one to the other when the first ends.
# SPDX-License-Identifier: BSD-3-Clause
export WATCH_TIMEOUT=15
[[ -z ${FULL:-} ]] || WATCH_TIMEOUT=30
source "${BASH_SOURCE[0]%/*}/ceph-cluster.sh"
source "${BASH_SOURCE[0]%/*}/load.sh"

quick=("heartbeat=$((100 * slow))ms" reconnect-min=20ms reconnect-max=200ms no-path-timeout=5min)

# gateway NAME IMAGE [OPTION...]: a server as on a machine of its own: of its state directory only the identity is that of the
# others. It comes back where it was.
declare -A port_of
gateway() {
  local name=$1
  mkdir -p "state-$name"
  [[ -e identity ]] || printf '%016x\n' $((RANDOM << 32 | $$ << 1 | 1)) >identity
  [[ -e state-$name/server-id ]] || cp identity "state-$name/server-id"
  server_port=${port_of[$name]:-0} server_name=$name start_server --export "disk0=rbd:$2" --heartbeat "$((100 * slow))ms" \
    --state-directory "$PWD/state-$name" "${@:3}"
  port_of[$name]=$port
}
# elsewhere: the servers that start from here on do not see each other's processes, as on machines of their own.
elsewhere() {
  ((EUID == 0)) || skip "only root makes namespaces of processes"
  server_command=(unshare --pid --fork --kill-child --mount-proc "${server_command[@]}")
}

# two_gateways IMAGE: one serves, the other waits, and a client knows both.
two_gateways() {
  requires_python nbd
  rbd create --size 16M "$1"
  gateway a "$1"
  gateway b "$1"
  says b.log 'another client has it open for writing'
  attach_to "rnbd+tcp://127.0.0.1:${port_of[a]}/disk0" "path=127.0.0.1:${port_of[b]}" "${quick[@]}"
}

rounds=3
[[ -z ${FULL:-} ]] || rounds=100

killed_in_turn() {
  two_gateways rbd/turns
  start_writers
  local i serving=a waiting=b
  for ((i = 1; i <= rounds; i++)); do
    kill_hard "$serving"
    goes_on
    gateway "$serving" rbd/turns
    says "$serving.log" 'another client has it open for writing'
    read -r serving waiting <<<"$waiting $serving"
  done
  end_writers
  same_as_written rbd/turns
}
it "two gateways are killed in turn, $rounds times, under durable writes: no error, nothing lost" killed_in_turn

other_machine() {
  elsewhere
  two_gateways rbd/machines
  start_writers
  local first
  first=$(holder rbd/machines)
  kill_hard a
  goes_on
  is_on_blocklist "$first" || fail "the lock has changed hands without a fence"
  end_writers
  same_as_written rbd/machines
  stop nbdkit
  kill_hard b # unshare(1) passes no SIGTERM on
}
it "a gateway that cannot see the dead one waits until the cluster has given it up: no error, nothing lost" other_machine

# One image is there a moment before the other, after half a minute without both.
both_images() {
  elsewhere
  requires_python nbd
  rbd create --size 16M rbd/one
  rbd create --size 16M rbd/two
  gateway a rbd/one --export disk1=rbd:rbd/two
  gateway b rbd/one --export disk1=rbd:rbd/two
  attach_bridge_to_both
  local one="nbd+unix:///disk0?socket=$socket" two="nbd+unix:///disk1?socket=$socket"
  uri=$one
  start_writers
  uri=$two
  user
  works write
  kill_hard a
  goes_on
  ask write
  [[ $answer == ok ]] || fail "a write to the other image: $answer"
  end_user
  uri=$one
  end_writers
  same_as_written rbd/one
  stop both
  kill_hard b
}
attach_bridge_to_both() {
  bridge_name=both start_bridge "rnbd+tcp://127.0.0.1:${port_of[a]}" --path "127.0.0.1:${port_of[b]}" \
    --heartbeat "$((100 * slow))ms" --reconnect-min 20ms --reconnect-max 200ms --no-path-timeout 5min
}
[[ -z ${FULL:-} ]] || it "two images of one client move together" both_images

stands_still() {
  two_gateways rbd/still
  start_writers
  freeze a
  goes_on
  thaw a
  says a.log 'has fenced this server off'
  goes_on
  kill_hard b
  goes_on # at the first one again, which has opened the image anew
  end_writers
  same_as_written rbd/still
}
it "a gateway that stands still is fenced off, and nothing of it lands when it goes on" stands_still

# The second gateway has nothing but the note beside the image to know it by.
others_wrote() {
  two_gateways rbd/others
  user
  works write
  freeze nbdkit
  eventually 60 grep -q 'the session is forgotten' a.log
  local cut_off=$uri
  nbdkit_name=other attach_to "rnbd+tcp://127.0.0.1:${port_of[a]}/disk0" "${quick[@]}"
  nbdsh <<<'h.pwrite(b"y" * 4096, 0, nbd.CMD_FLAG_FUA)'
  stop other
  kill_hard a
  eventually 60 grep -q "export 'disk0' is served now" b.log
  uri=$cut_off
  thaw nbdkit
  ask write
  [[ $answer == EIO ]] || fail "a write over those of another client: $answer"
  end_user
  nbdsh <<<'assert h.pread(4096, 0) == b"y" * 4096'
}
it "a client that was cut off while another one wrote gets EIO at the other gateway" others_wrote

ends_in_order() {
  two_gateways rbd/order
  start_writers
  stop a
  goes_on
  end_writers
  same_as_written rbd/order
}
it "a gateway that is stopped hands over: no error, nothing lost" ends_in_order

finish
