// SPDX-License-Identifier: BSD-3-Clause
// Makes text from a peer safe to show on a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rdma/printable.hpp"

namespace rnbd {

using rtrs::on_one_line;
using rtrs::printable_length;

/// The text with a '?' for each byte that cannot be shown, so that nothing moves the cursor.
std::string readable_text(std::string text);

/// The same for a text of several lines, which stay.
std::string readable_lines(std::string_view text);

/// The same JSON with \uNNNN for each character that cannot be shown.
std::string readable_json(std::string_view json);

/// A name from a peer between quotes, fit for a log line: unprintable characters are escaped.
std::string in_quotes(std::string_view name);

/// "1 GiB", "700.5 MiB": in the largest unit of which there is one.
std::string size_text(std::uint64_t bytes);

}  // namespace rnbd
