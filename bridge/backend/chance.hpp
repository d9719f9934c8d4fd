// SPDX-License-Identifier: BSD-3-Clause
// Reproducible luck for the backends that make trouble.
#pragma once

#include <atomic>
#include <cstdint>

namespace rnbd {

/// Random numbers from 0 to 1. They depend only on the seed and on the count of earlier draws, so a
/// run with the same requests in the same order repeats itself.
///
/// Threads: any.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : seed_{seed} {}

  double draw() {
    // splitmix64
    std::uint64_t value =
        seed_ + 0x9E3779B97F4A7C15 * (drawn_.fetch_add(1, std::memory_order_relaxed) + 1);
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    value ^= value >> 31;
    return static_cast<double>(value >> 11) * 0x1p-53;
  }

 private:
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> drawn_{0};
};

}  // namespace rnbd
