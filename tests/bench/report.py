# SPDX-License-Identifier: BSD-3-Clause
"""Markdown of Results."""
import goals
from chains import CHAINS
from library import library_lines
from measure import TITLES, WORKLOADS

PLACES = {"one": "all on one CPU", "free": "placed by the scheduler"}
METHODS = {"perf": "counted by perf",
           "strace": "counted by strace, which slows everything down"}


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def number(value, form):
    return "-" if value is None else format(value, form)


def timed_table(results, workload, placement):
    """Ratios are to the chain `base`, and of reads at depth 1 to the physical limit."""
    where = {"workload": workload, "placement": placement}
    limit = results.median("limits", "limit_us")
    limited = workload == "read-1" and placement == "one" and limit
    columns = ["chain", "IOPS", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs/IO", "front", "server",
               "client", "switches/IO", "spread", "others", "IOPS ×", "p50 ×", "CPU ×"]
    sequential = workload.startswith("sequential")
    if sequential:
        columns.insert(7, "CPU s/GB")
    if limited:
        columns.append("p50 / limit")
    lines = [row(*columns), "|---|" + "---:|" * (len(columns) - 1)]
    for chain in CHAINS:
        if not results.select("runs", chain=chain, **where):
            continue

        def figure(key, chain=chain):
            return results.median("runs", key, chain=chain, **where)

        operations = figure("operations")
        parts = [number(figure(key) and 1e6 * figure(key) / operations, ".2f")
                 for key in ("front_cpu_s", "server_cpu_s", "client_cpu_s")]
        cells = [chain, number(figure("iops"), ".0f"), number(figure("mb_per_s"), ".0f"),
                 *(number(figure(key), ".1f") for key in ("p50_us", "p99_us", "p999_us")),
                 number(figure("cpu_us"), ".2f"), *parts, number(figure("switches"), ".2f"),
                 f"{results.spread('runs', 'iops', chain=chain, **where):.0%}",
                 number(figure("others"), ".0%"),
                 *(number(results.ratio(key, chain, "base", **where), ".2f")
                   for key in ("iops", "p50_us", "cpu_us"))]
        if sequential:
            cells.insert(7, f"{figure('cpu_us') / WORKLOADS[workload][2] * 1e3:.3f}")
        if limited:
            cells.append(f"{figure('p50_us') / limit:.2f}")
        lines.append(row(*cells))
    return lines


def calls_table(results):
    if not results.data["calls"]:
        return ["Not measured: " + results.data.get("no_calls", "it was not asked for.")]
    lines = ["| workload | chain | system calls | context switches | which, per I/O |",
             "|---|---|---:|---:|---|"]
    for workload in results.present("calls", "workload", WORKLOADS):
        for chain in results.present("calls", "chain", CHAINS):
            runs = results.select("calls", chain=chain, workload=workload)
            if runs:
                which = ", ".join(f"{name} {count:.2f}" for name, count in runs[-1]["by_name"].items())
                calls, switches = (results.median("calls", key, chain=chain, workload=workload)
                                   for key in ("calls", "switches"))
                lines.append(row(TITLES[workload], chain, f"{calls:.1f}", f"{switches:.2f}", which))
    methods = {METHODS[entry["method"]] for entry in results.data["calls"]}
    return [f"Front and server, the client excluded; {' or '.join(sorted(methods))}, in a pass of "
            "its own on one CPU.", "", *lines]


def limit_lines(results):
    unix, tcp, pread, limit = (results.median("limits", key)
                               for key in ("unix_us", "tcp_us", "pread_us", "limit_us"))
    if limit is None:
        return []
    return [f"Physical limit of a bridged 4 KiB read, measured in the same run on the same CPU (p50): "
            f"{unix:.1f} µs for 28 bytes and their answer of 4112 over a Unix socket + {tcp:.1f} µs "
            f"for the same over TCP + {pread:.1f} µs for reading the file = **{limit:.1f} µs**.", ""]


def memory_lines(results):
    lines = []
    for entry in results.data["memory"]:
        lines += [f"`rnbd-server` with {entry['sessions']} sessions that have worked: "
                  f"{entry['other_mib']:.1f} MiB resident beside the chunk pools, of which "
                  f"{entry['pools_mib']:.0f} of {entry['pool_mappings_mib']:.0f} MiB are resident.", ""]
    return lines


def scaling_lines(results):
    """The shapes that were measured; ratios are to the first."""
    shapes = list(dict.fromkeys((run["sessions"], run["reactors"], run["cpus"])
                                for run in results.select("scaling")))
    if not shapes:
        return ["Not measured."]
    lines = ["Native front, 4 KiB random read, depth 32 in each session; all processes share the CPUs.", "",
             "| sessions | reactors | CPUs | IOPS together | CPU µs/IO | spread | IOPS × |",
             "|---:|---:|---:|---:|---:|---:|---:|"]
    base = None
    for shape in sorted(shapes, key=lambda shape: (shape[2], shape[1], shape[0])):
        what = dict(zip(("sessions", "reactors", "cpus"), shape))
        iops, cpu = (results.median("scaling", key, **what) for key in ("iops", "cpu_us"))
        base = base or iops
        lines.append(row(*map(str, shape), f"{iops:.0f}", f"{cpu:.2f}",
                         f"{results.spread('scaling', 'iops', **what):.0%}", f"{iops / base:.2f}"))
    return lines


def rounds(results, workload, placement):
    """The least of all chains."""
    runs = [len(results.select("runs", chain=chain, workload=workload, placement=placement))
            for chain in results.present("runs", "chain", CHAINS)]
    return min((count for count in runs if count > 0), default=0)


def report(results):
    data, settings = results.data, results.data["settings"]
    lines = [f"{data['began']}, {data['machine']}, state {data.get('state') or 'unknown'}. Medians of "
             f"interleaved rounds of {settings['seconds']} s, as many as each table says, on a file of "
             f"{settings['size']} MiB on tmpfs; nbdkit -t "
             f"{settings['threads'] or 16}; {settings['connections']} connection(s). Both ends "
             "of every block that nbdload read were checked. CPU is that of all processes, the client included; spread = (highest - "
             "lowest) / median of the IOPS; others = CPU that other programs used meanwhile (100 % = "
             "one CPU; above 10 % the run says little); × = ratio to `base`.", ""]
    lines += limit_lines(results)
    lines += ["### Goals", "", *goals.table(results), ""]
    for placement in results.present("runs", "placement", PLACES):
        for workload in results.present("runs", "workload", TITLES):
            if results.select("runs", workload=workload, placement=placement):
                lines += [f"### {TITLES[workload]}, {PLACES[placement]}", "",
                          f"{rounds(results, workload, placement)} rounds.", "",
                          *timed_table(results, workload, placement), ""]
    lines += ["### System calls and context switches per I/O", "", *calls_table(results), "",
              "### Memory", "", *(memory_lines(results) or ["Not measured."]),
              "### Sessions, reactors and CPUs", "", *scaling_lines(results), "",
              "### librtrs", "", *library_lines(results)]
    return "\n".join(lines).rstrip() + "\n"
