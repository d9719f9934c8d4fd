// SPDX-License-Identifier: BSD-3-Clause
// The completion queue of a queue pair, and the channel that tells when to look at it.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>

#include "rdma/failure.hpp"

namespace rtrs::verbs {

/// The meaning of a failed work request for people.
std::string meaning_of(const ibv_wc& completion);

/// Holds the completions of both queues of one queue pair, which must be destroyed before.
///
/// Threads: as its queue pair.
/// Source:  ibv_create_cq(3), ibv_get_cq_event(3).
class CompletionQueue {
 public:
  /// Errors: the device's refusal.
  static tl::expected<std::unique_ptr<CompletionQueue>, Failure> create(ibv_context* device,
                                                                        int entries);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  ibv_cq* handle() const { return queue_; }
  /// Becomes readable at the next completion after arm().
  int descriptor() const { return channel_->fd; }

  /// Fills a part of `batch`. Errors: < 0 when the queue is unusable.
  int poll(std::span<ibv_wc> batch) {
    return ibv_poll_cq(queue_, static_cast<int>(batch.size()), batch.data());
  }
  /// Completions that came before are not told: poll once more. Errors: an errno, 0 = fine.
  int arm();
  bool armed() const { return armed_; }
  /// True when the channel told of a completion; it is not armed then.
  bool take_event();

 private:
  CompletionQueue() = default;

  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  bool armed_ = false;
};

}  // namespace rtrs::verbs
