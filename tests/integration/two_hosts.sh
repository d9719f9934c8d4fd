# shellcheck shell=bash disable=SC2154 # what lib.sh sets
# Client and server in a network namespace each, with some cables in between.
# SPDX-License-Identifier: BSD-3-Clause

# two_hosts [CABLES]: with two of them if not said. These are network namespaces that end with the case.
two_hosts() {
  ((EUID == 0)) || skip "only root makes network namespaces"
  near=rnbd-near-$BASHPID far=rnbd-far-$BASHPID
  requires ip
  ip netns add "$near" 2>error || skip "no network namespaces here: $(<error)"
  at_end ip netns del "$near"
  ip netns add "$far"
  at_end ip netns del "$far"
  local i
  for ((i = 0; i < ${1:-2}; i++)); do
    ip -n "$near" link add "cable$i" type veth peer name "cable$i" netns "$far" 2>error ||
      skip "no veth here: $(<error)"
    ip -n "$near" addr add "10.99.$i.2/24" dev "cable$i"
    ip -n "$far" addr add "10.99.$i.1/24" dev "cable$i"
    ip -n "$near" link set "cable$i" up
    ip -n "$far" link set "cable$i" up
  done
  ip -n "$far" link set lo up
  server_command=(ip netns exec "$far" "${server_command[@]}")
  nbdkit_command=(ip netns exec "$near" "${nbdkit_command[@]}")
  bridge_command=(ip netns exec "$near" "${bridge_command[@]}")
}
