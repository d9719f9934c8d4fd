# SPDX-License-Identifier: BSD-3-Clause
"""Timed runs: one client on one chain, with nothing attached that could disturb it."""
import json
import os
import pathlib
import subprocess

from chains import CHAINS

# Title, mode, bytes, depth, and further arguments of nbdload.
WORKLOADS = {
    "read-1": ("4 KiB random read, depth 1", "randread", 4096, 1),
    "read-32": ("4 KiB random read, depth 32", "randread", 4096, 32),
    "write-1": ("4 KiB random write, depth 1", "randwrite", 4096, 1),
    "write-32": ("4 KiB random write, depth 32", "randwrite", 4096, 32),
    "sequential": ("1 MiB sequential read, depth 4, one connection", "read", 1 << 20, 4),
    "sequential-write": ("1 MiB sequential write, depth 4, one connection", "write", 1 << 20, 4),
    "read-64k": ("64 KiB random read, depth 32", "randread", 64 << 10, 32),
    "write-64k": ("64 KiB random write, depth 32", "randwrite", 64 << 10, 32),
    "read-128k": ("128 KiB sequential read, depth 8", "read", 128 << 10, 8),
    "write-128k": ("128 KiB sequential write, depth 8", "write", 128 << 10, 8),
    "mixed": ("4 KiB random, 70 % reads, depth 32", "randread", 4096, 32, "--mixed", "30"),
    "fua-1": ("4 KiB random durable write, depth 1", "randwrite", 4096, 1, "--fua"),
    "fua-8": ("4 KiB random durable write, depth 8", "randwrite", 4096, 8, "--fua"),
    "fua-32": ("4 KiB random durable write, depth 32", "randwrite", 4096, 32, "--fua"),
}
USUAL = ["read-1", "read-32", "write-1", "write-32", "sequential", "sequential-write"]
FIO = "fio-32"
TITLES = {key: title for key, (title, *_) in WORKLOADS.items()} | {
    FIO: "4 KiB random read, depth 32, stock fio with its nbd engine"}
WARM_UP = 0.3  # seconds


def busy_seconds():
    """CPU time that the whole machine has spent on something."""
    ticks = [int(n) for n in pathlib.Path("/proc/stat").read_text("utf-8").split("\n")[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq = ticks[:7]
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Client:
    """nbdload on a chain that has been started; it waits at both ends of the measured time."""

    def __init__(self, bench, chain, workload, seconds, warm_up=None):
        _, mode, block, depth, *more = WORKLOADS[workload]
        self.chain = chain
        self.process = subprocess.Popen(
            [*chain.prefix, bench.nbdload, *chain.client, "--seconds", str(seconds), "--warm-up",
             str(bench.warm_up if warm_up is None else warm_up), "--connections", str(bench.connections), "--mode", mode, "--block",
             str(block), "--depth", str(depth), *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def expect(self, word):
        line = self.process.stdout.readline().strip()
        if line != word:
            self.fail(f"said '{line}' in place of '{word}'")

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def result(self):
        rest, _ = self.process.communicate("go\n")
        if self.process.returncode != 0:
            self.fail(rest)
        return json.loads(rest)

    def fail(self, why):
        raise RuntimeError(f"nbdload failed on {type(self.chain).__name__}: {why}\n"
                           f"{self.chain.logs()}")


def timed_run(bench, name, workload, pinned):
    """The client's figures with CPU time and context switches of the chain."""
    with CHAINS[name](bench, pinned) as chain:
        client = Client(bench, chain, workload, bench.seconds)
        client.expect("begin")
        switches, cpu, busy = chain.context_switches(), chain.cpu_seconds(), busy_seconds()
        client.go()
        client.expect("end")
        cpu = [after - before for before, after in zip(cpu, chain.cpu_seconds())]
        busy, switches = busy_seconds() - busy, chain.context_switches() - switches
        run = client.result()
    run["server_cpu_s"] = cpu[0]
    run["front_cpu_s"] = sum(cpu[1:])
    cpu_s = sum(cpu) + run["client_cpu_s"]
    run["cpu_us"] = 1e6 * cpu_s / run["operations"]
    run["switches"] = switches / run["operations"]
    run["others"] = max(0, busy - cpu_s) / run["seconds"]
    return run


def fio(bench, chain, *options):
    result = subprocess.run(
        [*chain.prefix, "fio", "--name=bench", "--ioengine=nbd", f"--uri={chain.uri}", "--rw=randread",
         "--bs=4k", "--iodepth=32", "--output-format=json", *options],
        capture_output=True, text=True, cwd=chain.directory.name, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"fio failed on {type(chain).__name__}: {result.stderr}{result.stdout}"
                           f"\n{chain.logs()}")
    return json.loads(result.stdout[result.stdout.index("{"):])["jobs"][0]["read"]


def fio_run(bench, name, pinned):
    """The same read by a client that knows nothing of this bench."""
    with CHAINS[name](bench, pinned) as chain:
        # Verified first, and apart, since comparing would be part of the time.
        fio(bench, chain, "--size=16m", "--verify=pattern", "--verify_pattern=%o")
        read = fio(bench, chain, "--time_based", f"--runtime={max(1, round(bench.seconds))}",
                   f"--ramp_time={WARM_UP}", f"--size={os.path.getsize(bench.file)}")
    percentile = read["clat_ns"]["percentile"]
    return {"operations": read["total_ios"], "iops": read["iops"], "mb_per_s": read["bw_bytes"] / 1e6,
            "p50_us": percentile["50.000000"] / 1e3, "p99_us": percentile["99.000000"] / 1e3,
            "p999_us": percentile["99.900000"] / 1e3}


def limits(bench):
    """What the machine needs, on one CPU, for the parts that no bridge can do without."""
    result = subprocess.run(["taskset", "-c", str(bench.cpu), bench.limits, bench.file],
                            capture_output=True, text=True, check=True)
    parts = json.loads(result.stdout)
    return parts | {"limit_us": sum(parts.values())}
