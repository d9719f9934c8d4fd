#!/bin/bash
# Probes of server and bridge, and the scripts of contrib/bpftrace that use them.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

# probes_of PROGRAM: "rnbd:request_start".
probes_of() {
  readelf --notes "$1" | awk '/Provider:/ { provider = $2 } /Name:/ { print provider ":" $2 }' | sort -u
}

names() {
  requires readelf
  local script program probe there
  probes_of "$server_program" >server.probes
  probes_of "$bridge_program" >bridge.probes
  grep -q . server.probes || skip "this build has no probes: sys/sdt.h (systemtap-sdt-dev) was not there"
  for script in "$source_dir"/contrib/bpftrace/*.bt; do
    there=0
    while IFS=: read -r _ program probe; do
      grep -qx "$probe" "${program##*rnbd-}.probes" || fail "${script##*/} uses $probe, which ${program##*/} has not"
      there=1
    done < <(grep '^usdt:' "$script")
    ((there)) || fail "${script##*/} uses no probe"
  done
  # The page of the manual leaves none out.
  while read -r probe; do
    grep -q "\`$probe\`" "$source_dir/docs/metrics.md" || fail "docs/metrics.md does not tell of $probe"
  done < <(sort -u server.probes bridge.probes)
}
it "each script uses probes that its program has, and the manual tells of all of them" names

# ---- The scripts themselves -----------------------------------------------------------------------------

# trace NAME PROGRAM [ARGUMENT...]: the script, on a program that runs, until stop_trace; in NAME.txt. Other
# tests run programs of this build, too.
trace() {
  requires bpftrace
  ((EUID == 0)) || skip "only root may trace"
  [[ -z $sanitizer ]] || skip "a program under a sanitizer is too slow to be traced"
  grep -q . <(probes_of "$server_program") || skip "this build has no probes: sys/sdt.h (systemtap-sdt-dev) was not there"
  bpftrace -e 'BEGIN { exit() }' >refused.txt 2>&1 || skip "this kernel runs no BPF: $(tail -n 1 refused.txt)"
  sed "s|/usr/sbin/rnbd-server|$server_program|; s|/usr/sbin/rnbd-bridge|$bridge_program|" \
    "$source_dir/contrib/bpftrace/$1.bt" >"$1.bt"
  spawn "trace-$1" bpftrace -B line -p "${pid[$2]}" "$1.bt" "${@:3}"
}

stop_trace() {
  kill -INT "${pid[trace-$1]}"
  wait_end "trace-$1" 60 || fail "bpftrace does not end"
}

# write_blocks COUNT BYTES: and one read.
write_blocks() {
  limited /usr/bin/python3 -c '
import nbd, sys
h = nbd.NBD()
h.set_export_name("disk0")
h.connect_unix(sys.argv[1])
for i in range(int(sys.argv[2])):
    h.pwrite(b"x" * int(sys.argv[3]), i * 4096)
h.pread(8192, 4096)
h.shutdown()' "$socket" "$@"
}
# are_attached: a script does not say so; it is when it shows a request.
are_attached() {
  write_blocks 1 512
  grep -qE ' 512 +[0-9]+ +0$' trace-slow.out && grep -q '@requests: [1-9]' trace-paths.out && grep -q Attaching trace-latency.out
}

slow_writes() { (($(grep -cE '^[0-9:]+ +disk0 +1 +[0-9]+ +4096 +[0-9]+ +0$' trace-slow.out) == $1)); }
traced() {
  requires_python nbd
  start_server --export disk0=delay:write=30ms:memory:1M
  trace latency server
  start_bridge "rnbd+tcp://$address"
  trace slow bridge 20
  trace paths bridge
  eventually 60 are_attached
  write_blocks 20 4096
  eventually 30 slow_writes 20
  stop server
  says trace-paths.out 'path .*: lost'
  stop_trace latency
  stop_trace slow
  stop_trace paths
  says trace-latency.out '@request_us\[disk0\]'
  says trace-latency.out '@before_storage_us\[disk0\]'
}
it "the scripts show latencies, slow requests and lost paths of running programs" traced

finish
