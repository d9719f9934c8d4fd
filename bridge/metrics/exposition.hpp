// SPDX-License-Identifier: BSD-3-Clause
// Writes the text format that Prometheus and its like read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/metrics/meter.hpp"

namespace rnbd {

enum class MetricType : std::uint8_t { counter, gauge, histogram };

/// Builds a page of families, each followed by its samples. It puts `rnbd_` in front of every name.
///
/// Threads: one.
/// Source:  Prometheus, text-based format, version 0.0.4.
class Exposition {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

  /// Begins a family. The name of a counter must end with `_total`.
  void family(std::string_view name, MetricType type, std::string_view help);
  /// Adds a sample to the present family.
  void sample(const Labels& labels, std::uint64_t value);
  void sample(const Labels& labels, double value);
  /// A sample for each state that something can be in: 1 for the present one.
  void state(Labels labels, std::string_view state, std::initializer_list<std::string_view> all);
  /// Adds a histogram to it, in seconds, with a bucket for each power of four microseconds.
  void histogram(const Labels& labels, const MeterReading::Operations& operations);

  std::string take() { return std::move(text_); }

 private:
  void line(std::string_view suffix, const Labels& labels, std::string_view value);

  std::string name_;
  std::string text_;
};

}  // namespace rnbd
