// SPDX-License-Identifier: BSD-3-Clause
// The identity of a server, as people write it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace rtrs {

/// Random, and the same on all paths of a server; 0 = unknown.
/// Source: docs/protocol.md, which server it is.
using ServerId = std::uint64_t;

/// 16 hexadecimal digits.
std::string server_id_text(ServerId id);

/// The sentence about a path that leads to `is` and must lead to `wanted`.
std::string another_server(ServerId is, ServerId wanted);

/// Errors: a sentence that says what to write instead.
tl::expected<ServerId, std::string> parse_server_id(std::string_view text);

}  // namespace rtrs
