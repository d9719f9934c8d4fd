// SPDX-License-Identifier: BSD-3-Clause
// Keys are taken from a client that writes as fast as it can: when the server says that this has
// happened, not one byte of it lands any more. brick.sh runs it over TCP, the lab over RDMA.
//
// RNBD_BRICK is the server's path ("rdma:10.99.0.1:1234"). For each worker the server has a brick
// "disk0" ... of memory, and "tiered0" ... of one block in memory and two in its tier. RNBD_TRIALS:
// of each kind. Workers make trials beside each other, because a peer may take seconds to notice an
// end.
#include <doctest/doctest.h>
#include <fcntl.h>
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
#include <iostream>
#include <optional>
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
/// Bytes at the beginning of a block that are written and read, which nothing else is.
constexpr std::size_t kFlooded = 4 * kPiece;
constexpr unsigned kWorkers = 8;
constexpr auto kHeartbeat = 5s;
constexpr auto kPatience = 120s;
constexpr std::uint32_t kBoth = wire::kMapRead | wire::kMapWrite;
const Interrupt kNever{};
/// A reader of the log sees how far it is.
[[maybe_unused]] const auto& kUnbuffered = std::cout << std::unitbuf;

rtrs::PathAddress address() {
  const char* const text = std::getenv("RNBD_BRICK");
  REQUIRE_MESSAGE(text != nullptr, "RNBD_BRICK is not set");
  const auto path = parse_path(text, rtrs::TransportKind::tcp);
  REQUIRE(path.has_value());
  return *path;
}

unsigned trials() {
  const char* const text = std::getenv("RNBD_TRIALS");
  return text != nullptr && *text != '\0' ? static_cast<unsigned>(std::stoul(text)) : 50;
}

/// The trials that are left to a case, for all its workers.
class Trials {
 public:
  explicit Trials(unsigned all) : left_{static_cast<int>(all)} {}
  /// The number of the next one.
  std::optional<unsigned> next() {
    int left = left_;
    while (left > 0 && !left_.compare_exchange_weak(left, left - 1)) continue;
    if (failed_ || left <= 0) return std::nullopt;
    return begun_++;
  }
  /// One did not count: its path was lost by itself, as on a machine that stands still now and
  /// then.
  void repeat() {
    ++repeats_;
    ++left_;
  }
  unsigned done() const { return begun_ - repeats_; }
  unsigned repeats() const { return repeats_; }
  void fail() { failed_ = true; }
  bool failed() const { return failed_; }

 private:
  std::atomic<int> left_;
  std::atomic<unsigned> begun_{0};
  std::atomic<unsigned> repeats_{0};
  std::atomic<bool> failed_{false};
};

