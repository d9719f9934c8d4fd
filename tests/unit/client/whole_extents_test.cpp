// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/whole_extents.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace rnbd::whole_extents_test {
namespace {

struct Run {
  std::uint64_t length;
  std::uint32_t flags;
  bool operator==(const Run&) const = default;
};

std::vector<Run> whole(const std::vector<wire::Extent>& extents, std::uint64_t offset,
                       std::uint64_t asked, std::uint32_t unit = 512) {
  std::vector<Run> runs;
  for (const auto& extent : whole_extents(extents, offset, asked, unit)) {
    runs.push_back({extent.length, extent.flags});
  }
  return runs;
}

TEST_CASE("extents: what has whole borders stays, and what is alike becomes one") {
  CHECK(whole({{1024, 0, 0}, {512, 3, 0}}, 0, 4096) == std::vector<Run>{{1024, 0}, {512, 3}});
  CHECK(whole({{1024, 3, 0}, {512, 3, 0}}, 0, 4096) == std::vector<Run>{{1536, 3}});
  CHECK(whole({{777, 0, 0}, {100, 3, 0}}, 0, 4096, 1) == std::vector<Run>{{777, 0}, {100, 3}});
}

TEST_CASE("extents: a block of which a part is data is data") {
  CHECK(whole({{777, 0, 0}, {3319, 3, 0}}, 0, 4096) == std::vector<Run>{{1024, 0}, {3072, 3}});
  CHECK(whole({{777, 3, 0}, {3319, 0, 0}}, 0, 4096) == std::vector<Run>{{512, 3}, {3584, 0}});
  CHECK(whole({{10, 3, 0}, {10, 2, 0}, {4076, 3, 0}}, 0, 4096) ==
        std::vector<Run>{{512, 2}, {3584, 3}});
}

TEST_CASE("extents: a block of which a part is not known is data") {
  CHECK(whole({{777, 3, 0}}, 0, 4096) == std::vector<Run>{{512, 3}, {512, 0}});
  CHECK(whole({{7, 3, 0}}, 4096, 4096) == std::vector<Run>{{512, 0}});
}

TEST_CASE("extents: who asks for a part of a block is told of that part") {
  CHECK(whole({{100, 3, 0}}, 700, 100) == std::vector<Run>{{100, 3}});
  CHECK(whole({{50, 3, 0}, {50, 0, 0}}, 700, 100) == std::vector<Run>{{100, 0}});
  CHECK(whole({{900, 3, 0}}, 700, 900) == std::vector<Run>{{900, 3}});
  CHECK(whole({{324, 3, 0}, {576, 0, 0}}, 700, 900) == std::vector<Run>{{324, 3}, {576, 0}});
}

TEST_CASE("extents: whatever comes, no byte of data becomes a hole, and all borders are whole") {
  std::mt19937 random{7};
  const auto below = [&](std::uint32_t most) { return random() % most; };
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t offset = below(2000);
    const std::uint64_t asked = 1 + below(6000);
    std::vector<std::uint32_t> bytes;  // the flags of each
    std::vector<wire::Extent> extents;
    do {
      const std::uint64_t length = std::min<std::uint64_t>(1 + below(900), asked - bytes.size());
      const std::uint32_t flags = below(4);
      extents.push_back({length, flags, 0});
      bytes.insert(bytes.end(), length, flags);
    } while (bytes.size() < asked && below(8) != 0);
    std::uint64_t at = offset;
    for (const auto& [length, flags] : whole(extents, offset, asked)) {
      REQUIRE(length > 0);
      for (std::uint64_t i = at - offset; i < at - offset + length; ++i) {
        const std::uint32_t truth = i < bytes.size() ? bytes[i] : 0;
        REQUIRE((flags & ~truth) == 0);
      }
      at += length;
      REQUIRE((at % 512 == 0 || at == offset + asked));
    }
    REQUIRE(at >= offset + bytes.size());
    REQUIRE(at <= offset + asked);
  }
}

}  // namespace
}  // namespace rnbd::whole_extents_test
