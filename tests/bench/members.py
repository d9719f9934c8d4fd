# SPDX-License-Identifier: BSD-3-Clause
"""A mirror on this machine: its servers, each with its record, and the bridge in front of them."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from chains import Chain

EXPORT = "disk"


def eventually(what, condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} has not happened in {seconds} s")
        time.sleep(0.02)


@contextlib.contextmanager
def cables(count):
    """`count` network namespaces, each at the other end of a cable; yields (name, address) of each."""
    made = []
    try:
        for number in range(count):
            name = f"rnbd-bench-{os.getpid()}-{number}"
            near, subnet = f"rnbdb{os.getpid() % 100000}{number}", f"198.18.{number}"
            commands = [
                f"netns add {name}",
                f"link add {near} type veth peer name cable netns {name}",
                f"addr add {subnet}.1/24 dev {near}",
                f"link set {near} up",
                f"-n {name} addr add {subnet}.2/24 dev cable",
                f"-n {name} link set cable up",
                f"-n {name} link set lo up",
            ]
            made.append((name, f"{subnet}.2"))
            for command in commands:
                ip(command)
        yield made
    finally:
        for name, _ in made:
            ip(f"netns del {name}")


def ip(command):
    subprocess.run(["ip", *command.split()], check=True)


class Members(Chain):
    """Servers named 0, 1, ..., with equal files of `size` bytes that begin with stamps."""

    def __init__(self, bench, count, size, hosts=None):
        super().__init__(bench, bench.pinned)
        self.hosts = hosts or [(None, "127.0.0.1")] * count
        self.size = size
        self.servers = [None] * count
        self.ports = [0] * count

    @property
    def uri_of_servers(self):
        names = [f"{address}:{port}" for (_, address), port in zip(self.hosts, self.ports)]
        if len(names) == 1:
            return f"rnbd+tcp://{names[0]}/{EXPORT}"
        # Each file has stamps, so the copy replaces data.
        return f"rnbd-mirror+tcp://{','.join(names)}/{EXPORT}?create=copy"

    def path(self, name):
        return f"{self.directory.name}/{name}"

    def start(self):
        for number in range(len(self.servers)):
            subprocess.run([self.bench.nbdload, "--stamp", self.path(f"{number}.img"),
                            str(self.bench.span)], check=True)
            os.truncate(self.path(f"{number}.img"), self.size)
            self.start_server(number)
        self.spawn_until_ready(lambda fd: [
            self.bench.bridge, "--listen", f"unix:{self.socket}", "--control", self.path("control"),
            "--ready-fd", str(fd), self.uri_of_servers])
        self.bridge = self.processes[-1]
        if len(self.servers) > 1:
            self.load("randread", 1, 0.05)  # attaches
            eventually("the first copy", self.is_whole, 3600)

    def start_server(self, number, *options):
        """At the same port as before."""
        namespace, address = self.hosts[number]
        prefix = self.prefix
        if namespace:
            self.prefix = ["ip", "netns", "exec", namespace, *prefix]
        line = self.spawn_until_ready(lambda fd: [
            self.bench.server, "--listen", f"tcp:{address}:{self.ports[number]}", "--ready-fd",
            str(fd), "--export", f"{EXPORT}={self.path(number)}.img", "--state-directory",
            self.path(f"state-{number}"), "--control", self.path(f"control-{number}"), *options])
        self.prefix = prefix
        self.servers[number] = self.processes[-1]
        self.ports[number] = int(re.search(rf"{re.escape(address)}:(\d+)", line + self.logs())[1])

    def kill(self, number):
        self.servers[number].send_signal(signal.SIGKILL)
        self.servers[number].wait()

    def ctl(self, control, *words):
        return subprocess.run([self.bench.ctl, "--json", self.path(control), *words], check=True,
                              capture_output=True, text=True).stdout

    def mirror(self):
        return json.loads(self.ctl("control", "mirror", "status"))

    def is_whole(self):
        mirror = self.mirror()
        states = {member["state"] for member in mirror["members"]}
        return states == {"in step"} and mirror["unequal_mib"] == 0

    def state(self, number):
        return self.mirror()["members"][number]["state"]

    def discard(self, number):
        name = self.mirror()["members"][number]["server"]
        self.ctl("control", "mirror", "discard", name)

    def bytes_read(self, number):
        """From the server's storage."""
        page = subprocess.run([self.bench.ctl, self.path(f"control-{number}"), "metrics"], check=True,
                              capture_output=True, text=True).stdout
        found = re.search(rf'^rnbd_export_bytes_total{{export="{EXPORT}",op="read"}} (\S+)$', page,
                          re.MULTILINE)
        return float(found[1]) if found else 0

    def load(self, mode, depth, seconds, warm_up=0):
        """nbdload's figures, with the CPU time of the bridge and of all processes."""
        command = [*self.prefix, self.bench.nbdload, *self.client, "--mode", mode, "--depth",
                   str(depth), "--span", str(self.bench.span), "--seconds", str(seconds),
                   "--warm-up", str(warm_up)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as client:
            self.expect(client, "begin")
            before = self.spent()
            client.stdin.write("go\n")
            client.stdin.flush()
            self.expect(client, "end")
            after = self.spent()
            rest, _ = client.communicate("go\n")
        if client.returncode != 0:
            raise RuntimeError(f"nbdload failed: {rest}\n{self.logs()}")
        run = json.loads(rest)
        bridge, others = after[0] - before[0], after[1] - before[1]
        return run | {"bridge_cpu_s": bridge, "cpu_s": bridge + others + run["client_cpu_s"]}

    def expect(self, client, word):
        line = client.stdout.readline().strip()
        if line != word:
            raise RuntimeError(f"nbdload said '{line}' in place of '{word}'\n{self.logs()}")

    def spent(self):
        """CPU seconds of the bridge, and of the servers."""
        def of(process):
            return time.clock_gettime((~process.pid << 3) | 2)
        return of(self.bridge), sum(of(server) for server in self.servers if server.poll() is None)

    def logs(self):
        return "".join(pathlib.Path(p.log.name).read_text(encoding="utf-8") for p in self.processes)
