// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "bridge/client/mirror/group.hpp"

namespace rnbd::mirror_group_test {
namespace {

using mirror::Command;
using mirror::Order;

struct Host final : mirror::GroupHost {
  void send(const Command& command) override { sent.push_back(command); }
  void drop(unsigned member) override { dropped.push_back(member); }
  void attached() override {}
  void done(std::uint64_t operation) override { ended.push_back(operation); }
  void failed(std::uint64_t operation, int error) override {
    failures.push_back(operation);
    errors.push_back(error);
  }
  mirror::MemberSet same(std::uint64_t /*operation*/, mirror::MemberSet members,
                         unsigned source) override {
    return static_cast<mirror::MemberSet>(members & (alike | mirror::bit(source)));
  }
  void differs(const mirror::Difference& found) override { differences.push_back(found); }
  void grown() override { ++growths; }
  void not_grown(unsigned member, int error) override { refusals.emplace_back(member, error); }
  void dissolved(int error) override { outcomes.push_back(error); }
  bool may_copy(unsigned under_way) override { return may && under_way < at_once; }
  bool has_requests() override { return requests; }
  mirror::MemberSet leased() override { return leases; }
  bool leases_ended() override { return have_ended; }
  void over() override {}
  void superseded() override { was_superseded = true; }

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

  std::size_t count(Order order, unsigned member) const {
    return static_cast<std::size_t>(std::count_if(sent.begin(), sent.end(), [&](const Command& c) {
      return c.order == order && c.member == member;
    }));
  }

  std::vector<Command> sent;
  std::vector<std::uint64_t> ended;
  std::vector<std::uint64_t> failures;
  std::vector<int> errors;
  std::vector<unsigned> dropped;
  std::vector<mirror::Difference> differences;
  std::vector<int> outcomes;    ///< of dissolve()
  mirror::MemberSet alike = 0;  ///< have the same data as any source
  bool may = true;
  unsigned at_once = 1;  ///< copies
  bool requests = false;
  mirror::MemberSet leases = 0xFFFF;
  bool have_ended = true;
  bool was_superseded = false;
  unsigned growths = 0;
  std::vector<std::pair<unsigned, int>> refusals;  ///< of growth
};

/// Three members with four regions of eight sectors.
struct World {
  /// `span`, `unit`: see GroupOptions.
  explicit World(std::uint32_t span = 0, std::uint64_t unit = 8)
      : group{{.members = 3,
               .region_sectors = 8,
               .size = 32 * 512,
               .most_regions = 100,
               .unit_sectors = unit,
               .span = span,
               .span_beside = 2},
              host} {}

  Host host;
  mirror::Group group;

  static mirror::Claimed claimed(bool lost_power, std::vector<std::uint32_t> active) {
    const mirror::View view{{1, 1}, 7};
    mirror::Claimed answer{.promised = 1, .view = view, .confirmed = view};
    answer.lost_power = lost_power;
    answer.maps.active = mirror::RegionMap{4};
    for (const std::uint32_t region : active) answer.maps.active.add(region);
    answer.maps.dirty.assign(3, mirror::RegionMap{4});
    return answer;
  }
  /// One that was in a view has disk 10 + `member`, and knows all three, unless it says something
  /// else.
  void answer_claim(unsigned member, mirror::Claimed claimed) {
    if (claimed.disk == 0 && claimed.view.id != mirror::ViewId{}) {
      claimed.disk = 10 + member;
      for (unsigned k = 0; k < 3; ++k) claimed.pedigree.push_back({10 + k, {}});
    }
    group.answer({.tag = host.newest(Order::claim, member).tag, .claimed = claimed});
  }
  void answer(Order order, unsigned member, int error = 0) {
    group.answer({.tag = host.newest(order, member).tag, .error = error});
  }
  /// Of disk 10 + `member`, or another one, whose record knows all three disks.
  static mirror::Claimed of_disk(unsigned member, std::uint64_t disk = 0, mirror::Age age = kAge) {
    mirror::Claimed answer = claimed(false, {});
    answer.disk = disk != 0 ? disk : 10 + member;
    answer.view.id = answer.confirmed.id = age.view;
    answer.beat = age.beat;
    for (unsigned k = 0; k < 3; ++k) answer.pedigree.push_back({10 + k, age});
    answer.pedigree[member].disk = answer.disk;
    return answer;
  }
  static constexpr mirror::Age kAge{{1, 1}, 5};
  /// Of a lost member that has come as far as its newest view in force.
  mirror::Claimed as_it_was(unsigned member) const {
    return of_disk(member, 0, {host.newest(Order::confirm, member).view.id, 0});
  }
  /// Of a member that no view knows.
  static mirror::Claimed unknown() {
    mirror::Claimed answer = claimed(true, {0, 1, 2, 3});
    answer.promised = 0;
    answer.view = answer.confirmed = {{}, 7};
    return answer;
  }
  /// Nothing is known of what others lack.
  void answer_maps(unsigned member) {
    mirror::Maps maps{.active = mirror::RegionMap{4}, .dirty = {}};
    maps.dirty.assign(3, mirror::RegionMap{4});
    group.answer({.tag = host.newest(Order::maps, member).tag, .maps = maps});
  }
  /// Members 0 and 1 know that member 2 lacks these regions.
  void answer_lacking(std::vector<std::uint32_t> regions) {
    mirror::Maps maps{.active = mirror::RegionMap{4}, .dirty = {}};
    maps.dirty.assign(3, mirror::RegionMap{4});
    for (const std::uint32_t region : regions) maps.dirty[2].add(region);
    for (unsigned i = 0; i < 2; ++i)
      if (host.count(Order::maps, i) != 0)
        group.answer({.tag = host.newest(Order::maps, i).tag, .maps = maps});
  }
  /// A member is lost, and is there again without these regions.
  void come_back(unsigned member, std::vector<std::uint32_t> lacking) {
    group.link_down(member);
    for (unsigned i = 0; i < 3; ++i)
      if (i != member) answer(Order::view, i);
    group.link_up(member, false);
    answer_claim(member, claimed(true, std::move(lacking)));
    for (unsigned i = 0; i < 3; ++i)
      if (i != member) answer_maps(i);
  }
  /// All three are there, and equal.
  void attach() {
    for (unsigned i = 0; i < 3; ++i) group.link_up(i, false);
    for (unsigned i = 0; i < 3; ++i) answer_claim(i, claimed(false, {}));
    for (unsigned i = 0; i < 3; ++i) answer(Order::view, i);
    REQUIRE(group.live());
  }
};

TEST_CASE("mirror group: what a mended member gets goes into its activity log") {
  World world;
  world.group.link_up(0, false);
  world.group.link_up(1, false);
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

TEST_CASE("mirror group: a member that cannot zero as it is told gets the zeroes written") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::zero, 1, {0, 8});
  world.answer(Order::zero, 0);
  world.answer(Order::zero, 1, EOPNOTSUPP);
  world.answer(Order::zero, 2);
  CHECK(world.host.ended.empty());
  CHECK(world.host.count(Order::write, 0) == 0);
  SUBCASE("it can write") {
    world.answer(Order::write, 1);
    CHECK(world.host.dropped.empty());
  }
  SUBCASE("it cannot") {
    world.answer(Order::write, 1, EIO);
    CHECK(world.host.dropped == std::vector{1U});
    world.answer(Order::view, 0);
    world.answer(Order::view, 2);
  }
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
}

TEST_CASE("mirror group: extents are asked of one member, behind changes, and elsewhere in vain") {
  World world;
  world.attach();
  world.group.prefer(1);
  world.group.submit(mirror::Group::Kind::zero, 1, {0, 8});
  world.group.submit(mirror::Group::Kind::extents, 2, {4, 12});
  CHECK_FALSE(world.host.has(Order::extents));
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::zero, i);
  CHECK(world.host.count(Order::extents, 1) == 1);
  world.answer(Order::extents, 1, EIO);
  const unsigned other = world.host.sent.back().member;
  CHECK(other != 1);
  world.answer(Order::extents, other);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1, 2});
  CHECK(world.host.dropped.empty());
  CHECK_FALSE(world.host.has(Order::read));  // nothing is repaired: no content was seen
}

TEST_CASE("mirror group: a member that cannot tell extents stays, and shows no lease by that") {
  World world;
  world.attach();
  world.group.prefer(1);
  world.host.leases = 0b101;
  world.group.submit(mirror::Group::Kind::extents, 1, {0, 8});
  world.answer(Order::extents, 1, EINVAL);
  CHECK(world.host.dropped.empty());
  CHECK(world.host.ended.empty());
  world.answer(Order::echo, 1);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
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
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::beat, i);
  CHECK_FALSE(world.host.newest(Order::cool, 0).regions.contains(0));
}

/// Three members, of which 2 has just come back, and lacks region 1.
struct Returning : World {
  explicit Returning(bool pulls) {
    group.link_up(0, false);
    group.link_up(1, false);
    for (unsigned i = 0; i < 2; ++i) answer_claim(i, claimed(false, {}));
    group.hurry();
    for (unsigned i = 0; i < 2; ++i) answer(Order::view, i);
    REQUIRE(group.live());
    group.link_up(2, false);
    auto claim = claimed(false, {});
    claim.pulls = pulls;
    answer_claim(2, claim);
    mirror::Maps maps = claimed(false, {}).maps;
    maps.dirty[2].add(1);
    for (unsigned i = 0; i < 2; ++i)
      group.answer(
          {.tag = host.newest(Order::maps, i).tag, .error = 0, .claimed = {}, .maps = maps});
  }
};

