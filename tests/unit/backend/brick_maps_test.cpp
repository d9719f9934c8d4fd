// SPDX-License-Identifier: BSD-3-Clause
// A brick with threads and files, and clients whose keys are pointers.
#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>

#include "bridge/backend/brick/service.hpp"
#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::brick_maps_test {
namespace {

using namespace brick;

constexpr std::chrono::seconds kLimit{60};

/// The keys of one path: what is not retired may be touched.
class Keys final : public BrickExposure {
 public:
  void expose(std::span<std::byte> memory, std::uint32_t,
              std::function<void(int, std::uint32_t, std::uint64_t)> done) override {
    std::uint32_t key = 0;
    {
      const std::lock_guard lock{mutex_};
      key = next_++;
      memory_[key] = memory;
    }
    done(0, key, 0x1000);
  }
  void retire(std::uint32_t key, std::uint64_t address, std::function<void()> done) override {
    CHECK(address == 0x1000);
    {
      const std::lock_guard lock{mutex_};
      if (holds_)
        return held_.push_back([this, key, done] {
          forget(key);
          done();
        });
    }
    forget(key);
    done();
  }
  /// Keys that are retired live on until let_go().
  void hold() {
    const std::lock_guard lock{mutex_};
    holds_ = true;
  }
  void let_go() {
    std::vector<std::function<void()>> held;
    {
      const std::lock_guard lock{mutex_};
      holds_ = false;
      held.swap(held_);
    }
    for (const auto& end : held) end();
  }
  void end() override { ended.set_value(); }

  std::span<std::byte> at(std::uint32_t key) {
    const std::lock_guard lock{mutex_};
    return memory_.at(key);
  }
  bool none() {
    const std::lock_guard lock{mutex_};
    return memory_.empty();
  }

  std::promise<void> ended;

 private:
  void forget(std::uint32_t key) {
    const std::lock_guard lock{mutex_};
    CHECK(memory_.erase(key) == 1);
  }

  std::mutex mutex_;
  std::map<std::uint32_t, std::span<std::byte>> memory_;
  bool holds_ = false;
  std::vector<std::function<void()>> held_;
  std::uint32_t next_ = 1;
};

/// A session with a path.
class Client {
 public:
  explicit Client(BrickService& service) : service_{service}, session_{service.new_session()} {
    look([&](Brick&) {
      service_.add_session(session_, "client", [this] { ++recalls; });
      path_ = service_.add_path(session_, keys);
    });
  }
  ~Client() {
    look([&](Brick&) { service_.remove_session(session_); });
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void look(const std::function<void(Brick&)>& work) {
    std::promise<void> done;
    service_.run([&](Brick& brick) {
      work(brick);
      done.set_value();
    });
    REQUIRE(done.get_future().wait_for(kLimit) == std::future_status::ready);
  }

  Reply ask(const std::function<void(Brick&, Ticket)>& order) {
    std::promise<Reply> done;
    service_.run([&](Brick& brick) {
      order(brick, service_.ask([&](const Reply& reply) { done.set_value(reply); }));
    });
    auto reply = done.get_future();
    REQUIRE(reply.wait_for(kLimit) == std::future_status::ready);
    return reply.get();
  }

  int alloc(Block block) {
    return ask([&](Brick& brick, Ticket ticket) { brick.alloc(ticket, block, 1, true); }).error;
  }
  Reply map(Block block, std::uint32_t rights = kRead | kWrite) {
    const std::uint32_t number = ++number_;
    return ask([&](Brick& brick, Ticket ticket) {
      brick.map(ticket, {session_, path_, block, 1, rights, number, number});
    });
  }
  /// Through a path of nobody.
  int map_nowhere(std::uint32_t number, std::uint32_t settled) {
    constexpr Path kNobody = 4711;
    return ask([&](Brick& brick, Ticket ticket) {
             brick.map(ticket, {session_, kNobody, 0, 1, kRead, number, settled});
           })
        .error;
  }
  int unmap(const MapView& map) {
    return ask([&](Brick& brick, Ticket ticket) {
             brick.unmap(ticket, session_, map.block, 1, map.generation);
           })
        .error;
  }
  int sync(Block block) {
    return ask([&](Brick& brick, Ticket ticket) {
             brick.sync(ticket, {{block, 0, static_cast<std::uint32_t>(kBlockSize)}});
           })
        .error;
  }
  std::future<Reply> leave() {
    auto done = std::make_shared<std::promise<Reply>>();
    service_.run([this, done](Brick& brick) {
      brick.leave(service_.ask([done](const Reply& reply) { done->set_value(reply); }), session_);
    });
    return done->get_future();
  }
  int revoke() {
    return ask([&](Brick& brick, Ticket ticket) { brick.revoke(ticket, path_); }).error;
  }

  std::shared_ptr<Keys> keys = std::make_shared<Keys>();
  std::atomic<unsigned> recalls = 0;

 private:
  BrickService& service_;
  Session session_;
  Path path_ = 0;
  std::uint32_t number_ = 0;
};

/// Two blocks of memory over a tier of four.
class BrickOfFour {
 public:
  BrickOfFour() {
    char folder[] = "/tmp/rnbd-brick-XXXXXX";
    REQUIRE(mkdtemp(folder) != nullptr);
    folder_ = folder;
    std::ofstream{folder_ + "/tier"};
    std::filesystem::resize_file(folder_ + "/tier", 4 * kBlockSize);
    backend = must_open("brick:4M,file=" + folder_ + "/tier");
  }
  ~BrickOfFour() {
    backend.reset();
    std::filesystem::remove_all(folder_);
  }
  BrickOfFour(const BrickOfFour&) = delete;
  BrickOfFour& operator=(const BrickOfFour&) = delete;

