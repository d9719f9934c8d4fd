// SPDX-License-Identifier: BSD-3-Clause
// Input: le32 expected buffer, message.
#include "rdma/wire/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const std::uint32_t expected = input.take<le32>();
  const auto message = decode_rkey_message(input.rest(), expected);
  if (!message) {
    fuzz::require(fuzz::failed_with(message, {DecodeError::too_short, DecodeError::bad_type,
                                              DecodeError::bad_value}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(message->buffer_id == expected, "the key is for the expected buffer");
  const auto again = decode_rkey_message(bytes_of(*message), expected);
  fuzz::require(again && fuzz::same_bytes(*again, *message), "encoding is stable");
  return 0;
}
