#!/bin/bash
# tests/bench: that it measures to its end, reports what it measured, and notices wrong data. Its figures
# are not looked at.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/lib.sh"

bench() { limited "$source_dir/tests/bench/run" "$@"; }

figures_and_reports() {
  requires nbdkit
  requires python3
  [[ -n $(command -v perf || command -v strace) ]] || skip "neither perf nor strace is installed"
  bench --build "$build_dir" --quick --chains base,plugin,native,direct --workloads read-1,sequential \
    --parts pinned,free,calls,memory,scaling,library --json figures.json --output tables.md --picture picture.svg
  python3 - <<'END'
import json, xml.etree.ElementTree
figures = json.load(open("figures.json"))
for chain in "base", "plugin", "native", "direct":
    for workload in "read-1", "sequential":
        for placement in "one", "free":
            runs = [run for run in figures["runs"] if (run["chain"], run["workload"], run["placement"])
                    == (chain, workload, placement)]
            assert len(runs) == 2, (chain, workload, placement, runs)
            assert all(run["bad"] == 0 and run["operations"] > 0 and run["p50_us"] > 0 for run in runs), runs
    [counted] = [run for run in figures["calls"] if (run["chain"], run["workload"]) == (chain, "read-1")]
    assert counted["calls"] >= 2 and counted["operations"] > 0, counted
assert len(figures["limits"]) == 2 and all(limit["limit_us"] > 0 for limit in figures["limits"])
[memory] = figures["memory"]
assert memory["sessions"] == 64 and memory["other_mib"] > 0, memory
cpus = len(__import__("os").sched_getaffinity(0))
assert len(figures["scaling"]) == 2 * (5 if cpus > 1 else 2), figures["scaling"]
assert all(run["iops"] > 0 and run["cpu_us"] > 0 for run in figures["scaling"]), figures["scaling"]
for way, case in ("bare", "get-1"), ("lane", "get-1"), ("librtrs", "get-1"):
    runs = [run for run in figures["library"] if (run["way"], run["case"]) == (way, case)]
    assert len(runs) == 2 and all(run["p50_us"] > 0 for run in runs), (way, case, runs)
assert all(run.get("mb_per_s", 1) > 0 and run.get("per_s", 1) > 0 for run in figures["library"])
assert xml.etree.ElementTree.parse("picture.svg").getroot().tag.endswith("svg")
END
  says tables.md '^\| native, 4 KiB read, depth 1: p50 / base \|.* [0-9.]+ \| .*(met|missed)'
  says tables.md '^\| native, 1 MiB sequential read: MB/s / base \|.*(met|missed)'
  says tables.md '^\| rnbd-server beyond its chunk pools, 64 sessions: MiB \|.*(met|missed)'
  says tables.md '^\| librtrs, 64 bytes: p50 / bare TCP \|.*(met|missed)'
  says tables.md '^\| 4 \| 1 \| 1 \| [0-9]+ \|'
  bench --report figures.json --output again.md
  cmp tables.md again.md
}

encrypted_chains() {
  requires nbdkit
  bench --build "$build_dir" --quick --chains native-tls,plugin-tls,base-tls-psk,base-tls-x509 \
    --workloads read-1 --parts pinned --json figures.json --output tables.md
  python3 - <<'END'
import json
runs = json.load(open("figures.json"))["runs"]
assert {run["chain"] for run in runs} == {"native-tls", "plugin-tls", "base-tls-psk", "base-tls-x509"}, runs
assert all(run["bad"] == 0 and run["operations"] > 0 for run in runs), runs
END
  says tables.md '^\| native with TLS, 4 KiB read, depth 1: p50 / base with X.509 \|.* [0-9.]+ \| .*(met|missed)'
}
it "the chains with TLS are measured, too" encrypted_chains

durable_and_mixed() {
  requires nbdkit
  truncate -s 1M file.img
  bench --build "$build_dir" --quick --chains base-one,native --workloads fua-8,mixed,read-64k \
    --parts pinned --file file.img --json figures.json --output tables.md
  python3 - <<'END'
import json
runs = json.load(open("figures.json"))["runs"]
assert len(runs) == 2 * 2 * 3 and all(run["bad"] == 0 and run["operations"] > 0 for run in runs), runs
END
  says tables.md '^### 4 KiB random durable write, depth 8'
  [[ $(stat -c %s file.img) -eq $((64 << 20)) ]] || fail "the file that was named is not what was measured"
}
it "durable and mixed loads on a file that is named are measured" durable_and_mixed

a_mirror() {
  requires_python nbd
  # Status 1: a goal is missed, which does not matter here.
  bench_of_mirror --parts fan-out,resync >tables.md || (($? == 1))
  says tables.md '^\| mirror of two \| 32 \| [0-9]+ \|'
  says tables.md '^fan-out, depth 32: writes per CPU second .*: [0-9.]+ .*: (met|missed)$'
  says tables.md '^resync, the client copies, randread: bytes read / dirty: [0-9.]+ .*: (met|missed)$'
  says tables.md '^resync, the servers copy, randwrite: p50 .*: [0-9.]+ .*: (met|missed)$'
  ((EUID == 0)) || skip "only root makes network namespaces"
  ip netns add "rnbd-try-$BASHPID" 2>error || skip "no network namespaces here: $(<error)"
  at_end ip netns del "rnbd-try-$BASHPID"
  bench_of_mirror --parts loss >tables.md || (($? == 1))
  says tables.md '^loss: longest request, s: [0-9.]+ .*: (met|missed)$'
}
bench_of_mirror() {
  limit=400 limited /usr/bin/python3 "$source_dir/tests/bench/mirror" --build "$build_dir" --quick "$@"
}
it "a mirror of two servers is measured, and what it does without one of them" a_mirror

many() {
  requires_python nbd
  ((EUID == 0)) || skip "only root makes namespaces"
  unshare --net --mount --pid --fork true 2>error || skip "no namespaces here: $(<error)"
  limited /usr/bin/python3 "$source_dir/tests/bench/scale" --build "$build_dir" --quick \
    --json figures.json >tables.md
  says tables.md '^\| open each of 20 disks in a session \| [0-9.]+ s \|'
  says tables.md '^\| stall of 6 sessions from 3 hosts once it is back, the longest \| [0-9.e-]+ s \|'
  says tables.md '^\| start of a server with 50 files \| [0-9.]+ s \|'
  python3 - <<'END'
import json
failed = [row["value"] for row in json.load(open("figures.json")) if row["what"] == "... requests that failed"]
assert failed == [0, 0, 0], failed
END
}
it "many disks, sessions and exports are measured, and no restart fails a request" many

# nbdload takes an answer that is not what was stamped there for what it is.
wrong_data() {
  requires nbdkit
  cat >load <<END
#!/bin/bash
printf 'go\ngo\n' | '$build_dir/bin/nbdload' --unix "\$1" --mode randread --block 4096 --depth 4 \
  --seconds 0.2 --warm-up 0.05 >result.txt
END
  chmod +x load
  # shellcheck disable=SC2016 # nbdkit's variable
  fails limited nbdkit -U - memory 1M --run './load "$unixsocket"'
  says result.txt '"bad":[1-9]'
  "$build_dir/bin/nbdload" --stamp good.img 1048576
  # shellcheck disable=SC2016
  limited nbdkit -U - file good.img --run './load "$unixsocket"'
  says result.txt '"bad":0'
}

it "measures to its end, and reports what it measured" figures_and_reports
it "blocks that are not what was written are noticed" wrong_data
finish
