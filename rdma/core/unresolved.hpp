// SPDX-License-Identifier: BSD-3-Clause
// Counts requests that are over for their callers, and perhaps not for the server.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "rdma/wire/ensure.hpp"

namespace rtrs {

/// The unresolved requests of a scope: their callers have left or were told an error, and the
/// server may still carry them out. Requests that were never sent do not count.
///
/// Invariant: while a scope counts a write, no lane sends a newer request that this write could
/// undo or mislead. The newer one waits, or fails with refusal(). There are three scopes:
///
/// - device (Request::scope): counts cancelled and failed requests of one device, and holds back
///   its writes, and reads that they build upon (Request::waits_for_scope)
/// - session (ClientLane, `unresolved`): counts failed writes that no device answers for, and all
///   toward Linux; holds back every write, and reads that one builds upon
/// - control (ClientLane, `opens`): counts a CLOSE with an unknown end, and toward Linux writes
///   that name a device by its id; holds back OPENs
///
/// The transition table of the slots says which request counts where (Hold, rdma/core/client).
///
/// Threads: any; add() and remove() with the lane of the request held.
class Unresolved {
 public:
  /// Called with a lane held when the last write has ended. In the session's and the control
  /// lane's scope every lane must resume() then; a caller of refuse() must first take that back.
  std::function<void()> on_end;

  void add(bool is_write) { ++count(is_write); }
  /// True: this was the last write, so that newer ones may go.
  bool remove(bool is_write) {
    const unsigned before = count(is_write)--;
    RTRS_ENSURE(before != 0);
    return is_write && before == 1;
  }
  void wake() const {
    if (on_end) on_end();
  }
  bool any() const { return reads_ != 0 || writes(); }
  bool writes() const { return writes_ != 0; }

  /// Nobody knows when the last write will end. Until then newer requests fail with `error` instead
  /// of waiting; 0 lets them wait again. Every lane must resume().
  void refuse(int error) { refusal_ = error; }
  int refusal() const { return refusal_; }

 private:
  std::atomic<unsigned>& count(bool is_write) { return is_write ? writes_ : reads_; }

  std::atomic<unsigned> reads_{0};
  std::atomic<unsigned> writes_{0};
  std::atomic<int> refusal_{0};
};

/// Counts one write in a scope, for as long as it lives.
class UnresolvedToken {
 public:
  UnresolvedToken() = default;
  UnresolvedToken(UnresolvedToken&& other) noexcept
      : scope_{std::exchange(other.scope_, nullptr)} {}
  UnresolvedToken& operator=(UnresolvedToken&& other) noexcept {
    std::swap(scope_, other.scope_);
    return *this;
  }
  ~UnresolvedToken() {
    if (scope_ != nullptr && scope_->remove(/*is_write=*/true)) scope_->wake();
  }

  /// Once; null: there is no such scope.
  void take(Unresolved* scope) {
    if (scope_ != nullptr || scope == nullptr) return;
    scope_ = scope;
    scope_->add(/*is_write=*/true);
  }

 private:
  Unresolved* scope_ = nullptr;
};

}  // namespace rtrs