TEST_CASE("mirror group: a member that can pulls what it lacks from one in step") {
  Returning world{true};
  const Command pull = world.host.newest(Order::pull, 2);
  CHECK(pull.range.begin == 8);
  CHECK(pull.source < 2);
  CHECK(pull.disk == 10 + pull.source);
  CHECK_FALSE(world.host.has(Order::read));
  world.answer(Order::pull, 2);
  CHECK(world.group.progress(2).left == 0);
  CHECK_FALSE(world.host.has(Order::copy));
}

TEST_CASE("mirror group: when two members cannot reach each other, the client copies") {
  Returning world{true};
  world.answer(Order::pull, 2, EOPNOTSUPP);
  const unsigned source = world.host.sent.back().member;
  CHECK(world.host.sent.back().order == Order::read);
  world.answer(Order::read, source);
  CHECK(world.host.newest(Order::copy, 2).range.begin == 8);
  CHECK(world.host.dropped.empty());
}

TEST_CASE("mirror group: what was pulled from a member that was lost meanwhile does not count") {
  Returning world{true};
  const unsigned source = world.host.newest(Order::pull, 2).source;
  world.group.link_down(source);
  world.answer(Order::view, 1 - source);
  world.answer(Order::pull, 2);
  CHECK(world.group.progress(2).left == 1);
  CHECK(world.host.count(Order::pull, 2) == 2);
  CHECK(world.host.newest(Order::pull, 2).source == 1 - source);
}

TEST_CASE("mirror group: copying waits while its host says so, requests do not") {
  Returning world{false};
  const std::size_t copies = world.host.count(Order::read, 0) + world.host.count(Order::read, 1);
  CHECK(copies == 1);
  World idle;
  idle.attach();
  idle.host.may = false;
  idle.group.submit(mirror::Group::Kind::read, 1, {0, 8});
  CHECK(idle.host.has(Order::read));
}

TEST_CASE("mirror group: a read that fails at one member is read from another, and written back") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::read, 1, {0, 8});
  const unsigned bad = world.host.sent.back().member;
  world.answer(Order::read, bad, EIO);
  const unsigned good = world.host.sent.back().member;
  REQUIRE(good != bad);
  world.answer(Order::read, good);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
  world.host.alike = 7;
  for (unsigned i = 0; i < 3; ++i)  // the repair
    if (i != bad) world.answer(Order::read, i);
  CHECK(world.host.newest(Order::write, bad).range.begin == 0);
  CHECK(world.host.newest(Order::write, bad).source != bad);
  CHECK(world.host.count(Order::write, good) == 0);
  world.answer(Order::write, bad);
  CHECK(world.group.in_step() == 7);
  // Once more: it does not keep what is written to it.
  world.group.submit(mirror::Group::Kind::read, 2, {0, 8});
  while (world.host.sent.back().member != bad) {
    world.answer(Order::read, world.host.sent.back().member);
    world.group.submit(mirror::Group::Kind::read, 2, {0, 8});
  }
  world.answer(Order::read, bad, EIO);
  CHECK(world.host.dropped == std::vector<unsigned>{bad});
}

TEST_CASE("mirror group: a read waits until all in step have shown that they serve the client") {
  World world;
  world.attach();
  world.host.leases = 0b001;
  world.group.submit(mirror::Group::Kind::read, 1, {0, 8});
  world.group.submit(mirror::Group::Kind::read, 2, {8, 16});
  for (unsigned i = 0; i < 2; ++i) {
    const auto read = std::ranges::find(world.host.sent, i + 1, &Command::operation);
    REQUIRE(read != world.host.sent.end());
    world.group.answer({.tag = read->tag});
  }
  CHECK(world.host.ended.empty());
  CHECK(world.host.count(Order::echo, 0) == 0);
  CHECK(world.host.count(Order::echo, 1) == 1);
  world.host.leases = 0b011;
  world.answer(Order::echo, 1);
  CHECK(world.host.ended.empty());
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("mirror group: a read ends when all in step have carried out an order sent after it") {
  World world;
  world.attach();
  world.host.leases = 0;  // on a slow link each answer comes too late
  world.group.submit(mirror::Group::Kind::read, 1, {0, 8});
  const unsigned source = world.host.sent.back().member;
  world.answer(Order::read, source);
  CHECK(world.host.count(Order::echo, source) == 0);  // the read itself shows it
  std::vector<unsigned> others;
  for (unsigned i = 0; i < 3; ++i)
    if (i != source) others.push_back(i);
  world.answer(Order::echo, others[0]);
  CHECK(world.host.ended.empty());
  // An echo that is older than a read shows nothing to it.
  world.group.submit(mirror::Group::Kind::read, 2, {8, 16});
  const Command second = world.host.sent.back();
  REQUIRE(second.order == Order::read);
  world.group.answer({.tag = second.tag});
  world.answer(Order::echo, others[1]);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
  for (unsigned i = 0; i < 3; ++i)
    if (i != second.member) world.answer(Order::echo, i);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("mirror group: a client waits before it goes on without a member of the newest view") {
  World world;
  world.host.have_ended = false;
  for (unsigned i = 0; i < 2; ++i) world.group.link_up(i, false);
  for (unsigned i = 0; i < 2; ++i) world.answer_claim(i, World::claimed(false, {}));
  world.group.hurry();
  CHECK_FALSE(world.host.has(Order::view));
  world.host.have_ended = true;
  world.group.hurry();
  CHECK(world.host.newest(Order::view, 0).view.set == 3);
  World whole;
  whole.host.have_ended = false;
  whole.attach();
}

TEST_CASE("mirror group: a read that fails everywhere fails, and the members stay") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::read, 1, {0, 8});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, world.host.sent.back().member, EIO);
  CHECK(world.host.failures == std::vector<std::uint64_t>{1});
  CHECK(world.host.dropped.empty());
  CHECK(world.group.in_step() == 7);
}

TEST_CASE("mirror group: what all members in step refuse fails, and is made equal before a read") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i, ENOSPC);
  CHECK(world.host.failures == std::vector<std::uint64_t>{1});
  CHECK(world.host.errors == std::vector<int>{ENOSPC});
  CHECK(world.host.dropped.empty());
  CHECK(world.group.unequal() == 1);
  world.group.submit(mirror::Group::Kind::read, 2, {0, 8});
  // All are read, and only those that differ are written.
  world.host.alike = 0b011;
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  CHECK(world.host.newest(Order::write, 2).source == 0);
  CHECK(world.host.count(Order::write, 2) == 2);
  CHECK(world.host.count(Order::write, 1) == 1);
  CHECK(world.host.count(Order::read, 0) + world.host.count(Order::read, 1) == 2);
  world.answer(Order::write, 2);
  CHECK(world.group.unequal() == 0);
  CHECK(world.host.sent.back().operation == 2);
  CHECK(world.host.sent.back().order == Order::read);
}

TEST_CASE("mirror group: what all in step refuse is copied to members that come back") {
  Returning world{false};
  world.host.may = false;
  REQUIRE(world.group.progress(2).left == 1);
  world.group.submit(mirror::Group::Kind::write, 1, {24, 32});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i, i < 2 ? ENOSPC : 0);
  CHECK(world.host.errors == std::vector<int>{ENOSPC});
  CHECK(world.group.progress(2).left == 2);
  CHECK(world.host.dropped.empty());
}

TEST_CASE("mirror group: who refuses what another member in step has carried out is lost") {
  const std::vector<int> errors{ENOSPC, 0, ENOSPC};
  for (const std::vector<unsigned>& order : {std::vector<unsigned>{0, 1, 2}, {1, 0, 2}}) {
    World world;
    world.attach();
    world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
    for (const unsigned i : order) {
      world.answer(Order::write, i, errors[i]);
      if (i == 0 && order[0] == 0) CHECK(world.host.dropped.empty());
    }
    CHECK(world.host.dropped.front() == 0);
    CHECK(world.host.failures.empty());
  }
}

TEST_CASE("mirror group: what members refuse that the group needs fails, and they stay") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  world.answer(Order::write, 0);
  world.answer(Order::write, 1, ENOSPC);
  world.answer(Order::write, 2, ENOSPC);
  CHECK(world.host.dropped == std::vector<unsigned>{1});  // two of three go on without it
  world.answer(Order::view, 0);
  world.answer(Order::view, 2);
  CHECK(world.host.dropped == std::vector<unsigned>{1, 2});
  CHECK(world.host.failures.empty());

  World other;
  other.attach();
  other.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  other.answer(Order::write, 1, ENOSPC);
  other.answer(Order::write, 2, ENOSPC);
  other.answer(Order::write, 0);
  CHECK(other.host.dropped.empty());
  CHECK(other.host.errors == std::vector<int>{ENOSPC});
  CHECK(other.group.unequal() == 1);
}

