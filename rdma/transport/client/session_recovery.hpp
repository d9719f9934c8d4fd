// SPDX-License-Identifier: BSD-3-Clause
// Recovery of a session that the server has forgotten.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "rdma/client.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/transport/client/path_driver.hpp"

namespace rtrs {

/// The recovery handler fills a new session over one of its paths, before anything else runs there.
///
/// Threads: the client's background thread.
class SessionRecovery {
 public:
  /// `permit` is the only one that it may use. `over`: called once, and may be called in start().
  SessionRecovery(RecoveryHandler& handler, PathDriver& driver, std::uint16_t permit,
                  std::function<void()> over);

  /// `path`: the number of the path; `room`: the least max_io_size of all paths, in bytes;
  /// `any_server` as in SessionLimits.
  void start(unsigned path, std::uint32_t room, bool any_server);
  /// The path is lost.
  void break_off();
  /// Tells the handler that it is over. The result: an errno as of RecoveryHandler::reopened().
  int end();
  unsigned path() const { return path_; }

 private:
  RecoveryHandler& handler_;
  PathDriver& driver_;
  std::uint16_t permit_;
  std::function<void()> over_;
  unsigned path_ = 0;
  bool broken_ = false;
  ClientLane lane_;
  std::unique_ptr<Operation> operation_;
};

}  // namespace rtrs
