// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <vector>

#include "bridge/client/mirror/member_order.hpp"
#include "tests/unit/client/fake_server.hpp"

namespace rnbd::mirror_order_test {
namespace {

using mirror::Command;
using mirror::MemberOrder;
using mirror::Order;
using mirror::RegionMap;
using test::Arrival;

constexpr std::uint32_t kRegions = 1000;
/// Three runs of regions per page.
constexpr std::size_t kRoom =
    sizeof(wire::MirrorRegionsResponse) + 3 * sizeof(wire::MirrorRun) + sizeof(wire::le32);

RegionMap every(std::uint32_t step) {
  RegionMap map{kRegions};
  for (std::uint32_t region = 0; region < kRegions; region += step) map.add(region);
  return map;
}

bool equal(const RegionMap& one, const RegionMap& other) { return one.words() == other.words(); }

/// Member 1 of 3, whose server says what a test wants.
struct World {
  test::FakeServer server;
  DeviceHandle handle;
  mirror::GroupShape shape{.members = 3,
                           .regions = kRegions,
                           .region_shift = 20,
                           .size = std::uint64_t{kRegions} << 20,
                           .group = {1},
                           .claimant = {2}};
  mirror::Claimed claimed{.promised = 5, .view = {{4, 1}, 7}, .confirmed = {{3, 9}, 5}};
  wire::MirrorClaimResponse response;
  std::vector<Arrival> arrivals;
  int error = 0;
  std::uint64_t room = 0;

  World() {
    handle.id = 7;
    claimed.lost_power = true;
    claimed.disk = 8;
    claimed.pedigree = {{9, {}}, {8, {{4, 1}, 0}}, {7, {}}};
    claimed.maps.active = every(2);
    claimed.maps.dirty = {every(3), RegionMap{kRegions}, every(500)};
    response = wire::encode_claimed(claimed, 1, 3);
    response.region_shift = 20;
    server.other = [this](const Arrival& arrival, std::vector<std::byte>& reply) {
      return answer(arrival, reply);
    };
  }

  int answer(const Arrival& arrival, std::vector<std::byte>& reply) {
    arrivals.push_back(arrival);
    if (error != 0) return error;
    if (arrival.type() == wire::kMirrorClaim) {
      const auto bytes = rtrs::wire::bytes_of(response);
      std::copy(bytes.begin(), bytes.end(), reply.begin());
    } else if (arrival.type() == wire::kMirrorRegions) {
      const auto asked = *wire::decode<wire::MirrorRegions>(arrival.message, wire::kMirrorRegions);
      const RegionMap& map =
          asked.which == 0 ? claimed.maps.active : claimed.maps.dirty.at(asked.which - 1);
      const auto page = wire::encode_regions(map, asked.first, reply.size());
      std::copy(page.begin(), page.end(), reply.begin());
    } else if (arrival.type() == wire::kMirrorRoom) {
      wire::MirrorRoomResponse told;
      told.header = wire::header_of(wire::kMirrorRoomResponse);
      told.room = room;
      const auto bytes = rtrs::wire::bytes_of(told);
      std::copy(bytes.begin(), bytes.end(), reply.begin());
    }
    return 0;
  }

