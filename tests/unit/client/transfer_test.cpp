#include "bridge/client/transfer.hpp"

#include <doctest/doctest.h>

#include <random>

#include "bridge/client/control.hpp"
#include "tests/unit/client/fake_server.hpp"

using rnbd::DeviceGeometry;
using rnbd::Transfer;
using rnbd::TransferOperation;
using rnbd::test::Arrival;
using rnbd::test::FakeServer;
using rnbd::wire::IoOperation;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

DeviceGeometry geometry_for(const FakeServer& server) {
  DeviceGeometry geometry;
  geometry.device_id = 7;
  geometry.size = geometry.padded_size = server.disk.size();
  geometry.max_io = server.options.max_io_size;
  geometry.max_discard = geometry.max_write_zeroes = 0xFFFF'FE00;
  geometry.native_fua = geometry.own_peer = geometry.fast_zero = true;
  return geometry;
}

std::vector<std::byte> pattern(std::size_t size) {
  std::mt19937 random{1};
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

Transfer write_of(std::uint64_t offset, const std::vector<std::byte>& data) {
  return {.operation = IoOperation::write,
          .offset = offset,
          .length = data.size(),
          .from = data.data()};
}

Transfer range(IoOperation operation, std::uint64_t offset, std::uint64_t length) {
  return {.operation = operation, .offset = offset, .length = length};
}

/// The pieces tile the range without gap or overlap.
void check_tiling(const std::vector<rnbd::wire::Io>& pieces, std::uint64_t offset,
                  std::uint64_t length, std::uint64_t largest) {
  std::uint64_t at = offset;
  for (const auto& io : pieces) {
    CHECK(io.sector * 512 == at);
    CHECK(io.length > 0);
    CHECK(io.length <= largest);
    at += io.length;
  }
  CHECK(at == offset + length);
}

}  // namespace

TEST_CASE("a transfer of any length arrives whole, in pieces that fit") {
  for (std::size_t length : {512U, 4096U, 65536U, 66048U, 131072U, 3U * 65536U + 512U, 1U << 20}) {
    CAPTURE(length);
    FakeServer server;
    const DeviceGeometry geometry = geometry_for(server);
    const auto data = pattern(length);
    TransferOperation write{geometry, write_of(0, data)};
    write.start(server.lane);
    server.answer_all();
    REQUIRE(write.finished());
    CHECK(write.error() == 0);
    check_tiling(server.executed, 0, length, 65536);
    CHECK(server.executed.size() == (length + 65535) / 65536);

    std::vector<std::byte> back(length);
    TransferOperation read{geometry,
                           {.operation = IoOperation::read, .length = length, .into = back.data()}};
    read.start(server.lane);
    server.answer_all();
    REQUIRE(read.finished());
    CHECK(read.error() == 0);
    CHECK(back == data);
  }
}

TEST_CASE("answers in any order give the same data") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  server.disk = pattern(server.disk.size());
  std::mt19937 random{7};
  std::vector<std::byte> back(server.disk.size());
  TransferOperation read{
      geometry, {.operation = IoOperation::read, .length = back.size(), .into = back.data()}};
  read.start(server.lane);
  while (!server.arrivals.empty()) server.answer(random() % server.arrivals.size());
  REQUIRE(read.finished());
  CHECK(read.error() == 0);
  CHECK(back == server.disk);
}

TEST_CASE("at most 16 pieces of one transfer are in flight, and a freed place is used at once") {
  FakeServer server{{.max_io_size = 4096, .slots = 64}};
  const DeviceGeometry geometry = geometry_for(server);
  const auto data = pattern(40 * 4096);
  TransferOperation write{geometry, write_of(0, data)};
  write.start(server.lane);
  CHECK(server.arrivals.size() == 16);
  server.answer(9);
  CHECK(server.arrivals.size() == 16);
  server.answer_all();
  CHECK(write.finished());
  CHECK(server.executed.size() == 40);
}

TEST_CASE("a transfer larger than the lane has permits still finishes") {
  FakeServer server{{.max_io_size = 4096, .slots = 3}};
  const DeviceGeometry geometry = geometry_for(server);
  const auto data = pattern(50 * 4096);
  TransferOperation write{geometry, write_of(4096, data)};
  write.start(server.lane);
  CHECK(server.arrivals.size() == 3);
  server.answer_all();
  REQUIRE(write.finished());
  CHECK(write.error() == 0);
  CHECK(server.lane.permits_in_use() == 0);
}

