// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto open = decode_open(fuzz::Input{data, size}.rest());
  if (!open) {
    fuzz::require(fuzz::failed_with(open, {DecodeError::too_short, DecodeError::bad_type,
                                           DecodeError::bad_value, DecodeError::bad_name}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(is_valid_device_name(open->device_name), "the name is valid");
  fuzz::require(open->mode <= AccessMode::migration, "the access mode is known");
  const auto again = decode_open(rtrs::wire::bytes_of(encode_open(open->device_name, open->mode)));
  fuzz::require(again && again->device_name == open->device_name && again->mode == open->mode,
                "name and mode survive encoding");
  return 0;
}
