// SPDX-License-Identifier: BSD-3-Clause
// The timers of an event loop.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <utility>

#include "rdma/core/time.hpp"
#include "rdma/transport/clock.hpp"

namespace rtrs {

class Alarm;

/// The alarms of one event loop, in the order of the times by which they must go off: the loop
/// sleeps until the first of these at most. That takes no system call of its own, where a timer of
/// Asio takes two.
///
/// Threads: that of the loop.
class Alarms {
 public:
  Alarms() = default;
  Alarms(const Alarms&) = delete;
  Alarms& operator=(const Alarms&) = delete;

  /// The loop must call ring() by then. Instant::max(): no alarm is set.
  Instant next() const { return set_.empty() ? Instant::max() : set_.begin()->first; }
  /// Calls the functions of those that are due.
  void ring(Instant now);

 private:
  friend class Alarm;
  using Set = std::multimap<Instant, Alarm*>;

  Set set_;  ///< by the latest time
};

/// Calls a function later, unless it is set again, cancelled or destroyed before. The function is
/// no handler of Asio's: what it dispatches runs later.
///
/// Threads: that of the loop, or any one when the loop has ended.
class Alarm {
 public:
  /// `alarms` must outlive it.
  explicit Alarm(Alarms& alarms) : alarms_{alarms} {}
  ~Alarm() { cancel(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  /// The function is called between `delay` and `delay + slack` from now: when the loop is awake
  /// for something else in that time, else at its end.
  void set(Duration delay, std::function<void()> function, Duration slack = Duration::zero()) {
    constexpr Duration kLongest = std::chrono::hours{24 * 365};
    const Instant latest = now() + std::min(delay, kLongest) + slack;
    if (is_set()) node_ = alarms_.set_.extract(place_);
    if (node_.empty()) {
      place_ = alarms_.set_.emplace(latest, this);
    } else {
      node_.key() = latest;
      place_ = alarms_.set_.insert(std::move(node_));
    }
    function_ = std::move(function);
    slack_ = slack;
  }
  void cancel() {
    if (!is_set()) return;
    node_ = alarms_.set_.extract(std::exchange(place_, alarms_.set_.end()));
    function_ = nullptr;
  }

 private:
  friend class Alarms;
  bool is_set() const { return place_ != alarms_.set_.end(); }

  Alarms& alarms_;
  Alarms::Set::iterator place_ = alarms_.set_.end();
  Alarms::Set::node_type node_;  ///< for the next setting, which takes no memory then
  std::function<void()> function_;
  Duration slack_{};
};

/// A function may set, cancel or destroy any of them.
inline void Alarms::ring(Instant now) {
  while (!set_.empty()) {
    Alarm& first = *set_.begin()->second;
    if (set_.begin()->first - first.slack_ > now) return;
    const auto function = std::move(first.function_);
    first.cancel();
    function();
  }
}

}  // namespace rtrs