TEST_CASE("mirror group: different errors, and those of a bad disk, are the member's own") {
  for (const int other : {EIO, EINVAL}) {
    World world;
    world.attach();
    world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
    world.answer(Order::write, 0, ENOSPC);
    world.answer(Order::write, 1, other);
    CHECK(world.host.dropped == std::vector<unsigned>{1});
    world.answer(Order::write, 2, ENOSPC);
    for (const unsigned i : {0U, 2U}) world.answer(Order::view, i);
    CHECK(world.host.errors == std::vector<int>{ENOSPC});
    CHECK(world.group.in_step() == 0b101);
  }
}

TEST_CASE("mirror group: a member without room for what another one has is itself the source") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i, ENOSPC);
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  world.answer(Order::write, 1);
  world.answer(Order::write, 2, ENOSPC);
  CHECK(world.host.dropped.empty());
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  CHECK(world.host.newest(Order::write, 0).source == 2);
  CHECK(world.host.newest(Order::write, 1).source == 2);
  SUBCASE("there is room for its data") {
    for (unsigned i = 0; i < 2; ++i) world.answer(Order::write, i);
    CHECK(world.group.unequal() == 0);
    CHECK(world.group.in_step() == 7);
  }
  SUBCASE("nor is there room for its data") {
    world.answer(Order::write, 0);
    world.answer(Order::write, 1, ENOSPC);
    CHECK(world.host.dropped == std::vector<unsigned>{1});
  }
}

TEST_CASE("mirror group: an empty disk in place of a member's is no copy, whatever the view says") {
  World world;
  for (unsigned i = 0; i < 3; ++i) world.group.link_up(i, false);
  mirror::Claimed empty = World::claimed(true, {0, 1, 2, 3});
  empty.view = empty.confirmed = {{}, 7};
  world.answer_claim(0, empty);
  world.answer_claim(1, World::claimed(true, {2}));  // all have lost their power
  world.answer_claim(2, World::claimed(true, {}));
  CHECK(world.host.newest(Order::view, 1).view.set == 0b110);
}

TEST_CASE("mirror group: of two members, an empty disk is no proof that the other one has all") {
  Host host;
  mirror::Group group{{.members = 2, .region_sectors = 8, .size = 32 * 512}, host};
  const auto answer = [&](unsigned member, mirror::Claimed claimed) {
    claimed.maps.dirty.resize(2);
    group.answer({.tag = host.newest(Order::claim, member).tag, .error = 0, .claimed = claimed});
  };
  group.link_up(0, false);
  group.link_up(1, false);
  mirror::Claimed old = World::claimed(false, {});
  old.view.set = old.confirmed.set = 3;
  answer(0, old);
  old = World::claimed(true, {0, 1, 2, 3});
  old.view = old.confirmed = {{}, 3};
  answer(1, old);
  group.answer({.tag = host.newest(Order::inspect, 1).tag, .error = 0});
  group.hurry();
  CHECK_FALSE(host.has(Order::view));  // the disk that was there may have gone on alone
  CHECK(group.record(0).set == 3);
  CHECK_FALSE(group.record(0).blank);
  CHECK(group.record(1).blank);
  CHECK(group.force(0));
  CHECK(host.newest(Order::view, 0).view.set == 1);
  CHECK((host.newest(Order::view, 0).view.id.term >> 32) == 1);
  CHECK(host.newest(Order::view, 0).inherit[1].count() == 4);
}

/// Three members of a new group.
struct New : World {
  explicit New(bool overwrite = false) {
    for (unsigned i = 0; i < 3; ++i) group.link_up(i, overwrite);
    for (unsigned i = 0; i < 3; ++i) answer_claim(i, unknown());
  }
};

TEST_CASE("mirror group: the first view has the first member alone, and the others get copies") {
  New world;
  for (unsigned i = 1; i < 3; ++i) world.answer(Order::inspect, i);
  CHECK(world.host.newest(Order::view, 0).view.set == 0b001);
  CHECK(world.host.newest(Order::view, 0).inherit[2].count() == 4);
  CHECK(world.host.count(Order::view, 1) == 0);
  world.answer(Order::view, 0);
  CHECK(world.group.in_step() == 0b001);
  world.answer_claim(1, World::unknown());
  world.answer(Order::inspect, 1);
  CHECK(world.host.newest(Order::view, 1).view.set == 0b001);
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  CHECK(world.host.count(Order::write, 1) == 0);  // not before its record has that view
  world.answer(Order::write, 0);
  world.answer(Order::view, 1);
  world.answer_maps(0);
  CHECK(world.host.newest(Order::read, 0).range.begin == 0);
  world.group.submit(mirror::Group::Kind::read, 2, {24, 32});
  CHECK(world.host.count(Order::read, 1) == 0);
}

TEST_CASE("mirror group: a new group does not begin while a copy would destroy data") {
  New world;
  world.answer(Order::inspect, 1);
  world.answer(Order::inspect, 2, ENOTEMPTY);
  world.group.hurry();
  CHECK_FALSE(world.host.has(Order::view));
  CHECK(world.host.dropped.empty());
}

TEST_CASE("mirror group: a new group begins over data if its user allows that") {
  New world{true};
  CHECK_FALSE(world.host.has(Order::inspect));
  CHECK(world.host.newest(Order::view, 0).view.set == 0b001);
}

TEST_CASE("mirror group: data on a disk that comes in place of a member's are not overwritten") {
  World world;
  world.attach();
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  const std::size_t views = world.host.count(Order::view, 2);
  world.group.link_up(2, false);
  world.answer_claim(2, World::unknown());
  world.answer(Order::inspect, 2, ENOTEMPTY);
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  CHECK(world.host.count(Order::write, 2) == 0);
  CHECK(world.host.count(Order::view, 2) == views);
  CHECK(world.group.progress(2).standing == mirror::Group::Standing::waiting);
}

TEST_CASE("mirror group: a region that cannot be read does not hold up the copies of others") {
  World world;
  world.attach();
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  world.group.link_up(2, false);
  world.answer_claim(2, World::claimed(true, {1, 3}));
  for (unsigned i = 0; i < 2; ++i) world.answer_maps(i);
  const auto fail_read = [&] {
    for (unsigned i = 0; i < 2; ++i) world.answer(Order::read, world.host.sent.back().member, EIO);
  };
  CHECK(world.host.sent.back().range.begin == 8);
  fail_read();
  CHECK(world.host.sent.back().range.begin == 24);
  fail_read();
  CHECK(world.host.sent.back().range.begin == 8);  // once more
  CHECK(world.host.dropped.empty());
}

TEST_CASE("mirror group: a region is copied in units, and only these are locked") {
  World world{0, 2};
  world.attach();
  world.come_back(2, {1});
  CHECK(world.host.newest(Order::read, world.host.sent.back().member).range.end == 10);
  world.group.submit(mirror::Group::Kind::write, 1, {8, 9});
  CHECK(world.host.count(Order::write, 0) == 0);
  world.group.submit(mirror::Group::Kind::write, 2, {10, 16});
  CHECK(world.host.count(Order::write, 0) == 1);
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
  world.host.at_once = 4;
  world.group.work();
  CHECK(world.host.count(Order::read, 0) + world.host.count(Order::read, 1) == 4);
  CHECK(world.group.progress(2).left == 1);
  std::vector<std::uint64_t> reads;
  for (const Command& command : world.host.sent)
    if (command.order == Order::read) reads.push_back(command.tag);
  for (const std::uint64_t tag : reads) world.group.answer({.tag = tag});
  std::vector<std::uint64_t> copies;
  for (const Command& command : world.host.sent)
    if (command.order == Order::copy) copies.push_back(command.tag);
  REQUIRE(copies.size() == 4);
  for (const std::uint64_t tag : copies) {
    CHECK(world.group.progress(2).left == 1);
    world.group.answer({.tag = tag});
  }
  CHECK(world.group.progress(2).left == 0);
}

TEST_CASE("mirror group: a member that comes back gets the parts that it has missed") {
  World world;
  world.attach();
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  const auto write = [&](mirror::Range range) {
    world.group.submit(mirror::Group::Kind::write, 1, range);
    for (unsigned i = 0; i < 2; ++i) world.answer(Order::write, i);
  };
  write({9, 11});
  write({24, 25});
  world.group.link_up(2, false);
  mirror::Claimed back = world.as_it_was(2);
  SUBCASE("it has logged nothing else") {
    world.answer_claim(2, back);
    world.answer_lacking({1, 3});
    CHECK(world.host.sent.back().order == Order::read);
    CHECK(world.host.sent.back().range.begin == 9);
    CHECK(world.host.sent.back().range.end == 11);
    world.answer(Order::read, world.host.sent.back().member);
    world.answer(Order::copy, 2);
    CHECK(world.host.sent.back().range.begin == 24);
    CHECK(world.host.sent.back().range.end == 25);
  }
  SUBCASE("another disk has come in its place") {
    back.disk = 99;
    world.answer_claim(2, back);
    world.answer_lacking({1, 3});
    CHECK(world.group.progress(2).standing == mirror::Group::Standing::waiting);
  }
  SUBCASE("its log has a region that it may not have on its disk") {
    back.maps.active.add(1);
    world.answer_claim(2, back);
    world.answer_lacking({1, 3});
    CHECK(world.host.sent.back().range.begin == 8);
    CHECK(world.host.sent.back().range.end == 16);
  }
}

