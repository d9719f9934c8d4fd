// SPDX-License-Identifier: BSD-3-Clause
// Clients that ask without reading, fall silent, or are killed.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "tests/hostile/raw_session.hpp"
#include "tests/hostile/victim.hpp"

namespace rtrs::hostile::flood_test {
namespace {

using rnbd::wire::AccessMode;
using wire::bytes_of;

TEST_CASE("a client that floods and never reads its answers is closed") {
  auto& victim = Victim::get();
  // One receive per connection: connection 0 needs it for the info response.
  RawSession session{{.receives = 1}};
  victim.forget_log();
  std::string complaint = "the client does not read its answers";
  SUBCASE("heartbeats") {
    for (int i = 0; i < 20'000 && !session.cid(0).disconnected(); ++i) {
      session.cid(0).post({.immediate = wire::kHeartbeat});
    }
  }
  SUBCASE("requests") {
    const auto bytes = joined(wire::WriteHeader{.user_length = 0});
    for (int i = 0; i < 20'000 && !session.cid(1).disconnected(); ++i) {
      session.request(static_cast<std::uint32_t>(i) % session.accepted.queue_depth, 0, bytes, 0);
    }
    // A peer that does not read its answers uses a chunk again with an old key, or before its
    // request has ended; which of the two is seen first depends on the moment.
    if (with_new_keys()) complaint.clear();
  }
  CHECK(session.is_closed());
  if (!complaint.empty()) victim.complains(complaint);
}

TEST_CASE("a flood whose answers are read is served") {
  auto& victim = Victim::get();
  RawSession session{{.receives = 128}};
  victim.forget_log();
  const auto device = session.open("small", AccessMode::read_only);
  for (int round = 0; round < 200; ++round) {
    for (std::uint32_t buffer = 0; buffer < 16; ++buffer) {
      session.start_read(bytes_of(io(device, 0, buffer, 512)), 512, buffer);
    }
    for (int i = 0; i < 16; ++i) REQUIRE(session.answer() == 0);
  }
  victim.is_content();
}

TEST_CASE("a client that falls silent is let go") {
  auto& victim = Victim::get();
  victim.forget_log();
  RawSession session{{.own_peer = true}};
  CHECK(session.is_closed());
  victim.complains("does not answer heartbeats");
}

// ---- Killed ------------------------------------------------------------------------------------

/// Not a test: makes the server start whatever it keeps from the first request for an export on.
TEST_CASE("helper: an honest client" * doctest::skip()) {
  const auto session = honest_session("first");
  std::vector<std::byte> block(4096);
  for (const std::string name : {"disk0", "doomed", "small", "slow", "crude"}) {
    auto device = session->open(name, {}, {});
    REQUIRE(device.has_value());
    CHECK((*device)->write(0, block, false, {}) == 0);
    CHECK((*device)->read(0, block, {}) == 0);
  }
}

/// Not a test: what is killed. It writes for ever, and says so when it has begun.
TEST_CASE("helper: endless writes" * doctest::skip()) {
  auto session = honest_session("doomed");
  auto device = session->open("doomed", {}, {});
  REQUIRE(device.has_value());
  const std::vector<std::byte> data(32'768, std::byte{0x77});
  for (std::uint64_t i = 0;; ++i) {
    REQUIRE((*device)->write(i % 16 * data.size(), data, false, {}) == 0);
    if (i == 20) REQUIRE(::write(3, "!", 1) == 1);
  }
}

pid_t start_writer(int ready) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ready, 3);
  std::string program = "/proc/self/exe";
  std::string only = "--test-case=helper: endless writes";
  std::string all = "--no-skip";
  std::array<char*, 4> arguments{program.data(), only.data(), all.data(), nullptr};
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

TEST_CASE("a client that is killed in the middle of its writes leaves nothing behind") {
  auto& victim = Victim::get();
  victim.forget_log();
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = start_writer(pipe[1]);
  close(pipe[1]);
  char begun = 0;
  REQUIRE(read(pipe[0], &begun, 1) == 1);
  close(pipe[0]);
  REQUIRE(kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  victim.is_content("session 'doomed' from");
  // Nobody else holds its device: it can be opened for writing.
  RawSession next;
  const auto open = rnbd::wire::encode_open("doomed", AccessMode::read_write);
  int error = EPERM;
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (error == EPERM && std::chrono::steady_clock::now() < deadline) {
    error = next.read(bytes_of(open), 56);
  }
  CHECK(error == 0);
}

}  // namespace
}  // namespace rtrs::hostile::flood_test
