// SPDX-License-Identifier: BSD-3-Clause
// The votes that a server has for mirror groups, whose disks are elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/server/annex.hpp"
#include "bridge/server/mirror/seat.hpp"

namespace rnbd::mirror {

/// One seat for each group. A claim needs no reservation, as nothing is written beside the record.
///
/// Invariant: all records in the store have a seat.
/// Threads:   any.
class Votes final : public StorageAnnex {
 public:
  using Entry = std::pair<wire::Uuid, std::shared_ptr<Seat>>;

  /// `recorded`: the groups that the store has. Loads their records. May block. `epoch`: see
  /// Member.
  Votes(std::shared_ptr<MemberStore> store, std::uint64_t epoch,
        const std::vector<wire::Uuid>& recorded);

  /// Null: it is a new one, and there are too many. Strangers must not fill the state directory.
  std::shared_ptr<Seat> of(const wire::Uuid& group);
  /// Those with a record.
  std::vector<Entry> recorded() const;
  std::string closed_to(std::uint64_t features, std::string_view name) const override;
  void attach(Device& /*device*/, const Services& /*services*/,
              rtrs::Reactor* /*reactor*/) override {}

 private:
  static constexpr std::size_t kMost = 4096;

  const std::shared_ptr<MemberStore> store_;
  const std::uint64_t epoch_;
  mutable std::mutex mutex_;
  std::map<wire::Uuid, std::shared_ptr<Seat>> seats_;  ///< by group; guarded by mutex_
};

}  // namespace rnbd::mirror
