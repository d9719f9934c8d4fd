// SPDX-License-Identifier: BSD-3-Clause
// The only source of chance in the simulator: the same everywhere, unlike std distributions.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "rdma/core/time.hpp"

namespace sim {

/// xoshiro256**, seeded by splitmix64.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) {
    for (auto& word : state_) {
      std::uint64_t z = (seed += 0x9E3779B97F4A7C15);
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
      word = z ^ (z >> 31);
    }
  }

  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// 0 to n - 1; n > 0. The bias of the modulus does not matter here.
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  bool chance(unsigned per_mille) { return below(1000) < per_mille; }
  rtrs::Duration delay(rtrs::Duration low, rtrs::Duration high) {
    const auto span = static_cast<std::uint64_t>((high - low).count());
    return low + rtrs::Duration{static_cast<std::int64_t>(below(span + 1))};
  }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace sim
