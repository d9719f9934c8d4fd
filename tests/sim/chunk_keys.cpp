// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/chunk_keys.hpp"

#include <string>

namespace sim {

rtrs::RemoteMemory ChunkKeys::expose(std::uint32_t window, rtrs::MutableBytes memory) {
  Window& w = windows_[window];
  if (w.exposed) world_.violate("the server exposed chunk " + std::to_string(window) + " twice");
  if (w.key == 0) w.chunk.address = world_.rng().next() >> 8;
  w.chunk.memory = memory;
  w.key = next_;
  w.exposed = true;
  w.over = false;
  next_ += static_cast<std::uint32_t>(world_.rng().between(1, 7));
  issued_[w.key] = window;
  return {w.chunk.address, w.key};
}

std::uint32_t ChunkKeys::revoke(std::uint32_t window) {
  Window& w = windows_[window];
  if (!w.exposed) {
    world_.violate("the server revoked chunk " + std::to_string(window) + ", which is not exposed");
  }
  w.exposed = false;
  return w.key;
}

std::uint32_t ChunkKeys::tell_end(std::uint32_t key) {
  const std::uint32_t window = issued_.at(key);
  if (windows_[window].key == key) windows_[window].over = true;
  return window;
}

bool ChunkKeys::over(std::uint32_t key) const {
  const auto known = issued_.find(key);
  if (known == issued_.end()) return false;
  const Window& window = windows_.at(known->second);
  return window.key != key || window.over;
}

void ChunkKeys::bind(std::uint32_t key) {
  const Chunk& chunk = windows_[issued_.at(key)].chunk;
  bound_[key] = chunk;
  open_.insert(chunk.memory.data());
}

void ChunkKeys::unbind(std::uint32_t key) {
  const auto found = bound_.find(key);
  if (found == bound_.end()) return world_.violate("the server ends a key that opens nothing");
  open_.erase(found->second.memory.data());
  bound_.erase(found);
}

const ChunkKeys::Chunk* ChunkKeys::find(std::uint32_t key) const {
  const auto found = bound_.find(key);
  return found == bound_.end() ? nullptr : &found->second;
}

void ChunkKeys::end_all() {
  for (const auto& [key, chunk] : bound_) open_.erase(chunk.memory.data());
  bound_.clear();
}

}  // namespace sim
