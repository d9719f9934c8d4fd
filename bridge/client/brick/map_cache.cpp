// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/brick/map_cache.hpp"

#include <algorithm>
#include <utility>

namespace rnbd {
namespace {

/// More wishes than that are as good as none.
constexpr std::size_t kMostWishes = 64;

}  // namespace

MapCache::Pin MapCache::enter(Block block, bool write) {
  ++stamp_;
  const auto found = entries_.find(block);
  if (found == entries_.end()) {
    touch(block);
    return nullptr;
  }
  Entry& entry = *found->second;
  if (entry.state != Entry::State::live) return nullptr;
  const bool lacks = write && (entry.map.rights & wire::kMapWrite) == 0;
  if (lacks) {
    // It has to be mapped anew.
    if (writable_) {
      entry.state = Entry::State::leaving;
      heat_[block] = kHot - 2;
      news_ = true;
    }
    return nullptr;
  }
  entry.used = stamp_;
  ++entry.users;
  return found->second;
}

bool MapCache::leave(const Pin& pin) {
  --pin->users;
  return pin->users == 0 && pin->state == Entry::State::leaving;
}

/// A two-sided request sees one-sided writes after a read of their path, or when their keys are
/// dead. If a write may still land, the request must wait, or the write would overwrite it.
MapCache::Duty MapCache::before_two_sided(Block first, Block last, bool path_alive) {
  if (!overlaps(first, last)) return {Before::go, nullptr};
  if (!path_alive) return {Before::wait, nullptr};
  Pin pin = pin_any();
  if (pin == nullptr) return {Before::wait, nullptr};
  return {Before::settle, std::move(pin)};
}

MapCache::Pin MapCache::pin_any() {
  const auto found = std::ranges::find_if(entries_, [](const auto& item) {
    return item.second->has_key() && (item.second->map.rights & wire::kMapRead) != 0;
  });
  if (found == entries_.end()) return nullptr;
  ++found->second->users;
  return found->second;
}

bool MapCache::overlaps(Block first, Block last) const {
  if (last - first >= entries_.size()) {
    return std::ranges::any_of(
        entries_, [=](const auto& item) { return item.first >= first && item.first <= last; });
  }
  for (Block block = first; block <= last; ++block)
    if (entries_.contains(block)) return true;
  return false;
}

void MapCache::touch(Block block) {
  if (most_ == 0) return;
  if (stamp_ - forgotten_at_ > kWhile) {
    heat_.clear();
    forgotten_at_ = stamp_;
  }
  if (++heat_[block] != kHot || wishes_.size() >= kMostWishes) return;
  if (wished_ && *wished_ == block) return;
  wishes_.push_back(block);
  news_ = true;
}

/// False: the maps are all better than one more.
bool MapCache::make_room() {
  if (entries_.size() < most_) return true;
  const auto oldest = std::ranges::min_element(entries_, {}, [](const auto& item) {
    return std::pair{item.second->state != Entry::State::live, item.second->used};
  });
  Entry& entry = *oldest->second;
  if (entry.state == Entry::State::live && stamp_ - entry.used > kWhile)
    entry.state = Entry::State::leaving;
  return false;
}

std::optional<MapCache::Block> MapCache::next_wish() {
  while (!wishes_.empty()) {
    const Block wish = wishes_.front();
    if (entries_.contains(wish)) {
      wishes_.pop_front();
      continue;
    }
    const bool room = make_room();
    const bool leaves = std::ranges::any_of(
        entries_, [](const auto& item) { return item.second->state != Entry::State::live; });
    if (!room && leaves) return std::nullopt;  // there will be room
    wishes_.pop_front();
    if (!room) {
      heat_[wish] = 0;
      continue;
    }
    wished_ = wish;
    return wish;
  }
  return std::nullopt;
}

MapCache::Pin MapCache::next_leaver() {
  const auto found = std::ranges::find_if(entries_, [](const auto& item) {
    return item.second->state == Entry::State::leaving && item.second->users == 0;
  });
  if (found == entries_.end()) return nullptr;
  found->second->state = Entry::State::ending;
  return found->second;
}

void MapCache::mapped(MappedBlock map) {
  wished_.reset();
  auto entry = std::make_shared<Entry>();
  entry->map = std::move(map);
  entry->used = stamp_;
  heat_.erase(entry->block());
  entries_[entry->block()] = std::move(entry);
}

void MapCache::refused(Block block) {
  wished_.reset();
  heat_[block] = kRefused;
}

void MapCache::unmapped(const Pin& pin) {
  pin->state = Entry::State::gone;
  entries_.erase(pin->block());
}

void MapCache::recall(Block block) {
  const auto found = entries_.find(block);
  if (found == entries_.end() || found->second->state != Entry::State::live) return;
  found->second->state = Entry::State::leaving;
  heat_[block] = kRefused;
}

void MapCache::clear() {
  for (const auto& [block, entry] : entries_) entry->state = Entry::State::gone;
  entries_.clear();
  wished_.reset();
}

}  // namespace rnbd
