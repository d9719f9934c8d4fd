// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/metrics/exposition.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "rdma/printable.hpp"

namespace rnbd {
namespace {

/// The page shows every second bucket of the histogram, from 4 us to 17 s.
constexpr std::size_t kFirstShown = 2, kLastShown = 24, kEvery = 2;
constexpr double kSecondsPerMicrosecond = 1e-6, kSecondsPerNanosecond = 1e-9;

std::string text_of(double value) {
  std::array<char, 64> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), error == std::errc{} ? end : text.data()};
}

const char* name_of(MetricType type) {
  switch (type) {
    case MetricType::counter:
      return "counter";
    case MetricType::gauge:
      return "gauge";
    case MetricType::histogram:
      break;
  }
  return "histogram";
}

/// The text as UTF-8, because a page with other bytes is refused as a whole. Each other byte, and
/// those of U+FFFD itself, are U+FFFD and two digits: different texts stay different.
std::string as_utf8(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  constexpr std::uint32_t kReplacement = 0xFFFD;
  std::string result;
  while (!text.empty()) {
    const rtrs::Character first = rtrs::first_character(text);
    const bool stays = first.length != 0 && first.code != kReplacement;
    const std::size_t length = std::max<std::size_t>(first.length, 1);
    for (const char c : text.substr(0, length)) {
      const auto byte = static_cast<std::uint8_t>(c);
      if (stays)
        result += c;
      else
        (result += "\uFFFD").append({kHex[byte >> 4], kHex[byte & 15]});
    }
    text.remove_prefix(length);
  }
  return result;
}

/// Escapes backslashes and ends of lines; in a label's value, quotes too.
void append_escaped(std::string& text, std::string_view value, bool quotes) {
  for (const char c : value) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '"' && quotes) {
      text += "\\\"";
    } else {
      text += c;
    }
  }
}

}  // namespace

void Exposition::family(std::string_view name, MetricType type, std::string_view help) {
  name_ = "rnbd_" + std::string{name};
  text_ += "# HELP " + name_ + ' ';
  append_escaped(text_, help, false);
  text_ += "\n# TYPE " + name_ + ' ' + name_of(type) + '\n';
}

void Exposition::line(std::string_view suffix, const Labels& labels, std::string_view value) {
  text_ += name_;
  text_ += suffix;
  char before = '{';
  for (const auto& [name, content] : labels) {
    text_ += before;
    text_ += name;
    text_ += "=\"";
    append_escaped(text_, as_utf8(content), true);
    text_ += '"';
    before = ',';
  }
  if (!labels.empty()) text_ += '}';
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

void Exposition::sample(const Labels& labels, std::uint64_t value) {
  line("", labels, std::to_string(value));
}

void Exposition::sample(const Labels& labels, double value) { line("", labels, text_of(value)); }

void Exposition::state(Labels labels, std::string_view state,
                       std::initializer_list<std::string_view> all) {
  labels.emplace_back("state", "");
  for (const std::string_view each : all) {
    labels.back().second = each;
    sample(labels, std::uint64_t{each == state ? 1U : 0U});
  }
}

void Exposition::histogram(const Labels& labels, const MeterReading::Operations& operations) {
  Labels with_bound = labels;
  with_bound.emplace_back("le", "");
  std::uint64_t so_far = 0;
  for (std::size_t bucket = 0; bucket <= kLastShown; ++bucket) {
    so_far += operations.buckets[bucket];
    if (bucket < kFirstShown || (bucket - kFirstShown) % kEvery != 0) continue;
    const std::string bound =
        text_of(static_cast<double>(std::uint64_t{1} << bucket) * kSecondsPerMicrosecond);
    with_bound.back().second = bound;
    line("_bucket", with_bound, std::to_string(so_far));
  }
  with_bound.back().second = "+Inf";
  line("_bucket", with_bound, std::to_string(operations.timed));
  line("_sum", labels,
       text_of(static_cast<double>(operations.nanoseconds) * kSecondsPerNanosecond));
  line("_count", labels, std::to_string(operations.timed));
}

}  // namespace rnbd
