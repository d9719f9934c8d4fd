// SPDX-License-Identifier: BSD-3-Clause
// Reproducible luck for the backends that make trouble.
#pragma once

#include <atomic>
#include <cstdint>

namespace rnbd {

/// Numbers from 0 to 1 that depend on the seed and on how many were drawn before. The same requests
/// in the same order meet the same fate.
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
