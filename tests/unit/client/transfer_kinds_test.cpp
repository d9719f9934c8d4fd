// SPDX-License-Identifier: BSD-3-Clause
// The messages of each kind of transfer but plain reads and writes.
#include <doctest/doctest.h>

#include "tests/unit/client/transfer_world.hpp"

namespace rnbd::test::transfer_kinds_test {
namespace {

TEST_CASE("a flush is a read without data, as Linux sends it") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  TransferOperation flush{geometry, handle, {.operation = IoOperation::flush}};
  flush.start(server.lane);
  REQUIRE(server.arrivals.size() == 1);
  CHECK(server.arrivals[0].is_read);
  CHECK(server.arrivals[0].io().rw == 0x302);
  CHECK(server.arrivals[0].io().length == 0);
  CHECK(server.arrivals[0].io().sector == 0);
  server.answer_all();
  CHECK(flush.finished());
}

TEST_CASE("a discard is cut where the server's limit and its granules allow") {
  FakeServer server;
  DeviceGeometry geometry = geometry_for(server);
  geometry.padded_size = geometry.size = 64 * kGiB;
  SUBCASE("nothing is longer than 32 bits can say") {
    TransferOperation discard{geometry, handle, range(IoOperation::discard, 512, 20 * kGiB)};
    discard.start(server.lane);
    REQUIRE(server.arrivals.size() == 6);
    CHECK(server.arrivals[0].io().length == 0xFFFF'FE00);
    CHECK_FALSE(server.arrivals[0].is_read);
    CHECK(server.arrivals[0].data.empty());
    server.fail = [](const Arrival&) { return EIO; };
    server.answer_all();
    CHECK(discard.error() == EIO);
  }
  SUBCASE("pieces end on granule boundaries") {
    geometry.max_discard = 5 * 1024 * 1024 + 512;
    geometry.discard_granularity = 1024 * 1024;
    geometry.discard_alignment = 512 * 1024;
    TransferOperation discard{geometry, handle,
                              range(IoOperation::discard, 4096, 64 * 1024 * 1024)};
    discard.start(server.lane);
    std::vector<wire::Io> pieces;
    for (const Arrival& arrival : server.arrivals) pieces.push_back(arrival.io());
    check_tiling(pieces, 4096, 64 * 1024 * 1024, geometry.max_discard);
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
      CHECK((pieces[i].sector * 512 + pieces[i].length) % (1024 * 1024) == 512 * 1024);
    }
    server.fail = [](const Arrival&) { return EIO; };
    server.answer_all();
  }
  SUBCASE("a granule larger than the limit does not stop the discard") {
    geometry.max_discard = 512 * 1024;
    geometry.discard_granularity = 4 * 1024 * 1024;
    TransferOperation discard{geometry, handle, range(IoOperation::discard, 512, 4 * 1024 * 1024)};
    discard.start(server.lane);
    std::vector<wire::Io> pieces;
    for (const Arrival& arrival : server.arrivals) pieces.push_back(arrival.io());
    check_tiling(pieces, 512, 4 * 1024 * 1024, geometry.max_discard);
    server.fail = [](const Arrival&) { return EIO; };
    server.answer_all();
  }
}

TEST_CASE("FUA on anything but a write becomes a flush towards servers that would refuse it") {
  FakeServer server;
  DeviceGeometry geometry = geometry_for(server);
  geometry.own_peer = geometry.fast_zero = false;
  Transfer transfer = range(IoOperation::write_zeroes, 0, 1 << 20);
  transfer.fua = true;
  geometry.max_write_zeroes = 65536;
  TransferOperation zero{geometry, handle, transfer};
  zero.start(server.lane);
  while (!zero.finished()) server.answer();
  REQUIRE(server.executed.size() == 17);
  for (std::size_t i = 0; i < 16; ++i) CHECK(server.executed[i].rw == 0x005);
  CHECK(server.executed[16].rw == 0x302);
  CHECK(zero.error() == 0);
}

TEST_CASE("an error before the closing flush keeps the flush from being sent") {
  FakeServer server;
  DeviceGeometry geometry = geometry_for(server);
  geometry.own_peer = geometry.fast_zero = false;
  server.fail = [](const Arrival&) { return EIO; };
  Transfer transfer = range(IoOperation::discard, 0, 4096);
  transfer.fua = true;
  TransferOperation discard{geometry, handle, transfer};
  discard.start(server.lane);
  server.answer_all();
  REQUIRE(discard.finished());
  CHECK(discard.error() == EIO);
  CHECK(server.count(wire::MessageType::io) == 1);
}

TEST_CASE("wishes of a zeroing reach only a server that is known to honour them") {
  FakeServer server;
  DeviceGeometry geometry = geometry_for(server);
  Transfer transfer = range(IoOperation::write_zeroes, 0, 4096);
  transfer.no_unmap = true;
  transfer.fast = true;
  SUBCASE("an rnbdkit server gets the flags") {
    TransferOperation zero{geometry, handle, transfer};
    zero.start(server.lane);
    REQUIRE(server.arrivals.size() == 1);
    CHECK(server.arrivals[0].io().rw == (0x005U | 0x800U | 0x4000'0000U));
    CHECK_FALSE(server.arrivals[0].is_read);
    server.answer_all();
  }
  SUBCASE("another server is not asked") {
    geometry.own_peer = false;
    TransferOperation zero{geometry, handle, transfer};
    zero.start(server.lane);
    CHECK(zero.finished());
    CHECK(zero.error() == EOPNOTSUPP);
    CHECK(server.arrivals.empty());
  }
  SUBCASE("a server that cannot zero is not asked at all") {
    geometry.max_write_zeroes = 0;
    TransferOperation zero{geometry, handle, range(IoOperation::write_zeroes, 0, 4096)};
    zero.start(server.lane);
    CHECK(zero.error() == EOPNOTSUPP);
    CHECK(server.arrivals.empty());
  }
}

TEST_CASE("a copy to a member of a mirror says so, also of zeroes") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  Transfer transfer = range(IoOperation::write_zeroes, 0, 4096);
  transfer.copy = true;
  TransferOperation zeroes{geometry, handle, transfer};
  zeroes.start(server.lane);
  transfer.operation = IoOperation::write;
  TransferOperation data{geometry, handle, transfer};
  data.start(server.lane);
  REQUIRE(server.arrivals.size() == 2);
  CHECK(server.arrivals[0].io().rw == (0x005U | 0x2000'0000U));
  CHECK(server.arrivals[1].io().rw == (0x001U | 0x2000'0000U));
  server.answer_all();
}

TEST_CASE("a write without memory writes zeroes") {
  FakeServer server{{.max_io_size = 512 * 1024}};
  const DeviceGeometry geometry = geometry_for(server);
  server.disk = pattern(server.disk.size());
  const std::byte before = server.disk[4095];
  TransferOperation zero{geometry, handle, range(IoOperation::write, 4096, 600 * 1024)};
  zero.start(server.lane);
  server.answer_all();
  REQUIRE(zero.finished());
  CHECK(zero.error() == 0);
  CHECK(server.disk[4095] == before);
  CHECK(std::all_of(server.disk.begin() + 4096, server.disk.begin() + 4096 + 600 * 1024,
                    [](std::byte b) { return b == std::byte{}; }));
}

TEST_CASE("a range that the server would not take is refused before anything is sent") {
  FakeServer server;
  DeviceGeometry geometry = geometry_for(server);
  geometry.block = 4096;
  geometry.padded_size = geometry.size = 10 * 4096 + 512;
  const std::vector<std::byte> data(8192);
  auto error_of = [&](std::uint64_t offset, std::uint64_t length) {
    TransferOperation write{
        geometry,
        handle,
        {.operation = IoOperation::write, .offset = offset, .length = length, .from = data.data()}};
    write.start(server.lane);
    server.answer_all();
    REQUIRE(write.finished());
    return write.error();
  };
  CHECK(error_of(512, 4096) == EINVAL);
  CHECK(error_of(0, 512) == EINVAL);
  CHECK(error_of(11 * 4096, 4096) == EINVAL);
  CHECK(error_of(UINT64_MAX - 511, 512) == EINVAL);
  CHECK(server.seen.empty());
  CHECK(error_of(10 * 4096, 512) == 0);  // the end of the device
}

}  // namespace
}  // namespace rnbd::test::transfer_kinds_test
