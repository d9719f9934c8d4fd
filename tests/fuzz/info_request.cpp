// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/wire/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto name = decode_info_request(fuzz::Input{data, size}.rest());
  if (!name) {
    fuzz::require(fuzz::failed_with(name, {DecodeError::too_short, DecodeError::too_long,
                                           DecodeError::bad_type, DecodeError::bad_name}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(size == sizeof(InfoRequest), "exactly one message was there");
  fuzz::require(is_valid_session_name(*name), "the name is valid");
  fuzz::require(decode_info_request(bytes_of(encode_info_request(*name))) == *name,
                "the name survives encoding");
  return 0;
}
