# shellcheck shell=bash
# A guest that is two hosts to itself, with two cables between them: for scenarios whose guest counts instructions
# ($instructions). Its clock knows nothing of how busy the machine is, and two such guests have no time in common.
# SPDX-License-Identifier: BSD-3-Clause

# lay_cables: pairs of network devices, near0 and far0, near1 and far1, with the addresses 10.98.0.2 and 10.98.0.1, 10.98.1.2
# and 10.98.1.1, and soft-RoCE on them. What goes to an address goes over its cable, although it is the guest's own: the
# kernel asks for own addresses only when something has come.
lay_cables() {
  local cable near far
  if [[ -e /sys/class/net/near0 ]]; then
    for cable in 0 1; do carry "$cable" near far; done
    return
  fi
  modprobe -a veth rdma_rxe ib_uverbs rdma_ucm
  ip rule add pref 100 lookup local
  for cable in 0 1; do
    near=near$cable far=far$cable
    ip link add "$near" mtu 9000 type veth peer name "$far" mtu 9000
    end_of_cable "$near" "10.98.$cable.2" "$far" "10.98.$cable.1"
    end_of_cable "$far" "10.98.$cable.1" "$near" "10.98.$cable.2"
  done
  ip rule del pref 0
  for cable in 0 1; do
    rdma link add "rxe_near$cable" type rxe netdev "near$cable"
    rdma link add "rxe_far$cable" type rxe netdev "far$cable"
  done
}
end_of_cable() { # DEVICE ADDRESS PEER PEER'S-ADDRESS
  sysctl -qw "net.ipv4.conf.$1.accept_local=1" "net.ipv4.conf.$1.rp_filter=0"
  ip address add "$2/32" dev "$1"
  ip link set "$1" up
  ip neigh replace "$4" lladdr "$(<"/sys/class/net/$3/address")" dev "$1" nud permanent
  ip rule add pref 10 iif "$1" lookup local
  ip rule add pref 20 to "$4" lookup 50
  ip route add "$4" dev "$1" src "$2" table 50
}

# lose CABLE END... / carry CABLE END...: whether what comes to these ends, near or far, is taken. Nobody is told. What is
# sent is not touched: soft-RoCE repeats at once what the device does not take. Source: tc-matchall(8)
lose() {
  local end
  for end in "${@:2}"; do
    tc qdisc add dev "$end$1" clsact
    tc filter add dev "$end$1" ingress protocol ip matchall action drop
  done
}
carry() {
  local end
  for end in "${@:2}"; do
    tc qdisc show dev "$end$1" | grep -q clsact || continue
    tc qdisc delete dev "$end$1" clsact
  done
}

# within_memory COMMAND...: while the guest waits for a file of the host's its clock runs on. So programs are read before
# they begin, and logs stay in memory until the command has ended.
within_memory() {
  local program shared=$case_dir
  for program in "$build_dir"/bin/rnbd-{server,bridge,ctl}; do
    ldd "$program" | grep -oE '/[^ ]+' | xargs cat "$program" >/dev/null
  done
  case_dir=/tmp/case
  mkdir -p "$case_dir"
  # shellcheck disable=SC2064 # this one
  trap "cp /tmp/case/* '$shared'" EXIT
  "$@"
}
