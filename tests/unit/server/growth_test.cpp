// SPDX-License-Identifier: BSD-3-Clause
// Exports that become larger while clients have them open.
#include <doctest/doctest.h>

#include <cerrno>

#include "tests/unit/server/fixture.hpp"

namespace growth_test {

using namespace rnbd;
using namespace rnbd::test;

namespace {

constexpr std::uint64_t kSize = 1 << 20;

wire::DeviceInfoResponse info_of(World& world, BlockSession& session, std::uint32_t id = 0) {
  wire::DeviceInfo message;
  message.header = wire::header_of(wire::MessageType::device_info);
  message.device_id = id;
  Call& call = world.send(session, message, true, room(sizeof(wire::DeviceInfoResponse)));
  CHECK(call.error == 0);
  return call.answer<wire::DeviceInfoResponse>();
}

std::uint64_t device_info(World& world, BlockSession& session, std::uint32_t id = 0) {
  return info_of(world, session, id).size;
}

std::uint64_t sectors_at_open(World& world, BlockSession& session) {
  Call& call = world.open(session, "disk", wire::AccessMode::read_only);
  CHECK(call.error == 0);
  return call.answer<wire::OpenResponse>().sectors;
}

/// The errno of a read of the sector at `offset`.
int read_at(World& world, BlockSession& session, std::uint64_t offset) {
  return world.io(session, 0, offset / 512, 512, true, 512).error;
}

}  // namespace

TEST_CASE("growth: whoever asks is told the present size, and may use what there is by then") {
  World world;
  auto other = world.make_session("other");
  CHECK(sectors_at_open(world, world.session()) == kSize / 512);
  CHECK(sectors_at_open(world, *other) == kSize / 512);
  world.disk().become(2 * kSize);
  CHECK(read_at(world, world.session(), kSize) == EIO);
  SUBCASE("by DEVICE INFO") { CHECK(device_info(world, world.session()) == 2 * kSize); }
  SUBCASE("by opening it once more") {
    CHECK(sectors_at_open(world, world.session()) == 2 * kSize / 512);
    CHECK(world.session().devices().size() == 1);
  }
  CHECK(read_at(world, world.session(), kSize) == 0);
  CHECK(read_at(world, world.session(), 2 * kSize) == EIO);
  CHECK(read_at(world, *other, kSize) == EIO);
  CHECK(device_info(world, *other) == 2 * kSize);
  CHECK(read_at(world, *other, kSize) == 0);
}

TEST_CASE("growth: of storage that has shrunk the size stays, and whoever asks is told of it") {
  World world;
  CHECK(sectors_at_open(world, world.session()) == kSize / 512);
  CHECK((info_of(world, world.session()).flags & wire::kDeviceShrunk) == 0);
  world.disk().shrunk_to_ = 4096;
  CHECK((info_of(world, world.session()).flags & wire::kDeviceShrunk) != 0);
  CHECK(device_info(world, world.session()) == kSize);
  world.disk().shrunk_to_.reset();
  CHECK((info_of(world, world.session()).flags & wire::kDeviceShrunk) == 0);
}

TEST_CASE("growth: a session that opens it later has the present size at once") {
  World world;
  world.disk().become(kSize + 1000);
  CHECK(sectors_at_open(world, world.session()) == kSize / 512 + 2);
  CHECK(device_info(world, world.session()) == kSize + 1000);
  CHECK(read_at(world, world.session(), kSize + 512) == 0);
  CHECK(read_at(world, world.session(), kSize + 1024) == EIO);
}

TEST_CASE("growth: a client without the extension learns it by opening once more") {
  World world{{.extensions = false}};
  CHECK(sectors_at_open(world, world.session()) == kSize / 512);
  world.disk().become(2 * kSize);
  CHECK(sectors_at_open(world, world.session()) == 2 * kSize / 512);
  CHECK(read_at(world, world.session(), kSize) == 0);
}

TEST_CASE("growth: nothing becomes smaller") {
  World world;
  CHECK(sectors_at_open(world, world.session()) == kSize / 512);
  world.disk().become(kSize / 2);
  CHECK(device_info(world, world.session()) == kSize);
  CHECK(sectors_at_open(world, world.session()) == kSize / 512);
}

TEST_CASE("growth: another server is asked for the size when nobody has the device open") {
  World world;
  FakeDistantSize& distant = world.disk().be_distant();
  distant.there = 2 * kSize;
  auto other = world.make_session("other");
  SUBCASE("it has grown") {
    CHECK(sectors_at_open(world, world.session()) == 2 * kSize / 512);
    distant.there = 3 * kSize;
    CHECK(sectors_at_open(world, world.session()) == 2 * kSize / 512);
    CHECK(sectors_at_open(world, *other) == 2 * kSize / 512);
    CHECK(distant.questions == 1);
    CHECK(world.close(world.session(), 0).error == 0);
    CHECK(world.close(*other, 0).error == 0);
    CHECK(sectors_at_open(world, *other) == 3 * kSize / 512);
    CHECK(distant.questions == 2);
  }
  SUBCASE("it has grown, and who comes again goes on with the size that is known") {
    wire::NumberedOpen message{wire::encode_open("disk", wire::AccessMode::read_only), {1, 1}};
    message.open.flags = wire::kOpenAgain;
    const Call& call = world.send(world.session(), message, true, room(sizeof(wire::OpenResponse)));
    CHECK(call.error == 0);
    CHECK(call.answer<wire::OpenResponse>().sectors == kSize / 512);
    CHECK(distant.questions == 0);
  }
  SUBCASE("it has shrunk") {
    distant.there = 4096;
    CHECK(sectors_at_open(world, world.session()) == kSize / 512);
  }
  SUBCASE("it does not answer") {
    distant.there.reset();
    CHECK(sectors_at_open(world, world.session()) == kSize / 512);
    CHECK(distant.questions == 1);
  }
  SUBCASE("it did not answer lately") {
    distant.may = false;
    CHECK(sectors_at_open(world, world.session()) == kSize / 512);
    CHECK(distant.questions == 0);
  }
}

TEST_CASE("growth: an answer for which nobody waits any more is not taken while it is open") {
  World world;
  FakeDistantSize& distant = world.disk().be_distant();
  distant.there = 2 * kSize;
  std::function<void()> question, moment;
  world.services.on_offload = [&](rtrs::Reactor*, std::function<void()> work,
                                  std::function<void()> then) {
    question = [work = std::move(work), then = std::move(then)] {
      work();
      then();
    };
  };
  world.services.on_after = [&](rtrs::Reactor*, rtrs::Duration time, std::function<void()> work) {
    if (time < world.session().facts().open_timeout) moment = std::move(work);
    return std::make_shared<int>();
  };
  const Call& call = world.open(world.session(), "disk", wire::AccessMode::read_only);
  CHECK(call.finished == 0);
  REQUIRE(moment);
  moment();
  CHECK(call.error == 0);
  CHECK(call.answer<wire::OpenResponse>().sectors == kSize / 512);
  question();
  CHECK(distant.questions == 0);  // another one has it open by then
  CHECK(device_info(world, world.session()) == kSize);
  CHECK(call.finished == 1);
}

TEST_CASE("growth: block status tells of the new part, too") {
  World world;
  sectors_at_open(world, world.session());
  wire::BlockStatus question;
  question.header = wire::header_of(wire::MessageType::block_status);
  question.offset = kSize;
  question.length = 4096;
  const auto ask = [&] { return world.send(world.session(), question, true, room(64)).error; };
  world.disk().become(2 * kSize);
  CHECK(ask() == EINVAL);
  device_info(world, world.session());
  CHECK(ask() == 0);
}

}  // namespace growth_test
