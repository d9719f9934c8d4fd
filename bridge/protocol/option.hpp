// SPDX-License-Identifier: BSD-3-Clause
// Options by name: on command lines, in files, in URIs, and as parameters of nbdkit.
#pragma once

#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "bridge/protocol/printable.hpp"

namespace rnbd {

/// A row of a table of options, each of which sets a part of `Target`.
template <class Target>
struct OptionRow {
  const char* key;
  const char* value;    ///< what stands behind the key, for the help; null: a switch
  const char* example;  ///< a correct value; of a switch "true"
  const char* help;
  /// Sets the value. Returns a sentence about the mistake in it; "": it is set.
  std::string (*apply)(Target& target, const std::string& value);
};

// ---- What rows do: each sets a value, and returns "" or the mistake -----------------------------

/// The result of a parser.
template <class T>
std::string set(T& target, tl::expected<T, std::string> value) {
  if (!value) return std::move(value.error());
  target = *std::move(value);
  return "";
}

/// The number, or a sentence with the range.
template <class T>
std::string set_number(T& target, std::string_view value, std::uint64_t least, std::uint64_t most) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < least ||
      number > most) {
    return in_quotes(value) + " is not a number from " + std::to_string(least) + " to " +
           std::to_string(most);
  }
  target = static_cast<T>(number);
  return "";
}

template <class T>
struct OptionWord {
  std::string_view word;
  T meaning;
};

/// One of a few words.
template <class To, class T>
std::string set_word(To& target, std::string_view value, std::span<const OptionWord<T>> words) {
  std::string list;
  for (const auto& [word, meaning] : words) {
    if (word == value) {
      target = meaning;
      return "";
    }
    list += (list.empty() ? "" : ", ") + std::string{word};
  }
  return in_quotes(value) + " is none of " + list;
}
template <class T, class To, std::size_t N>
std::string set_word(To& target, std::string_view value, const OptionWord<T> (&words)[N]) {
  return set_word(target, value, std::span<const OptionWord<T>>{words});
}

/// true and false, yes and no, on and off, 1 and 0.
inline std::string set_bool(bool& target, std::string_view value) {
  static constexpr OptionWord<bool> kWords[] = {{"true", true}, {"false", false}, {"yes", true},
                                                {"no", false},  {"on", true},     {"off", false},
                                                {"1", true},    {"0", false}};
  return set_word(target, value, kWords);
}

/// Any text but none.
inline std::string set_text(std::string& target, const std::string& value) {
  if (value.empty()) return "must not be empty";
  target = value;
  return "";
}

}  // namespace rnbd
