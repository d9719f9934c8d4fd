// SPDX-License-Identifier: BSD-3-Clause
// The promises that a server's handler is given, checked on every call.
#pragma once

#include <cstdint>
#include <map>

#include "rdma/server.hpp"
#include "tests/sim/checker.hpp"
#include "tests/sim/server_host.hpp"

namespace sim {

/// Passes everything on, and checks what a handler is promised.
class WatchingHandler final : public rtrs::ServerHandler {
 public:
  WatchingHandler(World& world, Checker& checker, const OpenChunks& open_chunks,
                  rtrs::ServerHandler& next, bool foreign)
      : world_{world},
        checker_{checker},
        open_chunks_{open_chunks},
        next_{next},
        foreign_{foreign} {}
  void* on_session_up(rtrs::ServerSession& session) override;
  void on_request(rtrs::ServerSession& session, rtrs::ServerRequest& request) override;
  void on_session_down(rtrs::ServerSession& session) override;

 private:
  void check_copies(const rtrs::ServerSession& session);

  World& world_;
  Checker& checker_;
  const OpenChunks& open_chunks_;
  rtrs::ServerHandler& next_;
  const bool foreign_;
  std::map<std::uint64_t, unsigned> up_;  ///< session serial -> times up
};

}  // namespace sim
