// SPDX-License-Identifier: BSD-3-Clause
// Sessions of a server with other members of mirror groups, from which it copies.
#pragma once

#include <deque>
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

/// One session for each URI. It is made at the first use. It is closed when it is unused and its
/// place is needed for another one, or with the session of its client. A client has one thread at a
/// time, and a share of the places, so that its sources keep others from nothing when they do not
/// answer.
///
/// Threads: any.
class PeerMembers final : public mirror::PullReader {
 public:
  /// `keys` are those behind '?' in a URI, or "on".
  PeerMembers(std::string keys, rtrs::Log log);
  /// Waits for all reads.
  ~PeerMembers() override;
  PeerMembers(const PeerMembers&) = delete;
  PeerMembers& operator=(const PeerMembers&) = delete;

  /// Calls `then` on a thread of its own, with an errno: EHOSTUNREACH (that member cannot be
  /// reached, does not answer in time, refuses this server, or does not serve the client; or the
  /// read is not wanted any more), EIO.
  void read(const mirror::PullSource& source, rtrs::wire::MutableBytes into,
            std::function<void(int error)> then) override;
  void forget(const wire::Uuid& client) override;

 private:
  class Peer;
  using Peers = std::map<std::string, std::shared_ptr<Peer>>;
  struct Client {
    std::size_t running = 0;  ///< reads that have a thread
    std::deque<std::function<void()>> waiting{};
  };

  void run_next(const wire::Uuid& session);
  std::shared_ptr<Peer> peer_at(const mirror::PullSource& source);
  Peers::iterator oldest_unused(const wire::Uuid* client);

  const std::string keys_;
  const rtrs::Log log_;
  std::mutex mutex_;
  Peers peers_;                           ///< by URI; guarded by mutex_
  std::map<wire::Uuid, Client> clients_;  ///< sessions with reads; guarded by mutex_
  nbd::CallPool threads_;
};

}  // namespace rnbd
