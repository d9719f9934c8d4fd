// SPDX-License-Identifier: BSD-3-Clause
// Clients that are closed, never made, or lose a thread while others use them.
#include <doctest/doctest.h>
#include <poll.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/library/bench.hpp"

namespace rtrs::library::closing_test {
namespace {

/// A server that leaves every request unanswered until release().
class Holding {
 public:
  TestServer server{[this](const rtrs_incoming& incoming) { hold(incoming); }};

  ~Holding() { release(); }
  void release() {
    const std::lock_guard lock{mutex_};
    for (rtrs_request* request : std::exchange(held_, {})) rtrs_finish(request, 0, nullptr, 0);
    holds_ = false;
  }
  /// Waits until there are so many.
  void await(std::size_t count) {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return held_.size() >= count; });
  }

 private:
  void hold(const rtrs_incoming& incoming) {
    const std::lock_guard lock{mutex_};
    if (!holds_) return rtrs_finish(incoming.request, 0, nullptr, 0);
    held_.push_back(incoming.request);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool holds_ = true;
  std::vector<rtrs_request*> held_;
};

/// Why there is no descriptor; 0: there is one.
int error_of_descriptor(rtrs_client* client) { return rtrs_fd(client) == -1 ? errno : 0; }

TEST_CASE("calls of other threads end when their client is closed, and then it is gone") {
  Holding holding;
  auto client = std::make_optional<TestClient>(holding.server);
  std::string large(1 << 20, 'x');
  void* answer = nullptr;
  std::vector<std::future<int>> calls;
  const auto begin = [&](std::function<int()> call) {
    calls.push_back(std::async(std::launch::async, std::move(call)));
    holding.await(calls.size());
  };
  rtrs_client* const handle = client->client;
  begin([&] { return client->call("one"); });
  begin([&] { return client->call("control", {}, nullptr, RTRS_CONTROL); });
  begin([&] { return client->call("large", large); });
  begin([&] {
    return rtrs_ask(handle, "ask", 3, nullptr, 0, 1 << 20, &answer, nullptr, RTRS_REPEATABLE);
  });
  SUBCASE("at once") {}
  SUBCASE("after it was shut down") {
    rtrs_shutdown(handle);
    CHECK(client->call("another") == ECANCELED);
    CHECK(error_of_descriptor(handle) == ECANCELED);
  }
  client.reset();
  for (auto& call : calls) CHECK(call.get() == ECANCELED);
  CHECK(answer == nullptr);
}

TEST_CASE("a thread that waits for a permit ends when its client is closed") {
  Holding holding;
  auto client = std::make_optional<TestClient>(holding.server);
  rtrs_limits limits{};
  limits.size = sizeof(limits);
  rtrs_client_limits(client->client, &limits);
  std::vector<rtrs_operation> operations(limits.queue_depth + 1);
  std::size_t taken = 0;
  for (; taken < operations.size(); ++taken) {
    operations[taken].size = sizeof(rtrs_operation);
    operations[taken].flags = RTRS_NOWAIT;
    if (rtrs_submit(client->client, &operations[taken]) != 0) break;
  }
  REQUIRE(taken == limits.queue_depth);
  operations[taken].flags = 0;
  std::promise<void> begun;
  auto submitting = std::async(std::launch::async, [&] {
    begun.set_value();
    return rtrs_submit(client->client, &operations[taken]);
  });
  begun.get_future().wait();
  rtrs_shutdown(client->client);
  CHECK(submitting.get() == ECANCELED);
  client.reset();
}

/// Waits for the end of an operation as the tutorial does. Null: the client was shut down, and none
/// is left.
rtrs_operation* await_end(rtrs_client* client) {
  rtrs_operation* ended = nullptr;
  pollfd wait{rtrs_fd(client), POLLIN, 0};
  while (true) {
    const int count = rtrs_next(client, &ended, 1);
    if (count == 1) return ended;
    if (count != 0) {
      CHECK(errno == ECANCELED);
      return nullptr;
    }
    REQUIRE(poll(&wait, 1, 10'000) == 1);
  }
}

TEST_CASE("a thread that polls for ends gets all of them when its client is shut down") {
  std::vector<rtrs_operation> operations(4);
  operations[1].flags = RTRS_CONTROL;
  operations[2].most = 4096;
  std::promise<int> told;
  Holding holding;
  TestClient client{holding.server};
  operations[3].context = &told;
  operations[3].done = [](rtrs_operation* operation) {
    static_cast<std::promise<int>*>(operation->context)->set_value(operation->error);
  };
  for (rtrs_operation& operation : operations) {
    operation.size = sizeof(operation);
    operation.error = -1;
    REQUIRE(rtrs_submit(client.client, &operation) == 0);
  }
  holding.await(operations.size());
  auto polling = std::async(std::launch::async, [&] {
    std::vector<int> errors;
    while (const rtrs_operation* ended = await_end(client.client)) errors.push_back(ended->error);
    return errors;
  });
  rtrs_shutdown(client.client);
  CHECK(polling.get() == std::vector<int>(3, ECANCELED));
  auto end = told.get_future();
  REQUIRE(end.wait_for(std::chrono::seconds{10}) == std::future_status::ready);
  CHECK(end.get() == ECANCELED);
  CHECK(rtrs_cancel(client.client, operations.data()) == ENOENT);
  CHECK(await_end(client.client) == nullptr);  // and so it stays
}

TEST_CASE("a thread that polls for ends learns of the shutdown when nothing is under way") {
  TestServer server{echo};
  TestClient client{server};
  SUBCASE("it polls already") {
    std::promise<void> begun;
    auto polling = std::async(std::launch::async, [&] {
      pollfd wait{rtrs_fd(client.client), POLLIN, 0};
      begun.set_value();
      CHECK(poll(&wait, 1, 10'000) == 1);
      return await_end(client.client) == nullptr;
    });
    begun.get_future().wait();
    rtrs_shutdown(client.client);
    CHECK(polling.get());
  }
  SUBCASE("it has submitted nothing, and asks then") {
    rtrs_shutdown(client.client);
    rtrs_operation* ended = nullptr;
    CHECK(rtrs_next(client.client, &ended, 1) == -1);
    CHECK(errno == ECANCELED);
  }
}

TEST_CASE("memory can be unregistered when its client is shut down") {
  TestServer server{echo};
  TestClient client{server};
  std::string memory(4096, '?');
  REQUIRE(rtrs_register_memory(client.client, memory.data(), memory.size(), nullptr) == 0);
  rtrs_shutdown(client.client);
  CHECK(rtrs_unregister_memory(client.client, memory.data(), memory.size()) == 0);
  CHECK(rtrs_unregister_memory(client.client, memory.data(), memory.size()) == ENOENT);
  CHECK(rtrs_register_memory(client.client, memory.data(), memory.size(), nullptr) == ECANCELED);
}

TEST_CASE("a client, server or brick that is none is an error") {
  rtrs_error error{};
  void* answer = &answer;
  rtrs_operation operation{};
  operation.size = sizeof(operation);
  rtrs_operation* ended = nullptr;
  char memory[64];
  CHECK(rtrs_call(nullptr, "m", 1, nullptr, 0, nullptr, 0, nullptr, 0) == EINVAL);
  CHECK(rtrs_ask(nullptr, "m", 1, nullptr, 0, 9, &answer, nullptr, 0) == EINVAL);
  CHECK(answer == nullptr);
  CHECK(rtrs_submit(nullptr, &operation) == EINVAL);
  CHECK(rtrs_cancel(nullptr, &operation) == EINVAL);
  CHECK(error_of_descriptor(nullptr) == EINVAL);
  CHECK(rtrs_next(nullptr, &ended, 1) == 0);
  CHECK(rtrs_register_memory(nullptr, memory, sizeof(memory), &error) == EINVAL);
  CHECK(error.code == EINVAL);
  CHECK(rtrs_unregister_memory(nullptr, memory, sizeof(memory)) == EINVAL);
  CHECK(rtrs_client_alive(nullptr) == 0);
  CHECK(rtrs_client_paths(nullptr, nullptr, 0) == 0);
  CHECK(rtrs_add_path(nullptr, "127.0.0.2", nullptr) == EINVAL);
  CHECK(rtrs_remove_path(nullptr, "127.0.0.2", nullptr) == EINVAL);
  CHECK(rtrs_set_policy(nullptr, "round-robin") == EINVAL);
  rtrs_limits limits{.size = sizeof(limits), .queue_depth = 7, .max_io_size = 7};
  rtrs_client_limits(nullptr, &limits);
  CHECK(limits.queue_depth == 0);
  rtrs_shutdown(nullptr);
  rtrs_disconnect(nullptr);
  CHECK(rtrs_server_port(nullptr) == 0);
  CHECK(rtrs_server_address(nullptr, 0, memory, sizeof(memory)) == EINVAL);
  CHECK(rtrs_server_close(nullptr, 0) == 0);
  rtrs_finish(nullptr, 0, nullptr, 0);
  CHECK(rtrs_take_data(nullptr) == nullptr);
}

/// Cancels the thread once the server has its request, which it leaves unanswered until then.
void cancel_inside(Holding& holding, std::function<void()> work) {
  pthread_t thread;
  REQUIRE(pthread_create(
              &thread, nullptr,
              [](void* todo) -> void* {
                (*static_cast<std::function<void()>*>(todo))();
                pthread_testcancel();
                return nullptr;
              },
              &work) == 0);
  holding.await(1);
  CHECK(pthread_cancel(thread) == 0);
  holding.release();
  void* result = nullptr;
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED);
}

TEST_CASE("a thread that is cancelled in a call ends behind it, and harms no other") {
  Holding holding;
  TestClient client{holding.server};
  int ended = -1;
  cancel_inside(holding, [&] { ended = client.call("cancelled"); });
  CHECK(ended == 0);
  for (int i = 0; i < 200; ++i) CHECK(client.call("after it") == 0);
}

}  // namespace
}  // namespace rtrs::library::closing_test