  void run(MemberOrder& order) {
    order.start(server.lane);
    server.answer_all();
    REQUIRE(order.finished());
  }
  static Command command(Order order) {
    Command command;
    command.order = order;
    command.member = 1;
    command.term = 5;
    command.size = command.base = std::uint64_t{kRegions} << 20;
    return command;
  }
};

TEST_CASE("mirror order: a claim tells the group's shape and brings all maps, page by page") {
  World world;
  MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == 0);
  const auto asked = wire::decode_claim(world.arrivals.front().message);
  REQUIRE(asked.has_value());
  CHECK(asked->device_id == 7);
  CHECK(asked->term == 5);
  CHECK(asked->member == 1);
  CHECK(asked->members == 3);
  CHECK(asked->size == world.shape.size);
  CHECK(asked->claimant == world.shape.claimant);
  const mirror::Claimed& told = order.answer().claimed;
  CHECK(told.promised == 5);
  CHECK(told.view.set == 7);
  CHECK(told.lost_power);
  CHECK(told.disk == 8);
  CHECK(told.pedigree[1].disk == 8);
  CHECK(told.pedigree[2].disk == 7);
  CHECK(equal(told.maps.active, every(2)));
  REQUIRE(told.maps.dirty.size() == 3);
  CHECK(equal(told.maps.dirty[0], every(3)));
  CHECK(told.maps.dirty[1].empty());
  CHECK(told.maps.dirty[2].count() == 2);
}

TEST_CASE("mirror order: a vote is claimed without a disk, and has no maps") {
  World world;
  Command command = World::command(Order::claim);
  command.member = world.shape.members;
  command.disks = {21, 22};
  command.size = command.base = 0;
  world.claimed.view.set = static_cast<mirror::MemberSet>(mirror::bit(mirror::kVote) | 1);
  world.response = wire::encode_claimed(world.claimed, mirror::kVote, world.shape.members);
  world.response.region_shift = 20;
  MemberOrder order{command, world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == 0);
  CHECK(world.arrivals.size() == 1);
  const auto asked = wire::decode_claim(world.arrivals.front().message);
  REQUIRE(asked.has_value());
  CHECK(asked->kind == wire::MemberKind::vote);
  CHECK(asked->member == mirror::kVote);
  CHECK(asked->size == 0);
  CHECK(wire::decode_claimed_disks(world.arrivals.front().message) == command.disks);
  CHECK(order.answer().claimed.view.set == 0b1001);
}

TEST_CASE("mirror order: a vote is told in one message how far the disks have come") {
  World world;
  Command command = World::command(Order::cool);
  command.member = world.shape.members;
  command.age = {{5, 1}, 9};
  MemberOrder order{command, world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == 0);
  REQUIRE(world.arrivals.size() == 1);
  const auto cool =
      wire::decode<wire::MirrorCool>(world.arrivals.front().message, wire::kMirrorCool);
  REQUIRE(cool.has_value());
  CHECK(cool->known == 9);
  wire::ConstBytes pages{world.arrivals.front().data};
  CHECK(wire::decode_map(pages, 0).has_value());
}

TEST_CASE("mirror order: a vote that refuses a claim says which way out there is") {
  for (const auto& [error, remedy] : {std::pair{EEXIST, "member free .vote/"},
                                      {ENOSPC, "member list"},
                                      {EBUSY, "tried again"},
                                      {ERANGE, "member free .vote/"},
                                      {EROFS, "read-only"}}) {
    World world;
    world.error = error;
    Command command = World::command(Order::claim);
    command.member = world.shape.members;
    MemberOrder order{command, world.shape, world.handle, kRoom};
    world.run(order);
    CHECK(order.error() == error);
    CHECK(order.complaint().find(remedy) != std::string::npos);
  }
}

TEST_CASE("mirror order: a vote gets a view without the regions that others lack") {
  World world;
  Command command = World::command(Order::view);
  command.member = world.shape.members;
  command.view = command.confirmed = {{5, 1}, 0b1001};
  command.pedigree = {{1, {}}, {2, {}}, {3, {}}, {4, {}}};
  MemberOrder order{command, world.shape, world.handle, kRoom};
  world.run(order);
  REQUIRE(world.arrivals.size() == 1);
  const auto view =
      wire::decode<wire::MirrorView>(world.arrivals.front().message, wire::kMirrorView);
  REQUIRE(view.has_value());
  CHECK(view->view.set == (mirror::bit(mirror::kVote) | 1));
  wire::ConstBytes rest{world.arrivals.front().data};
  const auto pedigree = wire::take_pedigree(rest);
  REQUIRE(pedigree.has_value());
  CHECK((*pedigree)[mirror::kVote].disk == 4);
  CHECK(rest.empty());
}

TEST_CASE("mirror order: a claim tells the size by the record, and brings all of larger maps") {
  World world;
  world.claimed.maps.active = RegionMap{kRegions + 100};
  world.claimed.maps.active.add(kRegions + 99);
  world.claimed.maps.dirty.assign(3, RegionMap{kRegions + 100});
  world.response.size = std::uint64_t{kRegions + 100} << 20;
  MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == 0);
  CHECK(order.answer().claimed.size == world.response.size);
  CHECK(order.answer().claimed.maps.active.contains(kRegions + 99));
}

