// SPDX-License-Identifier: BSD-3-Clause
// The regions of a path over TCP.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "rdma/core/regions.hpp"
#include "rdma/transport/connection.hpp"

namespace rtrs::tcp {

class TcpQueuePair;

/// A key names a place in the table. The upper bits of an address count the exposures of the path,
/// so that a key that has ended opens nothing, however often its place was used since.
///
/// Threads: those of the path's connections, which are one thread.
class RegionTable final : public PathContext, public Regions {
 public:
  RegionTable() = default;
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  Regions* regions() override { return this; }

  tl::expected<RemoteMemory, int> expose(MutableBytes memory, unsigned access) override;
  void retire(RemoteMemory where, std::function<void()> dead) override;
  void retire_all(std::function<void()> dead) override;

  /// The key is of a region, not of a window.
  static bool has(std::uint32_t key) { return (key & kRegionBit) != 0; }

  /// The bytes that an access means, or why it is refused.
  struct Found {
    std::byte* at = nullptr;
    Complaint why_not = nullptr;
  };
  Found find(std::uint32_t key, std::uint64_t address, std::uint32_t length, unsigned access) const;

  /// Told by TcpQueuePair::on_retired() when a region ends.
  void add_user(TcpQueuePair& user) { users_.push_back(&user); }
  void remove_user(TcpQueuePair& user) { std::erase(users_, &user); }

 private:
  static constexpr std::uint32_t kRegionBit = 1U << 31;
  static constexpr unsigned kPlaceShift = 8;
  static constexpr std::size_t kMaxPlaces = std::size_t{1} << 23;
  static constexpr unsigned kOffsetBits = 21;
  static_assert(std::size_t{1} << kOffsetBits == kMaxRegion);

  struct Region {
    MutableBytes memory;  ///< empty: the place is free
    unsigned access = 0;
    std::uint64_t generation = 0;
  };

  static std::size_t place_of(std::uint32_t key) { return (key & ~kRegionBit) >> kPlaceShift; }
  void end(std::size_t place);

  std::vector<Region> table_;
  std::vector<std::uint32_t> free_;
  std::vector<TcpQueuePair*> users_;
  std::uint64_t generation_ = 0;
};

}  // namespace rtrs::tcp
