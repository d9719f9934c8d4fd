# SPDX-License-Identifier: BSD-3-Clause
"""Rules for the answers of reads: each unit of the disk is a register.

Every write has a value of its own. So the changes and reads of one value make a *group*: the change
comes first, then reads of it, and no other change between them. Group X is before group Y if a
request of X had ended when one of Y began. A write that failed may have been carried out; yet it is
before each change that began behind its end, because "no acknowledged write is lost or undone by a
retry". An order of all groups exists if and only if these rules make no circle.

A power cut ends an epoch. The unit then has a value that it had at some time since its last durable
change; it is the first value of the next epoch. A durable write that was under way at the cut, and was
answered later, may have been complete before it, with others behind it.
"""
import bisect
import dataclasses
import itertools
import math

import contents
import epochs

UNDONE = "No acknowledged write is lost or undone by a retry."
DURABLE = ("A flush that succeeds means that everything answered before it is on the storage. Where "
           "the server's machine restarted and unflushed writes may be gone, the next flush fails once.")
MOST_CHOICES = 4096  # a dozen durable writes of one unit, all under way at a cut
DAMAGE = "Damage on the way is found, and nothing wrong is carried out."


class Group:
    """A change of a unit in an epoch, with the reads of its value."""

    def __init__(self, change):
        self.change = change  # None: the value that the epoch begins with
        self.begin = change.begin if change else -math.inf
        self.first_end, self.first = math.inf, change  # of its requests: which had ended first
        self.last_begin, self.last = self.begin, change  # ... and which began last
        self.over = -math.inf  # it is before changes that begin later
        self.sure = False  # it was carried out in this epoch, as its answer says

    def add(self, begin, end, request):
        if end < self.first_end:
            self.first_end, self.first = end, request
        if begin > self.last_begin:
            self.last_begin, self.last = begin, request