TEST_CASE("mirror order: a server that knows no growth has the size that it was claimed with") {
  World world;
  MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.answer().claimed.size == world.shape.size);
}

TEST_CASE("mirror order: a claim for growth asks for no maps, and brings the recorded size") {
  World world;
  auto command = World::command(Order::grow);
  command.size += 512;
  const std::uint64_t recorded = world.response.size = world.shape.size;
  MemberOrder order{command, world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == 0);
  CHECK(order.answer().claimed.size == recorded);
  REQUIRE(world.arrivals.size() == 1);
  const auto asked = wire::decode_claim(world.arrivals.front().message);
  REQUIRE(asked.has_value());
  CHECK(asked->size == command.size);
  CHECK(asked->base == command.base);
}

TEST_CASE("mirror order: the regions of a record may have another size, which is told") {
  World world;
  world.response.region_shift = 22;
  MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == EPROTO);
  CHECK(order.other_shift() == 22);
}

TEST_CASE("mirror order: a size of regions that no record can have is not followed") {
  for (const unsigned shift : {0, 15, 41, 200}) {
    World world;
    world.response.region_shift = static_cast<std::uint8_t>(shift);
    MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
    world.run(order);
    CHECK(order.error() == EPROTO);
    CHECK(order.other_shift() == 0);
  }
}

TEST_CASE("mirror order: who does not grow has no trouble that keeps it from being used") {
  for (const int error : {EINVAL, ENOSPC}) {
    World world;
    world.error = error;
    MemberOrder order{World::command(Order::grow), world.shape, world.handle, kRoom};
    world.run(order);
    CHECK(order.error() == error);
    CHECK(order.complaint().empty());
  }
}

TEST_CASE("mirror order: a member says how large its own disk is") {
  World world;
  world.room = 12345 * 512;
  MemberOrder order{World::command(Order::room), world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == 0);
  CHECK(order.answer().room == world.room);
}

TEST_CASE("mirror order: a claim that a newer client forestalled says which term to top") {
  World world;
  world.response.promised = 90;
  world.response.flags = wire::kMirrorRefused;
  MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == ESTALE);
  CHECK(order.answer().claimed.promised == 90);
  CHECK(world.arrivals.size() == 1);
}

TEST_CASE("mirror order: extents are asked of the range, up to the end of the disk") {
  World world;
  world.shape.size -= 100;
  std::vector<wire::Extent> told(2);
  told[0].length = 4096;
  told[0].flags = wire::kExtentZero;
  told[1].length = 8192;
  world.server.fail = [&](const Arrival& arrival) {
    world.arrivals.push_back(arrival);
    return world.error;
  };
  Command command = World::command(Order::extents);
  command.range = {8, std::uint64_t{kRegions} << 11};
  MemberOrder order{command, world.shape, world.handle, 1 << 16};
  SUBCASE("they are told") {
    world.server.extents = told;
    world.run(order);
    CHECK(order.error() == 0);
    REQUIRE(order.extents().size() == 2);
    CHECK(order.extents()[0].flags == wire::kExtentZero);
  }
  SUBCASE("where none are told, there may be data") {
    world.error = EOPNOTSUPP;
    world.run(order);
    CHECK(order.error() == 0);
    REQUIRE(order.extents().size() == 1);
    CHECK(order.extents()[0].flags == 0);
    CHECK(order.extents()[0].length == world.shape.size - 4096);
  }
  SUBCASE("where the question fails, likewise") {
    world.error = ENOMEM;
    world.run(order);
    CHECK(order.error() == ENOMEM);
    REQUIRE(order.extents().size() == 1);
    CHECK(order.extents()[0].flags == 0);
  }
  SUBCASE("more than was asked makes no sense") {
    told[1].length = world.shape.size;
    world.server.extents = told;
    world.run(order);
    CHECK(order.error() == EPROTO);
  }
  const auto asked = wire::decode<wire::BlockStatus>(world.arrivals.front().message,
                                                     wire::MessageType::block_status);
  REQUIRE(asked.has_value());
  CHECK(asked->offset == 4096);
  CHECK(asked->length == world.shape.size - 4096);
}

