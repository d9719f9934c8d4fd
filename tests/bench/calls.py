# SPDX-License-Identifier: BSD-3-Clause
"""System calls and context switches per request, of front and server, in a pass of its own: what
counts also slows down.

perf counts with tracepoints (packages linux-perf; tracefs must be mounted). Without it strace does,
which makes everything many times slower, so that fewer requests meet in a batch.
"""
import os
import re
import shutil
import signal
import subprocess
import time

from chains import CHAINS
from measure import Client

TOTAL = "raw_syscalls:sys_enter"
NAMED = ("read write readv writev pread64 pwrite64 preadv2 pwritev2 recvfrom sendto recvmsg sendmsg "
         "recvmmsg sendmmsg poll ppoll epoll_wait epoll_pwait epoll_ctl futex io_uring_enter "
         "clock_nanosleep sched_yield").split()
TRACED_AT_MOST = 60  # seconds until strace has attached itself to all threads


class Perf:
    """Counts between start() and stop()."""

    method = "perf"

    def __init__(self, pids, folder):
        self.output = f"{folder}/perf"
        events = [TOTAL] + [f"syscalls:sys_enter_{name}" for name in NAMED]
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        self.process = subprocess.Popen(
            ["perf", "stat", "-x", ",", "-o", self.output, "-e", ",".join(events), "-D", "-1",
             "-p", ",".join(map(str, pids)), "--control", f"fd:{commands},{answers}"],
            pass_fds=[commands, answers], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.close(commands)
        os.close(answers)

    def order(self, command):
        os.write(self.commands, command + b"\n")
        if not os.read(self.answers, 16).startswith(b"ack"):
            raise RuntimeError(f"perf stat: {self.process.communicate()[0].decode()}")

    def start(self):
        self.order(b"enable")

    def stop(self):
        self.order(b"disable")

    def counts(self):
        self.process.send_signal(signal.SIGINT)
        said = self.process.communicate()[0].decode()
        os.close(self.commands)
        os.close(self.answers)
        counts = {}
        with open(self.output, encoding="utf-8") as file:
            for line in file:
                fields = line.split(",")
                if len(fields) > 3 and fields[0].isdigit():
                    counts[fields[2].removeprefix("syscalls:sys_enter_")] = int(fields[0])
        if TOTAL not in counts:
            raise RuntimeError(f"perf stat counted nothing: {said}")
        return counts.pop(TOTAL), counts


class Strace:
    method = "strace"

    def __init__(self, pids, folder):
        self.output = f"{folder}/strace"
        self.pids = pids

    def start(self):
        self.process = subprocess.Popen(
            ["strace", "-f", "-c", "-o", self.output, *(f"-p{pid}" for pid in self.pids)],
            stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + TRACED_AT_MOST
        while not all(self.traced(pid) for pid in self.pids):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("strace cannot attach itself to the processes")
            time.sleep(0.01)

    @staticmethod
    def traced(pid):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as status:
                if "TracerPid:\t0\n" in status.read():
                    return False
        return True

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def counts(self):
        counts = {}
        with open(self.output, encoding="utf-8") as file:
            for line in file:
                match = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
                if match and match.group(2) != "total":
                    counts[match.group(2)] = int(match.group(1))
        return sum(counts.values()), counts


def counter():
    """What can count here; None with the reason when nothing can."""
    if shutil.which("perf"):
        probe = subprocess.run(["perf", "stat", "-e", TOTAL, "true"], capture_output=True, check=False)
        if probe.returncode == 0:
            return Perf, ""
    if shutil.which("strace"):
        return Strace, ""
    return None, ("no perf with tracepoints (package linux-perf; "
                  "mount -t tracefs tracefs /sys/kernel/tracing) and no strace")


def counted_run(bench, name, workload, tool):
    """System calls of front and server per request, in all and by name."""
    with CHAINS[name](bench, True) as chain:
        client = Client(bench, chain, workload, bench.seconds)
        client.expect("begin")  # by now all threads are there
        counting = tool([process.pid for process in chain.processes], chain.directory.name)
        counting.start()
        switches = chain.context_switches()
        client.go()
        client.expect("end")
        switches = chain.context_switches() - switches
        counting.stop()
        operations = client.result()["operations"]
        total, named = counting.counts()
    return {"method": tool.method, "calls": total / operations, "switches": switches / operations,
            "operations": operations,
            "by_name": {call: count / operations for call, count in
                        sorted(named.items(), key=lambda item: -item[1])
                        if count / operations >= 0.005}}
