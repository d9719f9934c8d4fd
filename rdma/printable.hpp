// SPDX-License-Identifier: BSD-3-Clause
// Makes text from a peer safe to show on a terminal, and in a log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rtrs {

/// The first character of a text, whether it can be shown or not.
struct Character {
  std::uint32_t code = 0;
  std::size_t length = 0;  ///< bytes; 0: the text is empty, or begins with no UTF-8
  bool printable = false;
};
Character first_character(std::string_view text);

/// The number of bytes of the first character of `text`, if it can be shown. 0: it cannot. It is no
/// UTF-8, or a control character, of which Unicode has more than ASCII: a terminal may take U+009B
/// for the start of a command. Or it changes the order in which others are shown.
std::size_t printable_length(std::string_view text);

/// The text with \xNN for each byte of what cannot be shown, and for the characters in `also`.
std::string escaped(std::string_view text, std::string_view also);

/// A message that has texts of others in it, fit for one line of a terminal.
std::string on_one_line(std::string_view message);

}  // namespace rtrs
