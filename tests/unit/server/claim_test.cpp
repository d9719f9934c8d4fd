// SPDX-License-Identifier: BSD-3-Clause
// Devices that are opened without the right to write, and CLAIM, which asks for it.
#include <doctest/doctest.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/server/fixture.hpp"

namespace claim_test {

using namespace rnbd;
using namespace rnbd::test;
using wire::AccessMode;

namespace {

struct ClaimWorld : World {
  Call& open_unclaimed(BlockSession& target, const std::string& name = "disk") {
    wire::NumberedOpen message{wire::encode_open(name, AccessMode::read_write), {++number_, 1}};
    message.open.flags = wire::kOpenUnclaimed;
    return send(target, message, true, room(sizeof(wire::OpenResponse)));
  }
  wire::DeviceInfoResponse look(BlockSession& target, std::uint32_t id = 0) {
    wire::DeviceInfo message{wire::header_of(wire::MessageType::device_info), id};
    Call& call = send(target, message, true, room(sizeof(wire::DeviceInfoResponse)));
    REQUIRE(call.error == 0);
    return call.answer<wire::DeviceInfoResponse>();
  }
  Call& claim(BlockSession& target, const wire::DeviceInfoResponse& seen, std::uint32_t id = 0) {
    wire::Claim message{wire::header_of(wire::MessageType::claim), id, seen.sight,
                        seen.writer_serial};
    return send(target, message, true, room(sizeof(wire::DeviceInfoResponse)));
  }
  int write(BlockSession& target) { return io(target, 1, 0, 512, false, 512).error; }
  int read(BlockSession& target) { return io(target, 0, 0, 512, true, 512).error; }