class Unit:
    """The register of one unit."""

    def __init__(self, number, over, flushes):
        self.number, self.over, self.flushes = number, over, flushes
        self.changes, self.reads = [], []  # requests; (request, value)
        self.writes = {}  # by number
        self.trimmed = []  # by epoch: whether it may begin with a trimmed unit
        self.wrong = []  # what is found

    def say(self, text, promise):
        self.wrong.append(f"unit {self.number}: {text}. Promised: {promise}")

    def check(self, all_epochs):
        self.writes = {c.number: c for c in self.changes if c.kind == "write"}
        self.reads = [read for read in self.reads if self._known(*read)]
        unknown, found = self.wrong, None
        for ends in self._possible_ends(all_epochs):
            self.wrong = []
            self._check_orders(ends, all_epochs)
            if not self.wrong:
                return unknown
            found = found or self.wrong
        return unknown + found

    def _possible_ends(self, all_epochs):
        """When changes were complete, where that is not when they were answered. None: all were."""
        choices = []
        for change in self.changes:
            cuts = [epoch.stop for epoch in all_epochs
                    if change.ok and change.fua and change.begin < epoch.stop and change.end > epoch.over]
            if cuts:
                choices.append([(change.number, end) for end in (change.end, *cuts)])
        return map(dict, itertools.islice(itertools.product(*choices), MOST_CHOICES))

    def _check_orders(self, ends, all_epochs):
        answered, overs = self.changes, self.over
        self.changes = [dataclasses.replace(c, end=ends[c.number]) if c.number in ends else c
                        for c in answered]
        self.over = {**overs, **ends} if ends else overs
        self._find_trimmed(all_epochs)
        survivor = None  # (value, read): with which the next epoch began
        for epoch in reversed(all_epochs):
            survivor = self._check_epoch(epoch, survivor)
        if survivor and survivor[0] != contents.FIRST:
            self.say(f"{survivor[1].told()} shows data of request {survivor[0]}, which could not be there "
                     "any more", UNDONE)
        self.changes, self.over = answered, overs

    # ---- Values that no order explains

    def _known(self, read, value):
        """True if a request made the value before the end of the read. Torn ones are judged here."""
        if isinstance(value, str) and value.startswith("torn: "):
            parts = [int(part) for part in value.removeprefix("torn: ").split()]
            made = [self.writes.get(part) for part in parts if part >= contents.FIRST_WRITE]
            # Storage may carry out a read in the midst of a write.
            if None in made or all(c.ok and c.end < read.begin for c in made):
                self.say(f"{read.told()} shows {value}, and no such write was under way", UNDONE)
            return False
        if isinstance(value, str):
            self.say(f"{read.told()} shows {value}", DAMAGE)
            return False
        if value < contents.FIRST_WRITE:
            return True
        change = self.writes.get(value)
        if change is None:
            self.say(f"{read.told()} shows data of request {value}, which was no write of this unit", DAMAGE)
            return False
        if read.end < change.begin:
            self.say(f"{read.told()} shows data of {change.told()}", DAMAGE)
            return False
        return True

    # ---- Orders

    def _find_trimmed(self, all_epochs):
        """Epochs may begin with a unit that is trimmed: it shows anything that was there."""
        self.trimmed = [False]
        for epoch in all_epochs:
            durable = max((c.begin for c in self.changes if c.kind != "trim" and epoch.must_have(c) and
                           self.flushes.durable(c, epoch)), default=-math.inf)
            self.trimmed.append(
                (self.trimmed[-1] and durable == -math.inf) or
                any(c.kind == "trim" and epoch.may_have(c, self.over[c.number]) and
                    self.over[c.number] >= durable for c in self.changes))

    def _check_epoch(self, epoch, survivor):
        """Returns the value that the epoch had to begin with, and a read that says so."""
        groups, erasures = {}, []
        for change in self.changes:
            over = self.over[change.number]
            if not epoch.may_have(change, over):
                continue
            groups[change.number] = group = Group(change)
            group.over = over
            if epoch.must_have(change):
                group.sure = True
                group.add(change.begin, change.end, change)
            if change.kind != "write":
                erasures.append(change)
        first = Group(None)
        first.first_end = -math.inf
        began_with = {}  # value -> a read that shows it
        answered = Answered(g for g in groups.values() if epoch.must_have(g.change))
        trims = [change for change in erasures if change.kind == "trim"]

        for read, value in self.reads:
            if not epoch.has_read(read):
                continue
            if any(t.begin < read.end and not answered.between(self.over[t.number], read) for t in trims):
                continue  # trimmed units may show anything that was there, or zeroes
            if self.trimmed[epoch.number] and not answered.before(read):
                continue
            if value == contents.ZEROES:
                value = self._who_zeroed(read, erasures, answered, epoch)
                if value is None:
                    continue
            if value in groups:
                groups[value].add(read.begin, read.end, read)
            else:
                first.add(read.begin, read.end, read)
                began_with.setdefault(value, read)

        seen = [g for g in groups.values() if g.first_end < math.inf]
        last = None
        if survivor:
            value, read = survivor
            if value in groups:
                last = groups[value]
                if last not in seen:
                    seen.append(last)
            else:
                last = first
                began_with.setdefault(value, read)
        seen.append(first)
        self._two_ways(seen)
        self._late(seen)
        if last and not self.trimmed[epoch.number + 1]:
            self._survives(last, seen, epoch, survivor[1])
        if self.trimmed[epoch.number]:
            return None
        if len(began_with) > 1:
            (one, by_one), (other, by_other) = list(began_with.items())[:2]
            self.say(f"{by_one.told()} shows data of request {one}, and {by_other.told()} data of request "
                     f"{other}, both from before", UNDONE)
        return next(iter(began_with.items()), None)

    def _who_zeroed(self, read, erasures, answered, epoch):
        """The number of the request that must have made these zeroes; None if it is not certain."""
        possible = [e for e in erasures
                    if e.begin < read.end and not answered.between(self.over[e.number], read)]
        earlier = epoch.number > 0 and any(c.kind != "write" and c.begin < epoch.last_stop
                                           for c in self.changes)
        earlier = earlier and not answered.before(read)
        if not possible and not earlier:
            self.say(f"{read.told()} shows zeroes, and no request can have made them", UNDONE)
        return possible[0].number if len(possible) == 1 and not earlier else None

    def _two_ways(self, groups):
        """Two groups of which each is before the other one."""
        newest = None
        for group in sorted(groups, key=lambda g: g.first_end):
            if newest and newest.first_end < group.last_begin and group.first_end < newest.last_begin:
                self._say_two_ways(newest, group)
                return
            if newest is None or group.last_begin > newest.last_begin:
                newest = group

    def _say_two_ways(self, one, other):
        if other.change is None or (one.change and one.last.is_change):
            one, other = other, one
        self.say(f"{one.last.told()} shows {name(one)} after {other.first.told()} stood for "
                 f"{name(other)}" + (f", and {one.first.told()} was earlier than that" if one.first else ""),
                 UNDONE)

    def _late(self, groups):
        """A write that failed, and was carried out when a newer one had been begun."""
        for group in groups:
            change = group.change
            if change is None or group.sure or group.over == math.inf or group.first_end == math.inf:
                continue
            behind = [g for g in groups if g is not group and g.begin > group.over]
            reached = reach(behind, groups)
            if group in reached:
                newer = min(behind, key=lambda g: g.begin)
                self.say(f"{group.last.told()} shows {change.told()}, although {newer.change.told()} began "
                         "when that was over", UNDONE)
                return

    def _survives(self, group, groups, epoch, read):
        """Old data are there behind a power cut, although newer ones were durable."""
        for later in reach([group], groups) - {group}:
            by = later.change and self.flushes.durable(later.change, epoch)
            if by:
                self.say(f"{read.told()} shows {name(group)} after the power cut at {epoch.stop:.3f} s, "
                         f"although {later.change.told()} is newer, and durable by {by.told()}", DURABLE)
                return


