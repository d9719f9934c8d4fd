// SPDX-License-Identifier: BSD-3-Clause
// The bridge's line in `systemctl status`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "bridge/client/shared_session.hpp"

namespace rnbd {

/// "2 of 2 paths", "no path for 40 s". `alone` is the time without a working path.
std::string paths_in_words(const SessionStatus& status, std::chrono::seconds alone);

/// Reports the status to the service manager, on a thread of its own. Without a manager it does
/// nothing.
class BridgeStatus {
 public:
  using Look = std::function<SessionStatus()>;

  /// `about`: the text in front of the words.
  BridgeStatus(Look look, std::function<std::string()> about);

 private:
  void run(const std::stop_token& end);

  Look look_;
  std::function<std::string()> about_;
  std::mutex mutex_;
  std::condition_variable_any woken_;
  std::jthread thread_;
};

}  // namespace rnbd
