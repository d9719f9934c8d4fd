// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/mirror_annex.hpp"

namespace rnbd::mirror {

std::unique_ptr<SessionAnnex> MirrorAnnex::open_session(const SessionParts& session) {
  return std::make_unique<MemberMessages>(session, reader_.get());
}

std::shared_ptr<StorageAnnex> MirrorAnnex::open_storage(const wire::Uuid& key, std::uint64_t life) {
  if (key == wire::kVotesUuid) return votes_;
  if (store_ == nullptr || key == wire::Uuid{}) return nullptr;
  {
    const std::lock_guard lock{mutex_};
    if (const auto known = seats_.find(key); known != seats_.end()) return known->second;
  }
  // An unknown epoch is that of this life only.
  auto seat = std::make_shared<Seat>(store_, key, epoch_ != 0 ? epoch_ : life);
  seat->load();
  const std::lock_guard lock{mutex_};
  return seats_.emplace(key, std::move(seat)).first->second;
}

}  // namespace rnbd::mirror
