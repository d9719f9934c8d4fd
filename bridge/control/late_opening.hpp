// SPDX-License-Identifier: BSD-3-Clause
// The control socket and the metrics only look on: no storage waits for them.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/control/commands.hpp"
#include "rdma/log.hpp"

namespace rnbd {

/// Tries to open something, again every second until it succeeds.
///
/// Threads: its owner's; trouble() any.
class LateOpening {
 public:
  /// Errors: a sentence with the remedy.
  using Open = std::function<tl::expected<void, std::string>()>;

  LateOpening(Open open, rtrs::Log log) : open_{std::move(open)}, log_{std::move(log)} {}
  /// Waits for an attempt that runs. Nothing is opened after it.
  ~LateOpening();
  LateOpening(const LateOpening&) = delete;
  LateOpening& operator=(const LateOpening&) = delete;

  /// Tries at once; further attempts are made on a thread of its own.
  void start();
  /// Why it is not open; "": it is, or start() was not called.
  std::string trouble() const;

 private:
  bool attempt();
  void run();

  const Open open_;
  const rtrs::Log log_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::string trouble_;
  std::thread thread_;
};

/// `status` has `what` among its listeners while that waits.
std::vector<ControlCommand> with_late(std::vector<ControlCommand> commands, std::string what,
                                      const LateOpening& late);

}  // namespace rnbd
