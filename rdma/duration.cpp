// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/duration.hpp"

#include <charconv>
#include <utility>

namespace rtrs {
namespace {

/// "0", "10ms", "60s": whole milliseconds.
std::string short_text(Duration duration) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  if (milliseconds == 0) return "0";
  if (milliseconds % 1000 != 0) return std::to_string(milliseconds) + "ms";
  return std::to_string(milliseconds / 1000) + "s";
}

}  // namespace

tl::expected<Duration, std::string> parse_duration(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1e9},          {"s", 1e9}, {"ms", 1e6},   {"us", 1e3},
      {"\xC2\xB5s", 1e3}, {"ns", 1},  {"min", 60e9}, {"h", 3600e9}};
  constexpr double kMaxSeconds = 1e9;

  const auto wrong = [&] {
    return tl::unexpected("'" + std::string{text} +
                          "' is not a duration; write seconds (1.5) or a number with h, min, s, "
                          "ms, us or ns (100ms)");
  };
  // Digits only: from_chars would also take "inf" and a minus sign.
  if (text.empty() || text.find_first_of("0123456789.") != 0) return wrong();
  double number = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc{}) return wrong();
  const std::string_view suffix{rest, static_cast<std::size_t>(end - rest)};
  for (const auto& [unit, nanoseconds] : kUnits) {
    if (suffix != unit) continue;
    if (number * nanoseconds > kMaxSeconds * 1e9) return wrong();
    return Duration{static_cast<Duration::rep>(number * nanoseconds + 0.5)};
  }
  return wrong();
}

tl::expected<Duration, std::string> parse_duration(std::string_view text,
                                                   const DurationRange& range) {
  auto duration = parse_duration(text);
  const auto fits = [&](Duration value) { return value >= range.least && value <= range.most; };
  if (!duration || fits(*duration)) return duration;
  const std::string wrong = "'" + std::string{text} + "' is not between " +
                            short_text(range.least) + " and " + short_text(range.most);
  const std::string in_milliseconds = std::string{text} + "ms";
  const auto other = parse_duration(in_milliseconds);  // none where the text has a unit
  if (*duration < range.most || !other || !fits(*other)) return tl::unexpected(wrong);
  return tl::unexpected("did you mean " + in_milliseconds + "? A number alone is seconds, and " +
                        wrong);
}

}  // namespace rtrs
