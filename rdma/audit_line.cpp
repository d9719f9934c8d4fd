// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/audit_line.hpp"

#include <algorithm>
#include <cstdint>

namespace rtrs {
namespace {

/// Needs no quotes.
bool is_plain(std::string_view value) {
  constexpr std::string_view kOthers = "-_.:/@*[]+%";
  return !value.empty() && std::ranges::all_of(value, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

}  // namespace

std::string audit_line(std::string_view event, AuditFields fields) {
  std::string line{event};
  for (const auto& [key, value] : fields) {
    line += ' ';
    line += key;
    line += '=';
    if (is_plain(value)) {
      line += value;
      continue;
    }
    line += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') line += '\\';
      line += c;
    }
    line += '"';
  }
  return line;
}

std::string ascii_of(std::string_view text) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      shown += c;
    } else {
      shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return shown;
}

}  // namespace rtrs
