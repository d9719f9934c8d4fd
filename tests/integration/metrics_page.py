#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Reads metrics strictly: metrics_page.py PAGE [EXPRESSION].

Fails when the page breaks a rule of the text format. EXPRESSION is true of it, in Python:
value(NAME, LABEL=VALUE...) is a sample, families a dictionary from names to types.
With --names FILE... instead, tells which names of rnbd in these files no page has:
metrics_page.py --names FILE... -- PAGE...
"""
import math
import re
import sys

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')


class Bad(Exception):
    pass


def parse_labels(text, line):
    labels = {}
    while text:
        match = LABEL.match(text)
        if not match:
            raise Bad(f"labels: {line}")
        name, value = match.groups()
        if name in labels:
            raise Bad(f"label {name} twice: {line}")
        labels[name] = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)
        text = text[match.end():]
        if text:
            if not text.startswith(",") or text == ",":
                raise Bad(f"labels: {line}")
            text = text[1:]
    return labels


class Page:
    def __init__(self, text):
        self.families = {}
        self.samples = {}
        self.helped = None
        self.current = None
        if not text.endswith("\n"):
            raise Bad("the last line has no end")
        for line in text[:-1].split("\n"):
            self.take(line)
        self.check_histograms()

    def take(self, line):
        if line.startswith("# HELP "):
            self.helped, _, text = line[7:].partition(" ")
            if not text or self.helped in self.families:
                raise Bad(line)
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if name != self.helped or kind not in ("counter", "gauge", "histogram"):
                raise Bad(f"TYPE behind another HELP: {line}")
            if (kind == "counter") != name.endswith("_total") or not name.startswith("rnbd_"):
                raise Bad(f"a name that does not say what it is: {line}")
            self.families[name] = kind
            self.current = name
        else:
            self.take_sample(line)

    def take_sample(self, line):
        match = NAME.match(line)
        if not match or self.current is None:
            raise Bad(line)
        name, rest = match[0], line[match.end():]
        suffixes = ["_bucket", "_sum", "_count"] if self.families[self.current] == "histogram" else [""]
        if name not in [self.current + suffix for suffix in suffixes]:
            raise Bad(f"a sample of another family: {line}")
        labels = {}
        if rest.startswith("{"):
            end = rest.rindex("}")
            labels = parse_labels(rest[1:end], line)
            rest = rest[end + 1:]
        if not re.fullmatch(r" [0-9.e+-]+", rest):
            raise Bad(f"value: {line}")
        value = float(rest)
        key = (name, tuple(sorted(labels.items())))
        if key in self.samples or value < 0 or math.isnan(value):
            raise Bad(f"twice, or no number: {line}")
        self.samples[key] = value

    def check_histograms(self):
        series = {}
        for (name, labels), value in self.samples.items():
            if name.endswith("_bucket") and self.families.get(name[:-7]) == "histogram":
                rest = tuple(pair for pair in labels if pair[0] != "le")
                bound = dict(labels)["le"]
                series.setdefault((name[:-7], rest), []).append((float(bound.replace("+Inf", "inf")), value))
        for (name, labels), buckets in series.items():
            bounds = [bound for bound, _ in buckets]
            counts = [count for _, count in buckets]
            if bounds != sorted(set(bounds)) or counts != sorted(counts) or bounds[-1] != math.inf:
                raise Bad(f"buckets of {name}{labels}")
            if counts[-1] != self.samples[name + "_count", labels]:
                raise Bad(f"+Inf is not the count: {name}{labels}")
            if (name + "_sum", labels) not in self.samples:
                raise Bad(f"no sum: {name}{labels}")

    def value(self, name, **labels):
        return self.samples["rnbd_" + name, tuple(sorted(labels.items()))]

    def names(self):
        for name, kind in self.families.items():
            yield name
            if kind == "histogram":
                yield from (name + suffix for suffix in ("_bucket", "_sum", "_count"))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def main(arguments):
    if arguments[0] == "--names":
        at = arguments.index("--")
        known = {name for path in arguments[at + 1:] for name in Page(read(path)).names()}
        for path in arguments[1:at]:
            used = set(re.findall(r"\brnbd_[a-z0-9_]+", read(path)))
            if not used or used - known:
                sys.exit(f"{path}: not in any page: {sorted(used - known) or 'it uses none'}")
        return
    page = Page(read(arguments[0]))
    if len(arguments) > 1 and not eval(arguments[1], {"value": page.value, "families": page.families}):
        sys.exit(f"not so: {arguments[1]}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Bad as bad:
        sys.exit(f"{sys.argv[1:]}: {bad}")
