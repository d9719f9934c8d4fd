// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/commands.hpp"

#include <doctest/doctest.h>

#include <cstdint>

namespace commands_test {

using namespace rnbd::nbd;
using rnbd::DeviceGeometry;

namespace {

constexpr std::uint64_t kG = std::uint64_t{1} << 30;

DeviceGeometry with_granules(std::uint32_t granularity, std::uint32_t alignment) {
  DeviceGeometry geometry;
  geometry.discard_granularity = granularity;
  geometry.discard_alignment = alignment;
  return geometry;
}

}  // namespace

TEST_CASE("commands: pieces end at multiples of 1 GiB, where most granules end") {
  const DeviceGeometry geometry = with_granules(65536, 0);
  CHECK(first_piece(geometry, 0, 64 * kG).length == kG);
  CHECK(first_piece(geometry, 100, 64 * kG).length == kG - 100);
  CHECK(first_piece(geometry, 3 * kG - 1, 64 * kG).length == 1);
  CHECK(first_piece(geometry, 3 * kG - 100, 100).length == 100);
  CHECK(first_piece(geometry, 3 * kG, 512).length == 512);
}

TEST_CASE("commands: no border of pieces splits a granule, whatever its size and begin") {
  for (const std::uint32_t granularity : {1024U, 3U << 20, 12288U, 0xC000'0000U, 0xFFFF'FE00U}) {
    for (const std::uint32_t alignment : {0U, 512U, 1U << 20}) {
      const DeviceGeometry geometry = with_granules(granularity, alignment);
      std::uint64_t offset = 5 * kG + 777 * 512;
      std::uint64_t length = 64 * kG;
      while (length > 0) {
        const Piece piece = first_piece(geometry, offset, length);
        REQUIRE(piece.offset == offset);
        REQUIRE(piece.length > 0);
        CHECK(piece.length < kG + granularity);
        offset += piece.length;
        length -= piece.length;
        if (length > 0) CHECK((offset - alignment) % granularity == 0);
      }
      CHECK(offset == 69 * kG + 777 * 512);
    }
  }
}

}  // namespace commands_test
