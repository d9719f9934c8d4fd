// SPDX-License-Identifier: BSD-3-Clause
// Reads the configuration again while the server runs. Either all changes take effect, or none.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/daemon/server/command_line.hpp"
#include "bridge/daemon/server/reload_plan.hpp"
#include "bridge/server/block_server.hpp"
#include "bridge/server/catalogue.hpp"
#include "rdma/server.hpp"

namespace rnbd {

class RightsByName;

/// Threads: reload() any but the server's event loops, between its start() and stop(); wake() any.
class Reloader {
 public:
  struct Serving {
    ExportCatalogue& catalogue;
    BlockServer& handler;
    rtrs::Server& server;
    std::function<void()> on_change;  ///< after a reload that has succeeded
  };
  struct How {
    bool check = false;  ///< only say the changes, make none
    bool force = false;  ///< also remove open exports; they stay for their users
  };

  Reloader(const Invocation& invocation, Serving serving);
  /// Waits for a running reload.
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  /// Returns the changes: names of added, changed and removed exports, settings that need a
  /// restart, and ended sessions. Waits for storage and for event loops.
  ///
  /// Errors: all mistakes, in one text; then nothing has changed.
  tl::expected<Json, rtrs::Failure> reload(const How& how);
  /// Starts a reload soon, on a thread of its own. Does not wait.
  void wake();
  /// The command `reload [--check] [--force]` of the control socket.
  ControlCommand command();

 private:
  struct Ending {
    rtrs::ServerSessionStatus session;
    std::string why;
  };

  tl::expected<Settings, std::string> read() const;
  std::vector<std::string> holders(const std::vector<std::string>& exports) const;
  tl::expected<std::vector<Ending>, std::string> to_end(const RightsByName& rights) const;
  void run(const std::stop_token& end);

  std::vector<std::string> words_;
  Serving serving_;
  std::mutex reload_mutex_;  ///< one at a time; guards settings_
  Settings settings_;
  std::mutex mutex_;
  std::condition_variable_any woken_;
  bool wanted_ = false;  ///< guarded by mutex_
  std::jthread thread_;  // last: ends before all that it uses
};

}  // namespace rnbd
