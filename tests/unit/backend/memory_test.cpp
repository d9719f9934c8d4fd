// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::memory_test {

TEST_CASE("memory: behaves like a disk") { check_conformance({must_open("memory:4M")}); }

TEST_CASE("memory: behaves like a disk whose size is no multiple of a sector") {
  check_conformance({must_open("memory:4195304")});
}

TEST_CASE("memory: a discard makes holes again, down to 64 KiB") {
  Bench bench{"memory:1M"};
  REQUIRE(bench.write(0, pattern(1024 * 1024, 1)) == 0);
  CHECK(bench.extents(0, 1024 * 1024).size() == 1);
  REQUIRE(bench.discard(65536, 65536) == 0);
  const auto extents = bench.extents(0, 1024 * 1024);
  REQUIRE(extents.size() == 3);
  CHECK(extents[1].hole);
  CHECK(extents[1].zero);
  CHECK(extents[1].length == 65536);
}

TEST_CASE(
    "memory: a disk larger than the memory costs nothing until it is written, and is discarded "
    "whole") {
  Bench bench{"memory:200G"};
  const std::uint64_t far = std::uint64_t{150} << 30;
  REQUIRE(bench.write(far, pattern(4096, 1)) == 0);
  CHECK(bench.read(far, 4096) == pattern(4096, 1));
  REQUIRE(bench.discard(far - (1 << 30), std::uint64_t{1} << 31) == 0);
  CHECK(bench.read(far, 4096) == Bytes(4096, std::byte{0}));
}

TEST_CASE("memory: opened read-only refuses every change") {
  Bench bench{"memory:1M", {.read_only = true}};
  CHECK(bench.info().read_only);
  CHECK(bench.write(0, pattern(512, 1)) == EROFS);
  CHECK(bench.zero(0, 512, {}) == EROFS);
  CHECK(bench.discard(0, 512) == EROFS);
}

TEST_CASE("null: reads zeroes and forgets writes") {
  Bench bench{"null:1G"};
  CHECK(bench.info().size == std::uint64_t{1} << 30);
  CHECK(bench.write(4096, pattern(4096, 1)) == 0);
  CHECK(bench.read(4096, 4096) == Bytes(4096, std::byte{0}));
  CHECK(bench.flush() == 0);
  CHECK(bench.zero(0, 1 << 20, {.fast = true}) == 0);
  CHECK(bench.discard(0, 1 << 20) == 0);
  const auto extents = bench.extents(0, 1 << 20);
  REQUIRE(extents.size() == 1);
  CHECK(extents[0].hole);
}

}  // namespace rnbd::test::memory_test
