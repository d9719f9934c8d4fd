// SPDX-License-Identifier: BSD-3-Clause
// Sending and waiting in one system call.
#include "rdma/one_call.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace rtrs {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLong = 60s;

struct Pair {
  Pair() { REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0); }
  ~Pair() {
    close(sockets[0]);
    hang_up();
  }
  void hang_up() {
    if (sockets[1] >= 0) close(sockets[1]);
    sockets[1] = -1;
  }
  OneCall::Result exchange(const std::string& text, Duration limit) {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    return call->exchange(sockets[0], std::span{&piece, text.empty() ? 0U : 1U}, memory, limit);
  }
  std::string heard() {
    std::array<char, 64> text;
    const ssize_t n = recv(sockets[1], text.data(), text.size(), MSG_DONTWAIT);
    return n > 0 ? std::string{text.data(), static_cast<std::size_t>(n)} : "";
  }
  void say(const std::string& text) const {
    REQUIRE(send(sockets[1], text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
  }

  std::array<int, 2> sockets{};
  std::array<std::byte, 64> memory{};
  std::unique_ptr<OneCall> call = make_uring_call();
};

/// False: this kernel has none, and nothing is to be tested.
bool has_calls() {
  const bool has = make_uring_call() != nullptr;
  if (!has) MESSAGE("no io_uring here, or none of Linux 6.1");
  return has;
}

TEST_CASE("one call: what is sent leaves, and what is there comes") {
  if (!has_calls()) return;
  Pair pair;
  pair.say("answer");
  const auto [sent, received] = pair.exchange("request", kLong);
  CHECK(sent == 7);
  CHECK(received == 6);
  CHECK(std::memcmp(pair.memory.data(), "answer", 6) == 0);
  CHECK(pair.heard() == "request");
}

TEST_CASE("one call: it waits for an answer to what it has sent") {
  if (!has_calls()) return;
  Pair pair;
  std::thread other{[&] {
    char text = 0;
    CHECK(recv(pair.sockets[1], &text, 1, 0) == 1);
    pair.say("late");
  }};
  const auto [sent, received] = pair.exchange("?", kLong);
  other.join();
  CHECK(sent == 1);
  CHECK(received == 4);
}

TEST_CASE("one call: nothing comes in time, and what comes then is left for later") {
  if (!has_calls()) return;
  Pair pair;
  for (int i = 0; i < 3; ++i) {
    const auto [sent, received] = pair.exchange("ask", 1ms);
    CHECK(sent == 3);
    CHECK(received == -EAGAIN);
    CHECK(pair.heard() == "ask");
    const auto before = pair.memory;
    pair.say("late");
    CHECK(pair.memory == before);  // nobody receives any more
    std::array<char, 8> text;
    CHECK(recv(pair.sockets[0], text.data(), text.size(), MSG_DONTWAIT) == 4);
  }
}

TEST_CASE("one call: answers that come when its time is over are not lost") {
  if (!has_calls()) return;
  Pair pair;
  constexpr int kRounds = 2000;
  std::thread other{[&] {
    for (int i = 0; i < kRounds; ++i) {
      char text = 0;
      if (recv(pair.sockets[1], &text, 1, 0) != 1) return;
      std::this_thread::sleep_for(std::chrono::microseconds{i % 200});
      pair.say("x");
    }
  }};
  for (int i = 0; i < kRounds; ++i) {
    auto [sent, received] = pair.exchange("?", 100us);
    CHECK(sent == 1);
    if (received == -EAGAIN) {
      std::array<char, 8> text;
      received = recv(pair.sockets[0], text.data(), text.size(), 0);
    }
    CHECK(received == 1);
  }
  other.join();
}

TEST_CASE("one call: the end of the peer, and a full socket") {
  if (!has_calls()) return;
  Pair pair;
  while (send(pair.sockets[0], "0123456789", 10, MSG_DONTWAIT) > 0) {
  }
  const auto full = pair.exchange("more", 1ms);
  CHECK(full.sent == -EAGAIN);
  CHECK(full.received == -EAGAIN);
  pair.hang_up();
  const auto gone = pair.exchange("more", kLong);
  CHECK(gone.sent == -EPIPE);
  CHECK((gone.received == 0 || gone.received == -ECONNRESET));
}

}  // namespace
}  // namespace rtrs
