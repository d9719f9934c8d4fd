# SPDX-License-Identifier: BSD-3-Clause
"""What rnbd-server needs in memory for many sessions, beyond the chunk pools that it was told to have."""
import re

from chains import Chain
from measure import Client

SESSIONS = 64
POOL = 256 * (256 + 4) << 10  # bytes: queue depth x (max I/O size + 4 KiB), the defaults
MEMORY_LIMIT = "16G"  # of address space; a pool's pages come when requests use them


class Crowd(Chain):
    """A server with one nbdkit, and so one session, after another."""

    def start(self):
        self.uri_of_server = self.spawn_rnbd_server("--memory-limit", MEMORY_LIMIT)

    def join(self):
        """One more session, after some I/O of it; it stays."""
        self.socket = f"{self.directory.name}/front{len(self.processes)}.sock"
        self.spawn_nbdkit(self.bench.plugin, self.uri_of_server, "access=ro")
        client = Client(self.bench, self, "read-32", 0.02, warm_up=0.02)
        client.expect("begin")
        client.go()
        client.expect("end")
        client.result()

    def resident(self):
        """Bytes of the server's memory: (chunk pools, everything else).

        Neighbouring pools are one mapping, which may have swallowed something small. That much is
        counted as something else, whether it is resident or not: rather too much than too little.
        """
        pools = other = 0
        with open(f"/proc/{self.processes[0].pid}/smaps", encoding="ascii") as file:
            for line in file:
                if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)", line):
                    size = int(match.group(2), 16) - int(match.group(1), 16)
                    is_pool = match.group(4) == "0" and match.group(3) == "rw-p" and size >= POOL
                elif line.startswith("Rss:"):
                    resident = int(line.split()[1]) << 10
                    swallowed = min(size % POOL, resident) if is_pool else resident
                    other += swallowed
                    pools += resident - swallowed
        return pools, other


def server_memory(bench):
    with Crowd(bench, False) as crowd:
        for _ in range(SESSIONS):
            crowd.join()
        pools, other = crowd.resident()
    return {"sessions": SESSIONS, "pools_mib": pools / 2**20, "other_mib": other / 2**20,
            "pool_mappings_mib": SESSIONS * POOL / 2**20}
