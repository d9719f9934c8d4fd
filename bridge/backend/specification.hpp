// SPDX-License-Identifier: BSD-3-Clause
// The parts of a backend specification that people type: sizes, durations, KEY=VALUE lists.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// A failure with a sentence that begins with the specification.
tl::unexpected<Failure> bad_specification(int error, const std::string& specification,
                                          const std::string& what_to_do);

/// "4096", "64K", "64M", "1.5G", "2T", "1P" (powers of 1024; "64MiB" and "64MB" mean the same).
/// Errors: EINVAL with a sentence.
tl::expected<std::uint64_t, Failure> parse_size(std::string_view text);

/// As rtrs::parse_duration, an hour at most. Errors: EINVAL with a sentence.
tl::expected<std::chrono::nanoseconds, Failure> parse_short_duration(std::string_view text);

/// A number from 0 to 1. Errors: EINVAL with a sentence.
tl::expected<double, Failure> parse_probability(std::string_view text);

/// A whole number. Errors: EINVAL with a sentence.
tl::expected<std::uint64_t, Failure> parse_number(std::string_view text);

struct KeyValue {
  std::string key;
  std::string value;
};

/// Splits the text behind "fault:" or "delay:": "KEY=VALUE,KEY=VALUE:SPEC". The list may be empty.
struct WrapperSpecification {
  std::vector<KeyValue> options;
  std::string inner;
};

/// Errors: EINVAL with a sentence that shows the right form.
tl::expected<WrapperSpecification, Failure> parse_wrapper(std::string_view text);

/// If `text` starts with `prefix`, the rest. Used by the factory's list.
bool strip_prefix(std::string_view& text, std::string_view prefix);

}  // namespace rnbd