def name(group):
    if group.change is None:
        return "what was there before"
    return f"data of request {group.change.number}"


def reach(some, groups):
    """These groups, and all that must be behind one of them."""
    reached = set(some)
    while True:
        end = min((g.first_end for g in reached), default=math.inf)
        over = min((g.over for g in reached if g.change), default=math.inf)
        more = {g for g in groups if g not in reached and (g.last_begin > end or g.begin > over)}
        if not more:
            return reached
        reached |= more


class Answered:
    """Changes that were answered, by their ends: quick to ask for the newest one."""

    def __init__(self, groups):
        pairs = sorted((g.change.end, g.change.begin) for g in groups)
        self.ends = [end for end, _ in pairs]
        self.newest = []  # the latest begin of those until here
        for _, begin in pairs:
            self.newest.append(max(begin, self.newest[-1] if self.newest else -math.inf))

    def before(self, read):
        """True if one had ended when the read began."""
        return bool(self.ends) and self.ends[0] < read.begin

    def between(self, over, read):
        """True if one began behind `over`, and had ended when the read began."""
        at = bisect.bisect_left(self.ends, read.begin)
        return at > 0 and self.newest[at - 1] > over


def check(history):
    """Sentences about reads that the promise does not allow."""
    over, flushes, units = epochs.overs(history), epochs.Flushes(history), {}

    def unit(number):
        if number not in units:
            units[number] = Unit(number, over, flushes)
        return units[number]

    for request in history.requests:
        if request.is_change:
            for number in range(request.first, request.first + request.count):
                unit(number).changes.append(request)
        elif request.kind == "read" and request.ok:
            for number, value in request.values():
                unit(number).reads.append((request, value))
    all_epochs = epochs.of(history)
    return [text for number in sorted(units) for text in units[number].check(all_epochs)]
