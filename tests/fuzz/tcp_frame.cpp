// SPDX-License-Identifier: BSD-3-Clause
// Input: one byte (odd: put the right checksum in), frame header.
#include <algorithm>
#include <array>

#include "rdma/transport/tcp/frame.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::tcp;
using rtrs::wire::DecodeError;

namespace {

void check_header(const FrameHeader& header) {
  fuzz::require(header.length <= kMaxPayload, "a payload has its limit");
  fuzz::require(header.opcode >= 1 && header.opcode <= 5, "the operation is known");
  if (header.opcode == static_cast<std::uint8_t>(Opcode::send_with_invalidate)) {
    fuzz::require(header.length == 0, "an invalidation has no payload");
    fuzz::require((header.flags & kHasImmediate) == 0, "an invalidation has no immediate");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const bool repair = (input.take<std::uint8_t>() & 1) != 0;
  std::array<std::byte, sizeof(FrameHeader)> copy{};
  ConstBytes bytes = input.rest();
  const auto unchecked = decode_frame_header(bytes, /*check_digest=*/false);
  if (unchecked) {
    check_header(*unchecked);
  } else {
    fuzz::require(fuzz::failed_with(unchecked, {DecodeError::too_short, DecodeError::bad_type,
                                                DecodeError::bad_length, DecodeError::bad_value}),
                  "only documented errors");
  }
  if (repair && bytes.size() >= sizeof(FrameHeader)) {
    std::copy_n(bytes.begin(), copy.size(), copy.begin());
    const le32 crc = crc32c(ConstBytes{copy}.first(offsetof(FrameHeader, header_crc)));
    std::memcpy(copy.data() + offsetof(FrameHeader, header_crc), &crc, sizeof(crc));
    bytes = copy;
  }
  const auto checked = decode_frame_header(bytes, /*check_digest=*/true);
  if (repair) {
    fuzz::require(checked.has_value() == unchecked.has_value(), "a right checksum is recognised");
  }
  if (!checked) return 0;
  check_header(*checked);
  // One wrong bit must not pass.
  std::copy_n(bytes.begin(), copy.size(), copy.begin());
  copy[data[0] % copy.size()] ^= std::byte{1};
  fuzz::require(!decode_frame_header(copy, /*check_digest=*/true), "a damaged header is refused");
  return 0;
}