TEST_CASE("mirror order: an answer of another group or place is refused with the reason") {
  const auto complaint = [](auto change) {
    World world;
    change(world.response);
    MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
    world.run(order);
    CHECK(order.error() == EPROTO);
    return order.complaint();
  };
  CHECK(complaint([](auto& r) { r.member = 2; }).find("in their order") != std::string::npos);
  CHECK(complaint([](auto& r) { r.members = 4; }).find("group of 4") != std::string::npos);
  CHECK(complaint([](auto& r) { r.region_shift = 21; }).find("2^21") != std::string::npos);
  CHECK(complaint([](auto& r) { r.members = 200; }).find("no sense") != std::string::npos);
  CHECK(complaint([](auto& r) { r.view.set = 0; }).find("no sense") != std::string::npos);
}

TEST_CASE("mirror order: a term that is far ahead, and a record that cannot be, are not believed") {
  World world;
  SUBCASE("promised") { world.response.promised = std::uint64_t{257} << 32; }
  SUBCASE("promised, to refuse the claim") {
    world.response.promised = ~std::uint64_t{0};
    world.response.flags |= wire::kMirrorRefused;
  }
  SUBCASE("promised, and the view has it, too") {
    world.response.promised = world.response.view.term = std::uint64_t{1} << 62;
  }
  SUBCASE("the last one of all, and the view has it, too") {
    world.response.promised = world.response.view.term = ~std::uint64_t{0};
  }
  SUBCASE("view") { world.response.view.term = 6; }
  SUBCASE("confirmed view") { world.response.confirmed.term = 6; }
  SUBCASE("pedigree") { world.response.pedigree[2].term = 6; }
  SUBCASE("no disk") { world.response.disk = 0; }
  MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == EPROTO);
  CHECK_FALSE(order.complaint().empty());
  CHECK(order.answer().claimed.promised == 6);  // the next term, and no further
}

TEST_CASE("mirror order: a client that has just begun believes a record of many forced decisions") {
  World world;
  const std::uint64_t forced = std::uint64_t{300} << 32;
  world.response.view.term = forced;
  world.response.promised = forced + 7;
  SUBCASE("a claim that was granted") {}
  SUBCASE("a claim that was refused") { world.response.flags |= wire::kMirrorRefused; }
  MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(order.error() == ((world.response.flags & wire::kMirrorRefused) != 0 ? ESTALE : 0));
  CHECK(order.answer().claimed.promised == forced + 7);
}

TEST_CASE("mirror order: what a server refuses is told with the remedy") {
  for (const auto& [error, remedy] : {std::pair{EEXIST, "group="},
                                      {EOPNOTSUPP, "--state-directory"},
                                      {EROFS, "export it for writing"},
                                      {EINVAL, "enlarge it"}}) {
    World world;
    world.error = error;
    MemberOrder order{World::command(Order::claim), world.shape, world.handle, kRoom};
    world.run(order);
    CHECK(order.error() == error);
    CHECK(order.complaint().find(remedy) != std::string::npos);
  }
}

