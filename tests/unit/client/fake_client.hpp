// SPDX-License-Identifier: BSD-3-Clause
// A connected client whose server is the fake one: operations run to their end on the calling
// thread.
#pragma once

#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>

#include "bridge/client/session.hpp"
#include "rdma/client.hpp"
#include "tests/unit/client/fake_server.hpp"

namespace rnbd::test {

class FakeClient final : public rtrs::Client {
 public:
  explicit FakeClient(const FakeOptions& options = {}) : server{options} {
    limits_ = {options.max_io_size, options.slots, options.features, options.volatile_epoch};
  }

  const rtrs::SessionLimits& limits() const override { return limits_; }
  bool alive() const override { return alive_; }
  std::vector<rtrs::PathStatus> paths() override {
    rtrs::PathStatus path;
    path.state = connected ? rtrs::PathState::connected : rtrs::PathState::waiting;
    path.trouble = connected ? "" : "cut by the test";
    return {path};
  }
  std::string failure() const override { return alive_ ? "" : "cut by the test"; }
  int run(rtrs::Operation& operation, const rtrs::Interrupt& interrupt) override {
    std::unique_lock lock{mutex};
    operation.start(server.lane);
    while (!operation.finished()) {
      if (server.arrivals.empty()) {  // no session
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      } else if (stalled && stalled(server.arrivals.front())) {
        lock.unlock();
        if (const auto action = std::exchange(while_stalled, nullptr)) action();
        const bool leave = interrupt();
        lock.lock();
        if (leave) {
          operation.cancel(server.lane);
          return EINTR;
        }
      } else {
        const Arrival arrival = server.arrivals.front();
        server.answer();
        lock.unlock();
        if (after_answer) after_answer(arrival);
        if (shared) std::this_thread::yield();
        lock.lock();
      }
    }
    return operation.error();
  }
  int run_control(rtrs::Operation& operation, const rtrs::Interrupt& interrupt) override {
    return alive_ ? run(operation, interrupt) : EIO;
  }

  unsigned lanes() const override { return take_loop ? 2 : 0; }
  std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned /*lane*/) override {
    return take_loop ? take_loop() : nullptr;
  }

  /// The server was restarted: what a client does then. `change` is made to the new session's
  /// limits. Returns what the recovery handler thinks of it.
  int renew(std::uint32_t first_id, std::uint64_t volatile_epoch = 0) {
    std::unique_lock lock{mutex};
    server.restart(first_id);
    limits_.volatile_epoch = volatile_epoch;
    return reopen(lock);
  }
  /// Another attempt at the same server.
  int reopen() {
    std::unique_lock lock{mutex};
    return reopen(lock);
  }

  /// A path is back, and then do_background_jobs().
  unsigned come_back() {
    connected = true;
    return do_background_jobs();
  }
  /// Runs the background jobs that are left. Returns how many messages that took.
  unsigned do_background_jobs() {
    unsigned count = 0;
    for (;; ++count) {
      const auto operation = recovery->background_job();
      if (!operation) return count;
      run(*operation, {});
      recovery->background_job_ended(*operation);
      if (operation->error() == EIO) return count + 1;
    }
  }

  void cut() {
    std::lock_guard lock{mutex};
    alive_ = false;
    server.lane.shut_down(EIO);
  }

  rtrs::RecoveryHandler* recovery = nullptr;
  std::atomic<bool> connected{true};  ///< some path stands
  bool shared = false;                ///< let other threads in while requests are in flight
  std::mutex mutex;                   ///< guards the server
  FakeServer server;
  std::function<bool(const Arrival&)> stalled;       ///< true: the server does not answer it
  std::function<void()> while_stalled;               ///< called once, then
  std::function<void(const Arrival&)> after_answer;  ///< called after every answer
  std::function<std::unique_ptr<rtrs::LaneLoop>()> take_loop;  ///< null: there are no lanes

 private:
  int reopen(std::unique_lock<std::mutex>& lock) {
    rtrs::ClientLane privileged{0, server.options.slots};
    server.attach(privileged);
    auto operation = recovery->reopen(limits_);
    operation->start(privileged);
    while (!operation->finished()) server.answer();
    const int error = recovery->reopened(*operation);
    if (error == 0) {
      server.lane.renew();
      server.attach(server.lane);
    }
    lock.unlock();
    if (error == ESTALE) cut();
    return error;
  }

  rtrs::SessionLimits limits_;
  std::atomic<bool> alive_{true};
};

/// An interrupt: the caller of an operation has left.
inline bool leave_now(void*) { return true; }

/// A session over a fake client, whose log goes to `log`.
inline auto start_session(std::unique_ptr<FakeClient> client, rtrs::Log log = {}) {
  const auto make = [&](rtrs::RecoveryHandler& recovery) {
    client->recovery = &recovery;
    return std::unique_ptr<rtrs::Client>{std::move(client)};
  };
  return Session::start(make, std::move(log), {});
}

}  // namespace rnbd::test
