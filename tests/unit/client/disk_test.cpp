// SPDX-License-Identifier: BSD-3-Clause
// The rules that all kinds of disks share: partial blocks, rights, ends and abilities.
#include "bridge/client/disk.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace rnbd::disk_test {
namespace {

using wire::IoOperation;

constexpr std::uint32_t kBlock = 4096;

DeviceGeometry geometry_of(std::uint64_t size) {
  DeviceGeometry geometry;
  geometry.size = size;
  geometry.padded_size = (size + 511) / 512 * 512;
  geometry.block = kBlock;
  geometry.max_discard = geometry.max_write_zeroes = 1 << 20;
  return geometry;
}

struct Lanes final : LaneSource {
  unsigned lanes() const override { return 0; }
  std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned /*lane*/) override { return nullptr; }
};

/// A disk in memory, which lists the transfers that come to it.
class MemoryDisk final : public Disk {
 public:
  explicit MemoryDisk(const DeviceGeometry& geometry, Takes takes = Takes::whole_blocks)
      : Disk{geometry, false, changes_, this, takes}, bytes_(geometry.padded_size) {
    changes_.add_user(this);
  }
  static MemoryDisk of_any_bytes(const DeviceGeometry& geometry) {
    return MemoryDisk{geometry, Takes::any_bytes};
  }

  const std::string& name() const override { return name_; }
  const char* access_in_words() const override { return "rw"; }
  std::shared_ptr<LaneSource> lane_source() override { return std::make_shared<Lanes>(); }
  tl::expected<void, rtrs::Failure> look_again(const rtrs::Interrupt& /*interrupt*/) override {
    return {};
  }
  int flush(const rtrs::Interrupt& /*interrupt*/) override { return 0; }
  DeviceHandle& handle() override { return handle_; }

  void refuse_changes() { read_only_ = true; }
  void forget_claim() { may_change_ = false; }
  std::vector<std::byte> bytes() const { return {bytes_.begin(), bytes_.begin() + size()}; }

  std::vector<Transfer> performed;
  std::function<int(const Transfer&)> answer = [](const Transfer&) { return 0; };
  std::uint64_t session = 0;
  int claims = 0;

 private:
  std::ptrdiff_t size() const { return static_cast<std::ptrdiff_t>(geometry().size); }
  std::uint64_t era() const override { return session; }
  int claim(const rtrs::Interrupt& /*interrupt*/) override {
    ++claims;
    may_change_ = true;
    return 0;
  }
  int perform(const Transfer& transfer, const rtrs::Interrupt& /*interrupt*/) override {
    performed.push_back(transfer);
    if (const int error = answer(transfer)) return error;
    std::byte* const place = bytes_.data() + transfer.offset;
    if (transfer.operation == IoOperation::read)
      std::memcpy(transfer.into, place, transfer.length);
    else if (transfer.operation == IoOperation::write && transfer.from != nullptr)
      std::memcpy(place, transfer.from, transfer.length);
    else
      std::memset(place, 0, transfer.length);
    return 0;
  }

  const std::string name_ = "memory";
  ChangesUnderWay changes_;
  DeviceHandle handle_;
  std::vector<std::byte> bytes_;
};

std::vector<std::byte> filled(std::size_t size, int value) {
  return std::vector<std::byte>(size, std::byte{static_cast<unsigned char>(value)});
}

