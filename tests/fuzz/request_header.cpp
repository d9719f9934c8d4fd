// SPDX-License-Identifier: BSD-3-Clause
// Input: the bytes of a chunk. The header is looked for at every offset.
#include "rdma/wire/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::wire;

namespace {

void check_header(const RequestHeader& header, std::size_t chunk_size, std::uint32_t offset) {
  fuzz::require(header.user_offset == header.data_length, "the user message follows the data");
  fuzz::require(std::uint64_t{header.user_offset} + header.user_length == offset,
                "the header follows the user message");
  fuzz::require(std::size_t{offset} + sizeof(WriteHeader) <= chunk_size, "the header fits");
  fuzz::require(header.is_read || !header.has_descriptor, "only reads have a descriptor");
  fuzz::require(header.has_descriptor || !header.need_invalidate,
                "nothing to invalidate without a descriptor");
  if (header.has_descriptor) {
    fuzz::require(header.descriptor.length != 0, "a descriptor is never empty");
    fuzz::require(header.descriptor.length == header.data_length,
                  "what is sent back lies in the chunk");
    fuzz::require(offset + sizeof(ReadHeader) + sizeof(Descriptor) <= chunk_size,
                  "the descriptor fits");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ConstBytes chunk = fuzz::Input{data, size}.rest();
  for (std::size_t offset = 0; offset <= size + 1; ++offset) {
    const auto at = static_cast<std::uint32_t>(offset);
    const auto header = decode_request_header(chunk, at);
    if (header) {
      check_header(*header, size, at);
    } else {
      fuzz::require(fuzz::failed_with(header, {DecodeError::too_short, DecodeError::bad_type,
                                               DecodeError::bad_count, DecodeError::bad_length}),
                    "only documented errors");
    }
  }
  return 0;
}
