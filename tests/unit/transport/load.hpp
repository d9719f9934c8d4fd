// SPDX-License-Identifier: BSD-3-Clause
// Sessions that outlive their paths, and load on them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/unit/transport/echo.hpp"

namespace rtrs::test {

/// A session above which nothing was open: a server that has forgotten it is asked one question.
class TestRecovery final : public RecoveryHandler {
 public:
  std::unique_ptr<Operation> reopen(const SessionLimits&) override {
    ++asked;
    return std::make_unique<EchoOperation>("E" + std::to_string(answer), MutableBytes{},
                                           ConstBytes{});
  }
  int reopened(Operation& operation) override { return operation.error(); }
  std::unique_ptr<Operation> background_job() override {
    if (hanging_background_jobs > 0) {
      --hanging_background_jobs;
      return std::make_unique<EchoOperation>("H", MutableBytes{}, ConstBytes{});
    }
    if (background_jobs == 0) return nullptr;
    return std::make_unique<EchoOperation>("E0", MutableBytes{}, ConstBytes{});
  }
  void background_job_ended(Operation& operation) override {
    if (!operation.finished()) ++given_up;
    if (operation.finished() && operation.error() == 0) --background_jobs;
  }

  std::atomic<int> asked{0};
  std::atomic<int> answer{0};
  std::atomic<int> background_jobs{0};
  std::atomic<int> hanging_background_jobs{0};  ///< come first
  std::atomic<int> given_up{0};                 ///< of these
};

inline ClientOptions patient(std::uint16_t port, TestRecovery& recovery) {
  ClientOptions options = client_options(port);
  options.recovery = &recovery;
  options.reconnect_min = std::chrono::milliseconds{5};
  options.reconnect_max = std::chrono::milliseconds{50};
  return options;
}

/// Writes and reads until told to stop; counts what went wrong.
class Load {
 public:
  explicit Load(Client& client) {
    for (int i = 0; i < 4; ++i) {
      threads_.emplace_back([this, &client] {
        std::vector<std::byte> buffer(4096);
        while (!stop_) {
          EchoOperation read{"ab", buffer, {}};
          if (client.run(read, {}) != 0) ++errors;
          EchoOperation write{"w", {}, buffer};
          if (client.run(write, {}) != 0) ++errors;
          ++rounds;
        }
      });
    }
  }
  ~Load() { end(); }
  void end() {
    stop_ = true;
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }
  /// Until every thread has got something through from now on.
  void wait_for_progress() const {
    const auto goal = rounds + 40;
    while (rounds < goal) std::this_thread::yield();
  }

  std::atomic<int> errors{0};
  std::atomic<std::uint64_t> rounds{0};

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

/// Two paths to the same server; they differ in how they are written only.
inline ClientOptions two_paths(std::uint16_t port, TestRecovery& recovery) {
  ClientOptions options = patient(port, recovery);
  PathAddress second = options.paths[0];
  second.source = second.host;
  options.paths.push_back(second);
  options.features = wire::kFeatureExactlyOnce;
  options.policy = PathPolicy::round_robin;
  return options;
}

inline void wait_for_paths(Client& client) {
  for (;;) {
    const auto paths = client.paths();
    if (std::ranges::all_of(paths, [](const PathStatus& path) { return path.in_use; })) return;
    std::this_thread::yield();
  }
}

}  // namespace rtrs::test