TEST_CASE("disk: users see single bytes, and its kind sees whole blocks only") {
  constexpr std::uint64_t kSize = 8 * kBlock + 700;
  MemoryDisk disk{geometry_of(kSize)};
  std::vector<std::byte> model(kSize);
  std::mt19937 random{7};  // NOLINT: the same each time
  for (int round = 1; round <= 2000; ++round) {
    const std::uint64_t offset = random() % kSize;
    const std::uint64_t length = random() % std::min<std::uint64_t>(kSize - offset, 3 * kBlock) + 1;
    const auto begin = model.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto end = begin + static_cast<std::ptrdiff_t>(length);
    const auto kind = random() % 3;
    if (kind == 0) {
      const auto data = filled(length, round);
      std::copy(data.begin(), data.end(), begin);
      REQUIRE(disk.write(offset, data, false, {}) == 0);
    } else if (kind == 1) {
      std::fill(begin, end, std::byte{0});
      REQUIRE(disk.write_zeroes(offset, length, {}, {}) == 0);
    } else {
      std::vector<std::byte> data(length);
      REQUIRE(disk.read(offset, data, {}) == 0);
      REQUIRE(std::equal(begin, end, data.begin()));
    }
  }
  CHECK(disk.bytes() == model);
  CHECK(std::ranges::all_of(disk.performed, [&](const Transfer& transfer) {
    return disk.geometry().is_aligned(transfer.offset, transfer.length) && transfer.length != 0;
  }));
}

TEST_CASE("disk: the block that a patch reads is read for the change") {
  MemoryDisk disk{geometry_of(4 * kBlock)};
  CHECK(disk.write(10, filled(5, 1), true, {}) == 0);
  REQUIRE(disk.performed.size() == 2);
  CHECK(disk.performed[0].for_change);
  CHECK(disk.performed[1].fua);
}

TEST_CASE("disk: a kind that takes any bytes gets them as they come, unclaimed") {
  MemoryDisk disk = MemoryDisk::of_any_bytes(geometry_of(4 * kBlock));
  disk.forget_claim();
  CHECK(disk.write(10, filled(5000, 1), false, {}) == 0);
  CHECK(disk.discard(11, 5000, false, {}) == 0);
  REQUIRE(disk.performed.size() == 2);
  CHECK(disk.performed[0].offset == 10);
  CHECK(disk.performed[1].length == 5000);
  CHECK(disk.claims == 0);
}

TEST_CASE("disk: a discard keeps partial blocks, and takes the end of the disk") {
  MemoryDisk disk{geometry_of(3 * kBlock + 100)};
  CHECK(disk.discard(10, kBlock, false, {}) == 0);  // no whole block
  CHECK(disk.performed.empty());
  CHECK(disk.discard(kBlock + 1, 2 * kBlock + 99, false, {}) == 0);
  REQUIRE(disk.performed.size() == 1);
  CHECK(disk.performed[0].offset == 2 * kBlock);
  CHECK(disk.performed[0].length == kBlock + 512);
}

TEST_CASE("disk: zeroes are written as data where the server's own zeroing is refused") {
  MemoryDisk disk{geometry_of(4 * kBlock)};
  CHECK(disk.write(0, filled(2 * kBlock, 1), false, {}) == 0);
  disk.performed.clear();
  disk.answer = [](const Transfer& transfer) {
    return transfer.operation == IoOperation::write_zeroes ? EOPNOTSUPP : 0;
  };
  CHECK(disk.write_zeroes(0, kBlock, {}, {}) == 0);
  REQUIRE(disk.performed.size() == 2);
  CHECK(disk.performed[1].operation == IoOperation::write);
  CHECK(disk.performed[1].from == nullptr);
}

TEST_CASE("disk: a zeroing that cannot be fast changes nothing") {
  DeviceGeometry geometry = geometry_of(4 * kBlock);
  geometry.fast_zero = true;
  MemoryDisk disk{geometry};
  const auto data = filled(4 * kBlock, 1);
  CHECK(disk.write(0, data, false, {}) == 0);
  disk.answer = [](const Transfer& transfer) {
    return transfer.operation == IoOperation::write_zeroes ? EOPNOTSUPP : 0;
  };
  CHECK(disk.write_zeroes(10, 2 * kBlock, {.fast = true}, {}) == EOPNOTSUPP);
  CHECK(disk.bytes() == data);
}

