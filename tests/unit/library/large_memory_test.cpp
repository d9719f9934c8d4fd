// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/large_memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace rtrs::library::large_memory_test {
namespace {

TEST_CASE("a large block that is given back is the next one of about its size") {
  std::byte* const first = large_allocate(10 * kLargePage);
  REQUIRE(first != nullptr);
  std::memset(first, 1, 10 * kLargePage);
  large_free(first);
  std::byte* const much_smaller = large_allocate(4 * kLargePage);
  CHECK(much_smaller != first);
  std::byte* const larger = large_allocate(20 * kLargePage);
  CHECK(larger != first);
  std::byte* const smaller = large_allocate(9 * kLargePage + 1);
  CHECK(smaller == first);
  std::memset(smaller, 2, 9 * kLargePage + 1);
  CHECK(std::to_integer<int>(smaller[9 * kLargePage]) == 2);
  for (std::byte* const memory : {much_smaller, larger, smaller}) large_free(memory);
}

TEST_CASE("more blocks than can be kept come and go") {
  std::array<std::byte*, 20> blocks{};
  for (int round = 0; round < 3; ++round) {
    for (std::byte*& block : blocks) {
      block = large_allocate(2 * kLargePage);
      REQUIRE(block != nullptr);
      block[2 * kLargePage - 1] = std::byte{7};
    }
    auto sorted = blocks;
    std::ranges::sort(sorted);
    CHECK(std::ranges::adjacent_find(sorted) == sorted.end());
    for (std::byte* const block : blocks) large_free(block);
  }
}

TEST_CASE("nothing, small memory and that of others may be freed, too") {
  large_free(nullptr);
  large_free(large_allocate(100));
  large_free(std::malloc(5 * kLargePage));
  std::free(large_allocate(5 * kLargePage));
}

}  // namespace
}  // namespace rtrs::library::large_memory_test
