#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""Compares the checker with a search through all orders: checker_test.py [ROUNDS]

SEED=N draws other histories.
"""
import os
import random
import sys

import cases
import checker
import orders
import record
import registers

# The same histories each time: how long the search takes depends on them.
SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3000


def moments(dice, begin, end):
    """Two times of which the first is the earlier one. All times of a history differ."""
    return sorted(dice.uniform(begin, end) for _ in range(2))


def small(dice, kinds, cuts, writers=2):
    """A history of one unit: requests at random times, whose answers are likely to be right."""
    history = record.History(record.World())
    span = 10.0
    for number in range(cuts):
        begin = dice.uniform(2, 8)
        history.events.append(record.Event("cut", "storage", begin, begin + dice.uniform(0.1, 0.5)))
        if number and abs(history.events[0].begin - begin) < 1:
            history.events.pop()
    if dice.random() < 0.2:
        history.events.append(record.Event("standstill", "face", *moments(dice, 0, span)))
    values = [1]
    for number in range(2, 2 + dice.randrange(3, 8)):
        kind = dice.choice(kinds)
        begin = dice.uniform(0, span)
        end = begin + dice.choice((0.5, 2, 4)) * dice.random()
        request = record.Request(number, f"client {number % 3}", f"face/{dice.randrange(writers)}", kind,
                                 0, 0 if kind == "flush" else 1, dice.random() < 0.3, begin, end, "ok")
        if kind != "read" and dice.random() < 0.4:
            request.answer = dice.choice(("EIO", "lost", "left", None))
            if request.answer is None:
                request.end = None
        if kind == "write":
            values.append(number)
        if kind == "zero":
            values.append(0)
        # Nobody answers while there is no power.
        if not any(cut.begin <= begin and end <= cut.end for cut in history.of("cut")):
            history.requests.append(request)
    history.requests.sort(key=lambda request: request.begin)
    for request in history.requests:
        if request.kind == "read":
            # Most often what was written last.
            before = [w.number for w in history.requests if w.kind == "write" and w.begin < request.end]
            value = before[-1] if before and dice.random() < 0.6 else dice.choice(values)
            request.seen = [[1, value]]
    return history


def compare(name, exact, kinds, cuts=0):
    """As many histories with a verdict of each kind as there are, judged by both."""
    dice = random.Random(f"{SEED} {name}")
    said = {True: 0, False: 0}
    missed = 0
    for number in range(ROUNDS):
        history = small(dice, kinds, dice.randrange(cuts + 1))
        found = registers.check(history)
        right = orders.possible(history)
        said[right] += 1
        if right and found:
            raise cases.Failed(f"history {number}: the checker says {found[0]}, but an order explains it: "
                               f"{[r.told() + str(r.seen or '') for r in history.requests]} "
                               f"{history.events}")
        if not right and not found:
            missed += 1
            if exact:
                raise cases.Failed(f"history {number}: no order explains it, and the checker says nothing: "
                                   f"{[r.told() + str(r.seen or '') for r in history.requests]} "
                                   f"{history.events}")
    if min(said.values()) < ROUNDS / 20:
        raise cases.Failed(f"one-sided histories: {said}")
    if missed > said[False] / 4:
        raise cases.Failed(f"the checker misses {missed} of {said[False]}")
    return f"{said[True]} can be explained, {said[False]} cannot" + (f", {missed} missed" if missed else "")


def two_writers(kind, count):
    """The middle one of three changes is another opening's."""
    history = record.History(record.World("single", 0, 64, 0, 0))
    for number, opening in enumerate(("face0/1", "face1/1", "face0/1")):
        request = record.Request(number, "client", opening, "write" if opening != "face1/1" else kind, 0,
                                 count, False)
        request.begin, request.end, request.answer = number, number + 0.5, "ok"
        history.requests.append(request)
    return list(checker.writers(history))


def trims():
    """A face need not ask its server."""
    if not two_writers("write", 1) or not two_writers("trim", 16):
        raise cases.Failed("a second writer is not found")
    if two_writers("trim", 8):
        raise cases.Failed("a trim of no whole block is taken for a change")


def main():
    run = cases.Cases()
    run.it("a second writer is found, and a trim that changes nothing is none", trims)
    run.it("writes and reads are judged as a search through all orders does",
           compare, "plain", True, ("write", "write", "read", "read"))
    run.it("so are power cuts, flushes and FUA",
           compare, "cuts", True, ("write", "write", "read", "read", "flush"), 2)
    run.it("with zeroes no right history is called wrong, and few wrong ones right",
           compare, "zeroes", False, ("write", "write", "zero", "read", "read", "read", "flush"), 1)
    run.it("nor with trims",
           compare, "trims", False, ("write", "write", "trim", "read", "read", "read", "flush"), 2)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
