// SPDX-License-Identifier: BSD-3-Clause
// Reads under way: those that this end has asked for, and the answers to those of the peer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "rdma/core/queue_pair.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs::tcp {

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
