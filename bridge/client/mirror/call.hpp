// SPDX-License-Identifier: BSD-3-Clause
// A request of a mirror's user, and the way of its answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bridge/client/mirror/mirror_lane.hpp"
#include "bridge/client/transfer.hpp"
#include "rdma/mailbox.hpp"

namespace rnbd::mirror {

/// A call that waits, or a job of a lane.
struct Call {
  Transfer transfer;
  MirrorLane* lane = nullptr;
  rtrs::LaneLoop::Job* job = nullptr;
  std::vector<std::byte> own;  ///< the data, once its user has left
  std::optional<std::chrono::steady_clock::time_point> left;
  int failure = 0;     ///< a member's answer
  bool ended = false;  ///< guarded by the mutex of CallAnswers, as the next
  int error = 0;
  std::condition_variable answered;

  /// From here on the data are the mirror's own.
  void take_over();
};
using CallPtr = std::shared_ptr<Call>;

/// A letter to the mirror's thread: a request to begin, or else a function to run.
struct Letter {
  CallPtr call;
  std::function<void()> function;
};
using Mailbox = rtrs::Mailbox<Letter>;

/// Brings answers to the users: those of a lane together, with one wake-up.
///
/// Threads: wait(): any; the others: the mirror's.
class CallAnswers {
 public:
  void end(Call& call, int error);
  /// All answers to lanes since the last time.
  void publish();
  /// Waits for the answer and returns it. Calls `leave` once, if `interrupt` wants it to.
  template <class Leave>
  int wait(Call& call, const rtrs::Interrupt& interrupt, const Leave& leave) {
    constexpr std::chrono::milliseconds kAsk{250};
    bool left = false;
    std::unique_lock lock{mutex_};
    while (!call.answered.wait_for(lock, kAsk, [&] { return call.ended; })) {
      if (left || !interrupt()) continue;
      left = true;
      leave();
    }
    return call.error;
  }

 private:
  std::mutex mutex_;
  std::vector<MirrorLane*> lanes_;  ///< with jobs that have ended
};

}  // namespace rnbd::mirror