TEST_CASE("mirror group: zeroes are copied unread, all regions in a row, while they are locked") {
  World world{4};
  world.attach();
  world.come_back(2, {0, 1, 2, 3});
  const Command asked = world.host.sent.back();
  CHECK(asked.order == Order::extents);
  CHECK(asked.range.begin == 0);
  CHECK(asked.range.end == 32);
  world.group.submit(mirror::Group::Kind::write, 1, {2, 3});
  CHECK(world.host.count(Order::write, 0) == 0);
  SUBCASE("there are some") {
    world.group.answer({.tag = asked.tag, .zeroes = {{0, 20}}, .told = 22});
    CHECK(world.host.newest(Order::clear, 2).range.end == 16);
    CHECK(world.host.count(Order::write, 0) == 0);
    world.answer(Order::clear, 2);
    CHECK(world.group.progress(2).left == 2);
    CHECK(world.host.count(Order::write, 0) == 1);
    const Command again = world.host.sent.back();
    CHECK(again.order == Order::extents);
    CHECK(again.range.begin == 16);
    world.group.answer({.tag = again.tag, .zeroes = {{0, 4}}, .told = 16});
    CHECK(world.host.sent.back().order == Order::read);
    CHECK(world.host.sent.back().range.begin == 16);
    world.answer(Order::read, world.host.sent.back().member);
    world.answer(Order::copy, 2);
    CHECK(world.host.sent.back().order == Order::read);  // it was said to have data
    CHECK(world.host.sent.back().range.begin == 24);
  }
  SUBCASE("there are some between data") {
    world.group.answer({.tag = asked.tag, .zeroes = {{2, 6}, {15, 25}}, .told = 32});
    for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
    for (const std::uint64_t region : {0U, 1U}) {
      CHECK(world.host.sent.back().order == Order::read);
      CHECK(world.host.sent.back().range.begin == region * 8);
      world.answer(Order::read, world.host.sent.back().member);
      world.answer(Order::copy, 2);
    }
    CHECK(world.host.sent.back().order == Order::extents);  // the first one without data
    CHECK(world.host.sent.back().range.begin == 16);
  }
  SUBCASE("the member cannot zero without writing") {
    world.group.answer({.tag = asked.tag, .zeroes = {{0, 32}}, .told = 32});
    world.answer(Order::clear, 2, EOPNOTSUPP);
    CHECK(world.group.progress(2).left == 4);
    CHECK(world.host.dropped.empty());
    for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);  // it came first
    CHECK(world.host.sent.back().order == Order::read);
    CHECK(world.host.sent.back().range.end == 8);
  }
  SUBCASE("the one that was asked cannot tell") {
    world.answer(Order::extents, asked.member, ENOMEM);
    CHECK(world.host.dropped.empty());
    CHECK(world.host.count(Order::write, 0) == 1);
    for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
    CHECK(world.host.sent.back().order == Order::read);
    CHECK(world.host.sent.back().range.end == 8);
  }
  SUBCASE("another client has claimed the one that was asked") {
    world.answer(Order::extents, asked.member, ESTALE);
    CHECK(world.host.dropped == std::vector<unsigned>{asked.member});
  }
  SUBCASE("the one that was asked is lost") {
    world.group.link_down(asked.member);
    for (unsigned i = 0; i < 2; ++i)
      if (i != asked.member) world.answer(Order::view, i);
    for (unsigned i = 0; i < 3; ++i)
      if (i != asked.member) world.answer(Order::write, i);
    CHECK(world.host.sent.back().order == Order::extents);
    CHECK(world.host.sent.back().member != asked.member);
  }
}

TEST_CASE("mirror group: while there are requests, fewer regions are asked about at once") {
  World world{4};
  world.attach();
  world.host.requests = true;
  world.come_back(2, {0, 1, 2, 3});
  CHECK(world.host.sent.back().order == Order::extents);
  CHECK(world.host.sent.back().range.end == 16);
}

TEST_CASE("mirror group: regions that were zeroed while a member was away are copied unread") {
  World world{4};
  world.attach();
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  world.group.submit(mirror::Group::Kind::zero, 1, {8, 24});
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::zero, i);
  world.group.link_up(2, false);
  world.answer_claim(2, world.as_it_was(2));
  world.answer_lacking({1, 2});
  CHECK(world.host.sent.back().order == Order::extents);
  CHECK(world.host.sent.back().range.begin == 8);
  CHECK(world.host.sent.back().range.end == 24);
}

TEST_CASE("mirror group: what a member lacks is asked anew when those who were asked are lost") {
  World world;
  world.attach();
  for (const unsigned away : {2U, 1U}) {
    world.group.link_down(away);
    for (unsigned i = 0; i < away; ++i) world.answer(Order::view, i);
  }
  REQUIRE(world.group.in_step() == 0b001);
  world.group.link_up(1, false);
  world.answer_claim(1, world.as_it_was(1));
  world.answer_maps(0);
  for (int i = 0; i < 2; ++i) world.answer(Order::flush, 1);  // the second one with the gate closed
  world.answer(Order::beat, 1);
  world.answer_maps(0);
  REQUIRE(world.host.newest(Order::view, 1).view.set == 0b011);
  world.group.link_up(2, false);
  world.answer_claim(2, world.as_it_was(2));
  REQUIRE(world.host.count(Order::maps, 0) == 3);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  world.group.link_down(0);
  world.answer(Order::view, 1);
  REQUIRE(world.group.in_step() == 0b010);
  CHECK(world.host.count(Order::maps, 1) == 1);
  CHECK(world.host.count(Order::flush, 2) == 0);  // it does not join before the answer
}

/// Two of three are in step with term 2, and the third one has promised term 5 to others.
struct Outranked : World {
  Outranked() {
    attach();
    group.link_down(2);
    for (unsigned i = 0; i < 2; ++i) answer(Order::view, i);
    group.link_up(2, false);
    group.answer({.tag = host.newest(Order::claim, 2).tag, .error = ESTALE, .claimed = above()});
  }
  static mirror::Claimed above() {
    mirror::Claimed claimed = World::claimed(false, {});
    claimed.promised = 5;
    return claimed;
  }
  /// It still is what it was, unless another view is given.
  void grant(unsigned member, bool lost_power = false, mirror::ViewId view = {1, 2}) {
    mirror::Claimed claimed = World::claimed(lost_power, {});
    claimed.promised = 6;
    claimed.view.id = view;
    answer_claim(member, claimed);
  }
};

TEST_CASE("mirror group: a view of a new term waits until all its members in step promised that") {
  Outranked world;
  const auto views = world.host.count(Order::view, 0);
  CHECK(world.host.newest(Order::claim, 0).term == 6);
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::write, i);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});  // the view in force serves meanwhile
  world.grant(0);
  CHECK(world.host.count(Order::view, 0) == views);
  world.grant(1);
  CHECK(world.host.newest(Order::view, 0).view.id == mirror::ViewId{6, 1});
  CHECK(world.host.newest(Order::view, 1).view.id == mirror::ViewId{6, 1});
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  CHECK(world.host.newest(Order::claim, 2).term == 6);
}

TEST_CASE("mirror group: a read counts when the members that are claimed anew have granted that") {
  Outranked world;
  world.group.submit(mirror::Group::Kind::read, 1, {0, 8});
  const unsigned source = world.host.sent.back().member;
  world.answer(Order::read, source);
  CHECK(world.host.ended.empty());
  SUBCASE("it is what it was") {
    world.grant(source);
    CHECK(world.host.ended.empty());
    world.grant(1 - source);
    CHECK(world.host.ended == std::vector<std::uint64_t>{1});
  }
  SUBCASE("its server was started anew") {
    world.grant(source, true);
    world.grant(1 - source);
    world.answer(Order::view, 1 - source);
    CHECK(world.host.ended.empty());
    world.answer(Order::read, 1 - source);
    CHECK(world.host.ended == std::vector<std::uint64_t>{1});
  }
}

TEST_CASE("mirror group: without a member the view of a new term waits for those that are left") {
  Outranked world;
  const auto views = world.host.count(Order::view, 0);
  world.group.link_down(1);
  CHECK(world.host.count(Order::view, 0) == views);
  world.grant(0);
  CHECK(world.host.newest(Order::view, 0).view.set == 0b001);
  CHECK(world.host.newest(Order::view, 0).view.id.term == 6);
}

TEST_CASE("mirror group: a member that is not what it was when it grants a new claim is lost") {
  for (const bool power : {false, true}) {
    Outranked world;
    world.grant(0);
    power ? world.grant(1, true) : world.grant(1, false, {4, 1});
    CHECK(world.host.dropped == std::vector<unsigned>{1});
    CHECK(world.host.newest(Order::view, 0).view.set == 0b001);
  }
}

TEST_CASE("mirror group: regions are not cooled while the term rises") {
  Outranked world;
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::write, i);
  for (unsigned i = 0; i < 3; ++i) world.group.cool();
  CHECK_FALSE(world.host.has(Order::flush));
}

