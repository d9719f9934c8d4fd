// SPDX-License-Identifier: BSD-3-Clause
// Sessions of a server with other members of mirror groups, from which it copies.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "bridge/nbd/call_pool.hpp"
#include "bridge/server/mirror/pull_source.hpp"
#include "rdma/failure.hpp"
#include "rdma/log.hpp"

namespace rnbd {

/// One session for each URI. It is made at the first use, and closed when it was unused for long
/// and another one is needed.
///
/// Threads: any.
class PeerMembers {
 public:
  /// `keys` are those behind '?' in a URI, or "on".
  PeerMembers(std::string keys, rtrs::Log log);
  /// Waits for all reads.
  ~PeerMembers();
  PeerMembers(const PeerMembers&) = delete;
  PeerMembers& operator=(const PeerMembers&) = delete;

  /// Calls `then` on a thread of its own, with an errno: EHOSTUNREACH (that member cannot be
  /// reached, refuses this server, or does not serve the client), EIO.
  void read(const mirror::PullSource& source, rtrs::wire::MutableBytes into,
            std::function<void(int error)> then);

 private:
  class Peer;

  /// Null: too many are in use.
  std::shared_ptr<Peer> peer_at(const std::string& uri);

  const std::string keys_;
  const rtrs::Log log_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Peer>> peers_;  ///< guarded by mutex_
  nbd::CallPool threads_;
};

}  // namespace rnbd
