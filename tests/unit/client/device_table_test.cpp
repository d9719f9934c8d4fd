// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/device_table.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cerrno>
#include <chrono>

namespace rnbd::test::device_table_test {
namespace {

using namespace std::chrono_literals;
using wire::AccessMode;
using Join = DeviceTable::Join;
using State = ClientDevice::State;

constexpr std::uint32_t kOwn =
    rtrs::wire::kFeatureUserMessages | rtrs::wire::kFeatureExactlyOnce | wire::kFeatureClaims;

rtrs::SessionLimits limits(std::uint32_t features = kOwn, std::uint64_t epoch = 1) {
  return {.features = features, .volatile_epoch = epoch};
}

struct World {
  explicit World(std::uint32_t with = kOwn) : features{with} { table.enter(limits(features)); }
  DeviceTable::Device open(const std::string& name, OpenOptions options = {}) {
    const auto joined = table.join(name, options);
    REQUIRE(joined.what == Join::open);
    table.open(*joined.device, answer);
    table.open_ended(*joined.device, false);
    REQUIRE(table.take_id(*joined.device, next_id++));
    table.opened(*joined.device, {});
    return joined.device;
  }
  /// The session is forgotten, and these are the answers.
  DeviceTable::Recovered recover(const std::vector<ReopenedDevice>& answers,
                                 std::uint64_t epoch = 1) {
    asked =
        table.begin_recovery(limits(features, epoch), OpenOrders::forgets(limits(features)), {});
    REQUIRE(asked.size() == answers.size());
    return table.recovered(answers);
  }