/// `work` makes trials, with the device of this number to itself, until none are left.
void make(unsigned all, const std::function<void(unsigned number, Trials& trials)>& work) {
  Trials trials{all};
  std::vector<std::thread> workers;
  for (unsigned number = 0; number < std::min(kWorkers, all); ++number) {
    workers.emplace_back([&, number] {
      try {
        work(number, trials);
      } catch (...) {  // of REQUIRE, which has said why
        trials.fail();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  REQUIRE_FALSE(trials.failed());
  CHECK(trials.done() == all);
  CHECK(trials.repeats() <= all / 4 + 5);
}

std::string disk(unsigned number) { return "disk" + std::to_string(number); }

std::vector<std::byte> filled(std::size_t size, unsigned value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

rtrs::ClientOptions options() {
  static std::atomic<int> counter{0};
  rtrs::ClientOptions options;
  options.session_name = "revoke-" + std::to_string(getpid()) + "-" + std::to_string(++counter);
  options.paths = {address()};
  options.connect_timeout = kPatience;
  options.heartbeat_interval = kHeartbeat;
  options.features =
      rtrs::wire::kFeatureExactlyOnce | rtrs::wire::kFeatureUserMessages | kBrickFeatures;
  return options;
}

/// Calls `open` until it brings something; the client before may still have it.
template <class Open>
auto patiently(const Open& open) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  auto made = open();
  while (!made && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(20ms);
    made = open();
  }
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().text));
  return *std::move(made);
}

/// The device, for reading and writing, of a session that is made when there is none.
std::shared_ptr<RemoteDevice> writer(std::shared_ptr<Session>& session, const std::string& device) {
  if (session == nullptr) {
    const auto how = options();
    session = patiently([&] { return Session::connect(how, kNever); });
  }
  return patiently([&] { return session->open(device, {}, kNever); });
}

std::vector<std::byte> read(RemoteDevice& device, std::uint64_t block) {
  std::vector<std::byte> data(kFlooded);
  REQUIRE(device.read(block * kBlock, data, kNever) == 0);
  return data;
}

/// A session with a brick. Its device may belong to another client for a moment.
struct Client {
  explicit Client(const std::string& device) {
    const auto how = options();
    session = patiently([&] { return Session::connect(how, kNever); });
    brick = patiently([&] { return RemoteBrick::open(*session, device, {}, address(), kNever); });
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
    for (int i = 0; i < 500 && !blocks; ++i) {
      if (blocks.error() != EAGAIN) recover();  // its path was lost
      std::this_thread::sleep_for(10ms);
      blocks = brick->map(0, 1, kBoth, kNever);
    }
    REQUIRE_MESSAGE(blocks.has_value(), (blocks ? 0 : blocks.error()));
    return blocks->front();
  }
  /// A machine that is busy may need more than one attempt.
  void recover() const {
    patiently([&] {
      auto recovered = brick->recover(kNever);
      using Result = tl::expected<bool, rtrs::Failure>;
      return recovered ? Result{true} : Result{tl::unexpected(recovered.error())};
    });
  }
  void write(std::uint64_t block, const std::vector<std::byte>& data) const {
    REQUIRE(brick->device().write(block * kBlock, data, false, kNever) == 0);
  }
  std::vector<std::byte> read(std::uint64_t block) const {
    return brick_revoke_test::read(brick->device(), block);
  }
  RemoteDevice& device() const { return brick->device(); }

  std::shared_ptr<Session> session;
  std::unique_ptr<RemoteBrick> brick;
};

/// Writes all over the beginning of a block, with bytes that nobody else writes, until it may not
/// any more.
class Flood {
 public:
  explicit Flood(MappedBlock block) : block_{std::move(block)} {
    for (unsigned i = 0; i < threads_.size(); ++i) threads_[i] = std::thread{[this, i] { run(i); }};
    while (written_ < 2 * threads_.size() && ended_ == 0) std::this_thread::sleep_for(1ms);
  }
  ~Flood() {
    stopped_ = true;
    end();
  }
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
      const std::uint64_t offset = (number + i) * kPiece % kFlooded;
      if (stopped_ || RemoteBrick::write(block_, offset, data[i % 2], kNever) != 0) break;
      ++written_;
    }
    ++ended_;
  }

  const MappedBlock block_;
  std::atomic<unsigned> written_{0};
  std::atomic<unsigned> ended_{0};
  std::atomic<bool> stopped_{false};
  std::array<std::thread, 2> threads_;
};

/// A read now brings the same bytes as later ones, also behind the end of the flood.
void check_stays(RemoteDevice& reader, std::uint64_t block, const std::vector<std::byte>& now,
                 const std::function<void()>& end_flood) {
  for (int i = 0; i < 3; ++i) {
    if (i == 1) end_flood();
    const auto later = read(reader, block);
    if (std::memcmp(later.data(), now.data(), kFlooded) != 0) {
      std::size_t changed = 0;
      for (std::size_t at = 0; at < kFlooded; ++at) changed += later[at] != now[at];
      FAIL(changed, " bytes landed after the end of the key");
    }
    std::this_thread::sleep_for(2ms);
  }
}

TEST_CASE("revoke: unmapped under load") {
  make(trials(), [](unsigned number, Trials& trials) {
    Client client{disk(number)};
    while (trials.next()) {
      const auto block = client.map();
      Flood flood{block};
      if (const int error = client.brick->unmap(block, false, kNever); error == 0) {
        check_stays(client.device(), 0, client.read(0), [&] { flood.end(); });
      } else {
        REQUIRE(error == ENOENT);
        trials.repeat();
        flood.end();
      }
      client.recover();
    }
  });
}

