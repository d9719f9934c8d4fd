// SPDX-License-Identifier: BSD-3-Clause
// A limit for the wait for a server that lives, but does not answer.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "rdma/client.hpp"

namespace rnbd {

/// Ends when its time is over, or when nobody wants the answer any more.
///
/// Threads: any; `wanted` is called by those that wait.
class AnswerLimit {
 public:
  /// `wanted`: empty: the answer is wanted all the time.
  explicit AnswerLimit(rtrs::Duration time, std::function<bool()> wanted = {})
      : until_{std::chrono::steady_clock::now() + time}, wanted_{std::move(wanted)} {}
  AnswerLimit(const AnswerLimit&) = delete;
  AnswerLimit& operator=(const AnswerLimit&) = delete;

  bool is_over() const {
    return std::chrono::steady_clock::now() >= until_ || (wanted_ && !wanted_());
  }
  /// For one wait, or several that share the time. It must outlive them.
  rtrs::Interrupt interrupt() {
    return {[](void* self) { return static_cast<const AnswerLimit*>(self)->is_over(); }, this};
  }

 private:
  const std::chrono::steady_clock::time_point until_;
  const std::function<bool()> wanted_;
};

}  // namespace rnbd
