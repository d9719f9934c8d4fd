// SPDX-License-Identifier: BSD-3-Clause
// Which blocks of a brick a client has mapped, and which of them are worth it.
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

/// A block is mapped when requests come to it again and again. If too many are, the one whose use
/// is longest ago makes room, unless that was a moment ago.
///
/// Threads: one at a time; pure.
class MapCache {
 public:
  using Block = std::uint64_t;  ///< id / wire::kBrickBlock

  /// A block that is mapped, until its key is dead.
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

  /// A request comes to this block. Its map, which stays until leave(); null: it has none that
  /// allows that.
  Pin enter(Block block, bool write);
  /// True: it was the last one of a map that shall end.
  bool leave(const Pin& pin);
  /// The duty of a two-sided request for these blocks.
  enum class Before : std::uint8_t {
    go,
    settle,  ///< RemoteBrick::settle() of the pin makes one-sided writes visible
    wait,    ///< until the blocks are in the cache no more, or something else has changed
  };
  struct Duty {
    Before before{};
    Pin pin;  ///< with `settle`, for leave()
  };
  Duty before_two_sided(Block first, Block last, bool path_alive);
  /// Some of these blocks have, or had a moment ago, a key that is not known to be dead.
  bool overlaps(Block first, Block last) const;

  /// Writes may be mapped for, too: the device is claimed.
  void allow_writes(bool allowed) { writable_ = allowed; }
  bool allows_writes() const { return writable_; }

  /// next_wish() or next_leaver() may have something new since it was asked last.
  bool has_news() { return std::exchange(news_, false); }
  /// The next block to be mapped; it is not wished again before mapped() or refused().
  std::optional<Block> next_wish();
  /// The next map to be ended, in state `ending`; then unmapped() or kept().
  Pin next_leaver();

  void mapped(MappedBlock map);
  void refused(Block block);
  void unmapped(const Pin& pin);
  /// Its UNMAP failed; it is tried again.
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
  /// Counts are forgotten after so many requests, and a map that was used since makes no room.
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
