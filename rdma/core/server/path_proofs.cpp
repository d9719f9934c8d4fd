// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/server/path_proofs.hpp"

namespace rtrs {

Complaint ServerPathProofs::judge(std::uint16_t cid, ConstBytes message) {
  auth::ServerProof& proof = proofs_[cid];
  if (const Complaint refused = proof.on_message(message)) return refused;
  if (!proof.proven()) return nullptr;
  for (const auth::ServerProof& other : proofs_) {
    const bool same = !other.proven() || other.user().same_user(proof.user());
    if (!same) return "its connections have proven different users";
  }
  return nullptr;
}

bool ServerPathProofs::all_proven() const {
  if (!needed()) return true;
  for (const auth::ServerProof& proof : proofs_) {
    if (!proof.proven()) return false;
  }
  return true;
}

}  // namespace rtrs
