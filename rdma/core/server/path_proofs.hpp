// SPDX-License-Identifier: BSD-3-Clause
// The proofs that the connections of a path owe the server.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "rdma/core/auth/proof.hpp"
#include "rdma/core/queue_pair.hpp"

namespace rtrs {

/// One proof per connection, by cid. All of them have to prove the same user.
///
/// Threads: the session's reactor.
/// Source:  docs/protocol.md, connecting.
class ServerPathProofs {
 public:
  /// Null `keys`: no proof is needed.
  ServerPathProofs(std::size_t connections, std::shared_ptr<auth::ServerKeys> keys)
      : keys_{std::move(keys)}, proofs_(connections) {}

  bool needed() const { return keys_ != nullptr; }
  /// The proof of connection `cid`, or its claim as long as the path is connecting.
  const auth::ServerProof& at(std::uint16_t cid) const { return proofs_[cid]; }
  /// A connection was accepted; its first messages are its proof.
  void start(std::uint16_t cid, QueuePair& queue_pair, const auth::Context& context) {
    proofs_[cid].start(queue_pair, keys_, context);
  }
  [[nodiscard]] Complaint on_message(std::uint16_t cid, ConstBytes message) {
    refusal_ = judge(cid, message);
    return refusal_;
  }
  bool all_proven() const;
  /// The reason why the proof of some connection was refused; null: none was.
  Complaint refusal() const { return refusal_; }

 private:
  Complaint judge(std::uint16_t cid, ConstBytes message);

  std::shared_ptr<auth::ServerKeys> keys_;
  std::vector<auth::ServerProof> proofs_;
  Complaint refusal_ = nullptr;
};

}  // namespace rtrs
