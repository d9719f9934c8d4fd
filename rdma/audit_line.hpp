// SPDX-License-Identifier: BSD-3-Clause
// Lines of the log that programs search: an event, and what belongs to it as key=value.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace rtrs {

using AuditFields = std::initializer_list<std::pair<std::string_view, std::string_view>>;

/// `open refused peer=10.0.0.7:40112 identity=host1 export="my disk"`: values are in quotes if they
/// have other characters than those of names and addresses, and nothing in them ends the quotes.
/// The caller escapes characters that cannot be shown.
std::string audit_line(std::string_view event, AuditFields fields);

/// Bytes that are no printable ASCII as `\xNN`: for a stranger's words.
std::string ascii_of(std::string_view text);

}  // namespace rtrs
