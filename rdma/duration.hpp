// Durations as users write them.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Reads `1.5` (seconds), `2s`, `100ms`, `20us` or `500ns`.
///
/// Errors: a sentence that says what to write instead.
tl::expected<Duration, std::string> parse_duration(std::string_view text);

}  // namespace rtrs