TEST_CASE("mirror order: a view tells what each absent member lacks, never less") {
  World world;
  Command command = World::command(Order::view);
  command.view = {{5, 1}, 2};
  command.confirmed = {{4, 1}, 7};
  command.inherit = {every(2), RegionMap{kRegions}, every(250)};
  command.pedigree = {{7, {}}, {8, {{4, 1}, 2}}, {9, {}}};
  MemberOrder order{command, world.shape, world.handle, sizeof(wire::MirrorPedigree) + 2 * kRoom};
  world.run(order);
  CHECK(order.error() == 0);
  REQUIRE(world.arrivals.size() == 1);
  const auto& data = world.arrivals.front().data;
  CHECK(data.size() <= sizeof(wire::MirrorPedigree) + 2 * kRoom);
  wire::ConstBytes rest{data};
  const auto pedigree = wire::take_pedigree(rest);
  REQUIRE(pedigree.has_value());
  CHECK((*pedigree)[1].disk == 8);
  CHECK((*pedigree)[1].age == mirror::Age{{4, 1}, 2});
  const auto maps = wire::decode_inherited(rest, 2, 3, kRegions);
  REQUIRE(maps.has_value());
  RegionMap missing = every(2);
  missing.remove((*maps)[0]);
  CHECK(missing.empty());
  missing = every(250);
  missing.remove((*maps)[2]);
  CHECK(missing.empty());
  CHECK((*maps)[1].empty());
}

TEST_CASE("mirror order: COOL takes as many messages as its regions need, each a whole map") {
  World world;
  Command command = World::command(Order::cool);
  command.regions = every(100);
  MemberOrder order{command, world.shape, world.handle, kRoom};
  world.run(order);
  CHECK(world.arrivals.size() > 1);
  RegionMap all{kRegions};
  for (const Arrival& arrival : world.arrivals) {
    CHECK(arrival.data.size() <= kRoom);
    wire::ConstBytes pages{arrival.data};
    const auto map = wire::decode_map(pages, kRegions);
    REQUIRE(map.has_value());
    CHECK(pages.empty());
    all.add(*map);
  }
  CHECK(equal(all, every(100)));
}

TEST_CASE("mirror order: a PULL tells the address of its source, and which disk that must be") {
  World world;
  Command command = World::command(Order::pull);
  command.range = {2048, 4096};
  command.disk = 0x1122334455667788;
  MemberOrder order{command, world.shape, world.handle, kRoom, "rnbd+tcp://a/disk0"};
  world.run(order);
  REQUIRE(world.arrivals.size() == 1);
  const auto& arrival = world.arrivals.front();
  const auto pull = wire::decode<wire::MirrorPull>(arrival.message, wire::kMirrorPull);
  REQUIRE(pull.has_value());
  CHECK(pull->offset == 2048 * wire::kSectorSize);
  CHECK(pull->length == 2048 * wire::kSectorSize);
  CHECK(pull->disk == command.disk);
  CHECK(*wire::decode_pull_uri(arrival.data) == "rnbd+tcp://a/disk0");
}

TEST_CASE("mirror order: before regions leave the log, members are asked to count, and no more") {
  World world;
  Command command = World::command(Order::beat);
  command.age = {{command.term - 1, 3}, 9};  // a view of an older client
  command.regions = every(1);
  MemberOrder order{command, world.shape, world.handle, kRoom};
  world.run(order);
  REQUIRE(world.arrivals.size() == 1);
  const auto& arrival = world.arrivals.front();
  const auto cool = wire::decode<wire::MirrorCool>(arrival.message, wire::kMirrorCool);
  REQUIRE(cool.has_value());
  CHECK(cool->term == command.term - 1);
  CHECK(cool->seq == 3);
  CHECK(cool->beat == 9);
  CHECK(cool->known == 0);
  wire::ConstBytes pages{arrival.data};
  CHECK(wire::decode_map(pages, kRegions)->empty());
}

TEST_CASE("mirror order: a member is told to take its record away with the term of its claim") {
  World world;
  const Command command = World::command(Order::dissolve);
  MemberOrder order{command, world.shape, world.handle, kRoom};
  world.run(order);
  REQUIRE(world.arrivals.size() == 1);
  const auto& arrival = world.arrivals.front();
  const auto message = wire::decode<wire::MirrorDissolve>(arrival.message, wire::kMirrorDissolve);
  REQUIRE(message.has_value());
  CHECK(message->term == command.term);
  CHECK(message->flags == 0);
  CHECK(arrival.data.empty());
}

}  // namespace
}  // namespace rnbd::mirror_order_test
