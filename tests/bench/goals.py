# SPDX-License-Identifier: BSD-3-Clause
"""What rnbdkit must reach, and what it aims at, beside what was measured."""
import dataclasses

import library


@dataclasses.dataclass(frozen=True)
class Goal:
    title: str
    must: float
    aim: float
    value: callable  # of Results; None when it was not measured
    more_is_better: bool = False

    def reaches(self, value, bound):
        return value >= bound if self.more_is_better else value <= bound


class Ratio:
    """Of two chains: of their medians, and round by round, since whole rounds are slow or fast."""

    def __init__(self, figure, chain, other, workload, placement="one"):
        self.figure, self.chains = figure, (chain, other)
        self.where = {"workload": workload, "placement": placement}

    def __call__(self, results):
        return results.ratio(self.figure, *self.chains, **self.where)

    def rounds(self, results):
        return results.ratios(self.figure, *self.chains, **self.where)


def to_limit(chain):
    def value(results):
        p50 = results.median("runs", "p50_us", chain=chain, workload="read-1", placement="one")
        limit = results.median("limits", "limit_us")
        return None if p50 is None or limit is None else p50 / limit
    return value


def calls(figure, chain, workload):
    return lambda results: results.median("calls", figure, chain=chain, workload=workload)


def memory(results):
    return results.median("memory", "other_mib", sessions=64)


# All pinned to one CPU but the row of fio. The base is nbdkit's own bridge.
GOALS = [
    Goal("native, 4 KiB read, depth 1: p50 / base", 0.60, 0.48,
         Ratio("p50_us", "native", "base", "read-1")),
    Goal("native, 4 KiB read, depth 1: p50 / physical limit", 1.5, 1.25, to_limit("native")),
    Goal("native, 4 KiB read, depth 32: IOPS / base", 5, 7.5,
         Ratio("iops", "native", "base", "read-32"), True),
    Goal("native, 4 KiB read, depth 32: CPU per I/O / base", 0.20, 0.13,
         Ratio("cpu_us", "native", "base", "read-32")),
    Goal("native, 4 KiB read, depth 32: IOPS / direct", 1.5, 2.5,
         Ratio("iops", "native", "direct", "read-32"), True),
    Goal("native, stock fio, depth 32, not pinned: IOPS / base", 3, 5,
         Ratio("iops", "native", "base", "fio-32", "free"), True),
    Goal("native + server, depth 1: system calls per read", 9, 7,
         calls("calls", "native", "read-1")),
    Goal("native + server, depth 1: context switches per read", 5, 3.5,
         calls("switches", "native", "read-1")),
    Goal("native + server, depth 32: system calls per read", 2, 1.2,
         calls("calls", "native", "read-32")),
    Goal("native + server, depth 32: context switches per read", 0.3, 0.1,
         calls("switches", "native", "read-32")),
    Goal("plugin, 4 KiB read, depth 1: p50 / base", 0.75, 0.62,
         Ratio("p50_us", "plugin", "base", "read-1")),
    Goal("plugin, 4 KiB read, depth 1: CPU per I/O / base", 0.75, 0.62,
         Ratio("cpu_us", "plugin", "base", "read-1")),
    Goal("plugin, 4 KiB read, depth 32: IOPS / base", 1.3, 1.9,
         Ratio("iops", "plugin", "base", "read-32"), True),
    Goal("plugin, 4 KiB read, depth 32: CPU per I/O / base", 0.85, 0.55,
         Ratio("cpu_us", "plugin", "base", "read-32")),
    Goal("native, 1 MiB sequential read: MB/s / base", 1.4, 1.8,
         Ratio("mb_per_s", "native", "base", "sequential"), True),
    Goal("native, 1 MiB sequential read: CPU s/GB / base", 0.75, 0.55,
         Ratio("cpu_us", "native", "base", "sequential")),
    Goal("plugin, 1 MiB sequential read: MB/s / base", 1.4, 1.8,
         Ratio("mb_per_s", "plugin", "base", "sequential"), True),
    Goal("plugin, 1 MiB sequential read: CPU s/GB / base", 0.75, 0.55,
         Ratio("cpu_us", "plugin", "base", "sequential")),
    Goal("rnbd-server beyond its chunk pools, 64 sessions: MiB", 64, 32, memory),
    Goal("librtrs, 64 bytes: p50 / bare TCP", 1.25, 1.1, library.ratio("p50_us", "librtrs", "bare", "get-1")),
    Goal("librtrs, 64 bytes: p50 / request of RTRS", 1.05, 1.02,
         library.ratio("p50_us", "librtrs", "lane", "get-1")),
    Goal("librtrs, one large call: MB/s / iperf3", 0.9, 1,
         library.ratio("mb_per_s", "librtrs", "iperf3", "put"), True),
]

# With TLS, beside the same in clear, and beside the base with TLS. Only where one of them was measured.
TLS_GOALS = [
    Goal("native with TLS, 4 KiB read, depth 1: p50 / native", 1.30, 1.20,
         Ratio("p50_us", "native-tls", "native", "read-1")),
    Goal("native with TLS, 4 KiB read, depth 32: IOPS / native", 0.55, 0.62,
         Ratio("iops", "native-tls", "native", "read-32"), True),
    Goal("native with TLS, 1 MiB sequential read: MB/s / native", 0.50, 0.60,
         Ratio("mb_per_s", "native-tls", "native", "sequential"), True),
    Goal("native with TLS, 4 KiB read, depth 1: p50 / base with X.509", 0.70, 0.62,
         Ratio("p50_us", "native-tls", "base-tls-x509", "read-1")),
    Goal("native with TLS, 4 KiB read, depth 32: IOPS / base with X.509", 3.5, 4.5,
         Ratio("iops", "native-tls", "base-tls-x509", "read-32"), True),
    Goal("native with TLS, 4 KiB read, depth 32: IOPS / base with a shared key", 6, 7.5,
         Ratio("iops", "native-tls", "base-tls-psk", "read-32"), True),
    Goal("native with TLS, 1 MiB sequential read: MB/s / base with X.509", 1.3, 1.6,
         Ratio("mb_per_s", "native-tls", "base-tls-x509", "sequential"), True),
    Goal("plugin with TLS, 4 KiB read, depth 1: p50 / base with X.509", 0.85, 0.75,
         Ratio("p50_us", "plugin-tls", "base-tls-x509", "read-1")),
]


def verdict(goal, value):
    if goal.reaches(value, goal.aim):
        return "aim met"
    if goal.reaches(value, goal.must):
        return "must met"
    return f"**missed** by {abs(value / goal.must - 1):.1%}"


def table(results):
    """Markdown lines."""
    lines = ["| | must | aim | measured | | rounds that reach the must |", "|---|---:|---:|---:|---|---:|"]
    encrypted = any("-tls" in run["chain"] for run in results.data["runs"])
    for goal in GOALS + (TLS_GOALS if encrypted else []):
        value = goal.value(results)
        sign = "≥" if goal.more_is_better else "≤"
        measured, said = ("-", "not measured") if value is None else (f"{value:.2f}",
                                                                      verdict(goal, value))
        rounds = goal.value.rounds(results) if isinstance(goal.value, Ratio) else []
        reached = sum(goal.reaches(round_, goal.must) for round_ in rounds)
        lines.append(f"| {goal.title} | {sign} {goal.must:g} | {sign} {goal.aim:g} | {measured} | "
                     f"{said} | {f'{reached} of {len(rounds)}' if rounds else '-'} |")
    return lines
