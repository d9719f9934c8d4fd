// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto page = decode_export_page(fuzz::Input{data, size}.rest());
  if (!page) {
    fuzz::require(fuzz::failed_with(
                      page, {DecodeError::too_short, DecodeError::bad_type, DecodeError::bad_length,
                             DecodeError::bad_count, DecodeError::bad_name}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(page->exports.size() <= page->total, "no more entries than there are exports");
  std::size_t text = 0;
  for (const auto& entry : page->exports) {
    fuzz::require(is_valid_device_name(entry.name), "names are valid");
    text += entry.name.size() + entry.description.size();
  }
  fuzz::require(text <= size, "no text that was not sent");
  const auto encoded = encode_export_page(page->exports, 0, size);
  fuzz::require(encoded.size() <= size, "encoding does not grow");
  const auto again = decode_export_page(encoded);
  fuzz::require(again && again->exports == page->exports, "entries survive encoding");
  return 0;
}
