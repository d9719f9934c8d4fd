// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/driver.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <exception>
#include <random>
#include <utility>

#include "rdma/transport/client/options.hpp"
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

/// One thread notifies another when something is done.
class Wait {
 public:
  void notify() {
    const std::lock_guard lock{mutex_};
    notified_ = true;
    changed_.notify_all();
  }
  bool wait_for(Duration time) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, time, [this] { return notified_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
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
      machine_{session_options(options_), random_bits, options_.recovery != nullptr},
      session_{machine_.session()},
      directory_{options_, session_},
      lanes_{reactor_, options_, notices_, paths_, *this},
      memory_{lanes_},
      attempts_{options_, session_, notices_},
      held_{options_, notices_, lanes_},
      jobs_{reactor_, options_.recovery, lanes_} {}

ClientDriver::~ClientDriver() {
  if (!thread_.joinable()) return;
  asio::post(io_, [this] {
    paths_.say_goodbye();
    fail_on_io(notices_.failure_of(Cause{Cause::Kind::closed}));
    reactor_.stop();  // also when a name is still being resolved or a connection being made
  });
  thread_.join();
}

// ---- The session -------------------------------------------------------------------------------

void ClientDriver::run_background_thread() {
  pthread_setname_np(pthread_self(), "rtrs-client");
  asio::post(io_, [this] {
    wait_for_deadline_on_io();
    attempts_.tell_waiting();
    look_on_io();
  });
  while (!io_.stopped()) {
    // Nothing may escape: this thread lives in somebody else's program.
    try {
      reactor_.run();
    } catch (const std::exception& exception) {
      fail_on_io(failure_of(exception));
    }
  }
}

tl::expected<void, Failure> ClientDriver::establish(const Interrupt& interrupt) {
  thread_ = std::thread{[this] { run_background_thread(); }};
  return outcome_.wait(interrupt);
}

void ClientDriver::wait_for_deadline_on_io() {
  deadline_.set(options_.connect_timeout, [this] {
    if (!closed_ && !alive()) fail_on_io(attempts_.too_late());
  });
}

void ClientDriver::up_on_io() {
  deadline_.cancel();
  const auto& accepted = session_.accepted();
  limits_ = {accepted.max_io_size, accepted.queue_depth, accepted.extension.features,
             accepted.extension.volatile_epoch};
  notices_.report({.kind = Notice::Kind::session_up, .limits = accepted, .count = lanes_.count()},
                  now());
  jobs_.start(limits_.features);
  outcome_.come_up();
}

void ClientDriver::fail_on_io(Failure failure) {
  if (std::exchange(closed_, true)) return;
  machine_.end();
  if (alive() && failure.error != ESHUTDOWN) {
    const Cause cause{failure.error, failure.text};
    notices_.report({.kind = Notice::Kind::session_lost, .cause = cause}, now());
  }
  outcome_.fail(std::move(failure));
  close_on_io();
}

void ClientDriver::close_on_io() {
  deadline_.cancel();
  next_look_.cancel();
  next_race_.cancel();
  jobs_.stop();
  paths_.close_all();
  if (recovery_) recovery_->break_off();
  lanes_.shut_down();
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
    wait.notify();
  });
  while (!wait.wait_for(kSlice)) {
  }
  if (failure) std::rethrow_exception(failure);
}

// ---- Operations --------------------------------------------------------------------------------

int ClientDriver::run(Operation& operation, const Interrupt& interrupt) {
  const int cpu = sched_getcpu();
  return lanes_.io(static_cast<unsigned>(std::max(cpu, 0)) % lanes_.count())
      .run(operation, interrupt);
}

int ClientDriver::run_control(Operation& operation, const Interrupt& interrupt) {
  Wait wait;
  operation.on_finish([](void* context) { static_cast<Wait*>(context)->notify(); }, &wait);
  if (!start_control(operation)) return run(operation, interrupt);
  while (!wait.wait_for(kSlice)) {
    if (interrupt() && cancel_control(operation)) return EINTR;
  }
  return operation.error();
}

bool ClientDriver::start_control(Operation& operation) {
  if (!lanes_.has_control()) return false;
  asio::post(io_, [this, &operation] {
    operation.start(lanes_.control());
    lanes_.flush_control();
  });
  return true;
}

bool ClientDriver::cancel_control(Operation& operation) {
  bool in_time = false;
  call_on_io([&] {
    in_time = !operation.finished();
    if (in_time) operation.cancel(lanes_.control());
  });
  return in_time;
}

}  // namespace rtrs
