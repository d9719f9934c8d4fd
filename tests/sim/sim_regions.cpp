// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/sim_regions.hpp"

#include <cerrno>
#include <chrono>
#include <utility>

namespace sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLongestRetirement = 20ms;

}  // namespace

tl::expected<rtrs::RemoteMemory, int> SimRegions::expose(rtrs::MutableBytes memory,
                                                         unsigned access) {
  if (memory.empty() || memory.size() > kMaxRegion) return tl::unexpected(EINVAL);
  const std::uint64_t address = world_.rng().next() >> 8;  // its end does not wrap
  const std::uint32_t key = next_;
  next_ += static_cast<std::uint32_t>(world_.rng().between(2, 7));
  regions_[key] = {memory, address, access};
  return rtrs::RemoteMemory{address, key};
}

void SimRegions::retire(rtrs::RemoteMemory where, std::function<void()> dead) {
  scope_.after(world_.rng().delay(0us, kLongestRetirement),
               [this, key = where.key, dead = std::move(dead)] {
                 regions_.erase(key);
                 dead();
               });
}

void SimRegions::retire_all(std::function<void()> dead) {
  scope_.after(world_.rng().delay(0us, kLongestRetirement), [this, dead = std::move(dead)] {
    regions_.clear();
    dead();
  });
}

std::byte* SimRegions::find(rtrs::RemoteMemory where, std::size_t length, unsigned access) const {
  const auto found = regions_.find(where.key);
  if (found == regions_.end()) return nullptr;
  const Region& region = found->second;
  const std::uint64_t offset = where.address - region.address;
  const bool inside = where.address >= region.address && offset <= region.memory.size() &&
                      length <= region.memory.size() - offset;
  return inside && (region.access & access) != 0 ? region.memory.data() + offset : nullptr;
}

}  // namespace sim
