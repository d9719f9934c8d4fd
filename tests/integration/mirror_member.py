#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A client of one member of a mirror group, byte by byte.

Usage: mirror_member.py PORT STEP

`first` claims the export "disk0" as member 1 of three, records a view without member 2, writes, and
is refused where it must be. `again` finds all of that after the server's end. `silent` and `many` copy
from servers that do not answer. `plain` and `terms` want what a client of a mirror must not have. `older`
is a client of the version that did not tell disks apart, and `disks` takes the member for another one.
`forced` is of another group. `votes` claims a disk and a vote, as clients do that know votes, and as others do.
`stranger` and `stranger_first` claim the vote of a mirror of which they know the UUID only.
"""
import errno
import os
import struct
import sys
import time
import uuid

import hostile_peer
from raw_peer import FLUSH, MIGRATION, RO, RW, USER_MESSAGES, Session

CLAIMS, MIRROR, DISKS, VOTES = 1 << 17, 1 << 18, 1 << 20, 1 << 21
GROUP, SIZE = b"group-of-disks..", 8 << 20
COPY = 0x20000000
LOST_POWER, REFUSED = 1, 4


class Member:
    def __init__(self, port, claimant, name=b"disk0", unclaimed=False, mode=RW, disks=DISKS):
        self.session = Session(port, features=USER_MESSAGES | CLAIMS | MIRROR | disks)
        assert self.session.answer["features"] & MIRROR, "the server knows no mirror groups"
        self.device, _ = self.session.open(name, mode, 2 if unclaimed else 0)
        self.claimant = claimant.ljust(16, b".")
        self.disk = 0

    def claim(self, term, member=1, members=3, group=GROUP, size=SIZE, room=464, kind=0, named=()):
        message = struct.pack("<HHI16s16sQBBBB4xQ", 0x8021, 0, self.device, group, self.claimant,
                              term, member, members, 20, kind, size)
        if kind == 1:
            message += struct.pack("<Q", 0)  # base
            message += b"".join(struct.pack("<Q", disk) for disk in named).ljust(15 * 8, b"\0")
        error, answer = self.session.call(message, room)
        if error:
            return error
        names = ("type", "member", "members", "shift", "flags", "promised", "claimant", "term",
                 "seq", "set", "confirmed_term", "confirmed_seq", "confirmed_set", "active", "beat",
                 "disk")
        fields = dict(zip(names, struct.unpack_from("<HxxBBBBQ16sQIHxxQIHxxIIQ", answer)))
        assert fields["type"] == 0x8022, fields
        fields["pedigree"] = [struct.unpack_from("<QQII", answer, 80 + 24 * k) for k in range(16)]
        self.disk = fields["disk"]
        return fields

    def view(self, term, seq, members, confirmed, data=None, disk=None, disks=None):
        if data is None:
            disks = disks or (100, self.disk if disk is None else disk, 102)
            data = b"".join(struct.pack("<QQII", number, 0, 0, 0) for number in disks)
            data = data.ljust(16 * 24, b"\0")
        message = struct.pack("<HHIQIHHQIHH", 0x8023, 0, self.device, term, seq, members, 0,
                              *confirmed, 0)
        return self.session.call(message, None, data)[0]

    def confirm(self, term, seq, members):
        return self.session.call(
            struct.pack("<HHIQIHH", 0x8025, 0, self.device, term, seq, members, 0))[0]

    def cool(self, term, runs, seq=0, beat=0, known=0):
        data = struct.pack("<HHIII", 0x8028, 0, SIZE >> 20, SIZE >> 20, len(runs))
        data += b"".join(struct.pack("<II", *run) for run in runs)
        message = struct.pack("<HHIQIII4x", 0x8029, 0, self.device, term, seq, beat, known)
        return self.session.call(message, None, data)[0]

    def regions(self, which):
        """The runs of a map, or an errno."""
        error, answer = self.session.call(
            struct.pack("<HHIII", 0x8027, 0, self.device, which, 0), 4096)
        if error:
            return error
        kind, regions, end, count = struct.unpack_from("<HxxIII", answer)
        assert (kind, regions, end) == (0x8028, SIZE >> 20, SIZE >> 20), (kind, regions, end)
        return [struct.unpack_from("<II", answer, 16 + 8 * i) for i in range(count)]

    def start_pull(self, uri, buffer=0):
        self.session.start_write(struct.pack("<HHIQQQ", 0x802B, 0, self.device, 0, 1 << 20, 100),
                                 uri.encode(), buffer)

    def guest(self, host):
        """What a server that copies from the member says for the client of `host`."""
        message = struct.pack("<HHI16s16sQ", 0x802D, 0, self.device, GROUP, host.claimant, host.disk)
        return self.session.call(message, 8)[0]

    def pull(self, uri):
        self.start_pull(uri)
        return self.session.answer_of()[0]

    def write(self, region, byte, flags=0):
        return self.session.write(self.device, region * 2048, byte * 4096, flags)[0]

    def read(self, region):
        error, data = self.session.read(self.device, region * 2048, 4096)
        return data[:1] if error == 0 else error

    def flush(self):
        return self.session.call(self.session.io(self.device, FLUSH))[0]


def soon(port, claimant):
    """A client that tries until the one before has gone, with its requests."""
    for _ in range(20):
        try:
            return Member(port, claimant)
        except PermissionError:  # after a second
            pass
    sys.exit("the client before does not go")


def expect(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, not {wanted!r}")


def first(port):
    member = Member(port, b"first client")
    expect(member.claim(5, size=1 << 40), errno.EINVAL, "a claim of a larger disk")
    expect(member.write(0, b"p"), 0, "a write before the first claim")
    claimed = member.claim(5)
    expect((claimed["promised"], claimed["flags"], claimed["active"], claimed["set"]),
           (5, LOST_POWER, 8, 7), "the first claim")
    expect(member.claim(5)["flags"], LOST_POWER, "the same claim again")
    expect(member.claim(5, group=b"other-group....."), errno.EEXIST, "a claim of another group")
    expect(member.claim(5, member=0), errno.EEXIST, "a claim as another member")
    expect(member.view(5, 1, 0b111, (0, 0, 0b111), b"short"), errno.EINVAL, "no pedigree")
    expect(member.view(5, 1, 0b111, (0, 0, 0b111)), 0, "the first view")
    expect(member.confirm(5, 1, 0b111), 0, "its confirmation")
    expect(member.flush(), 0, "a flush")
    expect(member.cool(5, [], seq=1, beat=7), 0, "counting before that")
    expect(member.cool(5, [(0, 8)], seq=1, beat=7, known=7), 0, "cooling all")
    expect(member.regions(0), [], "the activity log after that")
    expect(member.write(3, b"a"), 0, "a write")
    expect(member.view(5, 2, 0b011, (5, 1, 0b111)), 0, "a view without member 2")
    expect(member.regions(3), [(3, 1)], "what member 2 lacks")
    expect(member.write(5, b"b"), 0, "a write in that view")
    expect(member.write(6, b"c", COPY), 0, "a copy")
    expect(member.confirm(5, 2, 0b011), 0, "its confirmation")
    expect((member.regions(0), member.regions(3)), ([(3, 1), (5, 1)],) * 2, "the maps")
    print("ready", flush=True)
    member.session.close()


def held(port):
    """A client that stays."""
    member = Member(port, b"client that stays")
    member.claim(5)
    expect(member.view(5, 1, 0b111, (0, 0, 0b111)), 0, "the first view")
    print("ready", flush=True)
    while True:
        time.sleep(60)


def again(port):
    member = Member(port, b"second client")
    expect(member.read(3), errno.ESTALE, "a read without a claim")
    expect(member.write(3, b"x"), errno.ESTALE, "a write without a claim")
    older = member.claim(4)
    expect((older["flags"], older["promised"], older["claimant"][:12]),
           (REFUSED, 5, b"first client"), "a claim of a lower term")
    expect(member.claim(5)["flags"], REFUSED, "the term of another client")
    expect(member.write(3, b"x"), errno.ESTALE, "a write after a refused claim")
    claimed = member.claim(6)
    expect((claimed["flags"], claimed["promised"], claimed["active"]), (0, 6, 2), "a claim")
    expect(claimed["pedigree"][1:4],
           [(claimed["disk"], 5, 2, 0), (102, 0, 0, 0), (0, 0, 0, 0)], "who has which number")
    expect((claimed["term"], claimed["seq"], claimed["set"]), (5, 2, 0b011), "its view")
    expect((claimed["confirmed_term"], claimed["confirmed_seq"], claimed["confirmed_set"]),
           (5, 2, 0b011), "its confirmed view")
    expect((member.regions(0), member.regions(3)), ([(3, 1), (5, 1)],) * 2, "the maps")
    expect([member.read(region) for region in (3, 5, 6)], [b"a", b"b", b"c"], "the content")
    expect(member.write(3, b"d"), 0, "a write")
    print("ready", flush=True)
    member.session.close()


def any_head(port):
    claimed = Member(port, b"third client").claim(9)
    expect((claimed["promised"], claimed["set"]), (9, 0b011), "a claim with one head torn")


def damaged(port):
    member = Member(port, b"fourth client")
    expect(member.claim(10), errno.EIO, "a claim with both heads torn")
    expect(member.read(0), errno.ESTALE, "a read of a member without a record")


def refused(port):
    expect(Member(port, b"fifth client").claim(1), errno.EOPNOTSUPP, "a claim of plain memory")


def silent(port):
    """Sources that are alive and leave one of the questions unanswered."""
    uris = []
    for step in hostile_peer.OPEN, hostile_peer.DEVICE_INFO, 0x802D, hostile_peer.IO:
        source = hostile_peer.Server()
        source.features |= MIRROR | DISKS
        source.order(step, lambda request: None, times=None)
        uris.append(f"rnbd+tcp://127.0.0.1:{source.ports[0]}/disk0")
    older = hostile_peer.Server()
    greedy = Member(port, b"greedy client")
    expect(greedy.claim(1)["promised"], 1, "a claim")
    for buffer, uri in enumerate(uris):
        greedy.start_pull(uri, buffer)
    other = Member(port, b"other client", b"disk1")
    expect(other.claim(1)["promised"], 1, "a claim of another disk")
    expect(other.pull("rnbd+tcp://127.0.0.1:1/disk0"), errno.EOPNOTSUPP, "a copy beside them")
    expect(other.pull(f"rnbd+tcp://127.0.0.1:{older.ports[0]}/disk0"), errno.EOPNOTSUPP,
           "a copy from a server that cannot tell which disk it has")
    expect([greedy.session.answer_of()[0] for _ in uris], [errno.EOPNOTSUPP] * 4, "copies")
    greedy.session.close()


def many(port):
    """More copies than a server takes for one export, from a source that answers no reads."""
    source = hostile_peer.Server()
    source.features |= MIRROR | DISKS
    source.order(hostile_peer.IO, lambda request: None, times=None)
    uri = f"rnbd+tcp://127.0.0.1:{source.ports[0]}/disk0"
    greedy = Member(port, b"greedy client")
    expect(greedy.claim(1)["promised"], 1, "a claim")
    began = time.monotonic()
    for buffer in range(6):
        greedy.start_pull(uri, buffer)
    expect(greedy.session.answer_of()[:2], (errno.EAGAIN, 5), "the sixth copy of an export")
    other = Member(port, b"other client", b"disk1")
    expect(other.claim(1)["promised"], 1, "a claim of another disk")
    expect(other.pull("rnbd+tcp://127.0.0.1:1/disk0"), errno.EOPNOTSUPP, "a copy beside them")
    at_most(2.5, began, "that copy")
    expect([greedy.session.answer_of()[0] for _ in range(5)], [errno.EOPNOTSUPP] * 5, "the others")
    at_most(6, began, "copies from a source that does not answer")
    for buffer in range(5):
        greedy.start_pull(uri, buffer)
    greedy.session.close()
    began = time.monotonic()
    expect(soon(port, b"next client").claim(2)["promised"], 2, "the next claim")
    at_most(4, began, "the next client behind copies under way")


def at_most(seconds, began, what):
    took = time.monotonic() - began
    if took > seconds:
        sys.exit(f"{what} took {took:.1f} s")


def plain(port):
    writer = Session(port)
    device, _ = writer.open(b"disk0")
    expect(writer.write(device, 0, b"p" * 512)[0], 0, "a write of a plain client")
    for how in {"unclaimed": True}, {"mode": MIGRATION}:
        thief = Member(port, b"thief", **how)
        expect(thief.claim(7), errno.EPERM, f"a claim beside a plain writer, {how}")
    expect(writer.write(device, 0, b"p" * 512)[0], 0, "its next write")
    writer.close()
    thief = Member(port, b"thief", unclaimed=True)
    expect(thief.claim(7), errno.EPERM, "a claim without the writer's reservation")
    thief.session.close()
    member = Member(port, b"client")
    expect(member.claim(7)["promised"], 7, "a claim with it")
    expect(Member(port, b"thief", unclaimed=True).claim(8), errno.EPERM, "one of another's member")
    thief = Member(port, b"thief", mode=MIGRATION)
    expect(thief.claim(8), errno.EPERM, "one that may write, too")
    expect(member.claim(9)["promised"], 9, "a claim of the client that is served, beside it")
    expect(member.write(0, b"m"), 0, "a write of the client that is served")


def terms(port):
    member = Member(port, b"first client")
    for term in (1 << 64) - 1, 1 << 62:
        expect(member.claim(term), errno.ERANGE, f"a claim of term {term:#x}")
    term = (300 << 32) + 5
    expect(member.claim(term)["promised"], term, "the first claim of a group with many forced ones")
    expect(member.claim(term + (257 << 32)), errno.ERANGE, "a claim after too many more")
    expect(member.view((1 << 64) - 1, 1, 0b111, (0, 0, 0b111)), errno.ERANGE, "a view of the last")
    expect(member.view(term, 1, 0b111, (term, 1, 0b111)), 0, "a view")
    member.session.close()
    try:
        Session(port).open(b"disk0")
    except OSError as refused_open:
        expect(refused_open.errno, errno.EPERM, "an OPEN by a plain client")
    else:
        sys.exit("a plain client has opened a member of a mirror")
    expect(Member(port, b"second client").claim(term + 1)["promised"], term + 1, "the next claim")


def older(port):
    client = Member(port, b"older client", disks=0)
    expect(client.claim(1, room=72), errno.EOPNOTSUPP, "a claim without the feature")
    shipped = struct.pack("<HHI16s16s", 0x802D, 0, client.device, GROUP, client.claimant)
    expect(client.session.call(shipped, 8)[0], errno.ESTALE, "a GUEST without the feature")
    shipped = struct.pack("<HHIQQ", 0x802B, 0, client.device, 0, 1 << 20)
    expect(client.session.call(shipped, None, b"rnbd+tcp://127.0.0.1:1/disk0")[0], errno.ESTALE,
           "a PULL without the feature")
    client.session.close()
    expect(Member(port, b"newer client").claim(1)["promised"], 1, "one with it")


def disks(port):
    member = Member(port, b"first client")
    expect(member.claim(5)["pedigree"][1], (0, 0, 0, 0), "the pedigree before the first view")
    expect(member.view(5, 1, 0b111, (0, 0, 0b111), disk=member.disk ^ 1), errno.EINVAL,
           "a view that counts on another disk")
    expect(member.view(5, 1, 0b111, (0, 0, 0b111)), 0, "the first view")
    expect(member.confirm(5, 1, 0b111), 0, "its confirmation")
    expect(member.cool(5, [], seq=1, beat=7), 0, "counting")
    expect(member.cool(5, [], seq=9, beat=9, known=9), 0, "counting in another view")
    expect(member.cool(4, [], seq=1, beat=9), 0, "counting in a view of another client")
    expect(member.cool(4, [(0, 8)], seq=1, beat=9), errno.ESTALE, "cooling by an older term")
    disk = member.disk
    puller = Member(port, b"puller", mode=RO)
    member.disk = disk ^ 1
    expect(puller.guest(member), errno.ESTALE, "a guest who looks for another disk")
    expect(puller.read(0), errno.ESTALE, "its read")
    member.disk = disk
    expect(puller.guest(member), 0, "a guest")
    expect(puller.read(0), b"\0", "its read")
    puller.session.close()
    member.session.close()
    claimed = Member(port, b"second client").claim(6)
    expect((claimed["disk"], claimed["beat"]), (disk, 7), "the disk, and how far it has come")
    expect(claimed["pedigree"][:3], [(100, 5, 1, 0), (disk, 5, 1, 0), (102, 5, 1, 0)],
           "how far the others have come")


def forced(port, number=0, members=2):
    """Operators have had a mirror go on with this member, 600 times."""
    group = bytes.fromhex("11111111222233334444555555555555")
    for term in (200 << 32) + 1, (400 << 32) + 1, (600 << 32) + 1:
        member = Member(port, b"client %d" % term)
        claimed = member.claim(term, number, members, group, 16 << 20)
        view = claimed["term"], claimed["seq"], claimed["set"]
        disks = [holder[0] for holder in claimed["pedigree"][:members]]
        disks[number] = member.disk
        expect(member.view(term, 1, 1 << number, view, disks=disks), 0, f"a view of term {term:#x}")
        member.session.close()


def forced_of_three(port):
    forced(port, 2, 3)


def votes(port):
    member = Member(port, b"newer client", disks=DISKS | VOTES)
    expect(member.claim(1)["promised"], 1, "a claim")
    holders = [100, member.disk, 102] + [0] * 12 + [115]
    expect(member.view(1, 1, 0x8007, (0, 0, 7), disks=holders), 0, "a view with a vote")
    expect(member.view(1, 2, 0x8000, (1, 1, 0x8007), disks=holders), errno.EINVAL, "a view without a disk")
    member.session.close()
    older = soon(port, b"older client")
    expect(older.claim(2), errno.EOPNOTSUPP, "a claim of a client that knows no votes")
    older.session.close()
    try:
        Member(port, b"older client", name=b".vote", mode=RO)
    except OSError as refused_open:
        expect(refused_open.errno, errno.EPERM, "an OPEN of votes by a client that knows none")
    else:
        sys.exit("a client that knows no votes has opened them")
    first_one, next_one = (Member(port, claimant, name=b".vote", mode=RO, disks=DISKS | VOTES)
                           for claimant in (b"first client", b"next client"))
    vote = {"members": 2, "size": 0, "kind": 1}
    expect(first_one.claim(5, member=1, **vote), errno.EINVAL, "a vote with the number of a disk")
    expect(first_one.claim(5, member=1, size=SIZE), errno.EROFS, "a disk where votes are")
    expect(first_one.claim(5, member=15, **vote)["promised"], 5, "a claim of a vote")
    expect(first_one.claim(6, member=15, group=b"other-group.....", **vote), errno.EBUSY,
           "a claim of another vote by the same device")
    expect(next_one.claim(4, member=15, **vote)["promised"], 4, "an older term at a vote without a record")
    expect(next_one.claim(6, member=15, **vote)["promised"], 6, "a newer term")
    holders = [100, 101] + [0] * 13 + [next_one.disk]
    expect(first_one.view(6, 1, 0x8003, (0, 0, 3), disks=holders), errno.ESTALE, "a view by the first one")
    expect(next_one.view(6, 1, 0x8003, (0, 0, 3), disks=holders), 0, "a view")
    expect(first_one.claim(9, member=15, **vote), errno.EEXIST, "a claim that names no disk")
    expect(first_one.claim(9, member=15, named=(102, next_one.disk), **vote), errno.EEXIST, "other disks")
    vote["named"] = (102, 101)
    expect(first_one.claim(5, member=15, **vote)["flags"] & REFUSED, REFUSED, "an older term")
    expect(next_one.claim(6, member=15, **vote)["set"], 0x8003, "the view that it has")
    expect(first_one.claim(7, member=15, **vote)["promised"], 7, "a newer term")


def stranger(port):
    """Knows the UUID of a mirror, and none of its disks."""
    group = uuid.UUID("676f7570-2d6f-662d-6469-736b732e2e2e").bytes
    for term in 100, (1 << 32) + 1:
        member = Member(port, b"stranger", name=b".vote", mode=RO, disks=DISKS | VOTES)
        expect(member.claim(term, member=15, members=2, size=0, kind=1, group=group, named=(1, 2)),
               errno.EEXIST, "a claim of a vote without a disk of its mirror")
        member.session.close()


def stranger_first(port):
    group = uuid.UUID("676f7570-2d6f-662d-6469-736b732e2e2e").bytes
    member = Member(port, b"stranger", name=b".vote", mode=RO, disks=DISKS | VOTES)
    claimed = member.claim((200 << 32) + 1, member=15, members=2, size=0, kind=1, group=group)
    expect(claimed["set"] & 0x8000, 0, "a claim of a vote without a record")
    with open("held", "w"):
        pass
    while os.path.exists("held"):
        time.sleep(0.1)


def main():
    steps = {"first": first, "held": held, "again": again, "any": any_head, "damaged": damaged,
             "refused": refused, "silent": silent, "many": many, "plain": plain, "terms": terms,
             "older": older, "disks": disks, "forced": forced,
             "forced_of_three": forced_of_three, "votes": votes, "stranger": stranger,
             "stranger_first": stranger_first}
    steps[sys.argv[2]](int(sys.argv[1]))


if __name__ == "__main__":
    main()
