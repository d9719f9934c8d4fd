#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Random reloads of a running rnbd-server, whose export `stay` must stay.

  reload_dice.py DIRECTORY ROUNDS SEED RNBD-CTL...
      DIRECTORY has the file `conf`, the socket `control`, and the storage `stay` and `other-N`. After each
      reload the server has the exports and limits of the file; after one of a bad file those from before.
"""
import json
import random
import subprocess
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
ROUNDS, SEED = int(sys.argv[2]), int(sys.argv[3])
CTL = sys.argv[4:]
DICE = random.Random(SEED)
MISTAKES = ["nonsense", "colour = 1", "iops-limit = 0", "[export.stay]", 'description = "no end',
            '[export.late]\npath = "/nowhere/at/all"', "[export.none]", "rw = []"]


def ask(*words):
    done = subprocess.run([*CTL, "--json", str(FOLDER / "control"), *words], timeout=60, check=False,
                          stdout=subprocess.PIPE, text=True)
    return done.returncode, json.loads(done.stdout)


def limits():
    iops = DICE.choice([None, None, 200, 5000, 100000])
    bandwidth = DICE.choice([None, None, 4 << 20, 1 << 30])
    lines = [] if iops is None else [f"iops-limit = {iops}"]
    lines += [] if bandwidth is None else [f"bandwidth-limit = {bandwidth}"]
    return (iops, bandwidth), lines


def random_file():
    """The text, and its exports with their limits."""
    lines = ["[server]", f'control = "{FOLDER}/control"']
    if DICE.random() < 0.3:
        lines.append(f"session-iops-limit = {DICE.choice([1000, 100000])}")
    wanted, more = limits()
    exports = {"stay": wanted}
    lines += ["[export.stay]", f'path = "{FOLDER}/stay"', *more]
    if DICE.random() < 0.5:
        lines.append(f'description = "number {DICE.randrange(100)}"')
    for name in DICE.sample(["a", "b", "c", "d", "e", "f"], DICE.randrange(7)):
        storage = DICE.choice(["memory:1M", "null:1M", f"{FOLDER}/other-1", f"{FOLDER}/other-2"])
        wanted, more = limits()
        exports[name] = wanted
        lines += [f"[export.{name}]", f'storage = "{storage}"', *more]
    return "\n".join(lines) + "\n", exports


def present():
    rc, status = ask("status")
    assert rc == 0, status
    return {each["export"]: (each["iops_limit"], each["bandwidth_limit"]) for each in status["exports"]}


def main():
    before = present()
    done = {"good": 0, "bad": 0, "checked": 0}
    print("seed", SEED)
    for number in range(ROUNDS):
        text, exports = random_file()
        kind = DICE.choices(["good", "bad", "checked"], [7, 2, 1])[0]
        if kind == "bad":
            text += DICE.choice(MISTAKES) + "\n"
        (FOLDER / "conf").write_text(text, encoding="utf-8")
        rc, answer = ask("reload", *(["--check"] if kind == "checked" else []))
        where = f"reload {number} ({kind}): {answer}\n{text}"
        assert (rc == 0) == (kind != "bad"), where
        now = present()
        assert now == (exports if kind == "good" else before), f"{where}\n{now}"
        before = now
        done[kind] += 1
    print(done)


main()
