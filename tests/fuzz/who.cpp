// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = fuzz::Input{data, size}.rest();
  if (const auto name = decode_who(bytes)) {
    fuzz::require(is_valid_device_name(*name), "names are valid");
    const Who who = encode_who(*name);
    const auto again = decode_who(rtrs::wire::bytes_of(who));
    fuzz::require(again && *again == *name, "names survive encoding");
  } else {
    fuzz::require(fuzz::failed_with(
                      name, {DecodeError::too_short, DecodeError::bad_type, DecodeError::bad_name}),
                  "only documented errors");
  }
  if (const auto text = decode_who_response(bytes)) {
    fuzz::require(text->text.size() <= kMaxWho, "texts are short");
    const auto again = decode_who_response(encode_who_response(*text));
    fuzz::require(again && *again == *text, "answers survive encoding");
  } else {
    fuzz::require(fuzz::failed_with(text, {DecodeError::too_short, DecodeError::bad_type,
                                           DecodeError::bad_length, DecodeError::bad_value}),
                  "only documented errors");
  }
  return 0;
}
