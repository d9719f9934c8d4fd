// SPDX-License-Identifier: BSD-3-Clause
// Makes text from a peer safe to show on a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rnbd {

/// The number of bytes of the first character of `text`, if it can be shown. 0: it cannot. It is no
/// UTF-8, or a control character, of which Unicode has more than ASCII: a terminal may take U+009B
/// for the start of a command. Or it changes the order in which others are shown.
std::size_t printable_length(std::string_view text);

/// The text with a '?' for each byte that cannot be shown, so that nothing moves the cursor.
std::string readable_text(std::string text);

/// A name from a peer between quotes, fit for a log line: unprintable characters are escaped.
std::string in_quotes(std::string_view name);

/// A message that has texts of others in it, fit for one line of a terminal.
std::string on_one_line(std::string_view message);

/// "1 GiB", "700.5 MiB": in the largest unit of which there is one.
std::string size_text(std::uint64_t bytes);

}  // namespace rnbd