TEST_CASE("the pieces of a long transfer have nearly equal size") {
  FakeServer server{{.max_io_size = 126976}};
  const DeviceGeometry geometry = geometry_for(server);
  const auto data = pattern(128 * 1024);
  TransferOperation write{geometry, write_of(0, data)};
  write.start(server.lane);
  REQUIRE(server.arrivals.size() == 2);
  CHECK(server.arrivals[0].io().length == 65536);
  CHECK(server.arrivals[1].io().length == 65536);
  server.answer_all();
}

TEST_CASE("FUA rides on every piece of a write") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  const auto data = pattern(200 * 1024);
  Transfer transfer = write_of(0, data);
  transfer.fua = true;
  TransferOperation write{geometry, transfer};
  write.start(server.lane);
  server.answer_all();
  CHECK(server.executed.size() == 4);
  for (const auto& io : server.executed) CHECK(io.rw == 0x301);
}

TEST_CASE("the first error wins, and pieces in flight are waited for") {
  FakeServer server{{.max_io_size = 4096, .slots = 64}};
  const DeviceGeometry geometry = geometry_for(server);
  server.fail = [](const Arrival& arrival) {
    if (arrival.io().sector == 8) return ENOSPC;
    return arrival.io().sector == 16 ? EIO : 0;
  };
  const auto data = pattern(64 * 4096);
  TransferOperation write{geometry, write_of(0, data)};
  write.start(server.lane);
  REQUIRE(server.arrivals.size() == 16);
  server.answer(1);  // ENOSPC
  server.answer(1);  // EIO
  CHECK_FALSE(write.finished());
  CHECK(server.arrivals.size() == 14);  // nothing new is sent after an error
  while (server.arrivals.size() > 1) server.answer();
  CHECK_FALSE(write.finished());
  server.answer();
  REQUIRE(write.finished());
  CHECK(write.error() == ENOSPC);
  CHECK(server.lane.permits_in_use() == 0);
}

TEST_CASE("a lane that is down ends a transfer at once with the lane's error") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  server.lane.detach(EIO);
  const auto data = pattern(1 << 20);
  TransferOperation write{geometry, write_of(0, data)};
  write.start(server.lane);
  REQUIRE(write.finished());
  CHECK(write.error() == EIO);
}

TEST_CASE("a lane that goes down ends what is in flight with its error") {
  FakeServer server{{.max_io_size = 4096}};
  const DeviceGeometry geometry = geometry_for(server);
  std::vector<std::byte> back(1 << 20);
  TransferOperation read{
      geometry, {.operation = IoOperation::read, .length = back.size(), .into = back.data()}};
  read.start(server.lane);
  server.answer();
  server.lane.detach(ENOTCONN);
  REQUIRE(read.finished());
  CHECK(read.error() == ENOTCONN);
}

TEST_CASE("after a cancel late answers touch neither the operation nor its memory") {
  FakeServer server{{.max_io_size = 4096}};
  const DeviceGeometry geometry = geometry_for(server);
  server.disk = pattern(server.disk.size());
  std::vector<std::byte> back(32 * 4096);
  {
    TransferOperation read{
        geometry, {.operation = IoOperation::read, .length = back.size(), .into = back.data()}};
    read.start(server.lane);
    read.cancel(server.lane);
    CHECK_FALSE(read.finished());
  }
  CHECK(server.arrivals.size() == 16);
  server.answer_all();
  CHECK(server.complaint == nullptr);
  CHECK(back == std::vector<std::byte>(back.size()));
  CHECK(server.lane.permits_in_use() == 0);
}

