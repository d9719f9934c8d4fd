// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/printable.hpp"

namespace rtrs {
namespace {

/// Of a character that begins with this byte; 0: none does.
std::size_t length_by(std::uint8_t first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

bool can_be_shown(std::uint32_t code) {
  const bool is_control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  const bool is_bidirectional = (code >= 0x202A && code <= 0x202E) ||
                                (code >= 0x2066 && code <= 0x2069) || code == 0x200E ||
                                code == 0x200F || code == 0x061C;
  const bool is_line_end = code == 0x2028 || code == 0x2029;
  return !is_control && !is_bidirectional && !is_line_end;
}

}  // namespace

Character first_character(std::string_view text) {
  // Smaller ones have a shorter form, which alone is valid.
  static constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (text.empty()) return {};
  const auto first = static_cast<std::uint8_t>(text[0]);
  const std::size_t length = length_by(first);
  if (length == 0 || length > text.size()) return {};
  std::uint32_t code = length == 1 ? first : first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    if ((byte & 0xC0) != 0x80) return {};
    code = code << 6 | (byte & 0x3FU);
  }
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kLeast[length] || is_surrogate || code > 0x10FFFF) return {};
  return {code, length, can_be_shown(code)};
}

std::size_t printable_length(std::string_view text) {
  const Character first = first_character(text);
  return first.printable ? first.length : 0;
}

std::string escaped(std::string_view text, std::string_view also) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  while (!text.empty()) {
    const bool is_special = also.find(text[0]) != std::string_view::npos;
    const std::size_t shown = is_special ? 0 : printable_length(text);
    result += text.substr(0, shown);
    if (shown == 0) {
      const auto byte = static_cast<std::uint8_t>(text[0]);
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
    text.remove_prefix(shown == 0 ? 1 : shown);
  }
  return result;
}

std::string on_one_line(std::string_view message) { return escaped(message, ""); }

}  // namespace rtrs