  std::unique_ptr<Backend> backend;

 private:
  std::string folder_;
};

}  // namespace

TEST_CASE("brick maps: what was written one-sided is there after the block was elsewhere") {
  BrickOfFour brick;
  Client client{*brick::service_of(*brick.backend)};
  for (Block block = 0; block < 4; ++block) {
    REQUIRE(client.alloc(block) == 0);
    const Reply mapped = client.map(block);
    REQUIRE(mapped.error == 0);
    const auto memory = client.keys->at(mapped.maps.at(0).key);
    REQUIRE(memory.size() == kBlockSize);
    CHECK(memory[0] == std::byte{0});
    std::memset(memory.data(), static_cast<int>(block + 1), memory.size());
    REQUIRE(client.unmap(mapped.maps[0]) == 0);
    CHECK(client.keys->none());
  }
  for (Block block = 0; block < 4; ++block) {
    const Reply mapped = client.map(block, kRead);
    REQUIRE(mapped.error == 0);
    const auto memory = client.keys->at(mapped.maps.at(0).key);
    CHECK(memory[0] == static_cast<std::byte>(block + 1));
    CHECK(memory[kBlockSize - 1] == static_cast<std::byte>(block + 1));
    REQUIRE(client.unmap(mapped.maps[0]) == 0);
  }
}

TEST_CASE("brick maps: requests see what was written one-sided, and the other way round") {
  BrickOfFour brick;
  BrickService& service = *brick::service_of(*brick.backend);
  Bench bench{std::move(brick.backend)};
  Client client{service};
  REQUIRE(client.alloc(1) == 0);
  const Reply mapped = client.map(1);
  REQUIRE(mapped.error == 0);
  const auto memory = client.keys->at(mapped.maps.at(0).key);
  std::memset(memory.data(), 7, 4096);
  CHECK(bench.read(kBlockSize, 512) == Bytes(512, std::byte{7}));
  REQUIRE(bench.write(kBlockSize + 512, Bytes(512, std::byte{8})) == 0);
  CHECK(memory[512] == std::byte{8});
  CHECK(client.sync(1) == 0);
  CHECK(client.sync(2) == ENOENT);
  REQUIRE(client.revoke() == 0);
  CHECK(client.keys->none());
  CHECK(client.map(1).error == ENOTCONN);
}

TEST_CASE("brick maps: of what a client never settles a limited number is remembered") {
  constexpr std::uint32_t kRemembered = 4096;
  BrickOfFour brick;
  Client client{*brick::service_of(*brick.backend)};
  for (std::uint32_t number = 1; number <= kRemembered; ++number) {
    REQUIRE(client.map_nowhere(number, 0) == ENOTCONN);
  }
  CHECK(client.map_nowhere(kRemembered + 1, 0) == EMFILE);
  CHECK(client.map_nowhere(kRemembered, 0) == ENOTCONN);
  CHECK(client.map_nowhere(kRemembered + 1, kRemembered) == ENOTCONN);
}

TEST_CASE("brick maps: a session has left when all its keys are dead, and maps nothing more") {
  BrickOfFour brick;
  Client client{*brick::service_of(*brick.backend)};
  for (const Block block : {0, 1}) {
    REQUIRE(client.alloc(block) == 0);
    REQUIRE(client.map(block).error == 0);
  }
  client.keys->hold();
  auto left = client.leave();
  CHECK(client.map(0).error == ENOTCONN);
  CHECK(left.wait_for(std::chrono::seconds{0}) == std::future_status::timeout);
  CHECK_FALSE(client.keys->none());
  client.keys->let_go();
  REQUIRE(left.wait_for(kLimit) == std::future_status::ready);
  CHECK(left.get().error == 0);
  CHECK(client.keys->none());
}

TEST_CASE("brick maps: who keeps what is recalled loses the path, and the other one gets memory") {
  BrickOfFour brick;
  Client greedy{*brick::service_of(*brick.backend)};
  Client other{*brick::service_of(*brick.backend)};
  for (const Block block : {0, 1, 2}) REQUIRE(greedy.alloc(block) == 0);
  REQUIRE(greedy.map(0).error == 0);
  REQUIRE(greedy.map(1).error == 0);
  CHECK(other.map(0).error == EBUSY);
  const auto began = std::chrono::steady_clock::now();
  CHECK(other.map(2).error == EAGAIN);
  CHECK(greedy.recalls == 1);
  REQUIRE(greedy.keys->ended.get_future().wait_for(kLimit) == std::future_status::ready);
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::seconds{2});
  Reply mapped = other.map(2);
  for (int i = 0; i < 1000 && mapped.error == EAGAIN; ++i) mapped = other.map(2);
  CHECK(mapped.error == 0);
  CHECK(greedy.keys->none());
}

}  // namespace rnbd::test::brick_maps_test
