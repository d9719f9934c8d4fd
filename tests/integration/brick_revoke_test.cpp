// SPDX-License-Identifier: BSD-3-Clause
// Keys are taken from a client that writes as fast as it can: when the server says that this has
// happened, not one byte of it lands any more. brick.sh runs it over TCP, the lab over RDMA.
//
// RNBD_BRICK is the server's path ("rdma:10.99.0.1:1234"). The server has the bricks "disk0", of
// memory, and "tiered", of one block in memory and two in its tier. RNBD_TRIALS: of each kind.
#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/client/brick/remote_brick.hpp"
#include "bridge/client/uri.hpp"

namespace rnbd::brick_revoke_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kBlock = wire::kBrickBlock;
constexpr std::size_t kPiece = 64 * 1024;
constexpr std::uint32_t kBoth = wire::kMapRead | wire::kMapWrite;
const Interrupt kNever{};

rtrs::PathAddress address() {
  const char* const text = std::getenv("RNBD_BRICK");
  REQUIRE_MESSAGE(text != nullptr, "RNBD_BRICK is not set");
  const auto path = parse_path(text, rtrs::TransportKind::tcp);
  REQUIRE(path.has_value());
  return *path;
}

unsigned trials() {
  const char* const text = std::getenv("RNBD_TRIALS");
  return text != nullptr && *text != '\0' ? static_cast<unsigned>(std::stoul(text)) : 5;
}

std::vector<std::byte> filled(std::size_t size, unsigned value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

/// A session with a brick. Its device may belong to another client for a moment.
struct Client {
  explicit Client(const char* device = "disk0") {
    static std::atomic<int> counter{0};
    rtrs::ClientOptions options;
    options.session_name = "revoke-" + std::to_string(getpid()) + "-" + std::to_string(++counter);
    options.paths = {address()};
    options.lanes = 2;
    options.connect_timeout = 60s;
    options.features =
        rtrs::wire::kFeatureExactlyOnce | rtrs::wire::kFeatureUserMessages | kBrickFeatures;
    auto made = Session::connect(options, kNever);
    REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text));
    session = *std::move(made);
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    for (;;) {
      auto opened = RemoteBrick::open(*session, device, {}, address(), kNever);
      if (opened) {
        brick = *std::move(opened);
        return;
      }
      const bool in_use = opened.error().error == EPERM || opened.error().error == EAGAIN;
      REQUIRE_MESSAGE((in_use && std::chrono::steady_clock::now() < deadline), opened.error().text);
      std::this_thread::sleep_for(20ms);
    }
  }
  /// It may be there from an earlier case, and so may all others.
  void allocate(std::uint64_t block) const {
    const int error = brick->alloc(block * kBlock, 1, true, kNever);
    REQUIRE_MESSAGE((error == 0 || error == EEXIST || error == ENOSPC), error);
  }
  /// Block 0 is allocated and mapped.
  MappedBlock map() {
    allocate(0);
    auto blocks = brick->map(0, 1, kBoth, kNever);
    for (int i = 0; i < 500 && !blocks && blocks.error() == EAGAIN; ++i) {
      std::this_thread::sleep_for(10ms);
      blocks = brick->map(0, 1, kBoth, kNever);
    }
    REQUIRE_MESSAGE(blocks.has_value(), (blocks ? 0 : blocks.error()));
    return blocks->front();
  }
  /// A machine that is busy may need more than one attempt.
  void recover() const {
    const auto deadline = std::chrono::steady_clock::now() + 120s;
    auto recovered = brick->recover(kNever);
    while (!recovered && std::chrono::steady_clock::now() < deadline)
      recovered = brick->recover(kNever);
    REQUIRE_MESSAGE(recovered.has_value(), (recovered ? "" : recovered.error().text));
  }
  void write(std::uint64_t block, const std::vector<std::byte>& data) const {
    REQUIRE(brick->device().write(block * kBlock, data, false, kNever) == 0);
  }
  std::vector<std::byte> read(std::uint64_t block) const {
    std::vector<std::byte> data(kBlock);
    REQUIRE(brick->device().read(block * kBlock, data, kNever) == 0);
    return data;
  }

  std::shared_ptr<Session> session;
  std::unique_ptr<RemoteBrick> brick;
};

