// SPDX-License-Identifier: BSD-3-Clause
// The blocks of a brick that a client has mapped, and the choice of blocks to map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "bridge/client/brick/remote_brick.hpp"

namespace rnbd {

/// A block is mapped after repeated requests to it. If there are too many maps, the least recently
/// used one makes room, unless its last use was a moment ago.
///
/// Threads: one at a time; pure.
class MapCache {
 public:
  using Block = std::uint64_t;  ///< id / wire::kBrickBlock

  /// A mapped block, until its key is dead.
  struct Entry {
    /// live -> leaving -> ending; any -> gone
    enum class State : std::uint8_t {
      live,
      leaving,  ///< takes no more users
      ending,   ///< UNMAP is under way
      gone,
    };
    MappedBlock map;
    State state = State::live;
    unsigned users = 0;
    std::uint64_t used = 0;
    Block block() const { return map.id / wire::kBrickBlock; }
    bool has_key() const { return state == State::live || state == State::leaving; }
  };
  using Pin = std::shared_ptr<Entry>;

  /// `most`: blocks that may be mapped at a time.
  explicit MapCache(std::size_t most) : most_{most} {}

  /// Counts a request to this block. Returns its map and keeps that until leave(). Null: no map
  /// allows the request.
  Pin enter(Block block, bool write);
  /// True: this was the last user of a map that is to end.
  bool leave(const Pin& pin);
  /// The steps to take before a two-sided request for these blocks.
  enum class Before : std::uint8_t {
    go,
    settle,  ///< call RemoteBrick::settle() of the pin, to make one-sided writes visible
    wait,    ///< wait until the blocks have left the cache, or something else has changed
  };
  struct Duty {
    Before before{};
    Pin pin;  ///< with `settle`, for leave()
  };
  Duty before_two_sided(Block first, Block last, bool path_alive);
  /// True if some of these blocks may still have a live key.
  bool overlaps(Block first, Block last) const;

  /// Allows maps for writes, because the device is claimed.
  void allow_writes(bool allowed) { writable_ = allowed; }
  bool allows_writes() const { return writable_; }

  /// True if next_wish() or next_leaver() may have a new result since the last call.
  bool has_news() { return std::exchange(news_, false); }
  /// The next block to map. It is not returned again before mapped() or refused().
  std::optional<Block> next_wish();
  /// The next map to end, in state `ending`. Call unmapped() or kept() afterwards.
  Pin next_leaver();

  void mapped(MappedBlock map);
  void refused(Block block);
  void unmapped(const Pin& pin);
  /// The UNMAP has failed, and is tried again later.
  void kept(const Pin& pin) { pin->state = Entry::State::leaving; }
  void recall(Block block);
  /// All keys are dead.
  void clear();
  std::size_t size() const { return entries_.size(); }

 private:
  Pin pin_any();
  /// Requests to a block before it is mapped.
  static constexpr int kHot = 2;
  static constexpr int kRefused = -64;
  /// Units: requests. After so many, the counts are reset. A map that was used within that time
  ///        does not make room.
  static constexpr std::uint64_t kWhile = 1024;

  void touch(Block block);
  bool make_room();

  std::size_t most_;
  std::unordered_map<Block, Pin> entries_;
  std::unordered_map<Block, int> heat_;
  std::deque<Block> wishes_;
  std::optional<Block> wished_;
  std::uint64_t stamp_ = 0;
  std::uint64_t forgotten_at_ = 0;
  bool writable_ = false;
  bool news_ = false;
};

}  // namespace rnbd