  std::uint32_t features;
  std::array<std::byte, 256> answer{};
  std::uint32_t next_id = 7;
  std::vector<ReopenDevice> asked;
  DeviceTable table{[] { return std::make_shared<ClientDevice>(); }};
};

TEST_CASE("device table: the first opens, the others wait, and then share what fits") {
  World world;
  const auto first = world.table.join("a", {.access = AccessMode::read_write});
  CHECK(first.what == Join::open);
  CHECK(world.table.join("a", {}).what == Join::wait);
  world.table.opened(*first.device, {});
  CHECK(world.table.join("a", {.access = AccessMode::read_only}).what == Join::share);
  CHECK(world.table.join("a", {.access = AccessMode::migration}).what == Join::busy);
  CHECK(first.device->users == 2);
}

TEST_CASE("device table: a device that is known to be read-only is not opened for writing") {
  World world;
  const auto joined = world.table.join("a", {.access = AccessMode::read_only});
  DeviceGeometry geometry;
  geometry.read_only = true;
  world.table.opened(*joined.device, geometry);
  CHECK(world.table.join("a", {.access = AccessMode::read_write}).what == Join::read_only);
}

TEST_CASE("device table: only the last user closes, and behind cancelled reads nobody yet") {
  World world;
  const auto device = world.open("a");
  CHECK(world.table.join("a", {}).what == Join::share);
  CHECK_FALSE(world.table.release(*device, /*stuck=*/false));
  SUBCASE("nothing is stuck") {
    CHECK(world.table.release(*device, false));
    CHECK(world.table.join("a", {}).what == Join::wait);
    world.table.close(*device);
    world.table.close_ended(*device, 0);
    CHECK(world.table.find("a") == nullptr);
  }
  SUBCASE("reads are") {
    device->handle.unresolved->add(/*is_write=*/false);
    CHECK_FALSE(world.table.release(*device, true));
    CHECK(world.table.next_left() == nullptr);
    device->handle.unresolved->remove(false);
    CHECK(world.table.next_left() == device);
    CHECK(device->state == State::closing);
  }
  SUBCASE("the next user has it at once, behind reads") {
    CHECK_FALSE(world.table.release(*device, true));
    CHECK(world.table.join("a", {}).what == Join::share);
  }
  SUBCASE("the next user closes it first, behind a write") {
    device->handle.unresolved->add(/*is_write=*/true);
    CHECK(world.table.release(*device, true));
    world.table.close_ended(*device, EINTR);
    CHECK(world.table.join("a", {}).what == Join::close);
  }
}

TEST_CASE("device table: a CLOSE without an answer is asked again before the next OPEN") {
  World world;
  const auto device = world.open("a");
  REQUIRE(world.table.release(*device, false));
  world.table.close(*device);
  world.table.close_ended(*device, EIO);
  CHECK(device->half_closed);
  CHECK_FALSE(device->fit_for_next());
  CHECK(world.table.join("a", {}).what == Join::close);
  world.table.close(*device);
  world.table.close_ended(*device, 0);
  CHECK(world.table.join("a", {}).what == Join::open);
}

TEST_CASE("device table: an OPEN without an answer is closed, unless the server knows no numbers") {
  SUBCASE("own") {
    World world;
    const auto joined = world.table.join("a", {});
    CHECK(world.table.not_opened(*joined.device, /*answered=*/false));
    CHECK(joined.device->state == State::closing);
    CHECK(joined.device->users == 0);
  }
  SUBCASE("Linux") {
    World world{0};
    const auto joined = world.table.join("a", {});
    CHECK_FALSE(world.table.not_opened(*joined.device, false));
    CHECK(world.table.find("a") == nullptr);
  }
  SUBCASE("refused") {
    World world;
    const auto joined = world.table.join("a", {});
    CHECK_FALSE(world.table.not_opened(*joined.device, /*answered=*/true));
    CHECK(world.table.find("a") == nullptr);
  }
}

TEST_CASE("device table: an id of the session before is not taken") {
  World world;
  const auto joined = world.table.join("a", {});
  world.table.open(*joined.device, world.answer);
  world.table.begin_recovery(limits(), true, {});
  CHECK_FALSE(world.table.take_id(*joined.device, 7));
  CHECK(world.table.asks_again(*joined.device));
  CHECK(joined.device->handle.id == kNoDevice);
}

TEST_CASE("device table: what is in use is opened again, and has its new id") {
  World world;
  const auto a = world.open("a");
  const auto b = world.open("b");
  REQUIRE(world.table.release(*b, false));
  const auto outcome = world.recover({{.id = 20}});
  CHECK(world.asked[0].name == "a");
  CHECK(outcome.lost.empty());
  CHECK(a->handle.id == 20);
  CHECK(b->handle.id == kNoDevice);  // it is being closed
}

TEST_CASE("device table: users of a lost device keep its record, and another one is closed") {
  World world;
  const auto device = world.open("a", {.unclaimed = true});
  REQUIRE_FALSE(device->claimed);
  const auto outcome = world.recover({{.id = 20, .loss = "another disk"}});
  REQUIRE(outcome.lost == std::vector{device});
  CHECK(device->handle.id == kNoDevice);
  CHECK_FALSE(world.table.release(*device, false));
  const auto left = world.table.find("a");
  REQUIRE(left != nullptr);
  CHECK(left != device);
  CHECK(left->handle.id == 20);
  CHECK(left->half_closed);
  CHECK_FALSE(left->claimed);  // it is not opened with a reservation only to be closed
  CHECK(world.table.next_left() == left);
}

TEST_CASE("device table: a lost device that the server does not have is gone") {
  World world;
  const auto device = world.open("a");
  CHECK(world.recover({{.loss = "gone"}}).lost == std::vector{device});
  CHECK(world.table.find("a") == nullptr);
}

TEST_CASE("device table: a device whose users left during the recovery is closed, not lost") {
  World world;
  const auto device = world.open("a");
  world.table.begin_recovery(limits(), true, {});
  REQUIRE(world.table.release(*device, false));
  const auto outcome = world.table.recovered({{.id = 20, .loss = "another disk"}});
  CHECK(outcome.lost.empty());
  CHECK(device->half_closed);
  CHECK(device->handle.id == 20);
}

TEST_CASE("device table: what was not flushed is lost with the machine, or with the storage") {
  World world;
  const auto device = world.open("a");
  device->handle.unflushed.note();
  SUBCASE("nothing was") { CHECK(world.recover({{.id = 20}}).unflushed.empty()); }
  SUBCASE("the machine") {
    const auto outcome = world.recover({{.id = 20}}, /*epoch=*/2);
    REQUIRE(outcome.unflushed.size() == 1);
    CHECK(outcome.unflushed[0].restarted);
  }
  SUBCASE("the storage") {
    const auto outcome = world.recover({{.id = 20, .witness = {.storage_life = 1}}});
    REQUIRE(outcome.unflushed.size() == 1);
    CHECK_FALSE(outcome.unflushed[0].restarted);
  }
}

TEST_CASE("device table: a device that is refused for long while others wait is lost") {
  World world;
  const auto a = world.open("a");
  const auto b = world.open("b");
  RefusalPatience::TimePoint now{};
  for (int attempt = 0; attempt < 3; ++attempt, now += 6s) {
    const auto devices = world.table.begin_recovery(limits(), true, now);
    CHECK(devices[0].patient);
    CHECK(world.table.refused({{.id = 20}, {.loss = "busy", .refusal = EPERM}}, true, now).empty());
  }
  CHECK_FALSE(world.table.begin_recovery(limits(), true, now)[1].patient);
  const auto lost = world.table.recovered({{.id = 20}, {.loss = "busy", .refusal = EPERM}}).lost;
  CHECK(lost == std::vector{b});
  CHECK(a->handle.id == 20);
}

TEST_CASE("device table: a device that is another one is lost even if its path goes, too") {
  World world;
  const auto device = world.open("a");
  world.open("b");
  world.table.begin_recovery(limits(), true, {});
  CHECK(world.table.cut_short({{.id = 20, .loss = "another disk"}}) == std::vector{device});
  CHECK(world.table.reopening().empty());
}

TEST_CASE("device table: a clone of the server takes no device from a session that may not stay") {
  World world;
  const auto a = world.open("a");
  world.open("b");
  const ReopenedDevice older{.id = 20, .loss = "an older record", .outdated = true};
  const ReopenedDevice other{.id = 21, .loss = "another disk"};
  world.table.begin_recovery(limits(), true, {});
  SUBCASE("its path goes") { CHECK(world.table.cut_short({older}).empty()); }
  SUBCASE("it talks nonsense") { CHECK(world.table.refused({older}, true, {}).empty()); }
  SUBCASE("it has another disk") { CHECK(world.table.refused({other, older}, true, {}).empty()); }
  CHECK(world.table.find("a") == a);
  CHECK(world.recover({older, {.id = 21}}).lost == std::vector{a});  // the user tells it to
}

TEST_CASE("device table: what is older at a server that is no clone is lost before all are open") {
  World world;
  const auto a = world.open("a");
  world.open("b");
  const ReopenedDevice older{.id = 20, .loss = "an older record", .outdated = true};
  rtrs::SessionLimits renewed = limits();
  ReopenedDevice refused{.loss = "busy", .refusal = EPERM};
  SUBCASE("the user has told to go on there") { renewed.any_server = true; }
  SUBCASE("it remembers others") {
    world.open("c");
    world.table.begin_recovery(renewed, true, {});
    const ReopenedDevice other{.id = 22, .loss = "other writers", .remembered = true};
    CHECK(world.table.refused({older, refused, other}, false, {}).size() == 2);
    return;
  }
  world.table.begin_recovery(renewed, true, {});
  CHECK(world.table.refused({older, refused}, false, {}) == std::vector{a});
}

TEST_CASE("device table: a server that may prove to be a clone takes no device, either") {
  World world;
  const auto a = world.open("a");
  world.open("b")->witness.generation = 0x7'0000'0004;
  rtrs::SessionLimits renewed = limits();
  const ReopenedDevice gone{.loss = "gone"};
  ReopenedDevice other{.id = 20, .loss = "other writers"};
  bool lost = true;
  SUBCASE("it does not have it") {
    world.table.begin_recovery(renewed, true, {});
    SUBCASE("and its path goes") { CHECK(world.table.cut_short({gone}).empty()); }
    SUBCASE("and it talks nonsense") { CHECK(world.table.refused({gone}, false, {}).empty()); }
    CHECK(world.table.find("a") == a);
    CHECK(world.recover({gone, {.id = 21}}).lost == std::vector{a});
    return;
  }
  SUBCASE("it has another record of it") {
    a->witness.generation = 0x7'0000'0002;
    lost = false;
  }
  SUBCASE("but a record that is not kept is lost with the server") {}
  SUBCASE("but one that remembers is no clone") {
    a->witness.generation = 0x7'0000'0002;
    other.remembered = true;
  }
  SUBCASE("but the user has told to go on there") {
    a->witness.generation = 0x7'0000'0002;
    renewed.any_server = true;
  }
  world.table.begin_recovery(renewed, true, {});
  CHECK(world.table.cut_short({other}).empty() != lost);
}

TEST_CASE("device table: unused devices are forgotten when the server certainly has none open") {
  World world;
  const auto device = world.open("a");
  REQUIRE(world.table.release(*device, false));
  world.table.close(*device);
  world.table.close_ended(*device, EIO);
  SUBCASE("certainly") {
    CHECK(world.recover({}).lost.empty());
    CHECK(world.table.find("a") == nullptr);
  }
  SUBCASE("perhaps") {
    const auto devices = world.table.begin_recovery(limits(), false, {});
    REQUIRE(devices.size() == 1);
    CHECK(devices[0].leaving);
  }
}

TEST_CASE("device table: an unused device is closed first where its session was not renewed") {
  World world;
  const OpenOptions reads{.access = AccessMode::read_only};
  const auto device = world.open("a", reads);
  device->handle.unresolved->add(/*is_write=*/false);
  REQUIRE_FALSE(world.table.release(*device, /*stuck=*/true));
  CHECK(world.table.begin_recovery(limits(), true, {}).empty());
  SUBCASE("by another server than its own, which has the session still") {
    world.table.refused({}, false, {});
    CHECK(world.table.find("a") == device);
    CHECK(device->handle.id == 7);
  }
  SUBCASE("or not yet") {}
  SUBCASE("for want of a path") { world.table.cut_short({}); }
  SUBCASE("nor in another attempt, which does not open it, either") {
    world.table.cut_short({});
    REQUIRE(world.table.begin_recovery(limits(), true, {}).empty());
    SUBCASE("and fails") { world.table.cut_short({}); }
    SUBCASE("and succeeds") {
      world.table.recovered({});
      CHECK(world.table.find("a") == nullptr);
      return;
    }
  }
  CHECK(world.table.join("a", reads).what == Join::close);
  world.table.close(*device);
  world.table.close_ended(*device, 0);
  CHECK(world.table.join("a", {}).what == Join::open);
}

TEST_CASE("device table: a device that is closed during the recovery outlives it") {
  World world;
  const auto device = world.open("a");
  device->handle.unresolved->add(/*is_write=*/false);
  REQUIRE_FALSE(world.table.release(*device, /*stuck=*/true));
  world.table.begin_recovery(limits(), true, {});
  REQUIRE(world.table.join("a", {}).what == Join::close);
  world.table.recovered({});
  CHECK(world.table.find("a") == device);
  CHECK(device->handle.id == kNoDevice);
  CHECK(world.table.join("a", {}).what == Join::wait);
}

TEST_CASE("device table: the claim of one user covers those that know as much") {
  World world;
  const auto device = world.open("a", {.unclaimed = true});
  using Claim = ClientDevice::Claim;
  CHECK(device->claim({.sight = 5}) == Claim::ask);
  device->claiming = true;
  CHECK(device->claim({.sight = 5}) == Claim::wait);
  device->claiming = false;
  wire::DeviceInfoResponse told{};
  told.sight = 6;
  device->claim_granted({.sight = 5}, told);
  CHECK(device->claim({.sight = 5}) == Claim::covered);
  CHECK(device->claim({.sight = 6}) == Claim::covered);
  CHECK(device->claim({.sight = 4}) == Claim::stale);
}

TEST_CASE("device table: a server without claims gives the reservation with the OPEN") {
  World world{rtrs::wire::kFeatureUserMessages};
  CHECK(world.open("a", {.unclaimed = true})->claimed);
}

TEST_CASE("device table: requests keep a record that another one takes the place of") {
  World world;
  const auto device = world.open("a");
  world.table.begin_recovery(limits(), true, {});
  const auto left = world.table.leave_behind(device, 9);
  CHECK(world.table.find("a") == left);
  CHECK(world.table.reopening() == std::vector{left});
  CHECK(left->users == 0);
  CHECK(left->handle.id == 9);
}

}  // namespace
}  // namespace rnbd::test::device_table_test
