// SPDX-License-Identifier: BSD-3-Clause
// Input: le64 length that was asked for, message.
#include "bridge/protocol/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const std::uint64_t length = input.take<le64>();
  const auto extents = decode_block_status_response(input.rest(), length);
  if (!extents) {
    fuzz::require(fuzz::failed_with(extents, {DecodeError::too_short, DecodeError::bad_type,
                                              DecodeError::bad_count, DecodeError::bad_length}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(!extents->empty(), "there is progress");
  std::uint64_t left = length;
  for (const Extent& extent : *extents) {
    fuzz::require(extent.length != 0, "no extent is empty");
    fuzz::require(extent.length <= left, "extents fit into what was asked for");
    left -= extent.length;
  }
  const auto again = decode_block_status_response(encode_block_status_response(*extents), length);
  fuzz::require(again && again->size() == extents->size(), "what we encode can be decoded");
  for (std::size_t i = 0; i < extents->size(); ++i)
    fuzz::require(fuzz::same_bytes((*again)[i], (*extents)[i]), "extents survive encoding");
  return 0;
}
