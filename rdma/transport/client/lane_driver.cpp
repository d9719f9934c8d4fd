// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/lane_driver.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <system_error>
#include <utility>

#include "rdma/transport/clock.hpp"

namespace rtrs {
namespace {

using Clock = std::chrono::steady_clock;

/// The time that a waiting thread sleeps before it looks whether it was interrupted.
constexpr auto kLaneSlice = std::chrono::milliseconds{250};
/// The same behind an event loop, which may be elsewhere. Then the thread receives for it, at first
/// after the shorter time, and ever more seldom: a loop that is there has received by then.
constexpr auto kShortSlice = std::chrono::milliseconds{1};
constexpr auto kLoopSlice = std::chrono::milliseconds{16};

/// Wakes one thread once. May be destroyed as soon as the waiter returned: the waker uses only the
/// address from then on, and a wake-up that meets nobody is harmless. Source: futex(2).
class Signal {
 public:
  void raise() {
    raised_.store(1, std::memory_order_release);
    syscall(SYS_futex, &raised_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  void wait() {
    while (!wait_for(kLaneSlice)) {
    }
  }
  /// False when it was not raised in time; may return early.
  bool wait_for(std::chrono::milliseconds time) {
    if (taken()) return true;
    const timespec relative{.tv_sec = time.count() / 1000,
                            .tv_nsec = time.count() % 1000 * 1'000'000};
    syscall(SYS_futex, &raised_, FUTEX_WAIT_PRIVATE, 0, &relative, nullptr, 0);
    return taken();
  }

 private:
  bool taken() { return raised_.exchange(0, std::memory_order_acquire) != 0; }

  std::atomic<std::uint32_t> raised_{0};
};

}  // namespace

/// A thread inside run(). Its operation's end is told while the lane is held.
struct LaneDriver::Waiter {
  enum class Call { none, finished, lead };

  LaneDriver* driver = nullptr;
  Operation* operation = nullptr;
  bool following = false;
  bool interrupted = false;
  Call call = Call::none;  ///< why it was woken; written before the signal is raised
  Signal wake;
  Waiter* next = nullptr;
  Waiter* previous = nullptr;