TEST_CASE("mirror group: the last member in step is not discarded") {
  World world;
  world.attach();
  CHECK(world.group.discard(1));
  world.answer(Order::view, 0);
  world.answer(Order::view, 2);
  CHECK(world.group.in_step() == 0b101);
  CHECK(world.group.discard(2));
  world.answer(Order::view, 0);
  CHECK(world.group.in_step() == 0b001);
  CHECK_FALSE(world.group.discard(0));
  CHECK(world.host.dropped == std::vector<unsigned>{1, 2});
}

TEST_CASE("mirror group: it can spare members as long as the rules of a loss are obeyed") {
  World world;
  CHECK_FALSE(world.group.can_spare(mirror::bit(0)));  // it is not live
  world.attach();
  for (unsigned i = 0; i < 3; ++i) CHECK(world.group.can_spare(mirror::bit(i)));
  world.group.link_down(2);
  CHECK(world.group.can_spare(mirror::bit(2)));
  CHECK_FALSE(
      world.group.can_spare(mirror::bit(1)));  // before it is recorded that two of three go on
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  CHECK(world.group.can_spare(mirror::bit(1)));
  world.group.link_down(1);
  world.answer(Order::view, 0);
  CHECK(world.group.can_spare(mirror::bit(1)));
  CHECK_FALSE(world.group.can_spare(mirror::bit(0)));
}

TEST_CASE("mirror group: while a view is recorded, discarding obeys the rules of a loss") {
  World world;
  world.attach();
  world.group.link_down(2);  // 0 and 1 have not recorded that yet: they could be the ones to lose
  world.group.link_up(2, false);
  CHECK(world.group.discard(1));  // it may hang, and 0 and 2 attach anew
  CHECK(world.group.is_over());
}

TEST_CASE(
    "mirror group: regions that a member logged while it synced are cooled once it is in step") {
  New world;
  for (unsigned i = 1; i < 3; ++i) world.answer(Order::inspect, i);
  world.answer(Order::view, 0);
  const auto cool = [&] {
    world.group.cool();
    if (!world.host.has(Order::flush)) return;
    world.answer(Order::flush, 0);
    world.answer(Order::beat, 0);
    world.answer(Order::cool, 0);
  };
  for (int i = 0; i < 3; ++i) cool();
  world.answer_claim(1, World::unknown());
  world.answer(Order::inspect, 1);
  world.answer(Order::view, 1);
  world.answer_maps(0);
  for (std::uint64_t region = 0; region < 4; ++region) {
    world.answer(Order::read, 0);
    world.answer(Order::copy, 1);
  }
  cool();
  CHECK(world.group.cold());                                  // of the member in step
  for (int i = 0; i < 2; ++i) world.answer(Order::flush, 1);  // the second one with the gate closed
  world.answer(Order::beat, 1);
  world.answer_maps(0);
  world.answer(Order::view, 0);
  world.answer(Order::view, 1);
  REQUIRE(world.group.in_step() == 0b011);
  CHECK_FALSE(world.group.cold());
  world.group.cool();
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::flush, i);
  world.answer(Order::beat, 0);
  CHECK(world.host.count(Order::cool, 1) == 0);
  world.answer(Order::beat, 1);
  CHECK(world.host.newest(Order::cool, 1).regions.count() == 4);
}

TEST_CASE("mirror group: of two that must both be there, an operator alone may discard one") {
  for (const bool discards : {false, true}) {
    Host host;
    mirror::Group group{
        {.members = 2, .region_sectors = 8, .size = 32 * 512, .degraded = mirror::Degraded::quorum},
        host};
    const auto answer = [&](Order order, unsigned member, mirror::Claimed claimed = {}) {
      group.answer({.tag = host.newest(order, member).tag, .error = 0, .claimed = claimed});
    };
    mirror::Claimed both = World::claimed(false, {});
    both.view.set = both.confirmed.set = 3;
    both.maps.dirty.resize(2);
    for (unsigned i = 0; i < 2; ++i) group.link_up(i, false);
    for (unsigned i = 0; i < 2; ++i) answer(Order::claim, i, both);
    for (unsigned i = 0; i < 2; ++i) answer(Order::view, i);
    REQUIRE(group.live());
    discards ? (void)group.discard(0) : group.link_down(0);
    CHECK(group.is_over() == !discards);
    if (!discards) continue;
    // Should the client end now, the one that is left is known to be all of the group.
    CHECK(host.newest(Order::view, 1).confirmed.set == 2);
    CHECK(host.newest(Order::view, 1).confirmed.id == host.newest(Order::view, 1).view.id);
    answer(Order::view, 1);
    CHECK(group.in_step() == 2);
  }
}

// ---- Which disk it is ---------------------------------------------------------------------------

/// Three disks, each known to the others.
struct Known : World {
  Known() {
    for (unsigned i = 0; i < 3; ++i) group.link_up(i, false);
  }
  void attach() {
    for (unsigned i = 0; i < 3; ++i) answer_claim(i, of_disk(i));
    for (unsigned i = 0; i < 3; ++i) answer(Order::view, i);
    REQUIRE(group.in_step() == 0b111);
  }
  void lose(unsigned member) {
    group.link_down(member);
    for (unsigned i = 0; i < 3; ++i)
      if (mirror::has(0b111, i) && i != member) answer(Order::view, i);
    REQUIRE(group.in_step() == mirror::without(0b111, member));
  }
};

TEST_CASE("mirror group: another disk with the number of a member does not count as that") {
  Known world;
  world.answer_claim(0, World::of_disk(0));
  world.answer_claim(1, World::of_disk(1, 99, {{1, 0}, 0}));
  CHECK_FALSE(world.host.has(Order::view));
  world.group.hurry();
  CHECK_FALSE(world.host.has(Order::view));  // of three, two must be there
  CHECK(world.group.record(1).displaced);
  world.answer_claim(2, World::of_disk(2));
  CHECK(world.host.newest(Order::view, 0).view.set == 0b101);
  CHECK(world.host.newest(Order::view, 0).pedigree[1].disk == 11);
}

TEST_CASE("mirror group: a disk that was a member is not overwritten when another has its place") {
  Known world;
  world.attach();
  world.lose(1);
  world.group.link_up(1, true);
  world.answer_claim(1, World::of_disk(1, 99, {{1, 0}, 0}));
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  CHECK(world.group.displaced(1));
  CHECK(world.host.count(Order::write, 1) == 0);
  CHECK(world.group.progress(1).standing == mirror::Group::Standing::waiting);
}

TEST_CASE("mirror group: a member that was set back does not count, and gets a full copy") {
  for (const mirror::Age age : {mirror::Age{{1, 0}, 9}, mirror::Age{{1, 1}, 4}}) {
    Known world;
    world.answer_claim(0, World::of_disk(0));
    world.answer_claim(1, World::of_disk(1, 11, age));
    world.answer_claim(2, World::of_disk(2));
    CHECK(world.host.newest(Order::view, 0).view.set == 0b101);
    world.answer(Order::view, 0);
    world.answer(Order::view, 2);
    world.group.link_down(1);
    world.group.link_up(1, false);
    world.answer_claim(1, World::of_disk(1, 11, age));
    CHECK(world.group.progress(1).left == 4);
  }
}

TEST_CASE("mirror group: a lost member that comes back as it was gets what it lacks only") {
  Known world;
  world.attach();
  world.lose(1);
  world.group.link_up(1, false);
  world.answer_claim(1, world.as_it_was(1));
  CHECK(world.group.progress(1).standing == mirror::Group::Standing::resync);
  CHECK(world.group.progress(1).left == 0);
}

/// Its record was written by a version that knew no disks, and has got an identity since.
mirror::Claimed of_version_1(unsigned member, const mirror::View& view) {
  mirror::Claimed answer = World::claimed(false, {});
  answer.disk = 10 + member;
  answer.view = answer.confirmed = view;
  answer.pedigree.assign(3, {});
  return answer;
}

TEST_CASE("mirror group: where no record names a disk, one that missed a view in force is none") {
  const mirror::View present{{2, 1}, 0b111};
  Known world;
  world.answer_claim(0, of_version_1(0, present));
  world.answer_claim(1, of_version_1(1, {{1, 1}, 0b111}));
  world.answer_claim(2, of_version_1(2, present));
  CHECK(world.group.record(1).displaced);
  CHECK(world.host.newest(Order::view, 0).view.set == 0b101);
  world.answer(Order::view, 0);
  world.answer(Order::view, 2);
  world.answer_claim(1, of_version_1(1, {{1, 1}, 0b111}));
  CHECK(world.group.progress(1).standing == mirror::Group::Standing::waiting);
}

TEST_CASE("mirror group: where no record names a disk, the one that comes back gets a full copy") {
  Known world;
  world.answer_claim(0, of_version_1(0, {{2, 1}, 0b101}));
  world.answer_claim(1, of_version_1(1, {{1, 1}, 0b111}));
  world.answer_claim(2, of_version_1(2, {{2, 1}, 0b101}));
  world.answer(Order::view, 0);
  world.answer(Order::view, 2);
  REQUIRE(world.group.in_step() == 0b101);
  world.answer_claim(1, of_version_1(1, {{1, 1}, 0b111}));
  CHECK(world.group.progress(1).standing == mirror::Group::Standing::resync);
  CHECK(world.group.progress(1).left == 4);
}