TEST_CASE("a flush is a read without data, as Linux sends it") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  TransferOperation flush{geometry, {.operation = IoOperation::flush}};
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
    TransferOperation discard{geometry, range(IoOperation::discard, 512, 20 * kGiB)};
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
    TransferOperation discard{geometry, range(IoOperation::discard, 4096, 64 * 1024 * 1024)};
    discard.start(server.lane);
    std::vector<rnbd::wire::Io> pieces;
    for (const Arrival& arrival : server.arrivals) pieces.push_back(arrival.io());
    check_tiling(pieces, 4096, 64 * 1024 * 1024, geometry.max_discard);
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
      CHECK((pieces[i].sector * 512 + pieces[i].length) % (1024 * 1024) == 512 * 1024);
    }
    discard.cancel(server.lane);
  }
  SUBCASE("a granule larger than the limit does not stop the discard") {
    geometry.max_discard = 512 * 1024;
    geometry.discard_granularity = 4 * 1024 * 1024;
    TransferOperation discard{geometry, range(IoOperation::discard, 512, 4 * 1024 * 1024)};
    discard.start(server.lane);
    std::vector<rnbd::wire::Io> pieces;
    for (const Arrival& arrival : server.arrivals) pieces.push_back(arrival.io());
    check_tiling(pieces, 512, 4 * 1024 * 1024, geometry.max_discard);
    discard.cancel(server.lane);
  }
}

TEST_CASE("FUA on anything but a write becomes a flush towards servers that would refuse it") {
  FakeServer server;
  DeviceGeometry geometry = geometry_for(server);
  geometry.own_peer = geometry.fast_zero = false;
  Transfer transfer = range(IoOperation::write_zeroes, 0, 1 << 20);
  transfer.fua = true;
  geometry.max_write_zeroes = 65536;
  TransferOperation zero{geometry, transfer};
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
  TransferOperation discard{geometry, transfer};
  discard.start(server.lane);
  server.answer_all();
  REQUIRE(discard.finished());
  CHECK(discard.error() == EIO);
  CHECK(server.count(rnbd::wire::MessageType::io) == 1);
}

TEST_CASE("wishes of a zeroing reach only a server that is known to honour them") {
  FakeServer server;
  DeviceGeometry geometry = geometry_for(server);
  Transfer transfer = range(IoOperation::write_zeroes, 0, 4096);
  transfer.no_unmap = true;
  transfer.fast = true;
  SUBCASE("an rnbdkit server gets the flags") {
    TransferOperation zero{geometry, transfer};
    zero.start(server.lane);
    REQUIRE(server.arrivals.size() == 1);
    CHECK(server.arrivals[0].io().rw == (0x005U | 0x800U | 0x4000'0000U));
    CHECK_FALSE(server.arrivals[0].is_read);
    server.answer_all();
  }
  SUBCASE("another server is not asked") {
    geometry.own_peer = false;
    TransferOperation zero{geometry, transfer};
    zero.start(server.lane);
    CHECK(zero.finished());
    CHECK(zero.error() == EOPNOTSUPP);
    CHECK(server.arrivals.empty());
  }
  SUBCASE("a server that cannot zero is not asked at all") {
    geometry.max_write_zeroes = 0;
    TransferOperation zero{geometry, range(IoOperation::write_zeroes, 0, 4096)};
    zero.start(server.lane);
    CHECK(zero.error() == EOPNOTSUPP);
    CHECK(server.arrivals.empty());
  }
}

TEST_CASE("a write without memory writes zeroes") {
  FakeServer server{{.max_io_size = 512 * 1024}};
  const DeviceGeometry geometry = geometry_for(server);
  server.disk = pattern(server.disk.size());
  const std::byte before = server.disk[4095];
  TransferOperation zero{geometry, range(IoOperation::write, 4096, 600 * 1024)};
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

TEST_CASE("an empty transfer finishes without a request") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  TransferOperation read{geometry, {.operation = IoOperation::read}};
  read.start(server.lane);
  CHECK(read.finished());
  CHECK(read.error() == 0);
  CHECK(server.seen.empty());
}

TEST_CASE("whoever waits is told once, after the last piece") {
  FakeServer server{{.max_io_size = 4096}};
  const DeviceGeometry geometry = geometry_for(server);
  const auto data = pattern(20 * 4096);
  int told = 0;
  TransferOperation write{geometry, write_of(0, data)};
  write.on_finish([](void* context) { ++*static_cast<int*>(context); }, &told);
  write.start(server.lane);
  while (server.arrivals.size() > 1) server.answer();
  CHECK(told == 0);
  server.answer();
  CHECK(told == 1);
}
