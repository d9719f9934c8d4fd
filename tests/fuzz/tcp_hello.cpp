// SPDX-License-Identifier: BSD-3-Clause
// Input: one byte (odd: put the right checksum in), hello.
#include <algorithm>
#include <array>

#include "rdma/transport/tcp/frame.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::tcp;
using rtrs::wire::DecodeError;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const bool repair = (input.take<std::uint8_t>() & 1) != 0;
  std::array<std::byte, sizeof(Hello)> copy{};
  ConstBytes bytes = input.rest();
  if (repair && bytes.size() >= sizeof(Hello)) {
    std::copy_n(bytes.begin(), copy.size(), copy.begin());
    const le32 crc = crc32c(ConstBytes{copy}.first(offsetof(Hello, crc)));
    std::memcpy(copy.data() + offsetof(Hello, crc), &crc, sizeof(crc));
    bytes = copy;
  }
  const auto hello = decode_hello(bytes);
  if (!hello) {
    fuzz::require(
        fuzz::failed_with(hello, {DecodeError::too_short, DecodeError::bad_magic,
                                  DecodeError::bad_version, DecodeError::digest_mismatch}),
        "only documented errors");
    fuzz::require(!repair || hello.error() != DecodeError::digest_mismatch,
                  "a right checksum is recognised");
    return 0;
  }
  const auto again = decode_hello(rtrs::wire::bytes_of(make_hello(hello->record, hello->digests)));
  fuzz::require(again && again->digests == hello->digests && again->record == hello->record,
                "record and digests survive encoding");
  // One wrong bit must not pass.
  std::copy_n(bytes.begin(), copy.size(), copy.begin());
  copy[data[0] % copy.size()] ^= std::byte{1};
  fuzz::require(!decode_hello(copy), "a damaged hello is refused");
  return 0;
}