TEST_CASE("mirror group: a member in step that is claimed anew was not set back") {
  Known world;
  world.attach();
  world.lose(1);
  world.group.link_up(1, false);
  mirror::Claimed above = World::of_disk(1);
  above.promised = 5;
  world.group.answer(
      {.tag = world.host.newest(Order::claim, 1).tag, .error = ESTALE, .claimed = above});
  const mirror::Age age{world.host.newest(Order::confirm, 0).view.id, 0};
  world.answer_claim(0, World::of_disk(0, 10, age));
  CHECK(world.host.dropped.empty());
  CHECK_FALSE(world.group.is_set_back(0));
}

TEST_CASE(
    "mirror group: when a member is lost, no region leaves the logs with the beat of before") {
  Known world;
  world.attach();
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
  world.group.cool();
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::flush, i);
  world.answer(Order::beat, 0);
  const mirror::Age counted = world.host.newest(Order::beat, 0).age;
  world.group.link_down(0);
  CHECK(world.host.newest(Order::view, 1).pedigree[0].age == counted);
  for (unsigned i = 1; i < 3; ++i) world.answer(Order::beat, i);
  CHECK_FALSE(world.host.has(Order::cool));
  for (unsigned i = 1; i < 3; ++i) world.answer(Order::view, i);
  world.group.cool();
  for (unsigned i = 1; i < 3; ++i) world.answer(Order::flush, i);
  for (unsigned i = 1; i < 3; ++i) world.answer(Order::beat, i);
  CHECK(world.host.newest(Order::cool, 1).age.view == world.host.newest(Order::view, 1).view.id);
}

TEST_CASE("mirror group: the disk of a view that never was in force keeps the place in the next") {
  Known world;
  world.attach();
  world.lose(1);
  world.group.discard(1);
  world.group.link_up(1, false);
  mirror::Claimed added = World::unknown();
  added.disk = 99;
  world.answer_claim(1, added);
  world.answer(Order::inspect, 1);
  world.answer(Order::view, 1);
  world.answer_maps(0);
  world.answer_maps(2);
  for (std::uint64_t region = 0; region < 4; ++region) {
    world.answer(Order::read, world.host.sent.back().member);
    world.answer(Order::copy, 1);
  }
  for (int i = 0; i < 2; ++i) world.answer(Order::flush, 1);  // the second one with the gate closed
  world.answer(Order::beat, 1);
  world.answer_maps(0);
  world.answer_maps(2);
  REQUIRE(world.host.newest(Order::view, 0).view.set == 0b111);
  CHECK(world.host.newest(Order::view, 0).pedigree[1].disk == 99);
  world.group.link_down(1);
  CHECK(world.host.newest(Order::view, 0).view.set == 0b101);
  CHECK(world.host.newest(Order::view, 0).pedigree[1].disk == 99);
}

TEST_CASE("mirror group: a client that lives ends when an operator has forced another history") {
  Known world;
  world.attach();
  world.lose(1);
  world.group.link_up(1, false);
  mirror::Claimed forced = World::of_disk(1);
  forced.promised = std::uint64_t{1} << 32;
  world.group.answer(
      {.tag = world.host.newest(Order::claim, 1).tag, .error = ESTALE, .claimed = forced});
  CHECK(world.group.is_over());
  CHECK(world.host.was_superseded);
}

TEST_CASE("mirror group: nobody attaches below a forced history that is not there") {
  Known world;
  mirror::Claimed knows = World::of_disk(1);
  knows.promised = std::uint64_t{1} << 32;
  world.answer_claim(0, World::of_disk(0));
  world.group.answer(
      {.tag = world.host.newest(Order::claim, 1).tag, .error = ESTALE, .claimed = knows});
  for (unsigned i = 0; i < 3; ++i) world.answer_claim(i, World::of_disk(i));
  world.group.hurry();
  CHECK_FALSE(world.host.has(Order::view));
  CHECK(world.group.lacks_history());
  CHECK(world.group.force(2));
  CHECK(mirror::history_of(world.host.newest(Order::view, 2).view.id.term) == 2);
}

TEST_CASE("mirror group: beside a forced member, a disk that lost its place is not overwritten") {
  Known world;
  const mirror::Claimed displaced = World::of_disk(1, 99, {{1, 0}, 0});
  world.answer_claim(0, World::of_disk(0));
  world.answer_claim(1, displaced);
  REQUIRE(world.group.record(1).displaced);
  REQUIRE(world.group.force(0));
  world.answer(Order::view, 0);
  REQUIRE(world.group.in_step() == 0b001);
  world.answer_claim(1, displaced);
  CHECK(world.group.displaced(1));
  CHECK(world.group.progress(1).standing == mirror::Group::Standing::waiting);
  world.answer_claim(2, World::of_disk(2));
  CHECK(world.group.progress(2).standing == mirror::Group::Standing::resync);
}

TEST_CASE("mirror group: a disk that has nothing of the mirror cannot be forced") {
  Known world;
  world.answer_claim(0, World::of_disk(0));
  world.group.link_up(1, true);
  world.answer_claim(1, World::unknown());
  CHECK_FALSE(world.group.force(1));
  CHECK(world.group.force(0));
}

TEST_CASE("mirror group: a copy for a member does not land on the disk that came in its place") {
  World world;
  world.attach();
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  world.group.link_up(2, false);
  world.answer_claim(2, World::claimed(true, {1}));
  for (unsigned i = 0; i < 2; ++i) world.answer_maps(i);
  const unsigned source = world.host.sent.back().member;
  world.group.discard(2);
  world.group.link_up(2, false);
  world.answer_claim(2, World::unknown());
  world.answer(Order::inspect, 2, ENOTEMPTY);
  world.answer(Order::read, source);
  CHECK(world.host.count(Order::copy, 2) == 0);
}

TEST_CASE("mirror group: a member that has got everything counts before it is in a view") {
  World world;
  for (unsigned i = 0; i < 2; ++i) world.group.link_up(i, false);
  for (unsigned i = 0; i < 2; ++i) world.answer_claim(i, World::of_disk(i));
  world.group.hurry();
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  REQUIRE(world.group.in_step() == 0b011);
  world.group.link_up(2, false);
  world.answer_claim(2, World::of_disk(2));
  for (unsigned i = 0; i < 2; ++i) world.answer_maps(i);
  for (int i = 0; i < 2; ++i) world.answer(Order::flush, 2);  // the second one with the gate closed
  REQUIRE(world.host.has(Order::beat));
  const mirror::Age age = world.host.newest(Order::beat, 2).age;
  CHECK(age.view == World::kAge.view);  // that of its record
  CHECK(age.beat > World::kAge.beat);
  CHECK(world.host.count(Order::maps, 0) == 1);
  world.answer(Order::beat, 2);
  for (unsigned i = 0; i < 2; ++i) world.answer_maps(i);
  const Command view = world.host.newest(Order::view, 0);
  CHECK(view.view.set == 0b111);
  CHECK(view.pedigree[2].age == age);
}

TEST_CASE("mirror group: copies are compared behind changes, and told where they differ") {
  World world;
  world.attach();
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  REQUIRE(world.group.verify(mirror::kMaxMembers));
  CHECK_FALSE(world.group.verify(mirror::kMaxMembers));
  CHECK_FALSE(world.host.has(Order::read));
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
  world.host.alike = 0b001;
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  REQUIRE(world.host.differences.size() == 1);
  CHECK(world.host.differences[0].reference == 0);
  CHECK(world.host.differences[0].different == 0b110);
  CHECK(world.host.count(Order::write, 0) == 1);  // nothing is repaired
  world.host.alike = 7;
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  // A member that cannot read it may have anything.
  world.answer(Order::read, 1, EIO);
  world.answer(Order::read, 0);
  world.answer(Order::read, 2);
  CHECK(world.host.differences.back().unreadable == 0b010);
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  const mirror::Verification& pass = world.group.verification();
  CHECK(pass.state == mirror::Verification::State::done);
  CHECK(pass.compared == 32);
  CHECK(pass.different == 2);
  CHECK(pass.repaired == 0);
  CHECK(pass.everywhere == 7);
}

TEST_CASE("mirror group: it is told of which members not all was compared") {
  World world;
  world.attach();
  world.host.alike = 7;
  REQUIRE(world.group.verify(mirror::kMaxMembers));
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  while (world.group.verification().is_running())
    for (unsigned i = 0; i < 2; ++i) world.answer(Order::read, i);
  const mirror::Verification& pass = world.group.verification();
  CHECK(pass.state == mirror::Verification::State::done);
  CHECK(pass.members == 0b111);
  CHECK(pass.everywhere == 0b011);
}

