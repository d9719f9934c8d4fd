// SPDX-License-Identifier: BSD-3-Clause
// The memory paths of all sessions, as bricks use them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "bridge/backend/brick/service.hpp"
#include "rdma/core/regions.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {
class Reactor;
class ServerSession;
}  // namespace rtrs

namespace rnbd {

/// Passes the orders of bricks on to the event loop of the path.
///
/// Threads: up() and down() on the session's reactor, the rest any.
class MemoryPaths {
 public:
  /// Runs work on a reactor, later.
  using Later = std::function<void(rtrs::Reactor* reactor, std::function<void()> work)>;
  /// Ends a path of a session, on its reactor.
  using End = std::function<void(rtrs::ServerSession& session, const rtrs::wire::Uuid& path)>;

  MemoryPaths(Later later, End end) : later_{std::move(later)}, end_{std::move(end)} {}

  void up(rtrs::ServerSession& session, rtrs::Reactor* reactor, const rtrs::wire::Uuid& path,
          rtrs::Regions& regions);
  /// The path is down: no memory that was exposed over it is used any more.
  void down(rtrs::ServerSession& session, const rtrs::wire::Uuid& path);
  /// Null: the session has no such path.
  std::shared_ptr<brick::BrickExposure> find(rtrs::ServerSession* session,
                                             const rtrs::wire::Uuid& path) const;

 private:
  class Exposure;
  using Key = std::pair<rtrs::ServerSession*, rtrs::wire::Uuid>;

  const Later later_;
  const End end_;
  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<Exposure>> paths_;  ///< guarded by mutex_
};

}  // namespace rnbd
