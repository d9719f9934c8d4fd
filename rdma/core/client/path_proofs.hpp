// SPDX-License-Identifier: BSD-3-Clause
// The proofs that the connections of a client's path owe and are owed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "rdma/core/auth/proof.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {

/// One proof per connection, by cid, if both ends have to prove that they have a key.
///
/// Threads: belongs to one path.
/// Source:  docs/protocol.md, connecting.
class PathProofs {
 public:
  /// `connections`: 0, if nothing is to be proven.
  explicit PathProofs(std::size_t connections) : answers_(connections), proofs_(connections) {}

  /// The server let the connection in, with this record.
  void on_answer(std::uint16_t cid, const wire::ConnectResponse& record) { answers_[cid] = record; }
  auth::ClientProof& start(std::uint16_t cid, QueuePair& queue_pair, auth::ClientKey key,
                           const auth::Nonce& nonce, const wire::ConnectRequest& request) {
    proofs_[cid].start(queue_pair, std::move(key), nonce,
                       {.request = request, .response = answers_[cid]});
    return proofs_[cid];
  }
  auth::ClientProof& at(std::uint16_t cid) { return proofs_.at(cid); }

  /// The server has proven on each connection that it has the key.
  bool all_proven() const { return std::ranges::all_of(proofs_, &auth::ClientProof::proven); }
  /// On connection 0, where that has to be proven.
  bool first_proven() const { return proofs_.empty() || proofs_[0].proven(); }
  bool any_refused() const {
    return std::ranges::any_of(proofs_, [](const auto& one) { return one.refusal() != 0; });
  }

 private:
  std::vector<wire::ConnectResponse> answers_;
  std::vector<auth::ClientProof> proofs_;
};

}  // namespace rtrs