TEST_CASE("mirror group: a difference is repaired from the member that is named, or not at all") {
  World world;
  world.attach();
  REQUIRE(world.group.verify(1));
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  CHECK(world.host.differences.back().reference == 1);
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  SUBCASE("it is") {
    CHECK(world.host.count(Order::write, 1) == 0);
    CHECK(world.host.newest(Order::write, 0).source == 1);
    world.answer(Order::write, 0);
    world.answer(Order::write, 2);
    CHECK(world.group.verification().repaired == 1);
  }
  SUBCASE("others refuse it, and the group needs them") {
    world.answer(Order::write, 0, ENOSPC);
    world.answer(Order::write, 2, ENOSPC);
    CHECK(world.group.verification().repaired == 0);
    CHECK(world.group.unequal() == 0);
    CHECK(world.host.failures.empty());
  }
  SUBCASE("another one refuses it, and the group can do without that") {
    world.answer(Order::write, 0);
    world.answer(Order::write, 2, ENOSPC);
    CHECK(world.group.verification().repaired == 0);
    CHECK(world.group.in_step() == 7);
    CHECK(world.host.dropped.empty());
  }
  SUBCASE("it is lost: there is no source any more") {
    world.group.link_down(1);
    world.answer(Order::view, 0);
    world.answer(Order::view, 2);
    CHECK(world.group.verification().state == mirror::Verification::State::single);
  }
}

TEST_CASE("mirror group: a region with units that cannot be read is repaired as a whole") {
  World world{0, 4};
  world.attach();
  world.host.alike = 7;
  std::vector<mirror::Range> bad{{0, 4}, {4, 8}};  // sectors of member 1, until they are written
  std::size_t next = world.host.sent.size();
  REQUIRE(world.group.verify(0));
  while (next < world.host.sent.size()) {
    const Command command = world.host.sent[next++];
    if (command.order != Order::read && command.order != Order::write) continue;
    const auto overlaps = [&](const mirror::Range& it) { return command.range.overlaps(it); };
    const bool at_bad_one = command.member == 1;
    if (at_bad_one && command.order == Order::write) std::erase_if(bad, overlaps);
    const bool fails = at_bad_one && std::any_of(bad.begin(), bad.end(), overlaps);
    world.group.answer({.tag = command.tag, .error = fails ? EIO : 0});
  }
  CHECK(bad.empty());
  CHECK(world.host.dropped.empty());
  CHECK(world.group.in_step() == 7);
  const mirror::Verification& pass = world.group.verification();
  CHECK(pass.state == mirror::Verification::State::done);
  CHECK(pass.different == pass.repaired);
}

TEST_CASE("mirror group: it says which view a member's record has, and what it has promised") {
  World world;
  world.attach();
  const auto record = [&](unsigned member) { return world.group.record(member); };
  CHECK(record(0).view == world.host.newest(Order::view, 0).view.id);
  CHECK(record(0).promised == world.group.term());
  world.group.link_down(2);
  CHECK(record(2).promised == 0);
  CHECK(record(2).view == mirror::ViewId{});
  CHECK_FALSE(record(0).told);  // the others' records count while it attaches
}

TEST_CASE("mirror group: it is dissolved behind a flush, and members go one by one") {
  World world;
  world.attach();
  REQUIRE(world.group.dissolve(0));
  CHECK_FALSE(world.group.dissolve(1));
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::flush, i);
  CHECK(world.host.newest(Order::view, 0).view.set == 0b101);
  CHECK(world.host.dropped == std::vector{1U});
  world.group.link_up(1, false);  // not now
  CHECK(world.host.dropped == std::vector{1U, 1U});
  world.answer(Order::view, 0);
  world.answer(Order::view, 2);
  CHECK(world.host.newest(Order::view, 0).view.set == 0b001);
  world.answer(Order::view, 0);
  CHECK_FALSE(world.host.has(Order::dissolve));  // it has a CONFIRM to answer
  for (const Command& command : std::vector<Command>{world.host.sent})
    if (command.order == Order::confirm && command.member == 0)
      world.group.answer({.tag = command.tag});
  CHECK(world.host.has(Order::dissolve));
  const std::size_t sent = world.host.sent.size();
  world.group.work();
  world.group.cool();
  CHECK(world.host.sent.size() == sent);
  SUBCASE("the member has no record any more") {
    world.answer(Order::dissolve, 0);
    CHECK(world.host.outcomes == std::vector{0});
    CHECK(world.group.is_over());
  }
  SUBCASE("the member is lost") {
    world.group.link_down(0);
    CHECK(world.host.outcomes == std::vector{EIO});
    CHECK(world.group.is_over());
  }
}

TEST_CASE("mirror group: members go on when the one is lost that was to be the disk") {
  World world;
  world.attach();
  REQUIRE(world.group.dissolve(2));
  world.group.link_down(2);
  CHECK(world.host.outcomes == std::vector{ECANCELED});
  world.answer(Order::view, 0);
  world.answer(Order::view, 1);
  CHECK(world.group.live());
  CHECK(world.group.in_step() == 0b011);
}

TEST_CASE(
    "mirror group: what was copied is flushed while requests go on, and the rest behind them") {
  World world;
  world.attach();
  world.come_back(2, {});
  REQUIRE(world.group.in_step() == 0b011);
  CHECK(world.host.count(Order::flush, 2) == 1);
  world.group.submit(mirror::Group::Kind::write, 1, {0, 8});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
  world.answer(Order::flush, 2);
  CHECK(world.host.count(Order::flush, 2) == 2);
  world.group.submit(mirror::Group::Kind::write, 2, {0, 8});
  CHECK(world.host.count(Order::write, 0) == 1);
  world.answer(Order::flush, 2);
  CHECK(world.host.has(Order::beat));
}

/// Three members in step, of which each says how large its disk is.
struct GrowingWorld : World {
  GrowingWorld() {
    for (unsigned i = 0; i < 3; ++i) group.link_up(i, false);
    for (unsigned i = 0; i < 3; ++i) answer_claim(i, sized(i, 32));
    for (unsigned i = 0; i < 3; ++i) answer(Order::view, i);
    REQUIRE(group.in_step() == 7);
  }
  static mirror::Claimed sized(unsigned member, std::uint64_t sectors) {
    mirror::Claimed answer = of_disk(member);
    answer.size = sectors * 512;
    return answer;
  }
  void tell_rooms(std::vector<std::uint64_t> sectors) {
    group.look_at_rooms(0);
    for (unsigned i = 0; i < 3; ++i)
      group.answer({.tag = host.newest(Order::room, i).tag, .room = sectors[i] * 512});
  }
  void record(unsigned member, std::uint64_t sectors) {
    mirror::Claimed answer;
    answer.size = sectors * 512;
    group.answer({.tag = host.newest(Order::grow, member).tag, .claimed = answer});
  }
};

TEST_CASE("mirror group: it grows when all members in step have recorded it, and not before") {
  GrowingWorld world;
  world.tell_rooms({40, 48, 44});
  for (unsigned i = 0; i < 3; ++i) {
    CHECK(world.host.newest(Order::grow, i).size == 40 * 512);
    CHECK(world.host.newest(Order::grow, i).base == 32 * 512);
  }
  world.record(0, 40);
  world.record(1, 40);
  CHECK(world.host.growths == 0);
  CHECK(world.group.disk_size() == 32 * 512);
  world.record(2, 40);
  CHECK(world.host.growths == 1);
  CHECK(world.group.disk_size() == 40 * 512);
  CHECK(world.group.unequal() == 1);
}

TEST_CASE("mirror group: its new room is made equal before it is read") {
  GrowingWorld world;
  world.host.may = false;
  world.tell_rooms({40, 40, 40});
  for (unsigned i = 0; i < 3; ++i) world.record(i, 40);
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::view, i);
  world.group.submit(mirror::Group::Kind::read, 1, {36, 37});
  for (unsigned i = 0; i < 3; ++i) {
    const auto range = world.host.newest(Order::read, i).range;
    CHECK(range.begin == 32);
    CHECK(range.end == 40);
  }
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::read, i);
  for (unsigned i = 1; i < 3; ++i) world.answer(Order::write, i);
  CHECK(world.group.unequal() == 0);
}

TEST_CASE("mirror group: requests wait while it grows") {
  GrowingWorld world;
  world.group.submit(mirror::Group::Kind::write, 1, {0, 1});
  world.tell_rooms({40, 40, 40});
  CHECK_FALSE(world.host.has(Order::grow));
  world.group.submit(mirror::Group::Kind::write, 2, {4, 5});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
  for (unsigned i = 0; i < 3; ++i) world.record(i, 40);
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::view, i);
  CHECK(world.host.newest(Order::write, 0).operation == 2);
}

TEST_CASE("mirror group: it is put off to grow while no member was asked, and not later") {
  GrowingWorld world;
  world.group.submit(mirror::Group::Kind::write, 1, {0, 1});
  CHECK_FALSE(world.group.prepares_growth());
  world.tell_rooms({40, 40, 40});
  CHECK(world.group.prepares_growth());
  world.group.submit(mirror::Group::Kind::write, 2, {4, 5});
  bool hangs = false;
  SUBCASE("a write hangs") { hangs = true; }
  SUBCASE("all have ended") {
    for (unsigned i = 0; i < 3; ++i) world.answer(Order::write, i);
  }
  CHECK(world.group.prepares_growth() == hangs);
  const std::size_t sent = world.host.sent.size();
  world.group.put_off_growth();
  if (!hangs) {
    CHECK(world.host.sent.size() == sent);
    return;
  }
  CHECK(world.host.refusals == std::vector{std::pair{mirror::kMaxMembers, 0}});
  CHECK(world.host.newest(Order::write, 0).operation == 2);
  CHECK_FALSE(world.host.has(Order::grow));
  CHECK(world.host.count(Order::view, 0) == 1);
}

