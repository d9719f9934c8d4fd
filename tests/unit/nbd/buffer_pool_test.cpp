// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/buffer_pool.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

namespace buffer_pool_test {

using rnbd::nbd::BufferPool;

namespace {
constexpr std::size_t kMiB = 1024 * 1024;
}

TEST_CASE("buffers: every size from 1 byte to 32 MiB has room, on a page") {
  BufferPool pool;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, std::size_t{4096},
                                  std::size_t{4097}, 3 * kMiB, 32 * kMiB - 1, 32 * kMiB}) {
    CAPTURE(bytes);
    BufferPool::Buffer buffer = pool.take(bytes);
    REQUIRE(buffer.data() != nullptr);
    CHECK(buffer.size >= bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096 == 0);
    std::memset(buffer.data(), 1, buffer.size);
    pool.give_back(std::move(buffer));
  }
}

TEST_CASE("buffers: one that came back is used again for its size, and no two users share one") {
  BufferPool pool;
  BufferPool::Buffer first = pool.take(5000);
  std::byte* const place = first.data();
  pool.give_back(std::move(first));
  const BufferPool::Buffer other = pool.take(100);
  CHECK(other.data() != place);
  const BufferPool::Buffer again = pool.take(8192);
  CHECK(again.data() == place);
  const BufferPool::Buffer next = pool.take(8192);
  CHECK(next.data() != place);
}

TEST_CASE("buffers: not more than 64 MiB are kept, and nothing counts twice") {
  BufferPool pool;
  for (int round = 0; round < 3; ++round) {
    std::vector<BufferPool::Buffer> taken;
    std::set<std::byte*> places;
    for (int i = 0; i < 4; ++i) {
      taken.push_back(pool.take(32 * kMiB));
      places.insert(taken.back().data());
    }
    CHECK(places.size() == 4);
    for (auto& buffer : taken) pool.give_back(std::move(buffer));
  }
  // Full of large ones: a small one is not kept, but can be had.
  BufferPool::Buffer small = pool.take(1);
  pool.give_back(std::move(small));
  CHECK(pool.take(1).data() != nullptr);
}

TEST_CASE("buffers: none may be given back, too") {
  BufferPool pool;
  pool.give_back({});
  CHECK(pool.take(1).size == 4096);
}

}  // namespace buffer_pool_test
