// SPDX-License-Identifier: BSD-3-Clause
// Input: le32 queue depth, le32 chunk size, message.
#include "rdma/wire/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const std::uint32_t depth = 1 + input.take<le32>() % 65535;
  const std::uint32_t chunk_size = 1 + input.take<le32>() % (1U << 28);
  const auto chunks = decode_info_response(input.rest(), depth, chunk_size);
  const int refusal = refusal_of_info_response(input.rest());
  fuzz::require(refusal >= 0 && refusal <= 4095, "a refusal is an errno");
  fuzz::require(refusal == 0 || !chunks, "a refusal tells of no chunks");
  if (!chunks) {
    fuzz::require(fuzz::failed_with(
                      chunks, {DecodeError::too_short, DecodeError::too_long, DecodeError::bad_type,
                               DecodeError::bad_count, DecodeError::bad_length}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(chunks->size() == depth, "one address per chunk");
  std::vector<Descriptor> descriptors;
  for (const auto& chunk : *chunks) {
    fuzz::require(chunk.address + (chunk_size - 1) >= chunk.address, "no chunk wraps around");
    descriptors.push_back({chunk.address, chunk.key, chunk_size});
  }
  const auto again = decode_info_response(encode_info_response(descriptors), depth, chunk_size);
  fuzz::require(again && again->size() == depth, "what we encode can be decoded");
  for (std::size_t i = 0; i < depth; ++i) {
    fuzz::require((*again)[i].address == (*chunks)[i].address, "addresses survive encoding");
    fuzz::require((*again)[i].key == (*chunks)[i].key, "keys survive encoding");
  }
  return 0;
}
