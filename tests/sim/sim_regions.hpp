// SPDX-License-Identifier: BSD-3-Clause
// The regions of a simulated path: memory that the peer's device uses by itself.
#pragma once

#include <cstdint>
#include <map>

#include "rdma/core/regions.hpp"
#include "tests/sim/world.hpp"

namespace sim {

/// Until the end of a key is told, whatever comes with it may still land.
class SimRegions final : public rtrs::Regions {
 public:
  SimRegions(World& world, NodeId node) : world_{world}, scope_{world, node} {}

  tl::expected<rtrs::RemoteMemory, int> expose(rtrs::MutableBytes memory, unsigned access) override;
  void retire(rtrs::RemoteMemory where, std::function<void()> dead) override;
  void retire_all(std::function<void()> dead) override;

  /// The key is of a region, now or once.
  static bool has(std::uint32_t key) { return (key & kRegionBit) != 0; }
  /// Null when the access is refused.
  std::byte* find(rtrs::RemoteMemory where, std::size_t length, unsigned access) const;

 private:
  static constexpr std::uint32_t kRegionBit = 1U << 31;

  struct Region {
    rtrs::MutableBytes memory;
    std::uint64_t address = 0;
    unsigned access = 0;
  };

  World& world_;
  Scope scope_;
  std::uint32_t next_ = kRegionBit;
  std::map<std::uint32_t, Region> regions_;  ///< by key
};

}  // namespace sim
