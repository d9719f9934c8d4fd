# SPDX-License-Identifier: BSD-3-Clause
"""The ways from an NBD client to a file that are compared.

  base    client -> Unix socket -> nbdkit nbd  -> TCP -> nbdkit file -> file
  plugin  client -> Unix socket -> nbdkit rnbd -> TCP -> rnbd-server -> file
  native  client -> Unix socket -> rnbd-bridge -> TCP -> rnbd-server -> file
  base-one                        base with one thread in each nbdkit
  native-tls, plugin-tls          the same over TLS, with a shared key
  native-rdma, plugin-rdma        the same over RDMA, at the address of --rdma
  base-tls-psk, base-tls-x509     base over TLS, with a shared key or certificates
  direct  client -> TCP -> nbdkit file -> file            (no bridge, but the network)
  local   client -> Unix socket -> nbdkit file -> file    (no bridge and no network)
"""
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time


class Chain:
    """The processes between the client and the file, started by the subclasses."""

    needs = ["nbdkit"]  # attributes of the bench, or commands
    options = []  # further arguments of the front
    threads = 0  # of each nbdkit; 0: as many as it likes

    def __init__(self, bench, pinned):
        self.prefix = ["taskset", "-c", str(bench.cpu)] if pinned else []
        self.bench = bench
        self.processes = []
        self.directory = tempfile.TemporaryDirectory(prefix="rnbd-bench.")
        self.socket = f"{self.directory.name}/front.sock"

    @property
    def client(self):
        """Where nbdload finds the chain."""
        return ["--unix", self.socket]

    @property
    def uri(self):
        return f"nbd+unix:///?socket={self.socket}"

    def spawn(self, command, **named):
        log = open(f"{self.directory.name}/{len(self.processes)}.log", "w+", encoding="utf-8")
        process = subprocess.Popen(self.prefix + command, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, **named)
        process.log = log
        self.processes.append(process)

    def spawn_until_ready(self, make_command):
        """`make_command` gets the number of the pipe on which the program says that it is ready."""
        ready, tell = os.pipe()
        self.spawn(make_command(tell), pass_fds=[tell])
        os.close(tell)
        with os.fdopen(ready, encoding="utf-8") as pipe:
            line = pipe.readline()
        if not line:
            raise RuntimeError(f"{make_command('N')} did not become ready:\n{self.logs()}")
        return line

    def spawn_nbdkit(self, *arguments):
        threads = self.thread_options(self.threads or self.bench.threads)
        self.spawn_until_ready(lambda fd: ["nbdkit", "-f", "-U", self.socket, "-P", f"/dev/fd/{fd}",
                                           *threads, *arguments])

    @staticmethod
    def thread_options(number):
        return ["-t", str(number)] if number else []

    def spawn_nbdkit_tcp(self, *options):
        # Socket activation gives nbdkit a free port that nobody else can take in between.
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        options = [*self.thread_options(self.threads), *options]
        self.spawn(["sh", "-c", f'exec 3<&{listener.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ '
                    f'exec nbdkit -f {shlex.join(options)} file "{self.bench.file}"'],
                   pass_fds=[listener.fileno()])
        listener.close()
        return port

    rights = ""  # of the export's users; who authenticates must say them
    transport, scheme = "tcp", "rnbd+tcp"

    @property
    def address(self):
        return "127.0.0.1"

    def spawn_rnbd_server(self, *options):
        """Returns the URI of the export."""
        line = self.spawn_until_ready(
            lambda fd: [self.bench.server, "--listen", f"{self.transport}:{self.address}:0",
                        "--ready-fd", str(fd),
                        "--export", f"bench={self.bench.file}{self.rights}", *options])
        port = re.search(re.escape(self.address) + r":(\d+)", line + self.logs()).group(1)
        return f"{self.scheme}://{self.address}:{port}/bench"

    def logs(self):
        return "".join(pathlib.Path(p.log.name).read_text(encoding="utf-8") for p in self.processes)

    def cpu_seconds(self):
        """CPU time of each process so far."""
        return [time.clock_gettime((~p.pid << 3) | 2) for p in self.processes]

    def context_switches(self):
        """Context switches of all threads so far, those that have ended excluded."""
        return sum(int(count) for process in self.processes
                   for status in pathlib.Path(f"/proc/{process.pid}/task").glob("*/status")
                   for count in re.findall(r"ctxt_switches:\s*(\d+)", status.read_text("utf-8")))

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.log.close()
        self.directory.cleanup()


class Base(Chain):
    def start(self):
        port = self.spawn_nbdkit_tcp()
        self.spawn_nbdkit("nbd", "hostname=127.0.0.1", f"port={port}")


class BaseOne(Base):
    threads = 1


class Plugin(Chain):
    needs = ["nbdkit", "server", "plugin"]

    def start(self):
        self.spawn_nbdkit(self.bench.plugin, self.spawn_rnbd_server(), *self.options)


