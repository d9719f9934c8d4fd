// SPDX-License-Identifier: BSD-3-Clause
// The settings of a mirror, beside its servers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>

#include "bridge/client/config.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

struct MirrorConfig final : AnnexConfig {
  wire::Uuid group{};
  bool near = false;              ///< reads go to the member that answers soonest
  bool create_copy = false;       ///< copies may replace data on disks that are new in the group
  std::uint64_t resync_rate = 0;  ///< bytes per second at most; 0 = no limit
  Degraded degraded = Degraded::allow;
  std::optional<rtrs::PathAddress> vote;  ///< the server that has it; none: there is no vote
};

/// Of a configuration that names several servers.
inline const MirrorConfig& settings_of(const ClientConfig& config) {
  return *config.find<MirrorConfig>();
}

/// The servers of a mirror's disks, and behind them that of its vote.
inline std::size_t servers_of(const ClientConfig& config) {
  return config.servers.size() + (settings_of(config).vote ? 1 : 0);
}

/// The lanes of a mirror, as many as those of a disk of one server.
inline unsigned lanes_of(const ClientConfig& config) {
  constexpr unsigned kMost = 4;
  return config.lanes != 0 ? config.lanes
                           : std::clamp(std::thread::hardware_concurrency(), 1U, kMost);
}

}  // namespace rnbd::mirror
