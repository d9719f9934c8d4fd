// SPDX-License-Identifier: BSD-3-Clause
// Logs storage that hangs: it accepts requests and completes none. The server waits for them for
// ever, so only the log can tell.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rdma/log.hpp"
#include "rdma/server.hpp"

namespace rnbd {

/// Finds the open devices that stand still, at each look.
///
/// It does not notice a hanging request while others of the same device end.
///
/// Threads: one at a time.
class Standstills {
 public:
  /// The time before the first line. The next one follows after twice the time, and so on.
  static constexpr std::chrono::seconds kFirst{10};

  struct Line {
    rtrs::LogLevel level;
    std::string text;
    const char* event;
    std::string session, device;
  };

  /// Returns the lines to log; `passed` is the time since the last look.
  std::vector<Line> look(const std::vector<rtrs::ServerSessionStatus>& sessions,
                         std::chrono::nanoseconds passed);

 private:
  using Key = std::pair<std::string, std::string>;  ///< session and device
  struct Device {
    std::uint64_t ended = 0;
    bool busy = false;
    std::chrono::nanoseconds still{};
    std::chrono::nanoseconds told{};  ///< 0: not yet
  };

  static void look_at(const Key& key, const rtrs::SessionItem& item, Device& device,
                      std::chrono::nanoseconds passed, std::vector<Line>& lines);

  std::map<Key, Device> devices_;
};

/// Looks every 5 s, on a thread of its own.
class StorageWatch {
 public:
  using Look = std::function<std::vector<rtrs::ServerSessionStatus>()>;

  /// Both are called on its thread.
  StorageWatch(Look look, rtrs::Log log);
  /// Waits for a look in progress.
  ~StorageWatch() = default;
  StorageWatch(const StorageWatch&) = delete;
  StorageWatch& operator=(const StorageWatch&) = delete;

 private:
  void run(const std::stop_token& end);

  Look look_;
  rtrs::Log log_;
  Standstills standstills_;
  std::mutex mutex_;
  std::condition_variable_any woken_;
  std::jthread thread_;  // last: ends before all that it uses
};

}  // namespace rnbd
