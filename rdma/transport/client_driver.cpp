// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client_driver.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <exception>
#include <random>
#include <utility>

#include "rdma/transport/client_options.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/system_failure.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
constexpr auto kSlice = std::chrono::milliseconds{250};

std::uint64_t random_bits() {
  static thread_local std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

/// One thread tells another that something is done.
class Wait {
 public:
  void tell() {
    const std::lock_guard lock{mutex_};
    told_ = true;
    changed_.notify_all();
  }
  bool told_within(Duration time) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, time, [this] { return told_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool told_ = false;
};

}  // namespace

tl::expected<std::unique_ptr<Client>, Failure> Client::connect(ClientOptions options,
                                                               const Interrupt& interrupt) {
  options = with_defaults(std::move(options));
  if (auto ok = check(options); !ok) return tl::unexpected(ok.error());
  try {
    auto driver = std::make_unique<ClientDriver>(std::move(options));
    if (auto up = driver->establish(interrupt); !up) return tl::unexpected(up.error());
    return driver;
  } catch (const std::exception& exception) {
    return tl::unexpected(failure_of(exception));
  }
}

ClientDriver::ClientDriver(ClientOptions options)
    : options_{std::move(options)},
      notices_{options_},
      work_{io_.get_executor()},
      deadline_{io_},
      look_timer_{io_},
      background_timer_{io_},
      machine_{session_options(options_), random_bits, options_.recovery != nullptr},
      session_{machine_.session()} {}

ClientDriver::~ClientDriver() {
  if (!thread_.joinable()) return;
  asio::post(io_, [this] {
    say_goodbye_on_io();
    fail_on_io(Cause{Cause::Kind::closed});
    io_.stop();  // also when a name is still being resolved or a connection being made
  });
  thread_.join();
}

/// The first that arrives ends the session, with all its paths.
void ClientDriver::say_goodbye_on_io() {
  std::vector<PathDriver*> told;
  for (Path& path : paths_) {
    if (path.driver && path.driver->core().say_goodbye()) told.push_back(path.driver.get());
  }
  const Instant until = now() + std::chrono::milliseconds{100};
  for (PathDriver* path : told) {
    if (path->finish(until)) return;
  }
}

std::string ClientDriver::failure() const {
  const std::lock_guard lock{mutex_};
  return failure_.text;
}

void ClientDriver::report(const Notice& notice) { notices_.report(notice, now()); }

// ---- The session -------------------------------------------------------------------------------

void ClientDriver::run_background_thread() {
  pthread_setname_np(pthread_self(), "rtrs-client");
  asio::post(io_, [this] {
    wait_for_deadline_on_io();
    note_waiting_paths_on_io();
    look_on_io();
  });
  while (!io_.stopped()) {
    // Nothing may escape: this thread lives in somebody else's program.
    try {
      io_.run();
    } catch (const std::exception& exception) {
      fail_on_io(failure_of(exception));
    }
  }
}

tl::expected<void, Failure> ClientDriver::establish(const Interrupt& interrupt) {
  thread_ = std::thread{[this] { run_background_thread(); }};
  std::unique_lock lock{mutex_};
  while (!changed_.wait_for(lock, kSlice, [this] { return settled_; })) {
    lock.unlock();
    if (interrupt()) return tl::unexpected(Failure{EINTR, "interrupted while connecting"});
    lock.lock();
  }
  if (!alive()) return tl::unexpected(failure_);
  return {};
}

void ClientDriver::wait_for_deadline_on_io() {
  deadline_.expires_after(options_.connect_timeout);
  deadline_.async_wait([this](boost::system::error_code cancelled) {
    if (cancelled || closed_ || alive()) return;
    note_late_paths_on_io();
    lateness_.connecting =
        paths_on_io([this](unsigned i) { return session_.state(i) == PathState::connecting; });
    lateness_.waiting = waiting_paths_on_io();
    fail_on_io(notices_.too_late(lateness_));
  });
}

void ClientDriver::note_attempt_on_io(unsigned path, const std::string& why) const {
  if (options_.on_failed_attempt) options_.on_failed_attempt(options_.paths[path], why);
}

/// Why those are not tried that may not begin the session.
void ClientDriver::note_waiting_paths_on_io() const {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (!session_.may_try(i)) note_attempt_on_io(i, ClientNotices::waits_for_others());
  }
}