  static void on_finish(void* context) {
    auto& self = *static_cast<Waiter*>(context);
    if (!self.following) return;  // it holds the lane itself
    self.driver->unlink(self);
    self.call = Call::finished;
    self.wake.raise();
  }
};

LaneDriver::LaneDriver(std::uint16_t first_slot, std::uint16_t slots, Unresolved* unresolved,
                       Unresolved* opens, Duration spin, LaneDriverOwner& owner)
    : lane_{first_slot, slots, unresolved, opens}, owner_{owner}, spin_{spin} {}

int LaneDriver::run(Operation& operation, const Interrupt& interrupt) {
  Waiter self;
  self.driver = this;
  self.operation = &operation;
  operation.on_finish(&Waiter::on_finish, &self);
  Lock lock{mutex_};
  operation.start(lane_);
  tell_if_busy();
  posted_ = true;
  if (!mutex_.wanted()) send();
  while (self.call != Waiter::Call::finished && !operation.finished()) {
    if (led()) {
      follow(lock, self, interrupt);
    } else {
      lead(lock, self, interrupt);
    }
    if (self.interrupted && self.call != Waiter::Call::finished && !operation.finished()) {
      operation.cancel(lane_);
      if (!led()) hand_over();
      return EINTR;
    }
  }
  // A thread may have been called to lead, and found its operation finished by another one.
  if (lock.owns_lock() && !led()) hand_over();
  return operation.error();
}

void LaneDriver::lead(Lock& lock, Waiter& self, const Interrupt& interrupt) {
  leader_ = Leader::thread;
  // By the clock: on a busy lane the sleep never lasts a whole slice.
  auto ask_at = Clock::now() + kLaneSlice;
  while (!self.operation->finished() && !self.interrupted && !looping()) {
    if (more_ != 0 || !spin_as_leader()) receive_as_leader(lock, *self.operation);
    if (Clock::now() < ask_at) continue;
    lock.unlock();
    self.interrupted = interrupt();
    lock.lock();
    ask_at = Clock::now() + kLaneSlice;
  }
  if (looping())
    kick();  // in the loop's place this thread may have heard one
  else
    leader_ = Leader::nobody;  // run() hands over
}

/// Sleeps until something arrives, and receives it.
void LaneDriver::receive_as_leader(Lock& lock, const Operation& operation) {
  if (more_ != 0) {
    // A server that never stops sending must not keep the lane.
    if (mutex_.wanted()) mutex_.let_others_in();
  } else if (operation.finished() || looping()) {
    return;  // while it spun
  } else if (!await_as_leader(lock, nullptr)) {
    sleep_as_leader(lock);  // a spin in vain announces a longer sleep
  }
  if (!looping()) drive();  // the loop may be in a connection's await()
}

// A mutex is not fair: a thread that unlocks it and locks it again gets it before the waiting ones.

void LaneDriver::Mutex::lock() {
  if (mutex_.try_lock()) return;
  ++waiting_;
  mutex_.lock();
  --waiting_;
  ++let_in_;
}

/// A waiting thread gets it next and gives it away in turn: the last one sends. Every caller waits
/// for an answer before it posts again, so there is a last one.
void LaneDriver::Mutex::unlock() {
  if (driver_.posted_ && waiting_ == 0) driver_.send();
  mutex_.unlock();
}

void LaneDriver::Mutex::let_others_in() {
  const unsigned before = let_in_;
  unlock();
  do {
    sched_yield();
  } while (waiting_ != 0 && let_in_ == before);
  lock();
}

void LaneDriver::send() {
  posted_ = false;
  lane_.flush();
  if (led() && wants_to_write()) kick();
}

bool LaneDriver::wants_to_write() const {
  for (unsigned i = 0; i < path_limit_; ++i) {
    if (paths_[i].connection && paths_[i].connection->wants_to_write()) return true;
  }
  return false;
}

/// Events to wait for; 0 = nothing. A broken connection has nothing to say: the background thread
/// takes it away, and kicks.
short LaneDriver::events_of(const Path& path) const {
  if (!path.connection || path.broken) return 0;
  return path.connection->wants_to_write() ? POLLIN | POLLOUT : POLLIN;
}

void LaneDriver::sleep_as_leader(Lock& lock) {
  std::array<pollfd, kMaxPaths + 1> descriptors;
  descriptors[0] = {kick_.descriptor(), POLLIN, 0};
  nfds_t count = 1;
  for (unsigned i = 0; i < path_limit_; ++i) {
    const Path& path = paths_[i];
    if (const short events = events_of(path); events != 0) {
      descriptors[count++] = {path.connection->descriptor(), events, 0};
    }
  }
  lock.unlock();
  const int ready = poll(descriptors.data(), count, kLaneSlice.count());
  lock.lock();
  if (ready > 0 && descriptors[0].revents != 0) kick_.clear();
}

/// For a request that is alone. False: it is not, or its connection cannot, or nothing came. Until
/// something arrives kicks are not seen, for the milliseconds that it lasts at most.
bool LaneDriver::await_as_leader(Lock& lock, OneCall* call) {
  if (followers_head_ != nullptr || want_quiet_ != 0) return false;
  Connection* only = nullptr;
  for (unsigned i = 0; i < path_limit_; ++i) {
    if (events_of(paths_[i]) == 0) continue;
    if (only != nullptr) return false;
    only = paths_[i].connection.get();
  }
  if (only == nullptr || !only->begin_await(call, true)) return false;
  awaiting_ = true;
  lock.unlock();
  const bool came = only->await();
  lock.lock();
  only->end_await();
  awaiting_ = false;
  if (want_quiet_ != 0) quiet_.notify_all();
  return came;
}

std::uint64_t LaneDriver::received() const {
  std::uint64_t sum = 0;
  for (unsigned i = 0; i < path_limit_; ++i) sum += lane_.connection(i).received();
  return sum;
}

/// Looks again and again for arrivals, and receives them. False: nothing came in time, or the lead
/// is an event loop's now.
bool LaneDriver::spin_as_leader() {
  const Duration time = spin_.next();
  if (time == Duration::zero()) return false;
  const bool loop = looping();
  const std::uint64_t before = received();
  const auto end = Clock::now() + time;
  bool came = false, in_time = true;
  do {
    mutex_.let_others_in();
    if (looping() != loop) return false;
    drive();
    came = more_ != 0 || received() != before;
    in_time = Clock::now() < end;
  } while (!came && in_time);
  // A late arrival was not found by spinning: somebody else had the CPU.
  spin_.ended(came && in_time);
  return came;
}

/// Holds the lane while nobody receives.
LaneDriver::Lock LaneDriver::take_quiet() {
  Lock lock{mutex_};
  ++want_quiet_;
  quiet_.wait(lock, [this] { return !awaiting_; });
  --want_quiet_;
  return lock;
}

void LaneDriver::follow(Lock& lock, Waiter& self, const Interrupt& interrupt) {
  self.call = Waiter::Call::none;
  link(self);
  auto slice = looping() ? kShortSlice : kLaneSlice;
  lock.unlock();
  auto ask_at = Clock::now() + kLaneSlice;
  while (!self.wake.wait_for(slice)) {
    if (receive_for_absent()) slice = std::min(2 * slice, kLoopSlice);
    if (Clock::now() < ask_at) continue;
    ask_at = Clock::now() + kLaneSlice;
    if (!interrupt()) continue;
    lock.lock();
    if (self.call == Waiter::Call::none) {
      unlink(self);
      self.interrupted = true;
      return;
    }
    self.wake.wait();  // called in the same moment
    self.interrupted = self.call != Waiter::Call::finished;
    return;
  }
  // Finished: nothing of the lane refers to this thread's operation, so the lane need not be held.
  if (self.call == Waiter::Call::lead) lock.lock();
}

void LaneDriver::hand_over() {
  if (followers_head_ == nullptr) return;
  Waiter& next = *followers_head_;
  unlink(next);
  next.call = Waiter::Call::lead;
  next.wake.raise();
}

void LaneDriver::drive() {
  more_ = 0;
  for (unsigned i = 0; i < path_limit_; ++i) {
    if (paths_[i].connection && !paths_[i].broken) drive(i);
  }
}

void LaneDriver::drive(unsigned index) {
  Path& path = paths_[index];
  const auto status = path.connection->progress(lane_.connection(index));
  if (lane_.connection(index).has_answered()) lane_.note_answer(index, now());
  if (status == Connection::Status::more) more_ = static_cast<PathMask>(more_ | 1U << index);
  posted_ = false;
  lane_.flush();
  path.arrivals.store(lane_.connection(index).received(), std::memory_order_relaxed);
  if (status == Connection::Status::broken || status == Connection::Status::closed) {
    path.broken = true;
    owner_.on_broken({index, path.generation}, path.connection->failure());
  }
}

void LaneDriver::kick() { kick_.wake(); }

void LaneDriver::link(Waiter& waiter) {
  waiter.following = true;
  waiter.next = nullptr;
  waiter.previous = followers_tail_;
  (followers_tail_ != nullptr ? followers_tail_->next : followers_head_) = &waiter;
  followers_tail_ = &waiter;
}

void LaneDriver::unlink(Waiter& waiter) {
  waiter.following = false;
  (waiter.previous != nullptr ? waiter.previous->next : followers_head_) = waiter.next;
  (waiter.next != nullptr ? waiter.next->previous : followers_tail_) = waiter.previous;
}

}  // namespace rtrs
