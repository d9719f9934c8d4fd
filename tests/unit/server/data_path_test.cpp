// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>

#include "tests/unit/server/fixture.hpp"

namespace data_path_test {

using namespace rnbd;
using namespace rnbd::test;

namespace {

constexpr std::uint32_t kRead = 0, kWrite = 1, kFlush = 2, kDiscard = 3, kZeroes = 5;

std::vector<BackendOperation> operations(const FakeBackend& backend) {
  std::vector<BackendOperation> list;
  for (const auto& record : backend.records) list.push_back(record.operation);
  return list;
}

using Operations = std::vector<BackendOperation>;
constexpr auto kB = [](auto... operation) { return Operations{operation...}; };

}  // namespace

TEST_CASE("data path: a write lands where a read finds it") {
  World world;
  world.open(world.session(), "disk");
  CHECK(world.io(world.session(), kWrite, 8, 4096, false, 4096).error == 0);
  Call& read = world.io(world.session(), kRead, 7, 8192, true, 8192);
  CHECK(read.error == 0);
  CHECK(std::count(read.data.begin(), read.data.end(), kGarbage) == 4096);
  CHECK(read.data[511] == std::byte{});
  CHECK(read.data[512] == kGarbage);
}

TEST_CASE("data path: an unknown, closed or foreign device is ENOTCONN") {
  World world;
  CHECK(world.io(world.session(), kRead, 0, 512, true, 512).error == ENOTCONN);
  world.open(world.session(), "disk");
  CHECK(world.io(world.session(), kRead, 0, 512, true, 512, 1).error == ENOTCONN);
  CHECK(world.io(world.session(), kRead, 0, 512, true, 512, UINT32_MAX).error == ENOTCONN);
  auto other = world.make_session("other");
  CHECK(world.io(*other, kRead, 0, 512, true, 512).error == ENOTCONN);
  world.close(world.session(), 0);
  CHECK(world.io(world.session(), kRead, 0, 512, true, 512).error == ENOTCONN);
}

TEST_CASE("data path: a refused request does not reach the backend") {
  World world;
  world.open(world.session(), "disk", wire::AccessMode::read_only);
  CHECK(world.io(world.session(), kWrite, 0, 512, false, 512).error == EROFS);
  CHECK(world.io(world.session(), kDiscard, 0, 512, false, 0).error == EROFS);
  CHECK(world.io(world.session(), kRead, 4096, 512, true, 512).error == EIO);
  CHECK(world.disk().records.empty());
  CHECK(world.io(world.session(), kFlush, UINT64_MAX, 0, true, 0).error == 0);
  CHECK(operations(world.disk()) == kB(BackendOperation::flush));
}

TEST_CASE("data path: a backend's errno arrives as it is, an impossible one as EIO") {
  World world;
  world.open(world.session(), "disk");
  for (const auto& [given, told] :
       {std::pair{ENOSPC, ENOSPC}, {EREMOTEIO, EREMOTEIO}, {511, 511}, {512, EIO}, {-5, EIO}}) {
    world.disk().fail_next = given;
    CHECK(world.io(world.session(), kWrite, 0, 512, false, 512).error == told);
  }
}

TEST_CASE("data path: PREFLUSH runs a flush, waits for it, and then writes") {
  World world;
  world.open(world.session(), "disk");
  world.disk().hold = true;
  Call& write = world.io(world.session(), kWrite | 0x700, 0, 512, false, 512);
  CHECK(operations(world.disk()) == kB(BackendOperation::flush));
  world.disk().answer();
  CHECK(operations(world.disk()) == kB(BackendOperation::flush, BackendOperation::write));
  CHECK(world.disk().records[1].fua);
  CHECK(write.finished == 0);
  world.disk().answer();
  CHECK(write.finished == 1);
  CHECK(write.error == 0);
}

TEST_CASE("data path: when the flush in front fails, nothing is written") {
  World world;
  world.open(world.session(), "disk");
  world.disk().hold = true;
  Call& write = world.io(world.session(), kWrite | 0x600, 0, 512, false, 512);
  world.disk().answer(EIO);
  CHECK(write.error == EIO);
  CHECK(operations(world.disk()) == kB(BackendOperation::flush));
  CHECK(world.disk().bytes[0] == std::byte{});
}

TEST_CASE("data path: FUA without the backend's help is write, then flush, then the answer") {
  World world{{.adjust = [](BackendInfo& info) { info.can_fua = false; }}};
  world.open(world.session(), "disk");
  world.disk().hold = true;
  Call& write = world.io(world.session(), kWrite | 0x600, 0, 512, false, 512);
  world.disk().answer();
  world.disk().answer();
  CHECK(write.finished == 0);
  CHECK(operations(world.disk()) ==
        kB(BackendOperation::flush, BackendOperation::write, BackendOperation::flush));
  CHECK_FALSE(world.disk().records[1].fua);
  world.disk().answer(EIO);
  CHECK(write.error == EIO);
}

TEST_CASE("data path: an empty write with FUA is one flush and moves no data") {
  World world;
  world.open(world.session(), "disk");
  CHECK(world.io(world.session(), kWrite | 0x300, UINT64_MAX, 0, false, 0).error == 0);
  CHECK(operations(world.disk()) == kB(BackendOperation::flush));
}

TEST_CASE("data path: discard and zeroing reach the backend with their flags") {
  World world;
  world.open(world.session(), "disk");
  CHECK(world.io(world.session(), kDiscard, 8, 8192, false, 0).error == 0);
  CHECK(world.io(world.session(), kZeroes | 0xA00, 0, 1 << 20, false, 0).error == 0);
  CHECK(world.io(world.session(), kZeroes | wire::kIoFast, 0, 512, false, 0).error == 0);
  const auto& records = world.disk().records;
  REQUIRE(records.size() == 3);
  CHECK(records[0].operation == BackendOperation::discard);
  CHECK(records[0].offset == 4096);
  CHECK(records[0].length == 8192);
  CHECK(records[1].operation == BackendOperation::write_zeroes);
  CHECK(records[1].fua);
  CHECK(records[1].no_unmap);
  CHECK_FALSE(records[1].fast);
  CHECK(records[2].fast);
  CHECK_FALSE(records[2].no_unmap);
  CHECK_FALSE(records[2].fua);
}

TEST_CASE("data path: requests end in the backend's order, each exactly once") {
  World world;
  world.open(world.session(), "disk");
  world.disk().hold = true;
  std::vector<Call*> calls;
  // More than the queue depth: the session must cope, whatever the transport lets through.
  for (int n = 0; n < 200; ++n)
    calls.push_back(&world.io(world.session(), kRead, static_cast<unsigned>(n), 512, true, 512));
  std::reverse(world.disk().held.begin(), world.disk().held.end());
  for (int n = 199; n >= 0; --n) {
    world.disk().answer();
    CHECK(calls[static_cast<unsigned>(n)]->finished == 1);
    if (n > 0) CHECK(calls[static_cast<unsigned>(n) - 1]->finished == 0);
  }
}

TEST_CASE("data path: an odd end is served as a whole sector") {
  World world{{.size = 1000}};
  world.open(world.session(), "disk");
  CHECK(world.io(world.session(), kRead, 1, 512, true, 512).error == 0);
  CHECK(world.io(world.session(), kRead, 2, 512, true, 512).error == EIO);
}

TEST_CASE("data path: a session may end inside the answer of its last request") {
  World world;
  world.open(world.session(), "disk");
  world.disk().hold = true;
  Call& read = world.io(world.session(), kRead, 0, 512, true, 512);
  read.on_finish = [&] { world.end_session(); };
  world.disk().answer();
  CHECK(read.finished == 1);
  auto next = world.make_session("next");
  CHECK(world.open(*next, "disk").error == 0);
}

TEST_CASE("data path: a request that is refused in front of its storage is no failure of that") {
  struct Refusing final : BackendQueue {
    void submit(BackendRequest& request) override {
      request.refused = true;
      request.done(request, ESTALE);
    }
  };
  World world;
  world.services.meters = std::make_shared<MeterBook>();
  world.open(world.session(), "disk");
  Device& device = *world.session().devices().slots().front();
  Refusing refusing;
  device.queue = &refusing;
  world.log.clear();
  CHECK(world.io(world.session(), kWrite, 8, 4096, false, 4096).error == ESTALE);
  CHECK(world.log.empty());
  CHECK(device.failures == 0);
  CHECK(device.running == 0);
  const auto reading = world.services.meters->read().front().second;
  CHECK(std::ranges::count(reading.errors, std::uint64_t{0}) ==
        static_cast<std::ptrdiff_t>(reading.errors.size()));
  CHECK(reading.of(MeteredOperation::write).timed == 0);
  CHECK(reading.in_flight == 0);
  device.queue = &device.own_queue;
  CHECK(world.io(world.session(), kWrite, 8, 4096, false, 4096).error == 0);
}

}  // namespace data_path_test
