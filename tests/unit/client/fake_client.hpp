// A connected client whose server is the fake one: operations run to their end on the calling
// thread.
#pragma once

#include <atomic>
#include <cerrno>
#include <mutex>

#include "rdma/client.hpp"
#include "tests/unit/client/fake_server.hpp"

namespace rnbd::test {

class FakeClient final : public rtrs::Client {
 public:
  explicit FakeClient(const FakeOptions& options = {}) : server{options} {
    limits_ = {options.max_io_size, options.slots, options.features};
  }

  const rtrs::SessionLimits& limits() const override { return limits_; }
  bool alive() const override { return alive_; }
  std::string failure() const override { return alive_ ? "" : "cut by the test"; }
  int run(rtrs::Operation& operation, const rtrs::Interrupt& interrupt) override {
    std::unique_lock lock{mutex};
    operation.start(server.lane);
    while (!operation.finished()) {
      if (stalled && stalled(server.arrivals.front())) {
        lock.unlock();
        const bool leave = interrupt();
        lock.lock();
        if (leave) {
          operation.cancel(server.lane);
          return EINTR;
        }
      } else {
        const Arrival arrival = server.arrivals.front();
        server.answer();
        if (after_answer) {
          lock.unlock();
          after_answer(arrival);
          lock.lock();
        }
      }
    }
    return operation.error();
  }
  int run_control(rtrs::Operation& operation, const rtrs::Interrupt& interrupt) override {
    return alive_ ? run(operation, interrupt) : EIO;
  }

  void cut() {
    std::lock_guard lock{mutex};
    alive_ = false;
    server.lane.detach(EIO);
  }

  std::mutex mutex;  ///< guards the server
  FakeServer server;
  std::function<bool(const Arrival&)> stalled;       ///< true: the server does not answer it
  std::function<void(const Arrival&)> after_answer;  ///< called after every answer

 private:
  rtrs::SessionLimits limits_;
  std::atomic<bool> alive_{true};
};

}  // namespace rnbd::test
