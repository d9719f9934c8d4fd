// SPDX-License-Identifier: BSD-3-Clause
// How a transfer is cut into pieces, ends and is given up.
#include "bridge/client/transfer.hpp"

#include <doctest/doctest.h>

#include <random>

#include "tests/unit/client/transfer_world.hpp"

namespace rnbd::test::transfer_test {
namespace {

TEST_CASE("a transfer of any length arrives whole, in pieces that fit") {
  for (std::size_t length : {512U, 4096U, 65536U, 66048U, 131072U, 3U * 65536U + 512U, 1U << 20}) {
    CAPTURE(length);
    FakeServer server;
    const DeviceGeometry geometry = geometry_for(server);
    const auto data = pattern(length);
    TransferOperation write{geometry, handle, write_of(0, data)};
    write.start(server.lane);
    server.answer_all();
    REQUIRE(write.finished());
    CHECK(write.error() == 0);
    check_tiling(server.executed, 0, length, 65536);
    CHECK(server.executed.size() == (length + 65535) / 65536);

    std::vector<std::byte> back(length);
    TransferOperation read{
        geometry, handle, {.operation = IoOperation::read, .length = length, .into = back.data()}};
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
      geometry,
      handle,
      {.operation = IoOperation::read, .length = back.size(), .into = back.data()}};
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
  TransferOperation write{geometry, handle, write_of(0, data)};
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
  TransferOperation write{geometry, handle, write_of(4096, data)};
  write.start(server.lane);
  CHECK(server.arrivals.size() == 3);
  server.answer_all();
  REQUIRE(write.finished());
  CHECK(write.error() == 0);
  CHECK(server.lane.permits().in_use() == 0);
}

TEST_CASE("the pieces of a long transfer have nearly equal size") {
  FakeServer server{{.max_io_size = 126976}};
  const DeviceGeometry geometry = geometry_for(server);
  const auto data = pattern(128 * 1024);
  TransferOperation write{geometry, handle, write_of(0, data)};
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
  TransferOperation write{geometry, handle, transfer};
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
  TransferOperation write{geometry, handle, write_of(0, data)};
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
  CHECK(server.lane.permits().in_use() == 0);
}

TEST_CASE("a lane that is down ends a transfer at once with the lane's error") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  server.lane.shut_down(EIO);
  const auto data = pattern(1 << 20);
  TransferOperation write{geometry, handle, write_of(0, data)};
  write.start(server.lane);
  REQUIRE(write.finished());
  CHECK(write.error() == EIO);
}

TEST_CASE("a lane that goes down ends what is in flight with its error") {
  FakeServer server{{.max_io_size = 4096}};
  const DeviceGeometry geometry = geometry_for(server);
  std::vector<std::byte> back(1 << 20);
  TransferOperation read{
      geometry,
      handle,
      {.operation = IoOperation::read, .length = back.size(), .into = back.data()}};
  read.start(server.lane);
  server.answer();
  server.lane.shut_down(ENOTCONN);
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
        geometry,
        handle,
        {.operation = IoOperation::read, .length = back.size(), .into = back.data()}};
    read.start(server.lane);
    read.cancel(server.lane);
    CHECK_FALSE(read.finished());
  }
  CHECK(server.arrivals.size() == 16);
  server.answer_all();
  CHECK(server.complaint == nullptr);
  CHECK(back == std::vector<std::byte>(back.size()));
  CHECK(server.lane.permits().in_use() == 0);
}

TEST_CASE("an empty transfer finishes without a request") {
  FakeServer server;
  const DeviceGeometry geometry = geometry_for(server);
  TransferOperation read{geometry, handle, {.operation = IoOperation::read}};
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
  TransferOperation write{geometry, handle, write_of(0, data)};
  write.on_finish([](void* context) { ++*static_cast<int*>(context); }, &told);
  write.start(server.lane);
  while (server.arrivals.size() > 1) server.answer();
  CHECK(told == 0);
  server.answer();
  CHECK(told == 1);
}

}  // namespace
}  // namespace rnbd::test::transfer_test
