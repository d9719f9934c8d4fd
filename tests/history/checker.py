# SPDX-License-Identifier: BSD-3-Clause
"""The judge of a history: docs/promise.md allows it or not. Nothing else of the product is known here.

A rule is a function of the history; each sentence that it returns names requests, times and the
promise that is broken. What a rule cannot know is taken as kept.
"""
import collections
import math

import record
import registers

BACK_IN_USE = 3.0  # seconds: "a lost path returns: in use within 3 s"
PATH_DIES = 3.5  # "a path dies, another one works: requests wait at most 3.5 s"
LEAVES = 5.0  # "SIGTERM: either program leaves within 5 s"
BLOCK = 8  # sectors: the largest block of storage here
NOT_ERRORS = (None, "ok", "lost", "left")


def face(request):
    return request.opening.split("/")[0]


def over(history):
    """The time at which the record ends."""
    return max((line.end or line.begin for line in history.requests + history.events), default=0)


def covered(begin, end, spans):
    """Seconds of begin..end that lie in one of the spans."""
    total, at = 0.0, begin
    for one, other in sorted(spans):
        one, other = max(one, at), min(other, end)
        if other > one:
            total += other - one
            at = other
    return total


def spans(events, more=0.0):
    return [(e.begin, (math.inf if e.end is None else e.end) + more) for e in events]


def waits(history):
    """Requests wait for outages, and not for anything else."""
    slack, patience, last = history.world.slack, history.world.no_path_timeout, over(history)
    out = spans(history.of("outage") + history.of("cut"), BACK_IN_USE)
    for request in history.requests:
        end = last if request.end is None else request.end
        if end - request.begin < PATH_DIES + slack:
            continue
        still = spans([e for e in history.of("standstill") if e.subject == face(request)])
        wait = end - request.begin - covered(request.begin, end, out + still)
        if wait > PATH_DIES + slack:
            yield (f"{request.told()} waited {wait:.1f} s longer than anything was out of order. "
                   "Promised: a path dies, another one works: requests wait at most 3.5 s; a lost path "
                   "returns: in use within 3 s.")
        elif patience and (end - request.begin - covered(request.begin, end, still) >
                           patience + PATH_DIES + BACK_IN_USE + slack):
            yield (f"{request.told()} waited longer than no-path-timeout, {patience:g} s. Promised: no path "
                   "works: requests wait, then fail.")


def errors(history):
    """A request fails for a reason that the page names, or not at all."""
    patience, slack = history.world.no_path_timeout, history.world.slack
    contests = history.of("contest")
    told = collections.defaultdict(list)  # of a client: flushes that failed behind a cut
    for request in sorted(history.requests, key=lambda r: r.end or math.inf):
        if request.answer in NOT_ERRORS:
            continue
        if any(request.end > c.begin and
               (c.subject == face(request) or request.begin < (c.end or math.inf) + slack) for c in contests):
            continue  # "A client that was cut off while another one wrote gets EIO."
        if any(e.subject == face(request) and e.asked and e.begin <= request.end and
               request.begin <= (e.end or math.inf) for e in history.of("end")):
            continue  # "A restart of rnbd-bridge or nbdkit ends its NBD connections"
        if patience and any(o.begin <= request.end - 0.9 * patience and
                            request.begin <= (o.end or math.inf) + BACK_IN_USE + slack
                            for o in history.of("outage") + history.of("cut")):
            continue  # "no path worked for no-path-timeout"
        if request.kind == "flush":
            cuts = [cut for cut in history.of("cut") if cut.begin < request.end]
            before = [f for f in told[request.opening, request.client] if cuts and f.begin >= cuts[-1].begin]
            told[request.opening, request.client].append(request)
            if cuts and all(request.begin < f.end for f in before):
                continue  # "the next flush fails once"
        yield (f"{request.told()} failed, and nothing explains it. Promised: an outage that is shorter than "
               "no-path-timeout is waiting, no error; where the server's machine restarted, the next flush "
               "fails once.")


def connections(history):
    """A face hangs up only when it ends."""
    ends = collections.defaultdict(list)
    for event in history.of("end"):
        ends[event.subject].append(event)
    for request in history.requests:
        if request.answer == "lost" and not any(e.begin <= request.end + 1 for e in ends[face(request)]):
            yield (f"{request.told()} lost its connection, and {face(request)} had not been ended. Promised: "
                   "an error of one request ends neither the session nor other devices.")


def programs(history):
    """Programs end when they are told to, and soon."""
    for event in history.of("end"):
        if not event.asked:
            yield (f"{event.subject} ended by itself at {event.begin:.3f} s with status {event.status}: "
                   f"{event.text}. Promised: a peer that breaks the protocol loses its path.")
        elif event.asked == "SIGTERM":
            took = math.inf if event.end is None else event.end - event.begin
            if took > LEAVES + history.world.slack:
                yield (f"{event.subject} needed {took:.1f} s to leave. Promised: SIGTERM: either program "
                       "leaves within 5 s.")
            elif event.status:
                yield f"{event.subject} left with status {event.status} after SIGTERM: {event.text}"


def has_a_block(request, sectors):
    """A trim of no whole block changes nothing, so no server is asked."""
    return request.count >= 2 * BLOCK - 1 and request.first + request.count <= sectors


def writers(history):
    """A device has one writer at a time."""
    changes = collections.defaultdict(list)
    for request in history.requests:
        if not request.is_change or not request.ok or face(request) == record.NOBODY:
            continue
        if request.kind != "trim" or has_a_block(request, history.world.sectors):
            changes[request.opening].append(request)
    for one, of_one in changes.items():
        first, last = min(of_one, key=lambda r: r.end), max(of_one, key=lambda r: r.begin)
        for other, of_other in changes.items():
            if other.split("/")[0] == one.split("/")[0]:
                continue  # its connections share the device
            between = [r for r in of_other if first.end < r.begin and r.end < last.begin]
            if between:
                yield (f"{between[0].told()} was answered between {first.told()} and {last.told()}, of "
                       "another opening. Promised: a device has one writer at a time.")


def check(history, most=20):
    """Sentences that say what is not as promised; none if all is."""
    found = list(registers.check(history))
    for rule in (waits, errors, connections, programs, writers):
        found += rule(history)
    return found[:most] + ([f"... and {len(found) - most} more"] if len(found) > most else [])
