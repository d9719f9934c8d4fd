# SPDX-License-Identifier: BSD-3-Clause
"""What more CPUs, reactors and sessions are worth: several native fronts on one rnbd-server."""
import os

from chains import Chain
from measure import Client

WORKLOAD = "read-32"
# (sessions, reactors of the server, CPUs for all processes)
SHAPES = [(1, 1, 1), (4, 1, 1), (1, 1, 2), (4, 1, 2), (4, 2, 2)]


def shapes():
    """Those that this machine has CPUs for."""
    return [shape for shape in SHAPES if shape[2] <= len(os.sched_getaffinity(0))]


class Fleet(Chain):
    """A server and so many fronts, each with a session of its own."""

    def __init__(self, bench, sessions, reactors, cpus):
        super().__init__(bench, False)
        cpu_list = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cpus]))
        self.prefix = ["taskset", "-c", cpu_list]
        self.sessions, self.reactors = sessions, reactors
        self.sockets = [f"{self.directory.name}/front{i}.sock" for i in range(sessions)]

    def start(self):
        uri = self.spawn_rnbd_server("--reactors", str(self.reactors))
        for path in self.sockets:
            self.spawn_until_ready(lambda fd, path=path: [
                self.bench.bridge, "--listen", f"unix:{path}", "--access", "ro", "--ready-fd", str(fd), uri])

    def clients(self):
        for self.socket in self.sockets:
            yield Client(self.bench, self, WORKLOAD, self.bench.seconds)


def scaling_run(bench, sessions, reactors, cpus):
    """All sessions together: reads per second, and the CPU time of one of them."""
    with Fleet(bench, sessions, reactors, cpus) as fleet:
        clients = list(fleet.clients())
        for client in clients:
            client.expect("begin")
        cpu = sum(fleet.cpu_seconds())
        for client in clients:
            client.go()
        for client in clients:
            client.expect("end")
        cpu = sum(fleet.cpu_seconds()) - cpu
        runs = [client.result() for client in clients]
    cpu += sum(run["client_cpu_s"] for run in runs)
    return {"iops": sum(run["iops"] for run in runs),
            "cpu_us": 1e6 * cpu / sum(run["operations"] for run in runs)}
