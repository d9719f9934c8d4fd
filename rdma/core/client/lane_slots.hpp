// SPDX-License-Identifier: BSD-3-Clause
// The permits of a lane, and the request that each of them is used for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rdma/core/client/delivery_wait.hpp"
#include "rdma/core/client/request.hpp"
#include "rdma/core/client/slot.hpp"
#include "rdma/core/path.hpp"
#include "rdma/core/unresolved.hpp"

namespace rtrs {

/// One permit. slot_table.hpp has the transitions of its state.
struct LaneSlot {
  static constexpr std::uint8_t kNoPath = 0xFF;
  /// The newer requests that wait until the slot is free.
  struct Holds {
    UnresolvedToken newer;  ///< in the lane's scope
    UnresolvedToken opens;  ///< in the scope of the lane that keeps order
  };

  Request* request = nullptr;         ///< null unless free: its caller has left
  const Unresolved* owner = nullptr;  ///< of the request, also when its caller has left
  SlotState state = SlotState::free;
  Direction direction = Direction::read;
  std::uint8_t path = kNoPath;  ///< in_flight: on it; quarantined: lost with it
  PathMask been_on = 0;         ///< paths that have carried its request, and stand since then
  bool exposed = false;         ///< the server may write to the memory of its request
  std::uint32_t expected_bytes = 0;
  std::uint32_t generation = 0;  ///< of the newest change in this slot
  std::uint64_t order = 0;       ///< among all requests of the lane
  DeliveryWait wait;
  std::shared_ptr<Unresolved> scope;  ///< counts it until it is free; null: it does not
  Holds holds;

  /// The data of its request.
  std::size_t bytes() const {
    if (request == nullptr) return 0;
    return is_write() ? request->write_data.size() : request->read_data.size();
  }
  bool is_write() const { return direction == Direction::write; }
  bool is_stranded() const { return state == SlotState::retry || state == SlotState::quarantined; }
  bool is_on(unsigned which) const { return state == SlotState::in_flight && path == which; }
  bool is_lost_with(unsigned which) const {
    return state == SlotState::quarantined && path == which;
  }
  /// The caller of its request leaves, or is told an error: its end will be known when the slot is
  /// free.
  void count_in_scope() {
    if (request->scope == nullptr) return;
    scope = *request->scope;
    scope->add(is_write());
  }
};

/// All slots of a lane; the free ones are a stack, so that a warm one is taken first.
///
/// A slot owes the paths that have a copy of a request of it without an answer, while the request
/// has left them. It goes over none of these. A free one that owes is taken only when there is no
/// other.
///
/// Invariant: a slot whose state is `free` is on the stack if it owes nothing, else among those
///            that owe; others are on neither.
/// Threads:   the holder of the lane.
class LaneSlots {
 public:
  explicit LaneSlots(std::uint16_t count);

  std::uint16_t count() const { return static_cast<std::uint16_t>(slots_.size()); }
  unsigned in_use() const {
    return static_cast<unsigned>(slots_.size() - free_.size() - owing_.size());
  }
  /// The number of free ones that may go over one of `ways`.
  std::size_t free(unsigned ways) const;
  bool any_free(unsigned ways) const {
    return ways != 0 && (!free_.empty() || (!owing_.empty() && free(ways) > 0));
  }
  LaneSlot& operator[](std::size_t index) { return slots_[index]; }
  const LaneSlot& operator[](std::size_t index) const { return slots_[index]; }
  auto begin() { return slots_.begin(); }
  auto end() { return slots_.end(); }
  auto begin() const { return slots_.begin(); }
  auto end() const { return slots_.end(); }

  /// One that may go over one of `ways` must be free. Its caller gives it another state.
  std::uint16_t take(unsigned ways);
  void give_back(std::uint16_t index) {
    LaneSlot& slot = slots_[index];
    const std::uint32_t generation = slot.generation;
    slot = LaneSlot{};
    slot.generation = generation;
    (owes_[index] == 0 ? free_ : owing_).push_back(index);
  }

  // Copies that requests have left behind
  /// The request of the slot leaves this path, and its copy has no answer yet.
  void owe(std::uint16_t index, unsigned path) {
    owes_[index] = static_cast<PathMask>(owes_[index] | 1U << path);
  }
  PathMask owes(std::size_t index) const { return owes_[index]; }
  /// The copy on this path was answered. False: there was none.
  bool settle(std::uint16_t index, unsigned path);
  /// No answer comes over this path any more.
  void forgive(unsigned path);
  /// Free ones that owe.
  unsigned owing() const { return static_cast<unsigned>(owing_.size()); }
  /// The data of the requests that have left some path and are in flight on another one.
  std::size_t bytes_moved() const;

  /// A free one is used for other messages than requests.
  void lend(std::uint16_t index) { std::erase(free_, index); }

  /// The server may still execute something of a path.
  bool bound_to(unsigned path) const;
  /// The first copy of a read that was sent again, or was given up, may come late.
  bool read_may_come_late() const;

  // The waits for a connection that carries the request
  /// Something is in flight on the path that was lost with others.
  bool any_waits_on(unsigned path) const;
  /// All permits are with requests that wait.
  bool all_wait() const;
  void on_mute(unsigned path, Instant now);
  /// So many questions are answered there. True: some request waits no longer.
  bool on_answered(unsigned path, std::uint64_t answered);
  void put_off_waits(Duration pause);

 private:
  std::vector<LaneSlot> slots_;
  std::vector<PathMask> owes_;        ///< by slot
  std::vector<std::uint16_t> free_;   ///< indexes into slots_; of those that owe nothing
  std::vector<std::uint16_t> owing_;  ///< likewise, of those that do
};

}  // namespace rtrs
