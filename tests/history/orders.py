# SPDX-License-Identifier: BSD-3-Clause
"""A search through all orders that may explain the reads of one unit.

It knows the same promises as registers.py and shares nothing with it but the record. It takes
exponential time, so it is for histories of some requests.
"""
import math

FIRST, ANYTHING = 1, "anything"


def over(history, change):
    """The time until which a change may be carried out."""
    if change.end is None:
        return math.inf
    if change.answer != "left":
        return change.end
    face, late = change.opening.split("/")[0], change.end + 1
    for still in history.of("standstill"):
        if still.subject == face and still.begin < late and (still.end or math.inf) > change.begin:
            return math.inf
    return late


def promised(history, change, cut):
    """True if a change had to outlive the cut that came after it."""
    if change.answer != "ok" or change.end > cut.end:
        return False
    if change.fua:
        return True
    for flush in history.requests:
        if flush.kind != "flush" or flush.answer != "ok" or flush.begin <= change.end:
            continue
        told = [t for t in history.requests if t.kind == "flush" and t.opening == flush.opening and
                t.answer not in (None, "ok", "lost", "left") and t.end >= cut.end and t.begin < flush.end]
        if flush.end <= cut.end or (flush.opening == change.opening and not told):
            return True
    return False


def possible(history, unit=0):
    """True if an order of all requests, with changes that failed left out or in, explains all."""
    requests = [r for r in history.requests
                if r.is_change or (r.kind == "read" and r.answer == "ok")]
    begin = {r.number: r.begin for r in requests}
    begin[0] = begin[FIRST] = -math.inf
    if any(begin.get(value, math.inf) > r.end for r in requests if r.kind == "read"
           for _, value in r.values()):
        return False
    cuts = sorted(history.of("cut"), key=lambda cut: cut.begin)
    late = {r.number: over(history, r) for r in requests if r.is_change}
    end = {r.number: late.get(r.number, r.end) for r in requests}
    dead = set()  # states from which there is no way

    def step(done, era, now, since):
        """done: requests; now: the value; since: the values since the last durable change."""
        state = (done, era, now, since)
        if state in dead:
            return False
        start = cuts[era - 1].end if era else -math.inf
        old = cuts[era - 1].begin if era else -math.inf
        stop, limit = (cuts[era].begin, cuts[era].end) if era < len(cuts) else (math.inf, math.inf)
        done_now = {number for number, when in done if when == era}
        ever = {number for number, _ in done}

        def due(request):
            """Nothing that begins behind it may come before it."""
            if request.is_change:
                return (request.answer == "ok" and start < request.end <= limit and
                        (request.begin >= old or request.fua))
            return request.begin >= old and request.end <= limit

        waiting = [r for r in requests
                   if r.number not in (done_now if r.is_change else ever) and due(r)]
        if not waiting:
            if era == len(cuts):
                return True
            for value in since:
                # A write that survives is not carried out again.
                kept = {(value, era + 1)} if value in late else set()
                if step(done | kept, era + 1, value, frozenset([value])):
                    return True
        for request in requests:
            if request.number in done_now or any(w is not request and end[w.number] < request.begin
                                                 for w in waiting):
                continue
            if not request.is_change:
                value = dict(request.values())[unit]
                shown = now == value or (now == ANYTHING and (value in (0, FIRST) or value in ever))
                if request.number not in ever and due(request) and shown:
                    if step(done | {(request.number, era)}, era, now, since):
                        return True
                continue
            if request.begin >= stop or late[request.number] <= start:
                continue
            if any(r.is_change and r.number in done_now and r.begin > late[request.number]
                   for r in requests):
                continue
            value = {"write": request.number, "zero": 0, "trim": ANYTHING}[request.kind]
            durable = era < len(cuts) and promised(history, request, cuts[era])
            then = frozenset([value]) if durable else since | {value}
            if step(done | {(request.number, era)}, era, value, then):
                return True
            # Durable before the cut, though its answer came later, so that it is not repeated.
            if request.answer == "ok" and request.fua and request.end > limit:
                whole = {(request.number, when) for when in range(era, len(cuts) + 1)}
                if step(done | whole, era, value, frozenset([value])):
                    return True
        dead.add(state)
        return False

    return step(frozenset(), 0, FIRST, frozenset([FIRST]))
