// SPDX-License-Identifier: BSD-3-Clause
// What of somebody else's text may be shown on a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rnbd {

/// Whether `text` begins with a character that can be shown: the number of its bytes. 0: it begins
/// with a control character, of which Unicode has more than ASCII (a terminal may take U+009B for
/// the start of a command) and some that change the order in which others are shown, or with no
/// UTF-8.
std::size_t printable_length(std::string_view text);

/// A name from a peer between quotes, fit for a log line: what cannot be shown is escaped.
std::string in_quotes(std::string_view name);

/// A message that has texts of others in it, fit for one line of a terminal.
std::string on_one_line(std::string_view message);

/// "1 GiB", "700.5 MiB": in the largest unit of which there is one.
std::string size_text(std::uint64_t bytes);

}  // namespace rnbd
