// SPDX-License-Identifier: BSD-3-Clause
// For how long a path that fails as soon as it is used takes no requests.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Such a path looks well as soon as it is connected again. So it is distrusted for a while, twice
/// as long each time; old failures do not count.
///
/// Threads: belongs to one path; pure, the time is an argument.
class Distrust {
 public:
  void begin(Instant now) {
    constexpr Duration kShortest = std::chrono::seconds{10};
    constexpr Duration kLongest = std::chrono::minutes{10};
    constexpr Duration kLongAgo = std::chrono::minutes{2};
    const bool long_ago = now >= until_ + std::max(length_, kLongAgo);
    length_ = long_ago ? kShortest : std::clamp(2 * length_, kShortest, kLongest);
    until_ = now + length_;
    active_ = true;
  }
  /// True: it ends now.
  bool ends(Instant now) {
    if (!active_ || now < until_) return false;
    active_ = false;
    return true;
  }
  /// The operator's order overrides the distrust.
  void forgive() {
    active_ = false;
    length_ = {};
  }
  bool active() const { return active_; }
  Instant until() const { return until_; }

 private:
  bool active_ = false;
  Duration length_{};  ///< of the last one
  Instant until_{};
};

/// Counts how often a path has fallen silent, and came back each time. One that does so again and
/// again costs its requests a wait each time.
///
/// Threads: belongs to one path; pure, the time is an argument.
class Silences {
 public:
  /// True: for the third time within ten seconds.
  bool begin(Instant now, Instant since) {
    constexpr Duration kShort = std::chrono::seconds{10};
    since_ = since;
    ++count_;
    const Instant third = std::exchange(begun_[next_], now);
    next_ = (next_ + 1) % begun_.size();
    return third != Instant::min() && now - third <= kShort;
  }
  void end() { since_.reset(); }
  /// When it was heard last; none: it is not silent.
  std::optional<Instant> since() const { return since_; }
  std::uint64_t count() const { return count_; }  ///< so far

 private:
  std::optional<Instant> since_;
  std::uint64_t count_ = 0;
  std::array<Instant, 2> begun_{Instant::min(), Instant::min()};  ///< the last ones
  std::size_t next_ = 0;
};

}  // namespace rtrs