class Native(Chain):
    needs = ["bridge", "server"]

    def start(self):
        uri = self.spawn_rnbd_server()
        self.spawn_until_ready(lambda fd: [self.bench.bridge, "--listen", f"unix:{self.socket}",
                                           *self.options, "--ready-fd", str(fd), uri])


class Direct(Chain):
    def start(self):
        self.port = self.spawn_nbdkit_tcp()

    @property
    def client(self):
        return ["--host", "127.0.0.1", "--port", str(self.port)]

    @property
    def uri(self):
        return f"nbd://127.0.0.1:{self.port}"


class Local(Chain):
    def start(self):
        self.spawn_nbdkit("file", self.bench.file)


class WithKeys(Chain):
    """Makes the keys of both ends in the chain's directory."""

    def make_keys(self):
        subprocess.run([self.bench.ctl, "keygen", "bench", f"{self.directory.name}/keys.psk"],
                       check=True, stdout=subprocess.DEVNULL)
        return f"{self.directory.name}/keys.psk"

    def make_certificates(self):
        subprocess.run([self.bench.ctl, "certgen", self.directory.name, "--server",
                        "localhost,127.0.0.1", "--client", "bench"],
                       check=True, stdout=subprocess.DEVNULL)
        return self.directory.name

    rights = ",rw=*"

    def spawn_rnbd_server(self, *options):
        keys = self.make_keys()
        uri = super().spawn_rnbd_server("--tls=require", f"--tls-psk={keys}", *options)
        return uri.replace("rnbd+tcp://", "rnbds+tcp://bench@") + f"?tls-psk-file={keys}"


class PluginTls(WithKeys, Plugin):
    needs = [*Plugin.needs, "ctl"]


class NativeTls(WithKeys, Native):
    needs = [*Native.needs, "ctl"]


class OverRdma:
    transport, scheme = "rdma", "rnbd"

    @property
    def address(self):
        return self.bench.rdma


class PluginRdma(OverRdma, Plugin):
    pass


class NativeRdma(OverRdma, Native):
    pass


class BaseTlsPsk(WithKeys):
    needs = ["nbdkit", "ctl"]

    def start(self):
        keys = self.make_keys()
        port = self.spawn_nbdkit_tcp("--tls=require", f"--tls-psk={keys}")
        self.spawn_nbdkit("nbd", "hostname=127.0.0.1", f"port={port}", "tls=require",
                          f"tls-psk={keys}", "tls-username=bench")


class BaseTlsX509(WithKeys):
    needs = ["nbdkit", "ctl"]

    def start(self):
        keys = self.make_certificates()
        port = self.spawn_nbdkit_tcp("--tls=require", f"--tls-certificates={keys}",
                                     "--tls-verify-peer")
        self.spawn_nbdkit("nbd", "hostname=localhost", f"port={port}", "tls=require",
                          f"tls-certificates={keys}")


IN_CLEAR = {"base": Base, "plugin": Plugin, "native": Native, "direct": Direct, "local": Local}
CHAINS = {**IN_CLEAR, "base-one": BaseOne, "native-tls": NativeTls, "plugin-tls": PluginTls,
          "native-rdma": NativeRdma, "plugin-rdma": PluginRdma, "base-tls-psk": BaseTlsPsk,
          "base-tls-x509": BaseTlsX509}


def add_variant(name):
    """`plugin:ARGUMENTS` or `native:ARGUMENTS`: the same with more arguments for the front."""
    chain, _, arguments = name.partition(":")
    if chain not in ("plugin", "native"):
        raise ValueError(f"{name}: only plugin and native have variants, as in native:--spin=50us")
    CHAINS[name] = type("Variant", (CHAINS[chain],), {"options": shlex.split(arguments)})


def missing_programs(bench, arguments):
    """One sentence for each program that is needed and not there."""
    needs = [(f"the chain {name}", need) for name in arguments.chains for need in CHAINS[name].needs]
    needs += [("every measurement", "nbdload"), ("every measurement", "limits")]
    if "fio" in arguments.parts:
        needs.append(("the part fio", "fio"))
    if "scaling" in arguments.parts:
        needs += [("the part scaling", "server"), ("the part scaling", "bridge")]
    if "memory" in arguments.parts:
        needs += [("the part memory", "server"), ("the part memory", "plugin")]
    sentences = [f"the chain {name} needs the address of an RDMA device: --rdma"
                 for name in arguments.chains
                 if issubclass(CHAINS[name], OverRdma) and not arguments.rdma]
    for who, need in needs:
        program = getattr(bench, need, need)
        if not shutil.which(program) and not os.path.exists(program):
            sentences.append(f"{who} needs {program}, which is not there: build or install it, or leave "
                             "it out with --chains or --parts")
    return sentences
