// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/io_plan.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <functional>

namespace io_plan_test {

using namespace rnbd;

namespace {

constexpr std::uint32_t kRead = 0, kWrite = 1, kFlush = 2, kDiscard = 3, kErase = 4, kZeroes = 5;
constexpr bool kIn = false;               // RTRS WRITE: data goes to the server
constexpr bool kOut = true;               // RTRS READ: the answer has data
constexpr std::uint64_t kSectors = 2048;  // of the device below

Geometry device(const std::function<void(BackendInfo&)>& adjust = {}) {
  BackendInfo info;
  info.size = kSectors * 512;
  info.can_discard = info.can_write_zeroes = info.can_fast_zero = info.can_fua = true;
  if (adjust) adjust(info);
  return *geometry_of(info, false);
}

IoPlan plan(std::uint32_t rw, std::uint64_t sector, std::uint32_t length, bool is_read,
            std::size_t data, const Geometry& geometry = device(),
            IoRights rights = {.writable = true, .extensions = true}) {
  wire::Io io;
  io.header = wire::header_of(wire::MessageType::io);
  io.rw = rw;
  io.sector = sector;
  io.length = length;
  return plan_io(io, is_read, data, geometry, rights);
}

}  // namespace

TEST_CASE("io: every rule has its errno") {
  struct {
    const char* rule;
    std::uint32_t rw;
    std::uint64_t sector;
    std::uint32_t length;
    bool is_read;
    std::size_t data;
    int error;
  } const rows[] = {
      {"a read", kRead | 0x100, 0, 4096, kOut, 4096, 0},
      {"a read of one sector at the end", kRead, kSectors - 1, 512, kOut, 512, 0},
      {"a write", kWrite, 8, 4096, kIn, 4096, 0},
      {"a synchronous FUA write", 0x301, 8, 4096, kIn, 4096, 0},
      {"a kernel client's flush", 0x302, UINT64_MAX, 0, kOut, 0, 0},
      {"a flush of Linux 7.0", 0x702, UINT64_MAX, 0, kOut, 0, 0},
      {"a flush as an RTRS write", kFlush, 0, 0, kIn, 0, 0},
      {"an empty write with FUA", kWrite | 0x200, 0, 0, kIn, 0, 0},
      {"an empty write with PREFLUSH", kWrite | 0x400, UINT64_MAX, 0, kIn, 0, 0},
      {"a discard", 0x103, 8, 1 << 20, kIn, 0, EIO},
      {"a discard that fits", 0x103, 8, 1 << 19, kIn, 0, 0},
      {"a discard of everything", kDiscard, 0, kSectors * 512, kIn, 0, 0},
      {"zeroing", kZeroes, 0, 4096, kIn, 0, 0},
      {"zeroing that keeps the blocks", kZeroes | 0x800, 0, 4096, kIn, 0, 0},
      {"fast zeroing", kZeroes | wire::kIoFast, 0, 4096, kIn, 0, 0},
      {"a durable discard", kDiscard | 0x200, 0, 4096, kIn, 0, 0},

      {"secure erase", kErase, 0, 4096, kIn, 0, EOPNOTSUPP},
      {"an unknown operation", 6, 0, 4096, kIn, 0, EOPNOTSUPP},
      {"operation 255", 255, 0, 4096, kOut, 4096, EOPNOTSUPP},
      {"an unknown flag", kRead | 0x1000, 0, 4096, kOut, 4096, EOPNOTSUPP},
      {"the highest flag", kWrite | 0x8000'0000, 0, 4096, kIn, 4096, EOPNOTSUPP},
      {"WRITE_SAME of old clients", kZeroes, 0, 4096, kIn, 512, EOPNOTSUPP},

      {"a read in a write's direction", kRead, 0, 4096, kIn, 4096, EINVAL},
      {"a write in a read's direction", kWrite, 0, 4096, kOut, 4096, EINVAL},
      {"a discard in a read's direction", kDiscard, 0, 4096, kOut, 0, EINVAL},
      {"zeroing in a read's direction", kZeroes, 0, 4096, kOut, 0, EINVAL},
      {"a read with less room than it says", kRead, 0, 4096, kOut, 2048, EINVAL},
      {"a read with more room than it says", kRead, 0, 4096, kOut, 8192, EINVAL},
      {"a read without room", kRead, 0, 4096, kOut, 0, EINVAL},
      {"a write with less data than it says", kWrite, 0, 4096, kIn, 512, EINVAL},
      {"a write with more data than it says", kWrite, 0, 512, kIn, 4096, EINVAL},
      {"a discard with data", kDiscard, 0, 4096, kIn, 4096, EINVAL},
      {"a flush with data", kFlush, 0, 0, kOut, 512, EINVAL},
      {"a flush with a length", kFlush, 0, 512, kOut, 0, EINVAL},
      {"an empty read", kRead, 0, 0, kOut, 0, EINVAL},
      {"an empty write", kWrite, 0, 0, kIn, 0, EINVAL},
      {"an empty write with data and FUA", kWrite | 0x200, 0, 0, kIn, 512, EINVAL},
      {"an empty discard", kDiscard, 0, 0, kIn, 0, EINVAL},
      {"empty zeroing", kZeroes, 0, 0, kIn, 0, EINVAL},
      {"a FUA read", kRead | 0x200, 0, 4096, kOut, 4096, EINVAL},
      {"a read with PREFLUSH", kRead | 0x400, 0, 4096, kOut, 4096, EINVAL},
      {"NOUNMAP on a write", kWrite | 0x800, 0, 4096, kIn, 4096, EINVAL},
      {"NOUNMAP on a discard", kDiscard | 0x800, 0, 4096, kIn, 0, EINVAL},
      {"NOUNMAP on a flush", kFlush | 0x800, 0, 0, kOut, 0, EINVAL},
      {"a fast read", kRead | wire::kIoFast, 0, 4096, kOut, 4096, EINVAL},
      {"a length inside a sector", kRead, 0, 100, kOut, 100, EINVAL},
      {"a length one byte too long", kDiscard, 0, 513, kIn, 0, EINVAL},

      {"a start behind the end", kRead, kSectors + 1, 512, kOut, 512, EIO},
      {"a start at the end", kRead, kSectors, 512, kOut, 512, EIO},
      {"an end behind the end", kWrite, kSectors - 1, 1024, kIn, 1024, EIO},
      {"a sector that overflows bytes", kRead, UINT64_MAX, 512, kOut, 512, EIO},
      {"a sector that wraps to 0", kRead, UINT64_MAX / 512 + 1, 512, kOut, 512, EIO},
  };
  for (const auto& row : rows) {
    CAPTURE(row.rule);
    CHECK(plan(row.rw, row.sector, row.length, row.is_read, row.data).error == row.error);
  }
}

TEST_CASE("io: on a read-only mapping every kind of write is EROFS, reads and flushes pass") {
  const IoRights reader{.writable = false, .extensions = true};
  const Geometry geometry = device();
  CHECK(plan(kWrite, 0, 512, kIn, 512, geometry, reader).error == EROFS);
  CHECK(plan(kDiscard, 0, 512, kIn, 0, geometry, reader).error == EROFS);
  CHECK(plan(kZeroes, 0, 512, kIn, 0, geometry, reader).error == EROFS);
  CHECK(plan(kErase, 0, 512, kIn, 0, geometry, reader).error == EOPNOTSUPP);
  CHECK(plan(kRead, 0, 512, kOut, 512, geometry, reader).error == 0);
  CHECK(plan(kFlush, 0, 0, kOut, 0, geometry, reader).error == 0);
}

TEST_CASE("io: read-only storage refuses writes even where the mapping claims to write") {
  const Geometry geometry = device([](BackendInfo& info) { info.read_only = true; });
  CHECK(plan(kWrite, 0, 512, kIn, 512, geometry).error == EROFS);
}

TEST_CASE("io: of a client without the extension, unknown flags change nothing") {
  const IoRights kernel{.writable = true, .extensions = false};
  for (const std::uint32_t flag :
       {0x1000U, 0x8000'0000U, std::uint32_t{wire::kIoFast}, std::uint32_t{wire::kIoCopy}}) {
    CAPTURE(flag);
    const auto linux_plan = [&](std::uint32_t rw, std::uint64_t sector, bool is_read,
                                std::size_t data, std::uint32_t length) {
      return plan(rw | flag, sector, length, is_read, data, device(), kernel);
    };
    const IoPlan read = linux_plan(kRead | 0x100, 8, kOut, 4096, 4096);
    CHECK(read.error == 0);
    CHECK(read.operation == BackendOperation::read);
    const IoPlan write = linux_plan(kWrite | 0x300, 8, kIn, 4096, 4096);
    CHECK(write.error == 0);
    CHECK(write.fua);
    CHECK_FALSE(write.copy);
    CHECK(linux_plan(0x702, UINT64_MAX, kOut, 0, 0).error == 0);
    CHECK(linux_plan(kWrite | 0x600, 0, kIn, 0, 0).error == 0);
    const IoPlan discard = linux_plan(kDiscard, 8, kIn, 0, 4096);
    CHECK(discard.error == 0);
    CHECK(discard.operation == BackendOperation::discard);
    for (const IoPlan& told : {read, write, discard}) CHECK(told.unknown_flags == flag);
    // These may say how the blocks are zeroed, as NOUNMAP does.
    const IoPlan zeroes = linux_plan(kZeroes, 0, kIn, 0, 512);
    CHECK(zeroes.error == EOPNOTSUPP);
    CHECK(zeroes.unknown_flags == flag);
    CHECK(linux_plan(kErase, 0, kIn, 0, 512).error == EOPNOTSUPP);
    CHECK(linux_plan(6, 0, kIn, 0, 512).error == EOPNOTSUPP);
    // Requests that are wrong without them stay wrong.
    CHECK(linux_plan(kRead | 0x200, 0, kOut, 4096, 4096).error == EINVAL);
    CHECK(linux_plan(kWrite, 0, kIn, 512, 4096).error == EINVAL);
    CHECK(linux_plan(kRead, kSectors, kOut, 512, 512).error == EIO);
  }
  CHECK(plan(kWrite | 0x200, 0, 512, kIn, 512, device(), kernel).unknown_flags == 0);
}

TEST_CASE("io: of a client with the extension, no flag is ignored") {
  CHECK(plan(kDiscard | 0x1000, 0, 512, kIn, 0).error == EOPNOTSUPP);
  CHECK(plan(kFlush | 0x1000, 0, 0, kOut, 0).error == EOPNOTSUPP);
  CHECK(plan(kWrite | wire::kIoCopy, 0, 512, kIn, 512).error == EOPNOTSUPP);
  CHECK(plan(kRead | 0x1000, 0, 512, kOut, 512).unknown_flags == 0);
}

TEST_CASE("io: what the backend cannot do is EOPNOTSUPP") {
  const Geometry plain = device([](BackendInfo& info) {
    info.can_discard = info.can_write_zeroes = info.can_fast_zero = false;
  });
  CHECK(plan(kDiscard, 0, 512, kIn, 0, plain).error == EOPNOTSUPP);
  CHECK(plan(kZeroes, 0, 512, kIn, 0, plain).error == EOPNOTSUPP);
  const Geometry slow = device([](BackendInfo& info) { info.can_fast_zero = false; });
  CHECK(plan(kZeroes | wire::kIoFast, 0, 512, kIn, 0, slow).error == EOPNOTSUPP);
  CHECK(plan(kZeroes, 0, 512, kIn, 0, slow).error == 0);
}

TEST_CASE("io: requests are multiples of the logical block, except at the very end") {
  const Geometry big = device([](BackendInfo& info) {
    info.logical_block = 4096;
    info.size = 2 * 4096 + 700;  // 18 sectors
  });
  CHECK(plan(kRead, 0, 4096, kOut, 4096, big).error == 0);
  CHECK(plan(kRead, 1, 4096, kOut, 4096, big).error == EINVAL);
  CHECK(plan(kRead, 0, 512, kOut, 512, big).error == EINVAL);
  CHECK(plan(kDiscard, 0, 6144, kIn, 0, big).error == EINVAL);
  CHECK(plan(kRead, 16, 1024, kOut, 1024, big).error == 0);
  CHECK(plan(kRead, 16, 512, kOut, 512, big).error == EINVAL);
  CHECK(plan(kWrite, 8, 4096 + 1024, kIn, 4096 + 1024, big).error == 0);
  CHECK(plan(kRead, 17, 512, kOut, 512, big).error == EINVAL);
}

TEST_CASE("io: the last sector of an odd size belongs to the device, the next one does not") {
  const Geometry odd = device([](BackendInfo& info) { info.size = 1000; });
  CHECK(plan(kRead, 0, 1024, kOut, 1024, odd).error == 0);
  CHECK(plan(kRead, 1, 512, kOut, 512, odd).error == 0);
  CHECK(plan(kRead, 1, 1024, kOut, 1024, odd).error == EIO);
  CHECK(plan(kRead, 2, 512, kOut, 512, odd).error == EIO);
}

TEST_CASE("io: FUA goes to the backend, or becomes a flush after the write") {
  IoPlan with = plan(kWrite | 0x200, 0, 512, kIn, 512);
  CHECK(with.fua);
  CHECK_FALSE(with.flush_after);
  const Geometry without_fua = device([](BackendInfo& info) { info.can_fua = false; });
  IoPlan without = plan(kWrite | 0x200, 0, 512, kIn, 512, without_fua);
  CHECK_FALSE(without.fua);
  CHECK(without.flush_after);
  const Geometry durable = device([](BackendInfo& info) { info.volatile_cache = false; });
  IoPlan nothing = plan(kWrite | 0x200, 0, 512, kIn, 512, durable);
  CHECK_FALSE(nothing.fua);
  CHECK_FALSE(nothing.flush_after);
}

TEST_CASE("io: what the storage has not is refused, not made up") {
  const Geometry fua_only = device([](BackendInfo& info) { info.can_flush = false; });
  CHECK(plan(kFlush, 0, 0, kOut, 0, fua_only).error == EOPNOTSUPP);
  CHECK(plan(kWrite | 0x200, 0, 0, kIn, 0, fua_only).error == EOPNOTSUPP);
  CHECK(plan(kWrite | 0x400, 0, 512, kIn, 512, fua_only).error == EOPNOTSUPP);
  CHECK(plan(kWrite | 0x200, 0, 512, kIn, 512, fua_only).fua);
  const Geometry neither = device([](BackendInfo& info) { info.can_flush = info.can_fua = false; });
  CHECK(plan(kWrite, 0, 512, kIn, 512, neither).error == 0);
  for (const std::uint32_t operation : {kWrite, kDiscard, kZeroes}) {
    CAPTURE(operation);
    const std::size_t data = operation == kWrite ? 512 : 0;
    CHECK(plan(operation | 0x200, 0, 512, kIn, data, neither).error == EOPNOTSUPP);
  }
}

TEST_CASE("io: PREFLUSH puts a flush in front, NOUNMAP and fast reach the backend") {
  const IoPlan write = plan(kWrite | 0x600, 2, 512, kIn, 512);
  CHECK(write.flush_before);
  CHECK(write.operation == BackendOperation::write);
  CHECK(write.offset == 1024);
  CHECK(write.length == 512);
  const IoPlan zeroes = plan(kZeroes | 0x800 | wire::kIoFast, 0, 512, kIn, 0);
  CHECK(zeroes.no_unmap);
  CHECK(zeroes.fast);
  CHECK_FALSE(plan(kZeroes, 0, 512, kIn, 0).no_unmap);
  CHECK(plan(kWrite | 0x600, 0, 0, kIn, 0).operation == BackendOperation::flush);
}

}  // namespace io_plan_test
