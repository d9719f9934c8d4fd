// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/directory.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::wire;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto page = decode_directory_page(fuzz::Input{data, size}.rest());
  if (!page) {
    fuzz::require(fuzz::failed_with(
                      page, {DecodeError::too_short, DecodeError::bad_type, DecodeError::bad_length,
                             DecodeError::bad_count, DecodeError::bad_name}),
                  "only documented errors");
    return 0;
  }
  fuzz::require(page->entries.size() <= page->total, "no more entries than there are exports");
  for (const auto& entry : page->entries) {
    fuzz::require(is_valid_device_name(entry.name), "names are valid");
  }
  const auto encoded = encode_directory_page(page->entries, 0, size);
  fuzz::require(encoded.size() <= size, "encoding does not grow");
  const auto again = decode_directory_page(encoded);
  fuzz::require(again && again->entries == page->entries, "entries survive encoding");
  return 0;
}
