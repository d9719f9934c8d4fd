// SPDX-License-Identifier: BSD-3-Clause
// Clients arrive at the next start as they were left, or not at all.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "bridge/daemon/bridge/estate.hpp"

namespace rnbd::left_clients_test {
namespace {

nbd::Released some_client() {
  LeftDisk disk{.name = "disk0",
                .size = 1ULL << 40,
                .export_uuid = {1, 2, 3},
                .writer = true,
                .unflushed = true,
                .volatile_epoch = 77};
  disk.witness.writer_serial = 5;
  disk.witness.sight = 6;
  disk.witness.generation = 7;
  disk.witness.storage_life = 8;
  return {.unread = std::string{"a\n\0b", 4},
          .flags = 0x1234,
          .framing = nbd::Framing::extended,
          .block_status = true,
          .disk = disk};
}

tl::expected<Estate, std::string> read(const std::string& record) {
  return estate_in(std::as_bytes(std::span{record}));
}
std::string record_of(std::vector<nbd::Released> clients) {
  return rnbd::record_of(
      Estate{.listeners = {{"unix:/run/a"}, {""}}, .clients = std::move(clients)});
}

TEST_CASE("clients that are left arrive as they were, whatever bytes they have sent") {
  nbd::Released reader;
  reader.unread = std::string(256 * 1024, '\xff');
  reader.disk.emplace();
  reader.disk->name = std::string(254, 'x');
  const auto all = read(record_of({some_client(), reader}));
  REQUIRE(all);
  REQUIRE(all->listeners.size() == 2);
  CHECK(all->listeners.front().address == "unix:/run/a");
  CHECK(all->listeners.back().address.empty());
  CHECK(all->listeners.back().socket == -1);
  REQUIRE(all->clients.size() == 2);
  const nbd::Released& first = all->clients.front();
  CHECK(first.socket == -1);
  CHECK(first.unread == some_client().unread);
  CHECK(first.flags == 0x1234);
  CHECK(first.framing == nbd::Framing::extended);
  CHECK(first.block_status);
  CHECK(first.disk->name == "disk0");
  CHECK(first.disk->size == 1ULL << 40);
  CHECK(first.disk->export_uuid == some_client().disk->export_uuid);
  CHECK(first.disk->writer);
  CHECK(first.disk->unflushed);
  CHECK(first.disk->volatile_epoch == 77);
  CHECK(first.disk->witness.writer_serial == 5);
  CHECK(first.disk->witness.sight == 6);
  CHECK(first.disk->witness.generation == 7);
  CHECK(first.disk->witness.storage_life == 8);
  const nbd::Released& second = all->clients.back();
  CHECK(second.unread == reader.unread);
  CHECK(second.framing == nbd::Framing::simple);
  CHECK_FALSE(second.block_status);
  CHECK(second.disk->name == reader.disk->name);
  CHECK_FALSE(second.disk->writer);
  CHECK_FALSE(second.disk->unflushed);
}

TEST_CASE("a record of clients that is cut short is not taken") {
  const std::string good = record_of({some_client()});
  REQUIRE(read(good));
  for (std::size_t size = 0; size < good.size(); ++size) CHECK_FALSE(read(good.substr(0, size)));
}

TEST_CASE("a record of clients of another version is not taken") {
  std::string record = record_of({some_client()});
  record[8] = 2;
  CHECK(read(record).error() == "it is of another version");
}

TEST_CASE("what a later version adds to a record of clients is passed over, unless it matters") {
  const std::string good = record_of({some_client()});
  const auto with_part = [&](char flags) {
    const std::string part{9, 0, flags, 0, 3, 0, 0, 0, 'n', 'e', 'w'};
    return good.substr(0, 16) + part + good.substr(16);
  };
  REQUIRE(read(with_part(0)));
  CHECK(read(with_part(0))->clients.size() == 1);
  CHECK_FALSE(read(with_part(1)));  // it has a socket
  CHECK_FALSE(read(with_part(2)));
}

}  // namespace
}  // namespace rnbd::left_clients_test
