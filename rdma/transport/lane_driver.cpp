#include "rdma/transport/lane_driver.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <system_error>
#include <utility>

namespace rtrs {
namespace {

/// How long a waiting thread sleeps before it looks whether it was interrupted.
constexpr auto kSlice = std::chrono::milliseconds{250};

/// Wakes one thread once. May be destroyed as soon as the waiter returned: the waker uses only the
/// address from then on, and a wake-up that meets nobody is harmless. Source: futex(2).
class Signal {
 public:
  void raise() {
    raised_.store(1, std::memory_order_release);
    syscall(SYS_futex, &raised_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  void wait() {
    while (!wait_for(kSlice)) {
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

LaneDriver::LaneDriver(std::uint16_t first_slot, std::uint16_t slots,
                       std::unique_ptr<Connection> connection,
                       std::function<void(std::string)> on_broken)
    : lane_{first_slot, slots},
      connection_{std::move(connection)},
      on_broken_{std::move(on_broken)},
      kick_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  if (kick_ < 0) throw std::system_error{errno, std::generic_category(), "eventfd"};
}

LaneDriver::~LaneDriver() { ::close(kick_); }

void LaneDriver::attach(const std::function<void(ClientLane&, QueuePair&)>& attach) {
  const std::lock_guard lock{mutex_};
  attach(lane_, *connection_);
}

int LaneDriver::run(Operation& operation, const Interrupt& interrupt) {
  Waiter self;
  self.driver = this;
  self.operation = &operation;
  operation.on_finish(&Waiter::on_finish, &self);
  std::unique_lock lock{mutex_};
  operation.start(lane_);
  lane_.flush();
  if (leading_ && connection_->wants_to_write()) kick();
  while (self.call != Waiter::Call::finished && !operation.finished()) {
    if (leading_) {
      follow(lock, self, interrupt);
    } else {
      lead(lock, self, interrupt);
    }
    if (self.interrupted && self.call != Waiter::Call::finished && !operation.finished()) {
      operation.cancel(lane_);
      if (!leading_) hand_over();
      return EINTR;
    }
  }
  // It may have been called to lead and found its operation finished by somebody else meanwhile.
  if (lock.owns_lock() && !leading_) hand_over();
  return operation.error();
}

void LaneDriver::lead(std::unique_lock<std::mutex>& lock, Waiter& self,
                      const Interrupt& interrupt) {
  using Clock = std::chrono::steady_clock;
  leading_ = true;
  // By the clock: on a busy lane the sleep never lasts a whole slice.
  auto ask_at = Clock::now() + kSlice;
  while (!self.operation->finished() && !self.interrupted) {
    if (!more_) sleep_as_leader(lock);
    drive();
    if (Clock::now() < ask_at) continue;
    lock.unlock();
    self.interrupted = interrupt();
    lock.lock();
    ask_at = Clock::now() + kSlice;
  }
  leading_ = false;  // run() hands over
}

void LaneDriver::sleep_as_leader(std::unique_lock<std::mutex>& lock) {
  const auto events = static_cast<short>(POLLIN | (connection_->wants_to_write() ? POLLOUT : 0));
  // A broken connection has nothing to say: the background thread ends what waits, and kicks.
  std::array<pollfd, 2> descriptors{
      {{broken_ ? -1 : connection_->descriptor(), events, 0}, {kick_, POLLIN, 0}}};
  lock.unlock();
  const int ready = poll(descriptors.data(), descriptors.size(), kSlice.count());
  lock.lock();
  if (ready > 0 && descriptors[1].revents != 0) {
    eventfd_t ignored;
    eventfd_read(kick_, &ignored);
  }
}

void LaneDriver::follow(std::unique_lock<std::mutex>& lock, Waiter& self,
                        const Interrupt& interrupt) {
  self.call = Waiter::Call::none;
  link(self);
  lock.unlock();
  while (!self.wake.wait_for(kSlice)) {
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

Connection::Status LaneDriver::drive() {
  if (broken_) return Connection::Status::broken;
  const auto status = connection_->progress(lane_);
  more_ = status == Connection::Status::more;
  lane_.flush();
  arrivals_.store(lane_.received(), std::memory_order_relaxed);
  if (status == Connection::Status::broken || status == Connection::Status::closed) {
    broken_ = true;
    on_broken_(connection_->failure());
  }
  return status;
}

bool LaneDriver::service() {
  if (const std::unique_lock lock{mutex_, std::try_to_lock}; lock && !leading_) {
    drive();  // once: a server that floods the lane must not keep the thread of the heartbeats
  }
  const auto arrivals = arrivals_.load(std::memory_order_relaxed);
  return std::exchange(arrivals_seen_, arrivals) != arrivals;
}

void LaneDriver::shut_down(int error) {
  const std::lock_guard lock{mutex_};
  broken_ = true;
  connection_->close();
  lane_.detach(error);
  kick();
}

void LaneDriver::kick() { eventfd_write(kick_, 1); }

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
