// SPDX-License-Identifier: BSD-3-Clause
// The door of the mirror: its storages may be members of mirror groups.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "bridge/server/annex.hpp"
#include "bridge/server/mirror/member_messages.hpp"
#include "bridge/server/mirror/votes.hpp"

namespace rnbd::mirror {

/// One seat for each storage. It is loaded once: from then on this server knows best.
///
/// Threads: any.
class MirrorAnnex final : public ServerAnnex {
 public:
  /// `store` keeps the records of members; null: no storage may be one. If `epoch` differs from the
  /// last run's, answered writes may have been lost; 0: unknown. `reader`: see MemberMessages.
  /// `votes`: null where this server has none.
  MirrorAnnex(std::shared_ptr<MemberStore> store, std::uint64_t epoch,
              std::unique_ptr<PullReader> reader, std::shared_ptr<Votes> votes = nullptr)
      : store_{std::move(store)},
        epoch_{epoch},
        reader_{std::move(reader)},
        votes_{std::move(votes)} {}

  std::unique_ptr<SessionAnnex> open_session(const SessionParts& session) override;
  std::shared_ptr<StorageAnnex> open_storage(const wire::Uuid& key, std::uint64_t life) override;
  Votes* votes() const { return votes_.get(); }

 private:
  const std::shared_ptr<MemberStore> store_;
  const std::uint64_t epoch_;
  const std::unique_ptr<PullReader> reader_;
  const std::shared_ptr<Votes> votes_;
  std::mutex mutex_;
  std::map<wire::Uuid, std::shared_ptr<Seat>> seats_;  ///< guarded by mutex_
};

}  // namespace rnbd::mirror
