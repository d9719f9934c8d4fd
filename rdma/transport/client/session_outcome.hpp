// SPDX-License-Identifier: BSD-3-Clause
// The outcome of a client's session: its first attempts, and the reason of its end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "rdma/client.hpp"
#include "rdma/core/client/session.hpp"
#include "rdma/transport/client/notices.hpp"

namespace rtrs {

/// Tells the user of each attempt that failed before the session was up, and judges what they say
/// of the session together. Paths that may come yet are tried again until the deadline. The session
/// fails before that when no path can make it and one of them was refused; the first refusal is the
/// user's reason. A path to another server says nothing of this one.
///
/// Threads: the client's background thread.
class FirstAttempts {
 public:
  /// All must outlive this object.
  FirstAttempts(const ClientOptions& options, const ClientSession& session, ClientNotices& notices)
      : options_{options}, session_{session}, notices_{notices} {}

  /// Says why those paths are not tried that may not begin the session.
  void tell_waiting() const;
  /// An attempt failed. The result: the session fails, and with what.
  std::optional<Failure> failed(unsigned path, const Cause& cause, Instant now);
  /// The deadline is over: what the session fails with. It ends the attempts that are under way,
  /// which then fail with nothing.
  Failure too_late();

 private:
  void tell(unsigned path, const std::string& why) const;
  PathMask paths_that(const std::function<bool(unsigned path)>& are) const;
  PathMask connecting() const;
  PathMask waiting() const;

  const ClientOptions& options_;
  const ClientSession& session_;
  ClientNotices& notices_;
  ClientNotices::Lateness lateness_;
  std::optional<Failure> refusal_;  ///< the first
};

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
