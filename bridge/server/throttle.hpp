// SPDX-License-Identifier: BSD-3-Clause
// Limits of operations and bytes per second: a request beyond them waits for its turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "bridge/server/services.hpp"

namespace rnbd {

/// Units: operations, and bytes, in a second; 0 = no limit.
struct Limits {
  std::uint64_t iops = 0;
  std::uint64_t bandwidth = 0;
  bool any() const { return iops != 0 || bandwidth != 0; }
  friend bool operator==(const Limits&, const Limits&) = default;
};

/// Limits that may change while requests wait.
///
/// Threads: set() one at a time; the rest any.
class LimitSetting {
 public:
  void set(Limits limits) {
    iops_.store(limits.iops, std::memory_order_relaxed);
    bandwidth_.store(limits.bandwidth, std::memory_order_relaxed);
    any_.store(limits.any(), std::memory_order_relaxed);
  }
  Limits get() const {
    return {iops_.load(std::memory_order_relaxed), bandwidth_.load(std::memory_order_relaxed)};
  }
  bool any() const { return any_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> iops_{0}, bandwidth_{0};
  std::atomic<bool> any_{false};
};

/// A request in front of a throttle; embedded in the object of its owner.
struct ThrottledRequest {
  /// Called once when its turn comes, on the reactor of its flow, never inside admit().
  void (*go_on)(ThrottledRequest& request) = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t since = 0;           ///< by Services::clock, while it waits
  ThrottledRequest* next = nullptr;  ///< while it waits; otherwise free for its owner
};

/// The queue of one session's requests in front of a throttle. It must be empty when it is
/// destroyed.
class ThrottleFlow {
 public:
  explicit ThrottleFlow(rtrs::Reactor* reactor) : reactor_{reactor} {}

 private:
  friend class Throttle;
  void append(ThrottledRequest& request);
  ThrottledRequest& pop();

  rtrs::Reactor* reactor_;
  ThrottledRequest* first_ = nullptr;
  ThrottledRequest* last_ = nullptr;
  std::uint64_t served_ = 0;  ///< the end of its last turn, in the throttle's own time
};

/// The work of a throttle so far.
struct ThrottleReading {
  std::uint64_t waiting = 0;      ///< requests, now
  std::uint64_t waited = 0;       ///< requests that had to wait
  std::uint64_t nanoseconds = 0;  ///< that these have waited together
};

/// Lets requests go on at the rate of its limits. Waiting flows get equal shares, independent of
/// their numbers of requests. Unused room is kept for a tenth of a second. A larger request goes
/// on, too, and the next ones wait longer in turn.
///
/// Threads: admit() and take_back() the reactor of their flow; the rest any.
class Throttle : public std::enable_shared_from_this<Throttle> {
 public:
  explicit Throttle(std::shared_ptr<const LimitSetting> setting) : setting_{std::move(setting)} {}

  bool is_limited() const { return setting_->any(); }
  /// True: the request goes on now. False: it waits. Never blocks. `services` have a clock and
  /// timers, and outlive the reactors.
  bool admit(ThrottleFlow& flow, ThrottledRequest& request, const Services& services);
  /// Takes the requests for which `which` is true out of the flow, without a call of go_on().
  /// Returns them as a list, in their order.
  ThrottledRequest* take_back(ThrottleFlow& flow,
                              const std::function<bool(const ThrottledRequest&)>& which);
  ThrottleReading reading() const;

 private:
  struct Batch {
    rtrs::Reactor* reactor;
    ThrottledRequest* first;
    ThrottledRequest* last;
  };

  void follow_setting(std::uint64_t now);
  bool may_go(std::uint64_t now) const;
  void serve(ThrottleFlow& flow, std::uint64_t bytes, std::uint64_t now);
  void watch(rtrs::Reactor* reactor, const Services& services, std::uint64_t now);
  void on_time(rtrs::Reactor* reactor, const Services& services);
  std::vector<Batch> take_those_whose_turn_it_is(std::uint64_t now);

  std::shared_ptr<const LimitSetting> setting_;
  mutable std::mutex mutex_;                 ///< guards all below; never held for I/O
  Limits limits_;                            ///< the limits behind the two times below
  std::uint64_t operations_paid_until_ = 0;  ///< when the rate is back within the limit
  std::uint64_t bytes_paid_until_ = 0;       ///< likewise
  std::uint64_t own_time_ = 0;               ///< the begin of the newest turn
  std::vector<ThrottleFlow*> waiting_;       ///< flows with requests
  bool watched_ = false;                     ///< a timer runs
  ThrottleReading reading_;
};

/// Null where there are no limits, or nothing that they could be measured by.
std::shared_ptr<Throttle> in_force(std::shared_ptr<Throttle> throttle, const Services& services);

}  // namespace rnbd
