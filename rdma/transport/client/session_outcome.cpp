// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/session_outcome.hpp"

#include <cerrno>
#include <chrono>
#include <utility>

namespace rtrs {

void SessionOutcome::settle(State state) {
  state_.store(state, std::memory_order_release);
  changed_.notify_all();
}

void SessionOutcome::come_up() {
  const std::lock_guard lock{mutex_};
  settle(State::up);
}

void SessionOutcome::fail(Failure why) {
  const std::lock_guard lock{mutex_};
  failure_ = std::move(why);
  settle(State::failed);
}

std::string SessionOutcome::failure() const {
  const std::lock_guard lock{mutex_};
  return failure_.text;
}

tl::expected<void, Failure> SessionOutcome::wait(const Interrupt& interrupt) {
  constexpr auto kSlice = std::chrono::milliseconds{250};
  std::unique_lock lock{mutex_};
  while (!changed_.wait_for(lock, kSlice, [this] { return state_ != State::connecting; })) {
    lock.unlock();
    if (interrupt()) return tl::unexpected(Failure{EINTR, "interrupted while connecting"});
    lock.lock();
  }
  if (!alive()) return tl::unexpected(failure_);
  return {};
}

}  // namespace rtrs
