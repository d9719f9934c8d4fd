// SPDX-License-Identifier: BSD-3-Clause
// The CRC32C of the TCP binding (RFC 3720, B.4 has the examples), and what it leaves in the CPU.

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <vector>

#include "rdma/transport/tcp/frame.hpp"

namespace rtrs::tcp::checksum_test {

namespace {

std::vector<std::byte> ascending(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

}  // namespace

TEST_CASE("the checksum is CRC32C") {
  CHECK(crc32c(std::vector<std::byte>(32)) == 0x8A9136AA);
  CHECK(crc32c(std::vector<std::byte>(32, std::byte{0xFF})) == 0x62A8AB43);
  CHECK(crc32c(ascending(32)) == 0x46DD794E);
}

TEST_CASE("the checksum of pieces is that of the whole") {
  const auto bytes = ascending(5000);
  for (const std::size_t cut : {0UL, 1UL, 63UL, 4096UL, 5000UL}) {
    const auto first = crc_update(kCrcStart, ConstBytes(bytes).first(cut));
    CHECK(crc_finish(crc_update(first, ConstBytes(bytes).subspan(cut))) == crc32c(bytes));
  }
}

#if defined(__x86_64__)

namespace {

using Registers = std::array<std::array<std::byte, 32>, 16>;

[[gnu::noinline]] void fill_registers() {
  asm volatile(
      "vpcmpeqd %%xmm0, %%xmm0, %%xmm0\n\tvinsertf128 $1, %%xmm0, %%ymm0, %%ymm0\n\t"
      "vmovaps %%ymm0, %%ymm1\n\tvmovaps %%ymm0, %%ymm7\n\tvmovaps %%ymm0, %%ymm15" ::
          : "xmm0", "xmm1", "xmm7", "xmm15");
}

[[gnu::noinline]] void read_registers(Registers& to) {
  asm volatile(
      "vmovups %%ymm0, 0(%0)\n\tvmovups %%ymm1, 32(%0)\n\tvmovups %%ymm2, 64(%0)\n\tvmovups "
      "%%ymm3, 96(%0)\n\t"
      "vmovups %%ymm4, 128(%0)\n\tvmovups %%ymm5, 160(%0)\n\tvmovups %%ymm6, 192(%0)\n\tvmovups "
      "%%ymm7, 224(%0)\n\t"
      "vmovups %%ymm8, 256(%0)\n\tvmovups %%ymm9, 288(%0)\n\tvmovups %%ymm10, 320(%0)\n\tvmovups "
      "%%ymm11, 352(%0)\n\t"
      "vmovups %%ymm12, 384(%0)\n\tvmovups %%ymm13, 416(%0)\n\tvmovups %%ymm14, 448(%0)\n\tvmovups "
      "%%ymm15, 480(%0)"
      :
      : "r"(to.data())
      : "memory");
}

}  // namespace

// Upper halves that stay in use make every SSE instruction that follows slower.
TEST_CASE("a checksum leaves the upper halves of the AVX registers clear") {
  if (!__builtin_cpu_supports("avx")) return;  // there are none
  const auto bytes = ascending(4096);
  Registers registers{};
  fill_registers();
  const auto state = crc_update(kCrcStart, bytes);
  read_registers(registers);
  CHECK(state != kCrcStart);
  for (const auto& value : registers) {
    for (std::size_t i = 16; i < value.size(); ++i) REQUIRE(value[i] == std::byte{0});
  }
}

#endif

}  // namespace rtrs::tcp::checksum_test