/// Writes all over a block, with bytes that nobody else writes, until it may not any more.
class Flood {
 public:
  explicit Flood(MappedBlock block) : block_{std::move(block)} {
    for (unsigned i = 0; i < threads_.size(); ++i) threads_[i] = std::thread{[this, i] { run(i); }};
    while (written_ < 2 * threads_.size()) std::this_thread::sleep_for(1ms);
  }
  ~Flood() { end(); }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  /// Waits until the last write has failed.
  void end() {
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

 private:
  void run(unsigned number) {
    std::array<std::vector<std::byte>, 2> data{filled(kPiece, 128 + number),
                                               filled(kPiece, 160 + number)};
    for (unsigned i = 0;; ++i) {
      const std::uint64_t offset = (number + i) * kPiece % kBlock;
      if (RemoteBrick::write(block_, offset, data[i % 2], kNever) != 0) return;
      ++written_;
    }
  }

  const MappedBlock block_;
  std::atomic<unsigned> written_{0};
  std::array<std::thread, 2> threads_;
};

/// A read now brings the same bytes as one after the end of the flood.
void check_stays(const Client& reader, std::uint64_t block, const std::vector<std::byte>& now,
                 const std::function<void()>& end_flood) {
  end_flood();
  for (int i = 0; i < 3; ++i) {
    const auto later = reader.read(block);
    std::size_t changed = 0;
    for (std::size_t at = 0; at < kBlock; ++at) changed += later[at] != now[at];
    REQUIRE_MESSAGE(changed == 0, changed, " bytes landed after the end of the key");
    std::this_thread::sleep_for(2ms);
  }
}

TEST_CASE("revoke: unmapped under load") {
  Client client;
  for (unsigned trial = 0; trial < trials(); ++trial) {
    const auto block = client.map();
    Flood flood{block};
    REQUIRE(client.brick->unmap(block, false, kNever) == 0);
    check_stays(client, 0, client.read(0), [&] { flood.end(); });
    client.recover();
  }
}

TEST_CASE("revoke: the memory path is revoked under load") {
  Client client;
  for (unsigned trial = 0; trial < trials(); ++trial) {
    Flood flood{client.map()};
    REQUIRE(client.brick->revoke(kNever).has_value());
    check_stays(client, 0, client.read(0), [&] { flood.end(); });
    client.recover();
  }
}

/// The memory becomes another block's.
TEST_CASE("revoke: recalled under load, and given back") {
  Client client{"tiered"};
  client.allocate(1);
  for (unsigned trial = 0; trial < trials(); ++trial) {
    const auto block = client.map();
    std::atomic<bool> recalled{false};
    client.brick->on_recall([&] {
      recalled = true;
      recalled.notify_all();
    });
    Flood flood{block};
    std::thread giver{[&] {
      recalled.wait(false);
      CHECK(client.brick->unmap(block, false, kNever) == 0);
    }};
    const auto mine = filled(kBlock, trial % 100);
    client.write(1, mine);
    giver.join();
    client.brick->on_recall(nullptr);
    check_stays(client, 1, mine, [&] { flood.end(); });
    client.recover();
  }
}

TEST_CASE("revoke: recalled under load, and kept until the lease ends") {
  Client client{"tiered"};
  client.allocate(1);
  const unsigned all = std::max(trials() / 20, 1U);  // each takes two seconds
  for (unsigned trial = 0; trial < all; ++trial) {
    Flood flood{client.map()};
    const auto mine = filled(kBlock, trial % 100);
    client.write(1, mine);
    check_stays(client, 1, mine, [&] { flood.end(); });
    client.recover();
  }
}

/// Its ordinary paths are gone, so another client becomes the writer. The memory path lives on, as
/// far as its client knows.
TEST_CASE("revoke: another client becomes the writer under load") {
  for (unsigned trial = 0; trial < trials(); ++trial) {
    Client old;
    Flood flood{old.map()};
    REQUIRE(old.session->client().disconnect(address()).has_value());
    const Client fresh;
    const auto mine = filled(kBlock, trial % 100);
    fresh.write(0, mine);
    check_stays(fresh, 0, mine, [&] { flood.end(); });
  }
}

TEST_CASE("revoke: closed under load") {
  for (unsigned trial = 0; trial < trials(); ++trial) {
    Client old;
    Flood flood{old.map()};
    old.brick.reset();
    const Client fresh;
    const auto mine = filled(kBlock, trial % 100);
    fresh.write(0, mine);
    check_stays(fresh, 0, mine, [&] { flood.end(); });
  }
}

/// Another process, which floods until it is killed.
class Victim {
 public:
  Victim() {
    std::array<int, 2> ends{};
    REQUIRE(pipe(ends.data()) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    std::string self = "/proc/self/exe", skip = "--no-skip", test = "-tc=helper: a flood";
    char* arguments[] = {self.data(), skip.data(), test.data(), nullptr};
    const int error = posix_spawn(&pid_, self.c_str(), &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    REQUIRE(error == 0);
    char ready = 0;
    REQUIRE(::read(ends[0], &ready, 1) == 1);
    close(ends[0]);
  }
  ~Victim() { kill(); }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;
  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

TEST_CASE("helper: a flood" * doctest::skip()) {
  Client client;
  Flood flood{client.map()};
  REQUIRE(::write(STDERR_FILENO, "x", 1) == 1);
  flood.end();
}

TEST_CASE("revoke: the client is killed under load") {
  const unsigned all = std::max(trials() / 10, 1U);  // the server takes seconds to notice
  for (unsigned trial = 0; trial < all; ++trial) {
    Victim victim;
    victim.kill();
    const Client fresh;
    const auto mine = filled(kBlock, trial % 100);
    fresh.write(0, mine);
    check_stays(fresh, 0, mine, [] {});
  }
}

}  // namespace
}  // namespace rnbd::brick_revoke_test
