// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/region_table.hpp"

#include <cerrno>
#include <utility>

#include "rdma/transport/tcp/queue_pair.hpp"

namespace rtrs::tcp {

tl::expected<RemoteMemory, int> RegionTable::expose(MutableBytes memory, unsigned access) {
  if (memory.empty() || memory.size() > kMaxRegion) return tl::unexpected(EINVAL);
  if (free_.empty()) {
    if (table_.size() == kMaxPlaces) return tl::unexpected(ENOMEM);
    free_.push_back(static_cast<std::uint32_t>(table_.size()));
    table_.emplace_back();
  }
  const std::uint32_t place = free_.back();
  free_.pop_back();
  table_[place] = {memory, access, ++generation_};
  return RemoteMemory{generation_ << kOffsetBits, kRegionBit | (place << kPlaceShift)};
}

void RegionTable::retire(RemoteMemory where, std::function<void()> dead) {
  const std::size_t place = place_of(where.key);
  const std::uint64_t generation = where.address >> kOffsetBits;
  const bool known = place < table_.size() && !table_[place].memory.empty() &&
                     table_[place].generation == generation;
  if (known) end(place);
  dead();
}

void RegionTable::retire_all(std::function<void()> dead) {
  for (std::size_t place = 0; place < table_.size(); ++place) {
    if (!table_[place].memory.empty()) end(place);
  }
  dead();
}

void RegionTable::end(std::size_t place) {
  const MutableBytes memory = std::exchange(table_[place].memory, {});
  free_.push_back(static_cast<std::uint32_t>(place));
  for (TcpQueuePair* user : users_) user->on_retired(memory);
}

RegionTable::Found RegionTable::find(std::uint32_t key, std::uint64_t address, std::uint32_t length,
                                     unsigned access) const {
  const std::size_t place = place_of(key);
  const bool exact = (key & ((1U << kPlaceShift) - 1)) == 0 && has(key);
  if (!exact || place >= table_.size() || table_[place].memory.empty() ||
      table_[place].generation != address >> kOffsetBits) {
    return {nullptr, "the peer used a key that does not exist, or has ended"};
  }
  const Region& region = table_[place];
  const std::uint64_t offset = address & (kMaxRegion - 1);
  if (offset > region.memory.size() || length > region.memory.size() - offset) {
    return {nullptr, "the peer went beyond the memory it was given"};
  }
  if ((region.access & access) == 0) {
    return {nullptr, "the peer used memory in a way that it was not given for"};
  }
  return {region.memory.data() + offset, nullptr};
}

}  // namespace rtrs::tcp
