// SPDX-License-Identifier: BSD-3-Clause
// The memory paths of all sessions, as bricks use them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "bridge/backend/brick/service.hpp"
#include "rdma/core/regions.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {
class ServerSession;
}

namespace rnbd {

class Services;

/// Passes the orders of bricks on to the event loop of the path.
///
/// Threads: up() and down() on the session's reactor, the rest any.
class MemoryPaths {
 public:
  void up(rtrs::ServerSession& session, const rtrs::wire::Uuid& path, rtrs::Regions& regions,
          const Services& services);
  /// The path is down: no memory that was exposed over it is used any more.
  void down(rtrs::ServerSession& session, const rtrs::wire::Uuid& path);
  /// Null: the session has no such path.
  std::shared_ptr<brick::BrickExposure> find(rtrs::ServerSession* session,
                                             const rtrs::wire::Uuid& path) const;

 private:
  class Exposure;
  using Key = std::pair<rtrs::ServerSession*, rtrs::wire::Uuid>;

  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<Exposure>> paths_;  ///< guarded by mutex_
};

}  // namespace rnbd
