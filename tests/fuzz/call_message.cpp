// SPDX-License-Identifier: BSD-3-Clause
// Input: a message of the library's calls.
#include "rdma/library/call_message.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::library;
using rtrs::wire::DecodeError;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const ConstBytes bytes = input.rest();
  const auto call = decode_call(bytes);
  if (!call) {
    fuzz::require(fuzz::failed_with(call, {DecodeError::too_short, DecodeError::bad_type,
                                           DecodeError::bad_value, DecodeError::bad_length}),
                  "only documented errors");
    return 0;
  }
  const CallHeader& header = call->header;
  fuzz::require(sizeof(header) + call->message.size() + call->inline_data.size() == bytes.size(),
                "every byte belongs to one part");
  if (header.kind == CallKind::piece) {
    fuzz::require(header.place < header.out_length && header.piece_size != 0,
                  "a piece lies inside the data");
  }
  return 0;
}
