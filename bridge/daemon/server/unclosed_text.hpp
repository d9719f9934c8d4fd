// SPDX-License-Identifier: BSD-3-Clause
// Finds an unclosed text in a TOML document. The parser only reports the place where it stopped,
// which is far from the mistake.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rnbd {

struct UnclosedText {
  unsigned line;    ///< where it begins, from 1
  unsigned column;  ///< in characters, from 1
  std::string end;  ///< the missing end: one quote, or three of a text of several lines
  /// True: a quote is inside, but does not end the text, because of a backslash before it.
  bool escaped_quote = false;
};

/// The first text that begins with a quote and does not end in its line. A text that begins with
/// three quotes must end in the document.
///
/// Threads: any.
/// Source:  toml.io/en/v1.0.0, "String".
std::optional<UnclosedText> find_unclosed_text(std::string_view document);

}  // namespace rnbd