TEST_CASE("mirror group: it does not grow while a member is away that an operator has not spared") {
  GrowingWorld world;
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  mirror::MemberSet spared = 0;
  SUBCASE("away") {}
  SUBCASE("discarded") { spared = mirror::bit(2); }
  world.group.look_at_rooms(spared);
  for (unsigned i = 0; i < 2; ++i)
    world.group.answer({.tag = world.host.newest(Order::room, i).tag, .room = 40 * 512});
  CHECK(world.host.has(Order::grow) == (spared != 0));
}

TEST_CASE("mirror group: a member that is lost while it grows ends that, and requests go on") {
  GrowingWorld world;
  world.tell_rooms({40, 40, 40});
  world.record(0, 40);
  world.group.submit(mirror::Group::Kind::write, 2, {4, 5});
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  CHECK(world.host.newest(Order::write, 0).operation == 2);
  world.record(1, 40);
  CHECK(world.host.growths == 0);
  CHECK(world.group.disk_size() == 32 * 512);
}

TEST_CASE("mirror group: a server that does not grow keeps the mirror from it") {
  GrowingWorld world;
  SUBCASE("it does not know the question") {
    world.group.look_at_rooms(0);
    world.answer(Order::room, 0, EINVAL);
    for (unsigned i = 1; i < 3; ++i)
      world.group.answer({.tag = world.host.newest(Order::room, i).tag, .room = 40 * 512});
    CHECK_FALSE(world.host.has(Order::grow));
  }
  SUBCASE("it records less") {
    world.tell_rooms({40, 40, 40});
    world.record(0, 40);
    world.record(1, 32);
    world.record(2, 40);
  }
  SUBCASE("its disk has no such room any more") {
    world.tell_rooms({40, 40, 40});
    world.answer(Order::grow, 0, EINVAL);
    world.record(1, 40);
    world.record(2, 40);
    CHECK(world.host.refusals == std::vector{std::pair{0U, EINVAL}});
  }
  SUBCASE("it cannot record that") {
    world.tell_rooms({40, 40, 40});
    world.record(0, 40);
    world.answer(Order::grow, 1, ENOSPC);
    world.record(2, 40);
    CHECK(world.host.refusals == std::vector{std::pair{1U, ENOSPC}});
    CHECK(world.host.dropped.empty());
  }
  CHECK(world.host.growths == 0);
  // A view takes back what others have recorded.
  const bool was_asked = world.host.has(Order::grow);
  for (unsigned i = 0; i < 3 && was_asked; ++i) world.answer(Order::view, i);
  CHECK(world.host.newest(Order::view, 0).size == 32 * 512);
  CHECK(world.group.in_step() == 7);
  world.group.submit(mirror::Group::Kind::flush, 1, {});
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::flush, i);
  CHECK(world.host.ended == std::vector<std::uint64_t>{1});
}

TEST_CASE("mirror group: it attaches with the smallest size that members in step have recorded") {
  World world;
  for (unsigned i = 0; i < 3; ++i) world.group.link_up(i, false);
  world.answer_claim(0, GrowingWorld::sized(0, 48));
  world.answer_claim(1, GrowingWorld::sized(1, 40));
  world.answer_claim(2, GrowingWorld::sized(2, 48));
  for (unsigned i = 0; i < 3; ++i) world.answer(Order::view, i);
  CHECK(world.group.live());
  CHECK(world.group.disk_size() == 40 * 512);
}

TEST_CASE("mirror group: a member that missed the growth does not make the disk smaller") {
  World world;
  for (unsigned i = 0; i < 3; ++i) world.group.link_up(i, false);
  world.answer_claim(0, GrowingWorld::sized(0, 40));
  world.answer_claim(1, GrowingWorld::sized(1, 40));
  mirror::Claimed behind = GrowingWorld::sized(2, 32);
  behind.view.id.term = 0;
  for (unsigned i = 0; i < 2; ++i) REQUIRE(world.host.newest(Order::claim, i).size == 32 * 512);
  world.answer_claim(2, behind);
  world.group.hurry();
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  REQUIRE(world.group.live());
  CHECK(world.group.disk_size() == 40 * 512);
  CHECK(world.host.newest(Order::claim, 2).size == 40 * 512);
}

/// Two disks and a vote, which is member 2.
struct VotingWorld {
  VotingWorld() {
    for (unsigned i = 0; i < 3; ++i) group.link_up(i, false);
    for (unsigned i = 0; i < 2; ++i) answer_claim(i, 32);
    answer_claim(2, 0);
    for (const unsigned i : {2, 0, 1}) answer(Order::view, i);
    REQUIRE(group.in_step() == 0b111);
  }
  void answer(Order order, unsigned member, int error = 0) {
    group.answer({.tag = host.newest(order, member).tag, .error = error});
  }
  void answer_claim(unsigned member, std::uint64_t sectors) {
    mirror::Claimed claimed = World::of_disk(member);
    claimed.maps.dirty.pop_back();
    claimed.size = sectors * 512;
    if (member == 2) claimed.maps = {};
    group.answer({.tag = host.newest(Order::claim, member).tag, .claimed = claimed});
  }
  void tell_rooms() {
    group.look_at_rooms(0);
    for (unsigned i = 0; i < 2; ++i)
      group.answer({.tag = host.newest(Order::room, i).tag, .room = 40 * 512});
  }
  void record(unsigned member) {
    mirror::Claimed claimed;
    claimed.size = 40 * 512;
    group.answer({.tag = host.newest(Order::grow, member).tag, .claimed = claimed});
  }

  Host host;
  mirror::Group group{
      {.members = 2, .vote = true, .region_sectors = 8, .size = 32 * 512, .most_regions = 100},
      host};
};

TEST_CASE("mirror group: a vote is asked for no room, and disks alone have a size") {
  VotingWorld world;
  CHECK(world.host.newest(Order::claim, 0).size == 32 * 512);
  CHECK(world.host.newest(Order::claim, 2).size == 0);
  CHECK(world.host.newest(Order::claim, 2).base == 0);
  world.tell_rooms();
  for (unsigned i = 0; i < 2; ++i) world.record(i);
  CHECK(world.host.count(Order::room, 2) == 0);
  CHECK(world.host.count(Order::grow, 2) == 0);
  CHECK(world.host.growths == 1);
  for (const unsigned i : {2, 0, 1}) {
    CHECK(world.host.newest(Order::view, i).size == 40 * 512);
    world.answer(Order::view, i);
  }
  CHECK(world.group.in_step() == 0b111);
}

TEST_CASE(
    "mirror group: while a view is recorded, no member is discarded that it needs for a vote") {
  VotingWorld world;
  world.group.link_down(1);
  for (const unsigned i : {0, 2}) CHECK_FALSE(world.group.discard(i));
  CHECK_FALSE(world.group.is_over());
  for (const unsigned i : {2, 0}) world.answer(Order::view, i);
  CHECK_FALSE(world.group.discard(0));  // the last disk
  CHECK(world.group.discard(2));
  CHECK_FALSE(world.group.is_over());
}

TEST_CASE("mirror group: a vote that serves an idle client no more is lost") {
  VotingWorld world;
  world.group.cool();
  world.group.cool();
  CHECK(world.host.count(Order::echo, 2) == 1);  // the first one has no answer yet
  world.answer(Order::echo, 2);
  CHECK(world.group.in_step() == 0b111);
  world.group.cool();
  CHECK(world.host.count(Order::echo, 2) == 2);
  world.answer(Order::echo, 2, ESTALE);
  CHECK(world.host.dropped == std::vector<unsigned>{2});
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  CHECK(world.group.in_step() == 0b011);
  world.group.cool();
  CHECK(world.host.count(Order::echo, 2) == 2);
}

TEST_CASE("mirror group: it grows without its vote, and goes on with that when it is lost") {
  VotingWorld world;
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) world.answer(Order::view, i);
  REQUIRE(world.group.in_step() == 0b011);
  world.group.link_up(2, false);
  world.tell_rooms();
  world.record(0);
  world.group.link_down(2);  // it was claimed, or about to be
  world.record(1);
  CHECK(world.host.growths == 1);
  CHECK(world.group.disk_size() == 40 * 512);
  for (unsigned i = 0; i < 2; ++i) CHECK(world.host.newest(Order::view, i).size == 40 * 512);
}

TEST_CASE("mirror group: a view without the vote takes back a growth that was under way") {
  VotingWorld world;
  world.tell_rooms();
  world.record(0);
  world.group.link_down(2);
  for (unsigned i = 0; i < 2; ++i) {
    CHECK(world.host.newest(Order::view, i).view.set == 0b011);
    CHECK(world.host.newest(Order::view, i).size == 32 * 512);
    world.answer(Order::view, i);
  }
  world.record(1);
  CHECK(world.host.growths == 0);
  CHECK(world.group.disk_size() == 32 * 512);
}

}  // namespace
}  // namespace rnbd::mirror_group_test
