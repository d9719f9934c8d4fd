// SPDX-License-Identifier: BSD-3-Clause
// The servers at which the members of a mirror are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "rdma/server_id.hpp"

namespace rnbd::mirror {

/// Keeps two members from being one server, where they would have the same copy. Members that
/// cannot be used keep nobody out: another server may pretend to be the one that is meant. Nor does
/// the vote keep a disk out, though it was there first: it has to go then.
///
/// Invariant: no two disks are open at the same server, and no vote opens where a disk is.
/// Threads:   any.
class ServerTable {
 public:
  enum class Stage : std::uint8_t { away, opening, open };

  /// The vote, if there is one, is behind the disks.
  ServerTable(std::size_t disks, std::size_t members) : disks_{disks}, places_(members) {}

  /// A member has reached a server (`opening`), or has opened its disk there (`open`). Returns the
  /// member that is open at that server already. Of two that begin at once, the one with the lower
  /// number stays. Then nothing changes, and the caller gives up. Servers without an identity (0)
  /// are all different.
  std::optional<unsigned> enter(unsigned member, rtrs::ServerId server, Stage stage) {
    const std::lock_guard lock{mutex_};
    for (unsigned i = 0; i < places_.size() && server != 0; ++i) {
      const Place& other = places_[i];
      if (i == member || i >= disks_ || other.server != server || other.stage == Stage::away)
        continue;
      if (other.stage == Stage::open || i < member) return i;
    }
    places_[member] = {server, stage};
    return {};
  }
  void leave(unsigned member) {
    const std::lock_guard lock{mutex_};
    places_[member] = {};
  }

 private:
  struct Place {
    rtrs::ServerId server = 0;
    Stage stage = Stage::away;
  };

  const std::size_t disks_;
  std::mutex mutex_;
  std::vector<Place> places_;
};

}  // namespace rnbd::mirror
