// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ConstBytes bytes = fuzz::Input{data, size}.rest();
  const auto io = decode_io(bytes);
  if (!io) {
    fuzz::require(fuzz::failed_with(io, {DecodeError::too_short, DecodeError::bad_type}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(size >= kMinIoSize, "a whole message was there");
  fuzz::require((static_cast<std::uint32_t>(io->operation()) | io->flags()) == io->rw,
                "operation and flags are all of rw");
  const auto again = decode_io(rtrs::wire::bytes_of(*io));
  fuzz::require(again && fuzz::same_bytes(*again, *io), "encoding is stable");
  return 0;
}
