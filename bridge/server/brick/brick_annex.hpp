// SPDX-License-Identifier: BSD-3-Clause
// The annex of bricks: clients map their blocks, and read and write them one-sided.
#pragma once

#include <memory>

#include "bridge/server/annex.hpp"
#include "bridge/server/brick/brick_messages.hpp"

namespace rnbd {

/// Threads: any.
class BrickAnnex final : public ServerAnnex {
 public:
  std::unique_ptr<SessionAnnex> open_session(const SessionParts& session) override {
    return std::make_unique<BrickMessages>(session, paths_);
  }
  void on_memory_path_up(rtrs::ServerSession& session, const wire::Uuid& path,
                         rtrs::Regions& regions, const Services& services) override {
    paths_.up(session, path, regions, services);
  }
  void on_memory_path_down(rtrs::ServerSession& session, const wire::Uuid& path) override {
    paths_.down(session, path);
  }

 private:
  MemoryPaths paths_;
};

}  // namespace rnbd
