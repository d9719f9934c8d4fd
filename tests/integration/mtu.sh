#!/bin/bash
# Networks that carry small packets and lose large ones without a word, because a switch has a smaller
# MTU than the hosts believe: a path looks well until it is used. With the default heartbeats.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"
source "${BASH_SOURCE[0]%/*}/two_hosts.sh"

here=$(realpath "${BASH_SOURCE[0]%/*}")
# Seconds until requests that a path does not let through are answered over another one.
moved=1

# lose_large CABLE: what the client sends in packets of more than 1,300 bytes does not arrive; the
# server promises to take them.
lose_large() {
  ip -n "$near" link set "cable$1" gso_max_segs 1 # so that its packets are as long as they look
  ip -n "$far" route replace "10.99.$1.0/24" dev "cable$1" src "10.99.$1.1" advmss 1460
  ip -n "$far" link set "cable$1" mtu 1300
}
carry_all() { ip -n "$far" link set "cable$1" mtu 1500; }
# lose_large_answers CABLE: likewise what the server sends.
lose_large_answers() {
  ip -n "$far" link set "cable$1" gso_max_segs 1
  ip -n "$near" route replace "10.99.$1.0/24" dev "cable$1" src "10.99.$1.2" advmss 1460
  ip -n "$near" link set "cable$1" mtu 1300
}
looks_dead() { grep -c 'owes answers carries nothing' nbdkit.log; }

only_path() {
  requires_python nbd
  local near far what=$1
  two_hosts
  # The client is told of its chunks in one small packet.
  start_server --listen tcp:0.0.0.0:1234 --export disk0=memory:4M --queue-depth 32
  "$what" 0
  attach_to rnbd+tcp://10.99.0.1/disk0 no-path-timeout=5s no-path-error=ESHUTDOWN
  request=${what##*_} slow=$slow nbdsh <<'PY'
answers = os.environ["request"] == "answers"
for i in range(2):
    began = time.monotonic()
    if answers:
        fails_with(errno.ESHUTDOWN, h.pread, 65536, 0)
    else:
        fails_with(errno.ESHUTDOWN, h.pwrite, b"x" * 65536, 0)
    took = time.monotonic() - began
    print(f"{errno.errorcode[errno.ESHUTDOWN]} after {took:.2f} s")
    assert took >= 5, took
    assert took <= (5 + 3.5) * int(os.environ["slow"]), took
    began = time.monotonic()
    h.pwrite(b"y" * 512, 1 << 20)
    took = time.monotonic() - began
    print(f"a small write behind it took {took:.2f} s")
    assert took <= 3.5 * int(os.environ["slow"]), took
PY
  grep -q 'have carried some requests in vain for too long (no-path-timeout)' nbdkit.log || fail "the log does not say why"
  ip -n "$far" link set cable0 mtu 1500
  ip -n "$near" link set cable0 mtu 1500
  eventually 40 writes
}
it_plugin "the only path loses large writes: they fail when no-path-timeout has passed, small ones pass" \
  only_path lose_large
it_plugin "... or large answers" only_path lose_large_answers

one_of_two() {
  requires_python nbd
  local near far longest
  two_hosts
  truncate -s 16M image
  start_server --listen tcp:0.0.0.0:1234 --export "disk0=$PWD/image"
  attach_to rnbd+tcp://10.99.0.1/disk0 path=10.99.1.1 policy=round-robin control="$PWD/control"
  lose_large 0
  spawn writer /usr/bin/python3 -B "$here/stamps.py" write "$uri" 0 65536
  eventually 20 grep -q 'carries some connections only' nbdkit.log
  "$ctl_program" "$PWD/control" status | tee status
  grep 10.99.0.1 status | grep -q 'carries nothing' || fail "status shows nothing of it"
  # In the first ten seconds it is not used again, and then not for twice as long.
  sleep "$1"
  (($(looks_dead) <= 2)) || fail "it was tried $(looks_dead) times in $1 s"
  carry_all 0
  eventually 60 more_carried 0 $(($(carried 0) + 1000000))
  touch enough
  wait_end writer 30 || fail "the writer still waits"
  cat writer.log writer.out
  ((status == 0)) || fail "a write failed"
  read -r _ longest <writer.out
  awk -v a="$longest" -v b="$moved" -v slow="$slow" 'BEGIN { exit !(a <= b * slow) }' ||
    fail "a write took $longest s, and one cable always worked"
  "$here/stamps.py" check image
}
# carried CABLE: what has arrived at the server.
carried() { ip netns exec "$far" cat "/sys/class/net/cable$1/statistics/rx_bytes"; }
more_carried() { (($(carried "$1") > $2)); }
it "one of two paths loses large packets: no write takes more than $moved s, and it is left alone" one_of_two 20

finish
