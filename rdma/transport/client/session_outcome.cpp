// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/session_outcome.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

namespace rtrs {
namespace {

/// As long as a server, its host, its network, our own or a name server is not there yet, or its
/// certificate does not hold yet (EAGAIN).
bool may_come_yet(int error) {
  constexpr int kAbsent[] = {ECONNREFUSED, ECONNRESET,    EHOSTUNREACH, ENETUNREACH,
                             ENETDOWN,     EADDRNOTAVAIL, ETIMEDOUT,    EAGAIN};
  return std::ranges::find(kAbsent, error) != std::end(kAbsent);
}

}  // namespace

void FirstAttempts::tell(unsigned path, const std::string& why) const {
  if (options_.on_failed_attempt) options_.on_failed_attempt(options_.paths[path], why);
}

void FirstAttempts::tell_waiting() const {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (!session_.may_try(i)) tell(i, notices_.waits_for_others());
  }
}

PathMask FirstAttempts::paths_that(const std::function<bool(unsigned path)>& are) const {
  unsigned paths = 0;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (are(i)) paths |= 1U << i;
  }
  return static_cast<PathMask>(paths);
}

PathMask FirstAttempts::connecting() const {
  return paths_that([this](unsigned i) { return session_.at(i).state == PathState::connecting; });
}

/// The paths that have not been tried.
PathMask FirstAttempts::waiting() const {
  return paths_that([this](unsigned i) { return !session_.may_try(i); });
}

std::optional<Failure> FirstAttempts::failed(unsigned path, const Cause& cause, Instant now) {
  const bool foreign = session_.at(path).foreign && !session_.at(path).options.names_server;
  const Failure failure = notices_.failure_of(cause);
  const bool may_come =
      foreign || (may_come_yet(failure.error) && session_.path(path).refusal() == 0);
  tell(path, failure.text);
  notices_.report({.kind = may_come ? Notice::Kind::path_absent : Notice::Kind::path_refused,
                   .path = path,
                   .cause = cause,
                   .paths = waiting()},
                  now);
  if (foreign) {
    lateness_.foreign = cause;
  } else if (may_come) {
    lateness_.absent = cause;
  } else if (!refusal_) {
    refusal_ = failure;
  }
  return connecting() == 0 ? refusal_ : std::nullopt;
}

Failure FirstAttempts::too_late() {
  lateness_.connecting = connecting();
  lateness_.waiting = waiting();
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if ((lateness_.connecting >> i & 1) != 0) tell(i, notices_.timed_out(i));
  }
  return notices_.too_late(lateness_);
}

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
