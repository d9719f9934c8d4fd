# SPDX-License-Identifier: BSD-3-Clause
"""Epochs, the times between power cuts: what may be carried out in them, and what outlives them."""
import bisect
import collections
import math

HANG_UP = 1.0  # seconds in which a face surely reads what a client had sent before it hung up


def overs(history):
    """By number of a change: until when it may be carried out."""
    stills = collections.defaultdict(list)
    for event in history.of("standstill"):
        stills[event.subject].append(event)
    found = {}
    for request in history.requests:
        if not request.is_change:
            continue
        over = math.inf if request.end is None else request.end
        if request.answer == "left":
            over += HANG_UP
            # A face that stands still reads it when it goes on.
            for event in stills[request.opening.split("/")[0]]:
                if event.begin < over and (event.end is None or event.end > request.begin):
                    over = math.inf
        found[request.number] = over
    return found


class Epoch:
    """The time between two power cuts. `start` and `over`: its programs run; `stop`: they died."""

    def __init__(self, number, start, last_stop, stop, over):
        self.number, self.start, self.last_stop, self.stop, self.over = number, start, last_stop, stop, over

    def has_read(self, read):
        return read.begin >= self.last_stop and read.end <= self.over

    def may_have(self, change, over):
        return change.begin < self.stop and over > self.start

    def must_have(self, change):
        # A write that was under way at a cut may have been carried out before it, and be lost.
        return (change.ok and self.start < change.end <= self.over and
                (change.begin >= self.last_stop or change.fua))


def of(history):
    """All epochs, the oldest first."""
    cuts = sorted(history.of("cut"), key=lambda cut: cut.begin)
    starts = [-math.inf] + [cut.end if cut.end is not None else math.inf for cut in cuts]
    stops = [cut.begin for cut in cuts] + [math.inf]
    return [Epoch(k, starts[k], stops[k - 1] if k else -math.inf, stops[k], starts[k + 1] if k < len(cuts)
                  else math.inf) for k in range(len(stops))]


class Flushes:
    """Flushes, and the changes that had to outlive a power cut because of them."""

    def __init__(self, history):
        flushes = [r for r in history.requests if r.kind == "flush" and r.end is not None]
        self.good = sorted((f for f in flushes if f.ok), key=lambda f: f.begin)
        self.begins = [f.begin for f in self.good]
        self.bad = [f for f in flushes if not f.ok and f.answer not in ("lost", "left")]

    def durable(self, change, epoch):
        """The request that promised it, or None."""
        if not change.ok or change.end > epoch.over:
            return None
        if change.fua:
            return change
        for flush in self.good[bisect.bisect_right(self.begins, change.end):]:
            if flush.end <= epoch.over:
                return flush
            # Behind the cut it had to fail, if no flush had told its users already.
            if flush.opening == change.opening and not any(
                    told.opening == flush.opening and told.end >= epoch.over and told.begin < flush.end
                    for told in self.bad):
                return flush
        return None
