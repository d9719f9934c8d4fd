// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/wire/immediate.hpp"

#include <doctest/doctest.h>

#include <cerrno>

#include "tests/unit/wire/hex.hpp"

namespace immediate_test {

using namespace rtrs::wire;

TEST_CASE("immediate: offset bits are 28 less the bits that the highest buffer id needs") {
  for (std::uint32_t depth = 1; depth <= 65535; ++depth) {
    unsigned id_bits = 0;
    while ((std::uint64_t{1} << id_bits) < depth) ++id_bits;
    REQUIRE(offset_bits(depth) == 28 - id_bits);
    // The highest id does not reach into the type, and needs all of its bits.
    REQUIRE((std::uint64_t{depth - 1} << offset_bits(depth)) < (1U << 28));
    if (depth > 1) REQUIRE(((depth - 1) >> (id_bits - 1)) == 1);
  }
}

TEST_CASE("immediate: the documented table of queue depths and largest chunks holds") {
  struct {
    std::uint32_t depth, bits, largest_chunk;
  } const rows[] = {{1, 28, 256U << 20},   {64, 22, 4U << 20},     {100, 21, 2U << 20},
                    {128, 21, 2U << 20},   {256, 20, 1U << 20},    {512, 19, 512U << 10},
                    {513, 18, 256U << 10}, {1024, 18, 256U << 10}, {2048, 17, 128U << 10},
                    {65535, 12, 4096}};
  for (const auto& row : rows) {
    CHECK(offset_bits(row.depth) == row.bits);
    CHECK(fits_immediate(row.depth, row.largest_chunk));
    CHECK_FALSE(fits_immediate(row.depth, row.largest_chunk + 1));
  }
  CHECK_FALSE(fits_immediate(0, 4096));
  CHECK_FALSE(fits_immediate(65536, 1));
  CHECK_FALSE(fits_immediate(1, 0));
  CHECK(fits_immediate(65535, 4096));
  CHECK_FALSE(fits_immediate(65535, 8192));
}

TEST_CASE("immediate: the documented requests and replies have their documented values") {
  CHECK(encode(RequestImmediate{5, 0x1020}, 512) == 0x0028'1020);
  CHECK(encode(RequestImmediate{5, 32}, 512) == 0x0028'0020);
  CHECK(encode(RequestImmediate{5, 72}, 512) == 0x0028'0048);
  CHECK(encode(RequestImmediate{5, 320}, 512) == 0x0028'0140);
  CHECK(encode(RequestImmediate{5, 8}, 512) == 0x0028'0008);
  CHECK(encode(ResponseImmediate{5, 0}) == 0x1000'0005);
  CHECK(encode(ResponseImmediate{5, 0}, ImmediateType::io_response_with_invalidate) == 0x2000'0005);
  CHECK(encode(ResponseImmediate{5, EIO}) == 0x1028'0005);
  CHECK(encode(ResponseImmediate{5, EIO}, ImmediateType::io_response_with_invalidate) ==
        0x2028'0005);
  CHECK(kHeartbeat == 0x8000'0000);
  CHECK(kHeartbeatAck == 0x9000'0000);
}

TEST_CASE("immediate: every kind of event is told from the highest four bits") {
  CHECK(type_of(0x0028'1020) == ImmediateType::io_request);
  CHECK(type_of(0x1028'0005) == ImmediateType::io_response);
  CHECK(type_of(0x2028'0005) == ImmediateType::io_response_with_invalidate);
  CHECK(type_of(kHeartbeat) == ImmediateType::heartbeat);
  CHECK(type_of(kHeartbeatAck) == ImmediateType::heartbeat_ack);
  CHECK(static_cast<unsigned>(type_of(0xFFFF'FFFF)) == 15);
}

TEST_CASE("immediate: requests of every queue depth survive the way there and back") {
  test::Random random{2};
  for (std::uint32_t depth = 1; depth <= 65535; ++depth) {
    const std::uint32_t most = (1U << offset_bits(depth)) - 1;
    const RequestImmediate corners[] = {
        {0, 0},
        {depth - 1, most},
        {0, most},
        {depth - 1, 0},
        {static_cast<std::uint32_t>(random.below(depth)),
         static_cast<std::uint32_t>(random.below(std::uint64_t{most} + 1))}};
    for (const auto& corner : corners) {
      const auto value = encode(corner, depth);
      const auto back = decode_request(value, depth);
      REQUIRE(type_of(value) == ImmediateType::io_request);
      REQUIRE(back.buffer_id == corner.buffer_id);
      REQUIRE(back.header_offset == corner.header_offset);
    }
  }
}

TEST_CASE("immediate: replies keep 19 bits of buffer id and 9 bits of errno") {
  for (std::uint32_t id : {0U, 1U, 511U, 65534U, (1U << 19) - 1}) {
    for (int error = 0; error <= 511; ++error) {
      const auto back = decode_response(encode(ResponseImmediate{id, error}));
      REQUIRE(back.buffer_id == id);
      REQUIRE(back.error == error);
    }
  }
}

TEST_CASE("immediate: an errno above 511 turns into another one, as it does in Linux") {
  CHECK(decode_response(encode(ResponseImmediate{5, 524})).error == ENOMEM);
}

}  // namespace immediate_test
