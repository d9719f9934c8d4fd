// SPDX-License-Identifier: BSD-3-Clause
// Children of a process that has clients and servers.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rdma/library/birthplace.hpp"
#include "rdma/library/large_memory.hpp"
#include "tests/unit/library/bench.hpp"
#include "tests/unit/library/sanitizer.hpp"

namespace rtrs::library::fork_test {
namespace {

/// True if a child finds this to be true. One that hangs does not.
bool in_child(const std::function<bool()>& question) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(question() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST_CASE("a child of fork() is told what to do by every function of the client") {
  std::atomic<unsigned> asked{0};
  TestServer server{[&](const rtrs_incoming& incoming) {
    ++asked;
    rtrs_finish(incoming.request, 0, nullptr, 0);
  }};
  TestClient client{server};
  CHECK(client.call("m") == 0);
  CHECK(in_child([&] {
    rtrs_client* const mine = client.client;
    void* answer = &answer;
    rtrs_error error{};
    rtrs_operation operation{};
    operation.size = sizeof(operation);
    rtrs_operation* ended = nullptr;
    char memory[64];
    errno = 0;
    const bool refused =
        client.call("m") == RTRS_FORKED &&
        client.call("m", {}, nullptr, RTRS_CONTROL) == RTRS_FORKED &&
        rtrs_ask(mine, "m", 1, nullptr, 0, 9, &answer, nullptr, 0) == RTRS_FORKED &&
        answer == nullptr && rtrs_submit(mine, &operation) == RTRS_FORKED &&
        rtrs_cancel(mine, &operation) == RTRS_FORKED &&
        rtrs_register_memory(mine, memory, sizeof(memory), &error) == RTRS_FORKED &&
        rtrs_unregister_memory(mine, memory, sizeof(memory)) == RTRS_FORKED &&
        rtrs_set_policy(mine, "round-robin") == RTRS_FORKED && rtrs_fd(mine) == -1 &&
        errno == RTRS_FORKED && rtrs_next(mine, &ended, 1) == 0 && rtrs_client_alive(mine) == 0 &&
        rtrs_client_paths(mine, nullptr, 0) == 0;
    const bool told = rtrs_add_path(mine, "127.0.0.2", &error) == RTRS_FORKED &&
                      std::strstr(error.text, "connect again") != nullptr &&
                      rtrs_remove_path(mine, "127.0.0.2", nullptr) == RTRS_FORKED;
    rtrs_limits limits{};
    limits.size = sizeof(limits);
    rtrs_client_limits(mine, &limits);
    return refused && told && limits.queue_depth != 0;
  }));
  CHECK(asked == 1);
  CHECK(client.call("m") == 0);
}

TEST_CASE("a child of fork() closes its parent's clients and servers, and these go on") {
  TestServer server{echo};
  TestClient client{server};
  for (int i = 0; i < 20; ++i) {
    CHECK(in_child([&] {
      rtrs_disconnect(client.client);
      return rtrs_server_port(server.server) != 0 && rtrs_server_close(server.server, 5000) == 0;
    }));
    CHECK(client.call("m") == 0);
  }
  rtrs_disconnect(std::exchange(client.client, nullptr));
  CHECK(server.close() == 0);
  CHECK(server.events == "up 1 0 down ");
}

TEST_CASE("a child of a handler answers nothing") {
  unsigned released = 0;
  TestServer server{[&](const rtrs_incoming& incoming) {
    CHECK(in_child([&] {
      rtrs_finish(incoming.request, EDOM, nullptr, 0);
      rtrs_finish_with(
          incoming.request, "c", 1, [](void* context) { ++*static_cast<unsigned*>(context); },
          &released);
      return released == 1;
    }));
    rtrs_finish(incoming.request, 0, "p", 1);
  }};
  TestClient client{server};
  for (int i = 0; i < 20; ++i) {
    std::string in(4, '?');
    CHECK(client.call("m", {}, &in) == 0);
    CHECK(in == "p");
  }
}

TEST_CASE("a child of fork() has large memory, whatever other threads do with it" *
          doctest::skip(kChildrenMayHang)) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!stop) large_free(large_allocate(kLargePage));
    });
  }
  for (int i = 0; i < 50; ++i) {
    CHECK(in_child([] {
      large_free(large_allocate(kLargePage));
      return true;
    }));
  }
  stop = true;
  for (std::thread& other : others) other.join();
}

TEST_CASE("a child of a child is another process than both") {
  const Birthplace here;
  CHECK(in_child([&] {
    const Birthplace there;
    return here.left() && !there.left() &&
           in_child([&] { return here.left() && there.left() && !Birthplace{}.left(); });
  }));
  CHECK_FALSE(here.left());
}

}  // namespace
}  // namespace rtrs::library::fork_test
