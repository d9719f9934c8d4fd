// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cerrno>

#include "tests/unit/server/fixture.hpp"

namespace extension_test {

using namespace rnbd;
using namespace rnbd::test;

namespace {

Call& device_info(World& world, std::uint32_t id, std::size_t size = 64) {
  wire::DeviceInfo message;
  message.header = wire::header_of(wire::MessageType::device_info);
  message.device_id = id;
  return world.send(world.session(), message, true, room(size));
}

Call& list(World& world, std::uint32_t first, std::size_t size) {
  wire::ListExports message;
  message.header = wire::header_of(wire::MessageType::list_exports);
  message.first = first;
  return world.send(world.session(), message, true, room(size));
}

Call& directory(World& world, std::uint32_t first, std::size_t size,
                std::uint32_t kinds = wire::kDirectoryExports) {
  wire::Directory message;
  message.header = wire::header_of(wire::MessageType::directory);
  message.first = first;
  message.kinds = kinds;
  return world.send(world.session(), message, true, room(size));
}

Call& who(World& world, const std::string& name, std::size_t size = 8 + wire::kMaxWho) {
  return world.send(world.session(), wire::encode_who(name), true, room(size));
}

Call& block_status(World& world, std::uint64_t offset, std::uint64_t length,
                   std::size_t size = 4096, std::uint32_t id = 0) {
  wire::BlockStatus message;
  message.header = wire::header_of(wire::MessageType::block_status);
  message.device_id = id;
  message.offset = offset;
  message.length = length;
  return world.send(world.session(), message, true, room(size));
}

Call& cache(World& world, std::uint64_t offset, std::uint64_t length, std::uint32_t id = 0) {
  wire::Cache message;
  message.header = wire::header_of(wire::MessageType::cache);
  message.device_id = id;
  message.offset = offset;
  message.length = length;
  return world.send(world.session(), message, false, {});
}

std::vector<std::pair<std::uint64_t, std::uint32_t>> extents_of(const Call& call,
                                                                std::uint64_t length) {
  REQUIRE(call.error == 0);
  const auto extents = wire::decode_block_status_response(call.data, length);
  REQUIRE(extents.has_value());
  std::vector<std::pair<std::uint64_t, std::uint32_t>> pairs;
  for (const auto& extent : *extents) pairs.emplace_back(extent.length, extent.flags);
  return pairs;
}

using Pairs = std::vector<std::pair<std::uint64_t, std::uint32_t>>;

}  // namespace

TEST_CASE("extension: to a client that did not negotiate it every message is EINVAL") {
  World world{{.extensions = false}};
  world.open(world.session(), "disk");
  CHECK(device_info(world, 0).error == EINVAL);
  CHECK(list(world, 0, 4096).error == EINVAL);
  CHECK(directory(world, 0, 4096).error == EINVAL);
  CHECK(who(world, "disk").error == EINVAL);
  CHECK(block_status(world, 0, 4096).error == EINVAL);
  CHECK(cache(world, 0, 4096).error == EINVAL);
  CHECK(world.disk().records.empty());
}

TEST_CASE("who: those who may open an export are told who writes to it, and others nothing") {
  World world;
  CHECK(*wire::decode_who_response(who(world, "disk").data) == wire::WhoAnswer{});
  const auto other = world.make_session("vm1");
  world.open(*other, "disk");
  CHECK(*wire::decode_who_response(who(world, "disk").data) ==
        wire::WhoAnswer{"'vm1' (127.0.0.1:40000) writes to it"});
  CHECK(who(world, "disk", 8).error == EINVAL);
  CHECK(who(world, "none").error == ENOENT);
  world.give_to("somebody", "disk");
  CHECK(who(world, "disk").error == ENOENT);
}

TEST_CASE("extension: messages about a device that is not open are ENOTCONN") {
  World world;
  CHECK(device_info(world, 0).error == ENOTCONN);
  CHECK(block_status(world, 0, 4096).error == ENOTCONN);
  CHECK(cache(world, 0, 4096).error == ENOTCONN);
}

TEST_CASE("device info: tells the size to the byte") {
  World world{{.size = 1000}};
  world.open(world.session(), "disk");
  Call& call = device_info(world, 0, 80);
  CHECK(call.error == 0);
  CHECK(call.answer<wire::DeviceInfoResponse>().size == 1000);
  CHECK(call.data[79] == std::byte{});
  CHECK(device_info(world, 0, 63).error == EINVAL);
}

TEST_CASE("list: all exports with their descriptions, page by page") {
  World world;
  world.add("zeta", 512);
  world.add("alpha", 512);
  const auto page = wire::decode_export_page(list(world, 0, 4096).data);
  REQUIRE(page.has_value());
  CHECK(page->total == 3);
  CHECK(page->exports == std::vector<wire::ExportName>{
                             {"alpha", "the alpha"}, {"disk", "the disk"}, {"zeta", "the zeta"}});
  const auto small = wire::decode_export_page(list(world, 1, 12 + 4 + 12).data);
  REQUIRE(small.has_value());
  CHECK(small->total == 3);
  REQUIRE(small->exports.size() == 1);
  CHECK(small->exports[0].name == "disk");
  const auto behind = wire::decode_export_page(list(world, 3, 4096).data);
  REQUIRE(behind.has_value());
  CHECK(behind->exports.empty());
  CHECK(list(world, 0, 11).error == EINVAL);
  CHECK(list(world, UINT32_MAX, 4096).error == 0);
}

TEST_CASE("directory: sizes and states of all exports, page by page, and none is opened") {
  World world;
  world.add("zeta", 512);
  const auto page = wire::decode_directory_page(directory(world, 0, 4096).data);
  REQUIRE(page.has_value());
  CHECK(page->total == 2);
  REQUIRE(page->entries.size() == 2);
  CHECK(page->entries[0].name == "disk");
  CHECK(page->entries[0].may_write);
  CHECK_FALSE(page->entries[0].in_use);
  CHECK_FALSE(page->entries[0].waiting);
  CHECK(page->entries[1].size == 512);
  CHECK(page->entries[1].description == "the zeta");
  const auto small = wire::decode_directory_page(directory(world, 1, 12 + 32 + 12).data);
  REQUIRE(small.has_value());
  REQUIRE(small->entries.size() == 1);
  CHECK(small->entries[0].name == "zeta");
  CHECK(directory(world, 0, 11).error == EINVAL);

  world.open(world.session(), "disk");
  const auto used = wire::decode_directory_page(directory(world, 0, 4096).data);
  REQUIRE(used.has_value());
  CHECK(used->entries[0].in_use);
  CHECK_FALSE(used->entries[1].in_use);
}

TEST_CASE("directory: referrals and addresses come to those who ask for them, and may know") {
  constexpr std::uint32_t kAll =
      wire::kDirectoryExports | wire::kDirectoryReferrals | wire::kDirectoryPaths;
  World world;
  Directions directions;
  directions.paths = {"tcp:10.0.0.1:1234", "tcp:10.0.1.1:1234"};
  directions.referrals = {
      {.name = "vm7", .uri = "rnbd+tcp://b/vm7"},
      {.name = "vm8", .uri = "rnbd+tcp://b/vm8", .rights = {.rw = {}, .ro = {"x"}}}};
  world.catalogue.set_directions(directions);
  const auto names = [&](std::uint32_t kinds) {
    const auto page = wire::decode_directory_page(directory(world, 0, 4096, kinds).data);
    REQUIRE(page.has_value());
    CHECK(page->total == page->entries.size());
    std::vector<std::string> all;
    for (const auto& entry : page->entries) all.push_back(entry.name);
    return all;
  };
  using Names = std::vector<std::string>;
  CHECK(names(wire::kDirectoryExports) == Names{"disk"});
  CHECK(names(wire::kDirectoryPaths) == directions.paths);
  CHECK(names(kAll) == Names{"disk", "vm7", "tcp:10.0.0.1:1234", "tcp:10.0.1.1:1234"});
  CHECK(names(0).empty());
  const auto rest = wire::decode_directory_page(directory(world, 2, 4096, kAll).data);
  REQUIRE(rest.has_value());
  CHECK(rest->total == 4);
  CHECK(rest->entries.front().name == "tcp:10.0.0.1:1234");

  // Nothing here is for this client, so it needs no address either.
  ExportSpecification secret;
  secret.name = "disk";
  secret.rights.rw = {"somebody"};
  CatalogueChange wanted;
  wanted.update = {secret};
  wanted.directions = directions;
  REQUIRE(world.catalogue.change(std::move(wanted), false).empty());
  CHECK(names(kAll) == Names{"vm7"});
}

TEST_CASE("open: a referral is no export, and the log says where it is") {
  World world;
  Directions directions;
  directions.referrals = {{.name = "vm7", .uri = "rnbd+tcp://b/vm7"}};
  world.catalogue.set_directions(directions);
  CHECK(world.open(world.session(), "vm7").error == ENOENT);
  REQUIRE_FALSE(world.log.empty());
  CHECK(world.log.back().find("it is a referral to rnbd+tcp://b/vm7") != std::string::npos);
  CHECK(world.open(world.session(), "disk").error == 0);
}

TEST_CASE("block status: holes and data as the backend tells them, equal neighbours merged") {
  World world;
  world.open(world.session(), "disk");
  world.disk().extents = {{4096, false, false},
                          {4096, true, true},
                          {8192, true, true},
                          {4096, false, true},
                          {1 << 20, false, false}};
  CHECK(extents_of(block_status(world, 4096, 65536), 65536) ==
        Pairs{{4096, 0}, {12288, 3}, {4096, 2}, {65536 - 20480, 0}});
  const auto& record = world.disk().records.back();
  CHECK(record.offset == 4096);
  CHECK(record.length == 65536);
}

TEST_CASE("block status: an answer has only as many extents as there is room for") {
  World world;
  world.open(world.session(), "disk");
  world.disk().extents = {{4096, false, false}, {4096, true, true}, {4096, false, false}};
  CHECK(extents_of(block_status(world, 0, 12288, 8 + 2 * 16), 12288) ==
        Pairs{{4096, 0}, {4096, 3}});
  CHECK(block_status(world, 0, 12288, 8 + 15).error == EINVAL);
}

TEST_CASE("block status: a backend that says nothing means data") {
  World world;
  world.open(world.session(), "disk");
  CHECK(extents_of(block_status(world, 512, 1024), 1024) == Pairs{{1024, 0}});
}

TEST_CASE("block status: a second question is not answered with the extents of the first") {
  World world;
  world.open(world.session(), "disk");
  world.disk().extents = {{4096, true, true}};
  block_status(world, 0, 4096);
  world.disk().extents.clear();
  CHECK(extents_of(block_status(world, 0, 4096), 4096) == Pairs{{4096, 0}});
}

TEST_CASE("block status and cache: ranges outside the device are EINVAL, the odd end is not") {
  World world{{.size = 10000}};
  world.open(world.session(), "disk");
  struct {
    std::uint64_t offset, length;
    int error;
  } const rows[] = {{0, 10000, 0},          {0, 10240, 0},           {9999, 1, 0},
                    {0, 0, EINVAL},         {10000, 1, EINVAL},      {0, 10241, EINVAL},
                    {9728, 513, EINVAL},    {UINT64_MAX, 1, EINVAL}, {1, UINT64_MAX, EINVAL},
                    {0, UINT64_MAX, EINVAL}};
  for (const auto& row : rows) {
    CAPTURE(row.offset);
    CAPTURE(row.length);
    CHECK(block_status(world, row.offset, row.length).error == row.error);
    CHECK(cache(world, row.offset, row.length).error == row.error);
  }
  // The request to the backend ends with the storage.
  block_status(world, 0, 10240);
  CHECK(world.disk().records.back().length == 10000);
}

TEST_CASE("block status and cache: without the backend's ability they are EOPNOTSUPP") {
  World world{{.adjust = [](BackendInfo& info) { info.can_extents = info.can_cache = false; }}};
  world.open(world.session(), "disk");
  CHECK(block_status(world, 0, 4096).error == EOPNOTSUPP);
  CHECK(cache(world, 0, 4096).error == EOPNOTSUPP);
}

TEST_CASE("cache: reaches the backend, also for a reader") {
  World world;
  world.open(world.session(), "disk", wire::AccessMode::read_only);
  CHECK(cache(world, 512, 4096).error == 0);
  CHECK(world.disk().records.back().operation == BackendOperation::cache);
  world.disk().fail_next = EIO;
  CHECK(cache(world, 512, 4096).error == EIO);
}

}  // namespace extension_test
