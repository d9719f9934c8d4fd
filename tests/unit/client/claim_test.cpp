// SPDX-License-Identifier: BSD-3-Clause
// A device that is opened without its writer's reservation, and claimed before its first change.
#include <doctest/doctest.h>

#include <cerrno>

#include "tests/unit/client/session_world.hpp"

namespace claim_test {

using namespace rnbd;
using namespace rnbd::test;

namespace {

constexpr FakeOptions kClaims{.features = rtrs::wire::kFeatureUserMessages |
                                          rtrs::wire::kFeatureExactlyOnce | wire::kFeatureClaims};
const OpenOptions kUnclaimed{.unclaimed = true};

/// Notes what OPENs and CLAIMs ask for, and refuses CLAIMs with `refusal`.
struct Notes {
  explicit Notes(World& world) {
    world.client->server.device_info.sight = 0x100000005;
    world.client->server.device_info.writer_serial = 0x700000004;
    world.client->server.fail = [this](const Arrival& arrival) {
      if (arrival.type() == MessageType::open) {
        flags.push_back(wire::decode_open(arrival.message)->flags);
      }
      if (arrival.type() != MessageType::claim) return 0;
      claims.push_back(*wire::decode<wire::Claim>(arrival.message, MessageType::claim));
      return refusal;
    };
  }
  std::vector<std::uint8_t> flags;
  std::vector<wire::Claim> claims;
  int refusal = 0;
};

int write(RemoteDevice& device) {
  const std::array<std::byte, 512> block{};
  return device.write(0, block, false, {});
}

int read(RemoteDevice& device) {
  std::array<std::byte, 512> block{};
  return device.read(0, block, {});
}

}  // namespace

TEST_CASE(
    "claim: reading and flushing claims nothing; the first change does, once, and before it") {
  World world{kClaims};
  Notes notes{world};
  const Device device = world.open("a", kUnclaimed);
  CHECK(notes.flags == std::vector<std::uint8_t>{wire::kOpenUnclaimed});
  CHECK(read(*device) == 0);
  CHECK(device->flush({}) == 0);
  CHECK(notes.claims.empty());
  SUBCASE("a write") { CHECK(write(*device) == 0); }
  SUBCASE("a patch of a part of a block") {
    CHECK(device->write(1, std::array<std::byte, 3>{}, false, {}) == 0);
  }
  SUBCASE("a discard") { CHECK(device->discard(0, 4096, false, {}) == 0); }
  SUBCASE("zeroes") { CHECK(device->write_zeroes(0, 4096, {}, {}) == 0); }
  REQUIRE(notes.claims.size() == 1);
  CHECK(notes.claims[0].device_id == 7);
  CHECK(notes.claims[0].sight == 0x100000005);
  CHECK(notes.claims[0].writer_serial == 0x700000004);
  CHECK(write(*device) == 0);
  CHECK(notes.claims.size() == 1);
}

TEST_CASE("claim: an event loop is sent to the call that may wait, until it has been claimed") {
  World world{kClaims};
  Notes notes{world};
  const Device device = world.open("a", kUnclaimed);
  const std::array<std::byte, 512> block{};
  Transfer transfer{.operation = wire::IoOperation::write, .length = 512, .from = block.data()};
  RemoteDevice::Begun begun;
  CHECK(device->begin(transfer, begun) == EAGAIN);
  CHECK(notes.claims.empty());
  CHECK(write(*device) == 0);
  CHECK(device->begin(transfer, begun) == 0);
  CHECK(device->end(transfer, begun, 0) == 0);
}

TEST_CASE("claim: a change that the server does not allow is not sent, and the log says why once") {
  World world{kClaims};
  Notes notes{world};
  const Device device = world.open("a", kUnclaimed);
  SUBCASE("another client writes") { notes.refusal = EPERM; }
  SUBCASE("another client has written") { notes.refusal = ESTALE; }
  CHECK(write(*device) == notes.refusal);
  CHECK(write(*device) == notes.refusal);
  CHECK(world.count(MessageType::io) == 0);
  CHECK(read(*device) == 0);
  REQUIRE(world.log.size() == 1);
  CHECK(world.log[0].find("does not let 'a' be changed from here: another client") !=
        std::string::npos);
  notes.refusal = 0;
  CHECK(write(*device) == 0);
}

TEST_CASE("claim: who reads only, or asks for the reservation, has nothing to claim") {
  World world{kClaims};
  Notes notes{world};
  const Device reader = world.open("a", {.access = AccessMode::read_only});
  const Device writer = world.open("b");
  CHECK(notes.flags == std::vector<std::uint8_t>{0, 0});
  CHECK(write(*writer) == 0);
  CHECK(notes.claims.empty());
}

TEST_CASE("claim: toward a server that knows nothing of it the reservation comes with the OPEN") {
  World world;
  Notes notes{world};
  const Device device = world.open("a", kUnclaimed);
  CHECK(notes.flags == std::vector<std::uint8_t>{0});
  CHECK(write(*device) == 0);
  CHECK(notes.claims.empty());
}

TEST_CASE("claim: a renewed session opens unclaimed what had claimed nothing, and only that") {
  World world{kClaims};
  Notes notes{world};
  const Device device = world.open("a", kUnclaimed);
  const bool claims = [] {
    bool yes = false;
    SUBCASE("nothing was changed") {}
    SUBCASE("something was") { yes = true; }
    return yes;
  }();
  if (claims) CHECK(write(*device) == 0);
  notes.flags.clear();
  // A writer would be lost by that, a reader is not.
  if (!claims) world.client->server.device_info.writer_serial = 0x700000009;
  CHECK(world.client->renew(100) == 0);
  const std::uint8_t again = wire::kOpenAgain;
  const auto both = static_cast<std::uint8_t>(again | wire::kOpenUnclaimed);
  CHECK(notes.flags == std::vector<std::uint8_t>{claims ? again : both});
  CHECK(read(*device) == 0);
  CHECK(write(*device) == 0);
  REQUIRE(notes.claims.size() == 1);
  // The user's knowledge is as old as before.
  CHECK(notes.claims[0].writer_serial == 0x700000004);
}

TEST_CASE("claim: a claim that was answered by the session before is asked for once more") {
  World world{kClaims};
  Notes notes{world};
  const Device device = world.open("a", kUnclaimed);
  world.after_first(MessageType::claim, [&] { CHECK(world.client->renew(50) == 0); });
  CHECK(write(*device) == 0);
  CHECK(notes.claims.size() == 2);
}

TEST_CASE("claim: of those who share a device only who knows what the claimant knew may write") {
  World world{kClaims};
  Notes notes{world};
  const Device old = world.open("a", kUnclaimed);
  world.client->server.device_info.sight = 0x100000006;  // somebody has written meanwhile
  const Device fresh = world.open("a", kUnclaimed);
  const Device same = world.open("a", kUnclaimed);
  CHECK(write(*fresh) == 0);
  CHECK(write(*same) == 0);
  CHECK(write(*old) == ESTALE);
  CHECK(notes.claims.size() == 1);
  const Device later = world.open("a", kUnclaimed);
  CHECK(write(*later) == 0);
  CHECK(notes.claims.size() == 1);
}

TEST_CASE("claim: who looked when his session had the reservation already may write, too") {
  World world{kClaims};
  Notes notes{world};
  const Device first = world.open("a", kUnclaimed);
  // As the server tells it behind the first one's CLAIM, whose answer is still on the way.
  world.client->server.device_info.sight = 0;
  world.client->server.device_info.writer_serial = 0x700000005;
  const Device second = world.open("a", kUnclaimed);
  CHECK(write(*first) == 0);
  CHECK(write(*second) == 0);
  CHECK(notes.claims.size() == 1);
}

TEST_CASE("claim: who saw the same may write, whoever came or left while he looked") {
  World world{kClaims};
  Notes notes{world};
  const Device first = world.open("a", kUnclaimed);
  // As the server tells it while the reservation is being taken or given back.
  world.client->server.device_info.writer_serial = 0;
  const Device second = world.open("a", kUnclaimed);
  world.client->server.device_info.writer_serial = 0x700000005;
  const Device third = world.open("a", kUnclaimed);
  CHECK(write(*first) == 0);
  CHECK(write(*second) == 0);
  CHECK(write(*third) == 0);
  CHECK(notes.claims.size() == 1);
}

TEST_CASE("claim: a device that others write to says so when it is opened") {
  World world{kClaims};
  auto& flags = world.client->server.device_info.flags;
  flags = flags | wire::kDeviceInUse;
  const Device device = world.open("a", kUnclaimed);
  CHECK(device->in_use());
  CHECK(std::string{device->access_in_words()} == "rw");
  device->refuse_changes();
  CHECK(std::string{device->access_in_words()} == "ro, another client writes to it");
  CHECK(write(*device) == EROFS);
  flags = flags & ~std::uint32_t{wire::kDeviceInUse};
  CHECK(device->look_again({}).has_value());
  CHECK_FALSE(device->in_use());
}

}  // namespace claim_test
