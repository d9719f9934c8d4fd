// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/printable.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>

namespace rnbd {

std::string readable_text(std::string text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t shown = printable_length(std::string_view{text}.substr(at));
    if (shown == 0) text[at] = '?';
    at += std::max<std::size_t>(shown, 1);
  }
  return text;
}

std::string readable_lines(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t line = std::min(text.find('\n'), text.size());
    result += readable_text(std::string{text.substr(0, line)});
    if (line < text.size()) result += '\n';
    text.remove_prefix(std::min(line + 1, text.size()));
  }
  return result;
}

std::string readable_json(std::string_view json) {
  std::string result;
  while (!json.empty()) {
    const rtrs::Character first = rtrs::first_character(json);
    const std::size_t length = std::max<std::size_t>(first.length, 1);
    if (first.printable || json[0] == '\n') {
      result += json.substr(0, length);
    } else if (first.length != 0 && first.code >= 0x20) {  // in a string
      char escape[16];
      std::snprintf(escape, sizeof(escape), "\\u%04x", first.code);
      result += escape;
    } else {
      result += ' ';  // between strings, or no JSON at all
    }
    json.remove_prefix(length);
  }
  return result;
}

std::string in_quotes(std::string_view name) { return "'" + rtrs::escaped(name, "'\\") + "'"; }

std::string size_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text),
                value == static_cast<double>(static_cast<long>(value)) ? "%.0f %s" : "%.1f %s",
                value, kUnits[unit]);
  return text;
}

}  // namespace rnbd