/// The memory becomes another block's. A path that is lost by itself, as on a machine that stands
/// still now and then, ends the map as well, and is no reason for a recall.
TEST_CASE("revoke: recalled under load, and given back") {
  std::atomic<unsigned> given_back{0};
  make(trials(), [&](unsigned number, Trials& trials) {
    Client client{"tiered" + std::to_string(number)};
    client.allocate(1);
    while (const auto trial = trials.next()) {
      const auto block = client.map();
      enum class Word { none, recall, too_late };
      std::atomic<Word> word{Word::none};
      const auto say = [&](Word what) {
        Word none = Word::none;
        word.compare_exchange_strong(none, what);
        word.notify_all();
      };
      client.brick->on_recall([&] { say(Word::recall); });
      Flood flood{block};
      std::thread giver{[&] {
        word.wait(Word::none);
        const bool asked = word == Word::recall;
        if (asked && client.brick->unmap(block, false, kNever) == 0) ++given_back;
      }};
      const auto mine = filled(kFlooded, *trial % 100);
      const int error = client.brick->device().write(kBlock, mine, false, kNever);
      say(Word::too_late);
      giver.join();
      client.brick->on_recall(nullptr);
      REQUIRE(error == 0);
      check_stays(client.device(), 1, mine, [&] { flood.end(); });
      client.recover();
    }
  });
  CHECK(2 * given_back > trials());
}

/// Its ordinary paths are gone, so another client becomes the writer. The memory path lives on, as
/// far as its client knows.
TEST_CASE("revoke: another client becomes the writer under load") {
  make(trials(), [](unsigned number, Trials& trials) {
    auto old = std::make_unique<Client>(disk(number));
    while (const auto trial = trials.next()) {
      Flood flood{old->map()};
      REQUIRE(old->session->client().disconnect(address()).has_value());
      auto fresh = std::make_unique<Client>(disk(number));
      const auto mine = filled(kFlooded, *trial % 100);
      fresh->write(0, mine);
      check_stays(fresh->device(), 0, mine, [&] { flood.end(); });
      old = std::move(fresh);
    }
  });
}

/// Another process, which floods until it is killed.
class Victim {
 public:
  explicit Victim(const std::string& device) {
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    std::string self = "/proc/self/exe", skip = "--no-skip", test = "-tc=helper: a flood";
    std::string brief = "--minimal";
    char* arguments[] = {self.data(), skip.data(), test.data(), brief.data(), nullptr};
    std::string which = "RNBD_FLOODED=" + device;
    std::vector<char*> variables{which.data()};
    for (char** one = environ; *one != nullptr; ++one) variables.push_back(*one);
    variables.push_back(nullptr);
    const int error =
        posix_spawn(&pid_, self.c_str(), &actions, nullptr, arguments, variables.data());
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
  const char* const device = std::getenv("RNBD_FLOODED");
  REQUIRE(device != nullptr);
  Client client{device};
  Flood flood{client.map()};
  REQUIRE(::write(STDERR_FILENO, "x", 1) == 1);
  flood.end();
}

/// Another client, which writes without keys as soon as it is let in.
TEST_CASE("revoke: the client is killed under load") {
  make(trials(), [](unsigned number, Trials& trials) {
    std::shared_ptr<Session> session;
    while (const auto trial = trials.next()) {
      Victim victim{disk(number)};
      victim.kill();
      const auto fresh = writer(session, disk(number));
      const auto mine = filled(kFlooded, *trial % 100);
      REQUIRE(fresh->write(0, mine, false, kNever) == 0);
      check_stays(*fresh, 0, mine, [] {});
    }
  });
}

TEST_CASE("revoke: the memory path is revoked under load") {
  make(trials(), [](unsigned number, Trials& trials) {
    Client client{disk(number)};
    while (trials.next()) {
      Flood flood{client.map()};
      REQUIRE(client.brick->revoke(kNever).has_value());
      check_stays(client.device(), 0, client.read(0), [&] { flood.end(); });
      client.recover();
    }
  });
}

TEST_CASE("revoke: closed under load") {
  make(trials(), [](unsigned number, Trials& trials) {
    auto old = std::make_unique<Client>(disk(number));
    while (const auto trial = trials.next()) {
      Flood flood{old->map()};
      old->brick.reset();
      auto fresh = std::make_unique<Client>(disk(number));
      const auto mine = filled(kFlooded, *trial % 100);
      fresh->write(0, mine);
      check_stays(fresh->device(), 0, mine, [&] { flood.end(); });
      old = std::move(fresh);
    }
  });
}

TEST_CASE("revoke: recalled under load, and kept until the lease ends") {
  const unsigned all = std::max(trials() / 20, 1U);  // each takes two seconds
  make(all, [](unsigned number, Trials& trials) {
    Client client{"tiered" + std::to_string(number)};
    client.allocate(1);
    while (const auto trial = trials.next()) {
      Flood flood{client.map()};
      const auto mine = filled(kFlooded, *trial % 100);
      client.write(1, mine);
      check_stays(client.device(), 1, mine, [&] { flood.end(); });
      client.recover();
    }
  });
}

}  // namespace
}  // namespace rnbd::brick_revoke_test
