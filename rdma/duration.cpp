#include "rdma/duration.hpp"

#include <charconv>
#include <utility>

namespace rtrs {

tl::expected<Duration, std::string> parse_duration(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"\xC2\xB5s", 1e3}, {"ns", 1}};
  constexpr double kMaxSeconds = 1e9;

  const auto wrong = [&] {
    return tl::unexpected("'" + std::string{text} +
                          "' is not a duration; write seconds (1.5) or a number with s, ms, us or "
                          "ns (100ms)");
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

}  // namespace rtrs
