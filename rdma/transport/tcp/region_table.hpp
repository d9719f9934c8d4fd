// SPDX-License-Identifier: BSD-3-Clause
// One-sided access over TCP: the regions of a path, and the reads that are under way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "rdma/core/regions.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/wire/ensure.hpp"

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

/// The reads of this end, oldest first; the answers come in this order.
///
/// Threads: its queue pair's.
class RemoteReads {
 public:
  struct Read {
    Ticket ticket = 0;
    MutableBytes into;
  };

  std::uint32_t next_token() const { return next_; }
  void push(const Read& read) {
    RTRS_ENSURE(next_ - first_ < QueuePair::kMaxUnconfirmed);
    at(next_++) = read;
  }
  /// Null: no answer with this token and length is due now.
  const Read* expect(std::uint32_t token, std::uint32_t length) const {
    const Read& read = reads_[first_ % reads_.size()];
    return first_ != next_ && token == first_ && read.into.size() == length ? &read : nullptr;
  }
  Read pop() { return at(first_++); }

 private:
  Read& at(std::uint32_t token) { return reads_[token % reads_.size()]; }

  std::array<Read, QueuePair::kMaxUnconfirmed> reads_;
  std::uint32_t first_ = 0;  ///< token of the oldest
  std::uint32_t next_ = 0;
};

/// Copies of what the peer reads, until they are sent: the memory may change or go meanwhile.
///
/// Threads: its queue pair's.
class ReadAnswers {
 public:
  /// The peer may have one more under way, when all up to `sent` are sent.
  bool has_room(Ticket sent) const { return next().ticket <= sent; }
  /// Memory of the next one, of `bytes`. Allocates when it has become longer.
  MutableBytes room(std::size_t bytes) {
    Answer& answer = next();
    if (answer.size < bytes) {
      answer.data = std::make_unique_for_overwrite<std::byte[]>(bytes);
      answer.size = bytes;
    }
    return {answer.data.get(), bytes};
  }
  /// The next one was posted.
  void push(Ticket ticket) {
    next().ticket = ticket;
    ++count_;
  }

 private:
  struct Answer {
    std::unique_ptr<std::byte[]> data;
    std::size_t size = 0;
    Ticket ticket = 0;
  };
  Answer& next() { return answers_[count_ % answers_.size()]; }
  const Answer& next() const { return answers_[count_ % answers_.size()]; }

  std::array<Answer, QueuePair::kMaxUnconfirmed> answers_;
  std::size_t count_ = 0;
};

}  // namespace rtrs::tcp
