// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/votes.hpp"

#include "bridge/protocol/mirror_messages.hpp"

namespace rnbd::mirror {

Votes::Votes(std::shared_ptr<MemberStore> store, std::uint64_t epoch,
             const std::vector<wire::Uuid>& recorded)
    : store_{std::move(store)}, epoch_{epoch} {
  for (const wire::Uuid& group : recorded) {
    auto seat = std::make_shared<Seat>(store_, group, epoch_);
    seat->load();
    seats_.emplace(group, std::move(seat));
  }
}

/// A group that was claimed and left no record has its seat until another one needs the room.
std::shared_ptr<Seat> Votes::of(const wire::Uuid& group) {
  const std::lock_guard lock{mutex_};
  if (const auto known = seats_.find(group); known != seats_.end()) return known->second;
  if (seats_.size() >= kMost)
    std::erase_if(seats_, [](const auto& entry) {
      return entry.second.use_count() == 1 && !entry.second->taken();
    });
  if (seats_.size() >= kMost) return nullptr;
  return seats_.emplace(group, std::make_shared<Seat>(store_, group, epoch_)).first->second;
}

std::vector<Votes::Entry> Votes::recorded() const {
  const std::lock_guard lock{mutex_};
  std::vector<Entry> all;
  for (const auto& [group, seat] : seats_)
    if (seat->status()) all.emplace_back(group, seat);
  return all;
}

std::string Votes::closed_to(std::uint64_t features, std::string_view /*name*/) const {
  if ((features & wire::kFeatureMirrorVotes) != 0) return "";
  return "it is no disk: it has the votes of this server, which clients of mirrors name as "
         "&vote=HOST";
}

}  // namespace rnbd::mirror
