// SPDX-License-Identifier: BSD-3-Clause
// Writes the text format that Prometheus and its like read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/metrics/meter.hpp"

namespace rnbd {

enum class MetricType : std::uint8_t { counter, gauge, histogram };

/// Families one after the other, each with its samples behind it. Every name begins with `rnbd_`,
/// which is added here.
///
/// Threads: one.
/// Source:  Prometheus, text-based format, version 0.0.4.
class Exposition {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

  /// Begins a family; the name of a counter ends with `_total`.
  void family(std::string_view name, MetricType type, std::string_view help);
  /// A sample of the family that was begun last.
  void sample(const Labels& labels, std::uint64_t value);
  void sample(const Labels& labels, double value);
  /// A histogram of it, in seconds, with a bucket for every power of four microseconds.
  void histogram(const Labels& labels, const MeterReading::Operations& operations);

  std::string take() { return std::move(text_); }

 private:
  void line(std::string_view suffix, const Labels& labels, std::string_view value);

  std::string name_;
  std::string text_;
};

}  // namespace rnbd