TEST_CASE("disk: the parts of a change are done again after a new session began between them") {
  MemoryDisk disk{geometry_of(4 * kBlock)};
  disk.answer = [&](const Transfer& transfer) {
    if (transfer.operation == IoOperation::write && disk.performed.size() == 1) ++disk.session;
    return 0;
  };
  CHECK(disk.write(kBlock - 1, filled(kBlock + 1, 1), false, {}) == 0);
  CHECK(disk.performed.size() == 6);  // twice: the whole block, and a patch
  disk.performed.clear();
  CHECK(disk.write(kBlock - 1, filled(kBlock + 1, 2), true, {}) == 0);
  CHECK(disk.performed.size() == 3);  // durable ones cannot be lost
}

TEST_CASE("disk: the first change claims, and no later one") {
  MemoryDisk disk{geometry_of(4 * kBlock)};
  disk.forget_claim();
  std::vector<std::byte> block(kBlock);
  CHECK(disk.read(0, block, {}) == 0);
  CHECK(disk.claims == 0);
  CHECK(disk.write(0, block, false, {}) == 0);
  CHECK(disk.write(0, block, false, {}) == 0);
  CHECK(disk.claims == 1);
}

TEST_CASE("disk: requests without a right, a place or an ability never come to its kind") {
  DeviceGeometry geometry = geometry_of(4 * kBlock);
  geometry.max_discard = 0;
  MemoryDisk disk{geometry};
  std::vector<std::byte> block(kBlock);
  Transfer behind{.operation = IoOperation::write, .offset = 4 * kBlock, .length = 1};
  Disk::Begun begun;
  CHECK(disk.read(3 * kBlock + 1, block, {}) == EINVAL);
  CHECK(disk.write(UINT64_MAX, block, false, {}) == EINVAL);
  CHECK(disk.begin(behind, begun) == EINVAL);
  CHECK(disk.discard(0, kBlock, false, {}) == EOPNOTSUPP);
  CHECK(disk.write_zeroes(0, kBlock, {.fast = true}, {}) == EOPNOTSUPP);
  disk.refuse_changes();
  CHECK(disk.write(0, block, false, {}) == EROFS);
  CHECK(disk.write(0, {}, false, {}) == EROFS);
  CHECK(disk.discard(0, kBlock, false, {}) == EROFS);
  CHECK(disk.begin(behind, begun) == EROFS);
  CHECK(disk.performed.empty());
}

TEST_CASE("disk: an event loop is sent to the blocking call by a partial block, or a patch") {
  MemoryDisk disk{geometry_of(4 * kBlock)};
  Disk::Begun begun;
  Transfer partial{.operation = IoOperation::write, .offset = 1, .length = 5};
  CHECK(disk.begin(partial, begun) == EAGAIN);
  disk.answer = [&](const Transfer& /*transfer*/) {
    Transfer same{.operation = IoOperation::write, .offset = 0, .length = kBlock};
    Transfer other{.operation = IoOperation::write, .offset = kBlock, .length = kBlock};
    CHECK(disk.begin(same, begun) == EAGAIN);
    CHECK(disk.begin(other, begun) == 0);
    CHECK(disk.end(other, begun, 0) == 0);
    return 0;
  };
  CHECK(disk.write(1, filled(5, 1), false, {}) == 0);
}

TEST_CASE("disk: an event loop's refused zeroing goes to the blocking call, and no EAGAIN does") {
  MemoryDisk disk{geometry_of(4 * kBlock)};
  Disk::Begun begun;
  Transfer zeroes{.operation = IoOperation::write_zeroes, .offset = 0, .length = kBlock};
  CHECK(disk.begin(zeroes, begun) == 0);
  CHECK(disk.end(zeroes, begun, EOPNOTSUPP) == EAGAIN);
  Transfer read{.offset = 0, .length = kBlock};
  CHECK(disk.begin(read, begun) == 0);
  CHECK(disk.end(read, begun, EAGAIN) == EIO);
}

}  // namespace
}  // namespace rnbd::disk_test
