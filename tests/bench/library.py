# SPDX-License-Identifier: BSD-3-Clause
"""What a call of librtrs costs beside a bare TCP connection, a request of RTRS, UCX and iperf3."""
import json
import os
import re
import shutil
import socket
import subprocess

# Case -> ways, and whether more is better.
CASES = {"get-1": ["bare", "lane", "librtrs", "ucx"], "get-32": ["bare", "librtrs"],
         "put": ["bare", "librtrs", "plain", "iperf3"], "get": ["bare", "librtrs", "plain"]}
TITLES = {"get-1": "64 bytes there and back, one at a time", "get-32": "the same, 32 at once",
          "put": "{mib} MiB to the server in one call", "get": "{mib} MiB back in one call"}
NAMES = {"bare": "bare TCP", "lane": "request of RTRS", "librtrs": "librtrs", "plain": "librtrs without checksums", "ucx": "UCX (tcp), which spins",
         "iperf3": "iperf3"}
TOOLS = {"ucx": "ucx_perftest", "iperf3": "iperf3"}
LIMIT = 120  # seconds


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def output_of(command, **named):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT, **named).stdout


def beside(server, client, failed="", **named):
    """What the client says. It is tried again until the server listens; `failed` is in what the
    client says when it could not connect, if its exit status is 0 then, too."""
    with subprocess.Popen(server, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, **named) as process:
        try:
            while process.poll() is None:
                try:
                    said = output_of(client, **named)
                    if not failed or failed not in said:
                        return said
                except subprocess.CalledProcessError:
                    continue
            raise SystemExit(f"{server[0]} does not serve")
        finally:
            process.kill()


def ucx(bench):
    """Its latency is half of a ping-pong."""
    port = free_port()
    tool = ["ucx_perftest", "-p", port]
    count = str(int(20000 * bench.seconds) + 1000)
    said = beside(tool, [*tool, "127.0.0.1", "-t", "tag_lat", "-s", "64", "-n", count, "-w", "1000", "-f", "-v"],
                  env=os.environ | {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"})
    half = float(said.strip().split("\n")[-1].split(",")[1])
    return {"p50_us": 2 * half, "per_s": 1e6 / (2 * half)}


def iperf3(bench):
    port = free_port()
    said = beside(["iperf3", "-s", "-p", port],
                  ["iperf3", "-c", "127.0.0.1", "-p", port, "-t", str(max(1, round(bench.seconds))), "--json"],
                  failed='"error":')
    return {"mb_per_s": json.loads(said)["end"]["sum_received"]["bits_per_second"] / 8e6}


def measure(bench, way, case):
    if way in TOOLS:
        return {"ucx": ucx, "iperf3": iperf3}[way](bench)
    return json.loads(output_of([bench.library, way, case, str(bench.seconds), str(bench.size)]))


def library_round(bench, results, backwards):
    """Every way of every case once."""
    for case, ways in CASES.items():
        there = [way for way in ways if shutil.which(TOOLS.get(way, "true"))]
        for way in reversed(there) if backwards else there:
            run = measure(bench, way, case)
            results.add("library", run, case=case, way=way)
            yield case, way, run


def ratio(figure, way, other, case):
    """Of the medians."""
    def value(results):
        mine = results.median("library", figure, way=way, case=case)
        base = results.median("library", figure, way=other, case=case)
        return None if mine is None or not base else mine / base
    return value


def library_lines(results):
    runs = results.select("library")
    if not runs:
        return ["Not measured."]
    lines = ["Over TCP on this machine, client and server in one process with a thread each; placed by the "
             "scheduler. × = ratio to bare TCP.", "",
             "| | p50 µs | p99 µs | per second | MB/s | spread | × |", "|---|---:|---:|---:|---:|---:|---:|"]
    for case, ways in CASES.items():
        title = TITLES[case].format(mib=results.data["settings"]["size"])
        for way in ways:
            if results.select("library", case=case, way=way):
                lines.append(library_row(results, title if way == ways[0] else "", case, way))
    missing = [tool for way, tool in TOOLS.items() if not results.select("library", way=way)]
    return lines + (["", f"Not installed: {', '.join(missing)}."] if missing else [])


def library_row(results, title, case, way):
    def cell(figure, form):
        value = results.median("library", figure, case=case, way=way)
        return "" if value is None else format(value, form)

    judged = next(name for name in ("p50_us", "mb_per_s", "per_s")
                  if results.median("library", name, case=case, way=way) is not None)
    name = re.sub("^: ", "", f"{title}: {NAMES[way]}")
    return (f"| {name} | {cell('p50_us', '.1f')} | {cell('p99_us', '.1f')} | {cell('per_s', '.0f')} | "
            f"{cell('mb_per_s', '.0f')} | {results.spread('library', judged, case=case, way=way):.0%} | "
            f"{ratio(judged, way, 'bare', case)(results):.2f} |")
