// SPDX-License-Identifier: BSD-3-Clause
// Finds the text without an end in a TOML document: the parser complains where it gives up,
// which is not where the mistake is.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rnbd {

struct UnclosedText {
  unsigned line;    ///< where it begins, from 1
  unsigned column;  ///< in characters, from 1
  std::string end;  ///< the missing end: one quote, or three of a text of several lines
  /// A quote within does not end it, since a backslash stands before it.
  bool escaped_quote = false;
};

/// The first text that begins with a quote and does not end: in its line, or, if three quotes begin
/// it, in the document.
///
/// Threads: any.
/// Source:  toml.io/en/v1.0.0, "String".
std::optional<UnclosedText> find_unclosed_text(std::string_view document);

}  // namespace rnbd
