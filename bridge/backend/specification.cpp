// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/specification.hpp"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>

#include "rdma/duration.hpp"

namespace rnbd {

namespace {

tl::unexpected<Failure> invalid(std::string text) {
  return tl::unexpected(Failure{EINVAL, std::move(text)});
}

/// Splits "1.5G" into 1.5 and "G".
bool split_number(std::string_view text, double& number, std::string_view& unit) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return false;
  unit = std::string_view{rest, static_cast<std::size_t>(end - rest)};
  return true;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((a[i] | 0x20) != (b[i] | 0x20)) return false;
  }
  return true;
}

/// The power of 1024 that a unit stands for, or -1.
int exponent_of(std::string_view unit) {
  if (unit.empty() || equal_ignoring_case(unit, "b")) return 0;
  constexpr std::string_view kLetters = "kmgtpe";
  const auto exponent = kLetters.find(static_cast<char>(unit.front() | 0x20));
  if (exponent == std::string_view::npos) return -1;
  const std::string_view rest = unit.substr(1);
  if (!rest.empty() && !equal_ignoring_case(rest, "b") && !equal_ignoring_case(rest, "ib")) {
    return -1;
  }
  return static_cast<int>(exponent) + 1;
}

}  // namespace

tl::unexpected<Failure> bad_specification(int error, const std::string& specification,
                                          const std::string& what_to_do) {
  return tl::unexpected(Failure{error, specification + ": " + what_to_do});
}

tl::expected<std::uint64_t, Failure> parse_number(std::string_view text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || rest != end) {
    return invalid("'" + std::string{text} + "' is not a whole number; write one like 42");
  }
  return number;
}

tl::expected<std::uint64_t, Failure> parse_size(std::string_view text) {
  double number = 0;
  std::string_view unit;
  int exponent = -1;
  if (split_number(text, number, unit)) exponent = exponent_of(unit);
  if (exponent < 0) {
    return invalid("'" + std::string{text} +
                   "' is not a size; write bytes (4096) or a number with K, M, G, T or P (64M)");
  }
  std::uint64_t exact = 0;
  const char* const end = text.data() + (text.size() - unit.size());
  const bool whole = std::from_chars(text.data(), end, exact).ptr == end;
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  const double bytes = std::ldexp(number, 10 * exponent);
  if (bytes > static_cast<double>(kMax) || (whole && exact > (kMax >> (10 * exponent)))) {
    return invalid("'" + std::string{text} + "' is too large a size; the most is 8E - 1");
  }
  return whole ? exact << (10 * exponent) : static_cast<std::uint64_t>(bytes);
}

tl::expected<std::chrono::nanoseconds, Failure> parse_short_duration(std::string_view text) {
  const auto duration = rtrs::parse_duration(text);
  if (!duration) return invalid(duration.error());
  if (*duration > std::chrono::hours{1}) {
    return invalid("'" + std::string{text} + "' is too long; the most is an hour (3600s)");
  }
  return *duration;
}

tl::expected<double, Failure> parse_probability(std::string_view text) {
  double number = 0;
  std::string_view unit;
  if (!split_number(text, number, unit) || !unit.empty() || number > 1) {
    return invalid("'" + std::string{text} +
                   "' is not a probability; write a number from 0 (never) to 1 (always), like "
                   "0.01");
  }
  return number;
}

tl::expected<WrapperSpecification, Failure> parse_wrapper(std::string_view text) {
  const auto colon = text.find(':');
  if (colon == std::string_view::npos || colon + 1 == text.size()) {
    return invalid(
        "the storage to wrap is missing; write it behind the options and a colon, like "
        "'seed=7:/var/lib/disk.img' or ':memory:64M'");
  }
  WrapperSpecification result;
  result.inner = text.substr(colon + 1);
  std::string_view rest = text.substr(0, colon);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const auto equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return invalid("'" + std::string{item} +
                     "' is not an option; write KEY=VALUE, with commas between options and a colon "
                     "behind the last one");
    }
    result.options.push_back(
        {std::string{item.substr(0, equals)}, std::string{item.substr(equals + 1)}});
  }
  return result;
}

bool strip_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace rnbd