 private:
  std::uint32_t number_ = 0;
};

}  // namespace

TEST_CASE("claim: an older client has room for the older answer, and gets that") {
  ClaimWorld world;
  world.open_unclaimed(world.session());
  const auto seen = world.look(world.session());
  wire::DeviceInfo question{wire::header_of(wire::MessageType::device_info), 0};
  Call& look = world.send(world.session(), question, true, room(wire::kMinDeviceInfoResponse));
  CHECK(look.error == 0);
  wire::Claim claim{wire::header_of(wire::MessageType::claim), 0, seen.sight, seen.writer_serial};
  for (const std::size_t room_for : {wire::kMinDeviceInfoResponse - 1, wire::kMinDeviceInfoResponse,
                                     sizeof(wire::DeviceInfoResponse) - 1}) {
    const bool fits = room_for >= wire::kMinDeviceInfoResponse;
    CHECK(world.send(world.session(), claim, true, room(room_for)).error == (fits ? 0 : EINVAL));
  }
}

TEST_CASE("claim: an unclaimed opening reads, may not write, and tells what a writer is told") {
  ClaimWorld world;
  const auto opened = world.open_unclaimed(world.session()).answer<wire::OpenResponse>();
  CHECK(opened.max_discard_sectors > 0);
  CHECK(world.read(world.session()) == 0);
  CHECK(world.write(world.session()) == EROFS);
  const auto seen = world.look(world.session());
  CHECK(seen.sight != 0);
  CHECK((seen.flags & wire::kDeviceReadOnly) == 0);
  Call& claim = world.claim(world.session(), seen);
  CHECK(claim.error == 0);
  const auto told = claim.answer<wire::DeviceInfoResponse>();
  CHECK(told.sight == 0);
  CHECK(told.writer_serial != seen.writer_serial);
  CHECK(world.write(world.session()) == 0);
  CHECK(world.claim(world.session(), seen).error == 0);
}

TEST_CASE("claim: unclaimed openings neither exclude a writer nor are excluded by one") {
  ClaimWorld world;
  auto looker = world.make_session("looker");
  auto writer = world.make_session("writer");
  CHECK(world.open_unclaimed(*looker).error == 0);
  CHECK(world.open(*writer, "disk", AccessMode::read_write).error == 0);
  CHECK(world.write(*writer) == 0);
  CHECK(world.open_unclaimed(world.session()).error == 0);
  const auto seen = world.look(world.session());
  SUBCASE("a claim beside a writer is refused, and the log says so") {
    CHECK(world.claim(world.session(), seen).error == EPERM);
    CHECK(world.log.back().find("refused to let it write to 'disk': 'writer' (") !=
          std::string::npos);
    CHECK(world.write(world.session()) == EROFS);
    CHECK(world.write(*writer) == 0);
  }
  SUBCASE("who has left without another change is no obstacle") {
    world.close(*writer, 0);
    CHECK(world.claim(world.session(), seen).error == 0);
    CHECK(world.open(*writer, "disk", AccessMode::read_write).error == EPERM);
  }
}

TEST_CASE("claim: nobody writes who may have read what others have changed since") {
  ClaimWorld world;
  auto writer = world.make_session("writer");
  world.open_unclaimed(world.session());
  auto seen = world.look(world.session());
  REQUIRE(world.open(*writer, "disk", AccessMode::read_write).error == 0);
  int expected = ESTALE;
  SUBCASE("by a write") { CHECK(world.write(*writer) == 0); }
  SUBCASE("by zeroes") { CHECK(world.io(*writer, 5, 0, 512, false, 0).error == 0); }
  SUBCASE("by a write that fails half-way") {
    world.disk().fail_next = EIO;
    CHECK(world.write(*writer) == EIO);
  }
  SUBCASE("by a write that was under way at that time") {
    world.disk().hold = true;
    world.io(*writer, 1, 0, 512, false, 512);
    seen = world.look(world.session());
    world.disk().answer();
  }
  SUBCASE("but a read or a flush changes nothing") {
    CHECK(world.read(*writer) == 0);
    CHECK(world.io(*writer, 2, 0, 0, true, 0).error == 0);
    expected = 0;
  }
  SUBCASE("and who looks again may") {
    CHECK(world.write(*writer) == 0);
    seen = world.look(world.session());
    expected = 0;
  }
  world.close(*writer, 0);
  CHECK(world.claim(world.session(), seen).error == expected);
  CHECK(world.write(world.session()) == (expected == 0 ? 0 : EROFS));
}

TEST_CASE("claim: one that was granted does not serve a user of the session who looked before") {
  ClaimWorld world;
  auto writer = world.make_session("writer");
  world.open_unclaimed(world.session());
  const auto before = world.look(world.session());
  REQUIRE(world.open(*writer, "disk", AccessMode::read_write).error == 0);
  CHECK(world.write(*writer) == 0);
  auto seen = world.look(world.session());
  REQUIRE(seen.sight != before.sight);
  world.close(*writer, 0);
  REQUIRE(world.claim(world.session(), seen).error == 0);
  SUBCASE("and may miss the writes of another session") {
    CHECK(world.claim(world.session(), before).error == ESTALE);
  }
  SUBCASE("in another life of the server, in which much may have been written") {
    seen.sight = seen.sight ^ 1ULL << 40;
    CHECK(world.claim(world.session(), seen).error == ESTALE);
  }
  SUBCASE("but one who saw the same, or looked since") {
    CHECK(world.claim(world.session(), seen).error == 0);
    const auto since = world.look(world.session());
    CHECK(since.sight == 0);
    CHECK(world.claim(world.session(), since).error == 0);
  }
  CHECK(world.write(world.session()) == 0);
}

TEST_CASE("claim: looks of two lives of the server are as good while nothing changed in this one") {
  ClaimWorld world;
  auto writer = world.make_session("writer");
  world.open_unclaimed(world.session());
  auto now = world.look(world.session());
  const auto of_earlier_life = [](wire::DeviceInfoResponse look) {
    look.sight = look.sight ^ 1ULL << 40;
    return look;
  };
  auto then = of_earlier_life(now);
  SUBCASE("one of this life, after one of an earlier life was granted") {
    REQUIRE(world.claim(world.session(), then).error == 0);
    CHECK(world.claim(world.session(), now).error == 0);
  }
  SUBCASE("and the other way round") {
    REQUIRE(world.claim(world.session(), now).error == 0);
    CHECK(world.claim(world.session(), then).error == 0);
  }
  SUBCASE("but not one of an earlier life before somebody came") {
    REQUIRE(world.claim(world.session(), now).error == 0);
    then.writer_serial = then.writer_serial - 1;
    CHECK(world.claim(world.session(), then).error == ESTALE);
  }
  SUBCASE("but not one of this life with changes that the granted one cannot know") {
    REQUIRE(world.claim(world.session(), then).error == 0);
    now.sight = now.sight + 1;
    CHECK(world.claim(world.session(), now).error == ESTALE);
  }
  SUBCASE("but not one of an earlier life, after changes in this one") {
    REQUIRE(world.open(*writer, "disk", AccessMode::read_write).error == 0);
    CHECK(world.write(*writer) == 0);
    world.close(*writer, 0);
    now = world.look(world.session());
    REQUIRE(world.claim(world.session(), now).error == 0);
    CHECK(world.claim(world.session(), of_earlier_life(now)).error == ESTALE);
  }
  CHECK(world.write(world.session()) == 0);
}

TEST_CASE("claim: one from another life of the server counts when nobody has come meanwhile") {
  ClaimWorld world;
  auto other = world.make_session("other");
  world.open_unclaimed(world.session());
  auto seen = world.look(world.session());
  seen.sight = seen.sight ^ 1ULL << 40;
  int expected = 0;
  SUBCASE("nobody has") {}
  SUBCASE("somebody has written") {
    world.open(*other, "disk", AccessMode::read_write);
    world.write(*other);
    world.close(*other, 0);
    expected = ESTALE;
  }
  SUBCASE("somebody came who need not have written") {
    world.open(*other, "disk", AccessMode::read_write);
    world.close(*other, 0);
    expected = ESTALE;
  }
  CHECK(world.claim(world.session(), seen).error == expected);
}

TEST_CASE("claim: one that is granted once more serves nobody who saw less than its user") {
  ClaimWorld world;
  const auto comes = [&] {
    SessionFacts facts;
    facts.name = "vm";
    facts.uuid = {1};
    facts.extensions = facts.claims = true;
    facts.queue_depth = 4;
    facts.max_io_size = 65536;
    auto session =
        std::make_unique<BlockSession>(facts, world.catalogue, world.queues, world.services);
    REQUIRE(world.open_unclaimed(*session).error == 0);
    return session;
  };
  auto session = comes();
  auto seen = world.look(*session);
  seen.sight = seen.sight ^ 1ULL << 40;  // in an earlier life of the server
  REQUIRE(world.claim(*session, seen).error == 0);
  session.reset();  // its client has not heard the answer
  session = comes();
  CHECK(world.claim(*session, seen).error == 0);
  CHECK(world.claim(*session, seen).error == 0);
  auto before = seen;
  before.sight = seen.sight - 1;
  CHECK(world.claim(*session, before).error == ESTALE);
  CHECK(world.write(*session) == 0);
}

TEST_CASE("claim: an idle session's reservation goes to who claims, not to who looks") {
  ClaimWorld world;
  auto idle = world.make_session("idle");
  REQUIRE(world.open(*idle, "disk", AccessMode::read_write).error == 0);
  unsigned ended = 0;
  world.services.sessions = &world.services;
  world.services.on_reclaim = [&](rtrs::Reactor*, const WriterCount*, const std::string&,
                                  const std::function<void()>& then) {
    ++ended;
    idle.reset();
    then();
  };
  CHECK(world.open_unclaimed(world.session()).error == 0);
  const auto seen = world.look(world.session());
  CHECK(world.read(world.session()) == 0);
  CHECK(ended == 0);
  CHECK(world.claim(world.session(), seen).error == 0);
  CHECK(ended == 1);
}

TEST_CASE("claim: who looks is told whether a writer is there") {
  ClaimWorld world;
  bool there = true;
  world.services.sessions = &world.services;
  world.services.on_survey = [&](rtrs::Reactor*, const WriterCount*,
                                 const std::function<void(bool)>& then) { then(there); };
  world.open_unclaimed(world.session());
  CHECK((world.look(world.session()).flags & wire::kDeviceInUse) != 0);
  there = false;
  const auto seen = world.look(world.session());
  CHECK((seen.flags & wire::kDeviceInUse) == 0);
  there = true;
  CHECK(world.claim(world.session(), seen).error == 0);
  CHECK((world.look(world.session()).flags & wire::kDeviceInUse) == 0);
}

TEST_CASE("claim: what makes no sense is refused") {
  ClaimWorld world;
  auto old = world.make_session("old", false);
  world.open(*old, "disk", AccessMode::read_only);
  CHECK(world.claim(*old, {}).error == EINVAL);
  CHECK(world.claim(world.session(), {}).error == ENOTCONN);
  world.open(world.session(), "disk", AccessMode::read_only);
  CHECK(world.claim(world.session(), {}).error == EROFS);
  wire::Claim message{wire::header_of(wire::MessageType::claim), 0, 0, 0};
  CHECK(world.send(world.session(), message, true, room(8)).error == EINVAL);
  world.add("frozen", 4096, true);
  CHECK(world.open_unclaimed(world.session(), "frozen").error == EROFS);
}

TEST_CASE("claim: the list says which exports somebody may write to") {
  ClaimWorld world;
  world.add("other", 4096);
  world.open_unclaimed(world.session(), "other");
  CHECK(world.catalogue.list()[0].description == "the disk");
  world.open(world.session(), "disk", AccessMode::read_write);
  CHECK(world.catalogue.list()[0].description == "the disk (in use)");
  CHECK(world.catalogue.list()[1].description == "the other");
}

TEST_CASE("claim: an OPEN or a CLAIM beside a writer who is leaving waits for a moment") {
  bool claims = false;
  bool leaves = false;
  SUBCASE("an OPEN, and it leaves") { leaves = true; }
  SUBCASE("an OPEN, and it stays") {}
  SUBCASE("a CLAIM, and it leaves") { claims = leaves = true; }
  SUBCASE("a CLAIM, and it stays") { claims = true; }
  ClaimWorld world;
  auto writer = world.make_session("writer");
  auto other = world.make_session("other");
  std::vector<std::function<void()>> waiting;
  world.services.on_after = [&](rtrs::Reactor*, rtrs::Duration, std::function<void()> work) {
    waiting.push_back(std::move(work));
    return std::make_shared<int>();
  };
  const auto pass = [&] {
    const auto now = std::exchange(waiting, {});
    for (const auto& work : now) work();
  };
  world.open_unclaimed(world.session());
  const auto seen = world.look(world.session());
  REQUIRE(world.open(*writer, "disk", AccessMode::read_write).error == 0);
  waiting.clear();
  Call& call = claims ? world.claim(world.session(), seen)
                      : world.open(*other, "disk", AccessMode::read_write);
  CHECK(call.finished == 0);
  pass();
  CHECK(call.finished == 0);
  if (leaves) world.close(*writer, 0);
  for (unsigned i = 0; i < 100 && call.finished == 0; ++i) pass();
  CHECK(call.error == (leaves ? 0 : EPERM));
  CHECK(call.finished == 1);
  if (!leaves) CHECK(world.write(*writer) == 0);
}

}  // namespace claim_test
