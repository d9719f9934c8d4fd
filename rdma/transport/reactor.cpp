// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/reactor.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <utility>

#include "rdma/transport/clock.hpp"

namespace rtrs {

namespace {
/// Handlers that run before deferred work gets its turn, so that a busy peer cannot put it off for
/// ever.
constexpr unsigned kMaxBatch = 64;
/// Rounds of deferred work that deferred work itself asked for (a submission that finished at once
/// and queued a reply), before the loop looks at new events again.
constexpr unsigned kMaxRounds = 4;
/// Turns that were all one connection's before it may wait for itself: enough of them that a
/// connection with a hundred requests a second is never made to wait.
constexpr unsigned kTurnsBeforeSolo = 512;
/// Requests that it serves before the loop looks at other events.
constexpr unsigned kMaxSolo = 32;
/// Turns between two solos, so that other connections with work come in behind the events still to
/// be read from the soloist's own descriptor.
constexpr unsigned kTurnsBetween = 2;
}  // namespace

void Reactor::forget(Deferred& work) {
  if (!work.queued_) return;
  Deferred* previous = nullptr;
  for (Deferred* at = head_; at != nullptr; previous = at, at = at->next_) {
    if (at != &work) continue;
    (previous != nullptr ? previous->next_ : head_) = work.next_;
    if (tail_ == &work) tail_ = previous;
    break;
  }
  work.queued_ = false;
  work.next_ = nullptr;
}

void Reactor::run() {
  const auto guard = boost::asio::make_work_guard(io_);
  if (make_call_ && !call_) call_ = make_call_();
  while (!io_.stopped()) {
    // Sleeping is right only when nothing is put off.
    unsigned handled = 0;
    heard_ = nullptr;
    playing_ = nullptr;  // behind an exception
    if (alarms_.next() != Instant::max()) alarms_.ring(now());
    if (head_ == nullptr) handled = wait();
    // A second look at the events costs a system call: only when it makes a larger batch.
    if (head_ == nullptr) {
      let_play();
      continue;
    }
    turns_ = 0;
    while (handled < kMaxBatch && io_.poll_one() != 0) ++handled;
    for (unsigned round = 0; round < kMaxRounds && head_ != nullptr; ++round) run_deferred();
  }
}

/// Returns the number of events that were handled.
unsigned Reactor::wait() {
  unsigned handled = 0;
  if (awaited_ != nullptr && spin(handled)) return handled;
  const Instant next = alarms_.next();
  if (next == Instant::max()) return io_.run_one() != 0 ? 1 : 0;
  // run_one_until() would run nothing then, and alarms that are due again at once keep events out.
  if (next <= now()) return io_.poll_one() != 0 ? 1 : 0;
  return io_.run_one_until(std::chrono::steady_clock::time_point{next.time_since_epoch()}) != 0 ? 1
                                                                                                : 0;
}

/// False: nothing came. An event may end the object that is awaited.
bool Reactor::spin(unsigned& handled) {
  const Duration time = spin_.next();
  if (time == Duration::zero()) return false;
  Awaited& awaited = *awaited_;
  awaited.set_looked_for(true);
  looking_ = true;
  const Instant end = now() + time;
  bool came = false;
  do {
    came = awaited.look();
    if (!came && io_.poll_one() != 0) ++handled;
  } while (!came && handled == 0 && now() < end);
  looking_ = false;
  if (awaited_ == &awaited) awaited.set_looked_for(false);
  if (handled == 0) spin_.ended(came);
  return came || handled != 0;
}

void Reactor::await(Awaited* awaited) {
  if (looking_ && awaited_ != nullptr && awaited_ != awaited) awaited_->set_looked_for(false);
  awaited_ = awaited;
}

/// Behind one event.
void Reactor::let_play() {
  if (heard_ == nullptr || heard_ != std::exchange(soloist_, heard_)) {
    turns_ = 0;
  } else if (++turns_ >= kTurnsBeforeSolo) {
    turns_ = kTurnsBeforeSolo - kTurnsBetween;
    Soloist& soloist = *soloist_;
    playing_ = call_ ? &soloist : nullptr;
    for (unsigned i = 0; i < kMaxSolo && turns_ != 0 && head_ == nullptr; ++i) {
      if (!soloist.play_on(call_.get())) turns_ = 0;
    }
    if (std::exchange(playing_, nullptr) != nullptr) soloist.play_out();
  }
}

void Reactor::stop() { io_.stop(); }

void Reactor::run_deferred() {
  // Work may defer more work, itself, or forget other work: take one at a time from the list, but
  // only as many as were there at the start.
  unsigned count = 0;
  for (const Deferred* at = head_; at != nullptr; at = at->next_) ++count;
  while (head_ != nullptr && count-- != 0) {
    Deferred& work = *head_;
    head_ = work.next_;
    if (head_ == nullptr) tail_ = nullptr;
    work.next_ = nullptr;
    work.queued_ = false;
    work.run_deferred();
  }
}

}  // namespace rtrs
