// SPDX-License-Identifier: BSD-3-Clause
// Durations as users write them.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Reads `1.5` (seconds), `2h`, `5min`, `2s`, `100ms`, `20us` or `500ns`.
///
/// Errors: a sentence that says what to write instead.
tl::expected<Duration, std::string> parse_duration(std::string_view text);

/// The allowed durations of an option, both ends included.
struct DurationRange {
  Duration least{};
  Duration most = std::chrono::hours{1};
};

/// The same within a range. A number without a unit that is too long was perhaps meant in
/// milliseconds: then the message says so.
///
/// Errors: a sentence that says what to write instead.
tl::expected<Duration, std::string> parse_duration(std::string_view text,
                                                   const DurationRange& range);

}  // namespace rtrs
