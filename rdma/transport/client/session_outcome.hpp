// SPDX-License-Identifier: BSD-3-Clause
// Whether a client's session came up, and why it is over.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <tl/expected.hpp>

#include "rdma/client.hpp"

namespace rtrs {

/// connecting -> up -> failed; connecting -> failed
///
/// Threads: any.
class SessionOutcome {
 public:
  void come_up();
  void fail(Failure why);

  bool alive() const { return state_.load(std::memory_order_acquire) == State::up; }
  /// "" until it failed.
  std::string failure() const;
  /// Waits until it is up or failed. Errors: why it failed; EINTR.
  tl::expected<void, Failure> wait(const Interrupt& interrupt);

 private:
  enum class State : std::uint8_t { connecting, up, failed };

  void settle(State state);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<State> state_{State::connecting};
  Failure failure_;
};

}  // namespace rtrs