/// The end of the session ends the attempts that are under way, which then fail with nothing.
void ClientDriver::note_late_paths_on_io() const {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.state(i) == PathState::connecting) note_attempt_on_io(i, notices_.timed_out(i));
  }
}

PathMask ClientDriver::paths_on_io(const std::function<bool(unsigned path)>& are) const {
  unsigned paths = 0;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (are(i)) paths |= 1U << i;
  }
  return static_cast<PathMask>(paths);
}

/// Those that have not been tried.
PathMask ClientDriver::waiting_paths_on_io() const {
  return paths_on_io([this](unsigned i) { return !session_.may_try(i); });
}

void ClientDriver::up_on_io() {
  deadline_.cancel();
  const auto& accepted = session_.accepted();
  limits_ = {accepted.max_io_size, accepted.queue_depth, accepted.extension.features,
             accepted.extension.volatile_epoch};
  report({.kind = Notice::Kind::session_up, .limits = accepted, .count = lanes_.size()});
  ask_for_background_jobs_on_io();
  const std::lock_guard lock{mutex_};
  alive_.store(true, std::memory_order_release);
  settled_ = true;
  changed_.notify_all();
}

void ClientDriver::fail_on_io(Failure failure) {
  if (std::exchange(closed_, true)) return;
  machine_.end();
  {
    const std::lock_guard lock{mutex_};
    if (alive() && failure.error != ESHUTDOWN) {
      report({.kind = Notice::Kind::session_lost, .cause = {failure.error, failure.text}});
    }
    failure_ = std::move(failure);
    alive_.store(false, std::memory_order_release);
    settled_ = true;
  }
  close_on_io();
  changed_.notify_all();
}

void ClientDriver::close_on_io() {
  deadline_.cancel();
  look_timer_.cancel();
  background_timer_.cancel();
  for (Path& path : paths_) {
    if (path.driver) path.driver->close();
    path.driver.reset();
  }
  for (unsigned i = 0; i < paths_.size(); ++i) report_statistics(i);
  for (auto& lane : lanes_) lane->shut_down(EIO);
  if (renewal_) renewal_->lane->shut_down(EIO);
  if (control_lane_) control_lane_->shut_down(EIO);
}

// ---- From outside ------------------------------------------------------------------------------

void ClientDriver::call_on_io(const std::function<void()>& function) {
  Wait wait;
  std::exception_ptr failure;
  asio::post(io_, [&] {
    try {
      function();
    } catch (...) {
      failure = std::current_exception();
    }
    wait.tell();
  });
  while (!wait.told_within(kSlice)) {
  }
  if (failure) std::rethrow_exception(failure);
}

// ---- Operations --------------------------------------------------------------------------------

int ClientDriver::run(Operation& operation, const Interrupt& interrupt) {
  const int cpu = sched_getcpu();
  return lanes_[static_cast<std::size_t>(std::max(cpu, 0)) % lanes_.size()]->run(operation,
                                                                                 interrupt);
}

int ClientDriver::run_control(Operation& operation, const Interrupt& interrupt) {
  Wait wait;
  operation.on_finish([](void* context) { static_cast<Wait*>(context)->tell(); }, &wait);
  if (!start_control(operation)) return run(operation, interrupt);
  while (!wait.told_within(kSlice)) {
    if (interrupt() && cancel_control(operation)) return EINTR;
  }
  return operation.error();
}

bool ClientDriver::start_control(Operation& operation) {
  if (control_lane_->permits().count() == 0) return false;
  asio::post(io_, [this, &operation] {
    operation.start(*control_lane_);
    flush_control_on_io();
  });
  return true;
}

bool ClientDriver::cancel_control(Operation& operation) {
  bool in_time = false;
  call_on_io([&] {
    in_time = !operation.finished();
    if (in_time) operation.cancel(*control_lane_);
  });
  return in_time;
}

}  // namespace rtrs
