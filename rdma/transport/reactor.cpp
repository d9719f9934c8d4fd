// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/reactor.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
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
/// Sleeps of a busy loop before the same alarm.
constexpr unsigned kManySleeps = 16;

std::chrono::steady_clock::time_point time_point(Instant at) {
  return std::chrono::steady_clock::time_point{at.time_since_epoch()};
}

/// The timer that wakes a busy loop for its alarms. A loop that sleeps until an alarm has the
/// kernel set a timer and take it back, each time. This one takes two system calls of its own, and
/// is set once for all sleeps before an alarm.
class Bell {
 public:
  explicit Bell(boost::asio::io_context& io) : timer_{io} {}
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  /// The bell rings by then: the loop need not look at the clock.
  bool covers(Instant next) const { return *rings_at_ <= next; }
  /// The loop is about to sleep until `next`. True: it sleeps until the bell rings.
  bool set_if_busy(Instant next) {
    if (covers(next)) return true;
    sleeps_ = next == next_ ? sleeps_ + 1 : 0;
    next_ = next;
    if (sleeps_ < kManySleeps) return false;
    timer_.expires_at(time_point(next));
    timer_.async_wait([rings_at = rings_at_](boost::system::error_code cancelled) {
      if (!cancelled) *rings_at = Instant::max();
    });
    *rings_at_ = next;
    return true;
  }

 private:
  boost::asio::steady_timer timer_;
  /// Shared with its handler, which may be queued when the loop has ended.
  std::shared_ptr<Instant> rings_at_ = std::make_shared<Instant>(Instant::max());
  Instant next_ = Instant::max();
  unsigned sleeps_ = 0;  ///< before `next_`
};
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
  Bell bell{io_};
  while (!io_.stopped()) {
    // Sleeping is right only when nothing is put off.
    unsigned handled = 0;
    bool busy = false;
    heard_ = nullptr;
    playing_ = nullptr;  // behind an exception
    if (!bell.covers(alarms_.next())) alarms_.ring(now());
    if (head_ == nullptr) {
      busy = awaited_ == nullptr && bell.set_if_busy(alarms_.next());
      handled = busy ? static_cast<unsigned>(io_.run_one()) : wait();
    }
    // A second look at the events costs a system call: only when it makes a larger batch.
    if (head_ == nullptr) {
      const bool rang = busy && !bell.covers(alarms_.next());  // which ends nobody's solo
      if (!rang) let_play();
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
  return io_.run_one_until(time_point(next)) != 0 ? 1 : 0;
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
