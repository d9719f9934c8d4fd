# SPDX-License-Identifier: BSD-3-Clause
"""The figures of a measurement, which may go on in a later run: kept as JSON."""
import json
import os
import pathlib
import re
import statistics
import subprocess
import time


def machine():
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text("utf-8"))

    def version(command):
        said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
        return (said.stdout.split("\n")[0] or command).strip()

    return (f"{os.cpu_count()} × {cpu.group(1) if cpu else 'unknown CPU'}, Linux "
            f"{os.uname().release}, {version('nbdkit')}, {version('fio')}")


def state():
    """The commit that was measured; empty outside of a repository."""
    here = pathlib.Path(__file__).parent
    said = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"],
                          capture_output=True, text=True, check=False)
    return said.stdout.strip()


class Results:
    def __init__(self, settings):
        self.data = {"state": state(), "began": time.strftime("%Y-%m-%d %H:%M"), "machine": machine(),
                     "settings": settings, "limits": [], "runs": [], "calls": [], "memory": [],
                     "scaling": []}

    @classmethod
    def load(cls, path, settings=None):
        """What a file has; with `settings` it must have been measured with the same, here and now."""
        results = cls({})
        results.data = json.loads(pathlib.Path(path).read_text("utf-8"))
        if settings is not None and results.data["settings"] != settings:
            raise SystemExit(f"{path} was measured with {results.data['settings']}, which is not "
                             f"{settings}: do not mix them")
        if settings is not None and (results.data["state"], results.data["machine"]) != (state(), machine()):
            raise SystemExit(f"{path} is of {results.data['state']} on {results.data['machine']}, and this is "
                             f"{state()} on {machine()}: do not mix them, name another file")
        return results

    def save(self, path):
        pathlib.Path(path).write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")

    def add(self, kind, figures, **what):
        self.data.setdefault(kind, []).append(what | figures)

    def select(self, kind, **what):
        return [entry for entry in self.data.get(kind, [])
                if all(entry[key] == value for key, value in what.items())]

    def present(self, kind, key, order):
        """Those values of `order` that were measured, in that order."""
        there = {entry[key] for entry in self.data[kind]}
        return [value for value in order if value in there]

    def median(self, kind, figure, **what):
        """None when it was not measured."""
        values = [entry[figure] for entry in self.select(kind, **what) if figure in entry]
        return statistics.median(values) if values else None

    def spread(self, kind, figure, **what):
        """(highest - lowest) / median."""
        values = [entry[figure] for entry in self.select(kind, **what)]
        return (max(values) - min(values)) / statistics.median(values)

    def ratios(self, figure, chain, other, **what):
        """Round by round."""
        pairs = zip(self.select("runs", chain=chain, **what), self.select("runs", chain=other, **what))
        return [mine[figure] / others[figure] for mine, others in pairs if figure in mine and figure in others]

    def ratio(self, figure, chain, other, **what):
        """Of the medians of two chains; None when one was not measured."""
        value = self.median("runs", figure, chain=chain, **what)
        base = self.median("runs", figure, chain=other, **what)
        return None if value is None or not base else value / base
