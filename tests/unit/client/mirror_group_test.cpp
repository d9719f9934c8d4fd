// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "bridge/client/mirror/group.hpp"

namespace rnbd::mirror_group_test {
namespace {

using mirror::Command;
using mirror::Order;

struct Host final : mirror::GroupHost {
  void send(const Command& command) override { sent.push_back(command); }
  void drop(unsigned /*member*/) override {}
  void attached() override {}
  void done(std::uint64_t operation) override { ended.push_back(operation); }
  void over() override {}

  /// The newest command of this kind for this member; it has to exist.
  const Command& newest(Order order, unsigned member) const {
    const auto found = std::find_if(sent.rbegin(), sent.rend(), [&](const Command& command) {
      return command.order == order && command.member == member;
    });
    REQUIRE(found != sent.rend());
    return *found;
  }
  bool has(Order order) const {
    return std::any_of(sent.begin(), sent.end(),
                       [&](const Command& command) { return command.order == order; });
  }

  std::vector<Command> sent;
  std::vector<std::uint64_t> ended;
};

/// Three members with four regions of eight sectors.
struct World {
  Host host;
  mirror::Group group{{.members = 3, .regions = 4, .region_sectors = 8, .sectors = 32}, host};

  static mirror::Claimed claimed(bool lost_power, std::vector<std::uint32_t> active) {
    const mirror::View view{{1, 1}, 7};
    mirror::Claimed answer{.promised = 1, .view = view, .confirmed = view};
    answer.lost_power = lost_power;
    answer.maps.active = mirror::RegionMap{4};
    for (const std::uint32_t region : active) answer.maps.active.add(region);
    answer.maps.dirty.assign(3, mirror::RegionMap{4});
    return answer;
  }
  void answer_claim(unsigned member, const mirror::Claimed& claimed) {
    group.answer({.tag = host.newest(Order::claim, member).tag, .error = 0, .claimed = claimed});
  }
  void answer(Order order, unsigned member, int error = 0) {
    group.answer({.tag = host.newest(order, member).tag, .error = error});
  }
  /// All three are there, and equal.
  void attach() {
    for (unsigned i = 0; i < 3; ++i) group.link_up(i);
    for (unsigned i = 0; i < 3; ++i) answer_claim(i, claimed(false, {}));
    for (unsigned i = 0; i < 3; ++i) answer(Order::view, i);
    REQUIRE(group.live());
  }
};

TEST_CASE("mirror group: what a mended member gets goes into its activity log") {
  World world;
  world.group.link_up(0);
  world.group.link_up(1);
  world.answer_claim(0, World::claimed(false, {2}));
  world.answer_claim(1, World::claimed(true, {}));
  world.group.hurry();  // two of three suffice, but one of these lost its power
  CHECK_FALSE(world.host.has(Order::view));
  world.answer(Order::read, 0);
  CHECK_FALSE(world.host.has(Order::copy));
  CHECK(world.host.newest(Order::write, 1).range.begin == 16);
  world.answer(Order::write, 1);
  world.answer(Order::flush, 1);
  CHECK(world.host.newest(Order::view, 0).view.set == 3);
  CHECK(world.host.newest(Order::view, 1).view.set == 3);
}

TEST_CASE("mirror group: a write ends when all in step have it") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  world.answer(Order::write, 0);
  world.answer(Order::write, 1);
  CHECK(world.host.ended.empty());
  world.answer(Order::write, 2);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
}

TEST_CASE("mirror group: without a member a write ends when the smaller view is recorded") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  world.answer(Order::write, 0);
  world.answer(Order::write, 1);
  world.answer(Order::write, 2, 5);
  world.answer(Order::view, 0);
  CHECK(world.host.ended.empty());
  world.answer(Order::view, 1);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
  CHECK(world.group.in_step() == 3);
}

TEST_CASE("mirror group: a write that waits for its range keeps the region in the activity log") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
  world.group.cool();
  world.group.submit(mirror::Group::Kind::read, 2, {0, 8});
  world.group.submit(mirror::Group::Kind::write, 3, {0, 8});  // behind the read
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::flush, i);
  CHECK_FALSE(world.host.newest(Order::cool, 0).regions.contains(0));
}

}  // namespace
}  // namespace rnbd::mirror_group_test
