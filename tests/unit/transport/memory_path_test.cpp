// SPDX-License-Identifier: BSD-3-Clause
// Memory paths over real sockets, with real threads: what a server exposes, its client reads and
// writes, and nothing of it outlives the path. Run under TSan too.
#include "rdma/memory_path.hpp"

#include <boost/asio/post.hpp>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/echo.hpp"

namespace rtrs::test::memory_path_test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 60s;
constexpr std::size_t kBlock = Regions::kMaxRegion;

/// Exposes one block on each memory path that comes.
class BlockHandler final : public ServerHandler {
 public:
  void* on_session_up(ServerSession& session) override {
    const std::lock_guard lock{mutex_};
    session_ = &session;
    return nullptr;
  }
  void on_session_down(ServerSession&) override {
    const std::lock_guard lock{mutex_};
    CHECK(keys_.empty());
    ended_ = true;
    changed_.notify_all();
  }
  void on_request(ServerSession&, ServerRequest& request) override { request.finish(0); }
  void on_memory_path_up(ServerSession&, const wire::Uuid& path, Regions& regions) override {
    const auto where = regions.expose(block, kRegionRead | kRegionWrite);
    REQUIRE(where.has_value());
    const std::lock_guard lock{mutex_};
    keys_[path] = {*where, &regions};
  }
  void on_memory_path_down(ServerSession&, const wire::Uuid& path) override {
    const std::lock_guard lock{mutex_};
    CHECK(keys_.erase(path) == 1);
    ++downs_;
    changed_.notify_all();
  }

  /// The client has heard that its path is in, so the key is there.
  RemoteMemory key(const wire::Uuid& path) {
    const std::lock_guard lock{mutex_};
    return keys_.at(path).where;
  }
  /// Ends the path's key, or the path, and waits until nothing uses the block any more.
  void retire(const wire::Uuid& path) {
    std::atomic<bool> dead{false};
    on_reactor([&] {
      std::unique_lock lock{mutex_};
      const Key key = keys_.at(path);
      lock.unlock();
      key.regions->retire(key.where, [&] {
        dead = true;
        dead.notify_all();
      });
    });
    dead.wait(false);
  }
  bool revoke(const wire::Uuid& path) {
    bool known = false;
    on_reactor([&] { known = revoke_memory_path(*session_, path); });
    return known;
  }
  bool falls(unsigned downs) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, kLong, [&] { return downs_ >= downs; });
  }
  bool ends() {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, kLong, [&] { return ended_; });
  }

  std::vector<std::byte> block = std::vector<std::byte>(kBlock);

 private:
  struct Key {
    RemoteMemory where;
    Regions* regions;
  };
  void on_reactor(const std::function<void()>& function) {
    std::atomic<bool> done{false};
    boost::asio::post(reactor_of(*session_)->io(), [&] {
      function();
      done = true;
      done.notify_all();
    });
    done.wait(false);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  ServerSession* session_ = nullptr;
  std::map<wire::Uuid, Key> keys_;
  unsigned downs_ = 0;
  bool ended_ = false;
};

constexpr std::uint32_t kFeatures = wire::kFeatureExactlyOnce | wire::kFeatureMemoryPaths;

struct Pair {
  explicit Pair(ServerOptions options = {}, ClientOptions asked = {}) {
    const auto [kind, host] = test_transport();
    options.listen = {{kind, host, 0}};
    options.features |= kFeatures;
    server = Server::create(std::move(options), handler);
    REQUIRE(server->start().has_value());
    const std::string at = server->addresses().at(0);
    address = {kind, "", host, static_cast<std::uint16_t>(std::stoi(at.substr(at.rfind(':') + 1)))};
    asked.session_name = "memory";
    asked.paths = {address};
    asked.lanes = 2;
    asked.features |= kFeatures;
    client = connect(std::move(asked));
  }
  ~Pair() {
    client.reset();
    if (server) CHECK(server->stop(5s));
  }
  std::unique_ptr<MemoryPath> open() {
    auto path = client->open_memory_path(address, {});
    REQUIRE_MESSAGE(path.has_value(), (path ? "" : path.error().text));
    return std::move(*path);
  }

  BlockHandler handler;
  std::unique_ptr<Server> server;
  PathAddress address;
  std::unique_ptr<Client> client;
};

std::vector<std::byte> bytes(std::size_t size, unsigned seed) {
  std::vector<std::byte> result(size);
  for (std::size_t i = 0; i < size; ++i)
    result[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  return result;
}

RemoteMemory operator+(RemoteMemory where, std::uint64_t offset) {
  return {where.address + offset, where.key};
}

bool dies(const MemoryPath& path) {
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (path.alive() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  return !path.alive();
}

TEST_CASE("what is written over a memory path is in the server's memory, and is read back") {
  Pair pair;
  auto path = pair.open();
  const RemoteMemory where = pair.handler.key(path->uuid());
  const auto data = bytes(kBlock, 1);
  std::vector<std::byte> back(kBlock);
  SUBCASE("memory that is copied where it must be") {}
  SUBCASE("memory that the transport knows") { REQUIRE(path->register_memory(back).has_value()); }
  CHECK(path->write(where, data, {}) == 0);
  CHECK(path->read(where, back, {}) == 0);
  CHECK(back == data);
  CHECK(path->write(where + 4095, ConstBytes{data}.first(3), {}) == 0);
  CHECK(path->read(where + 4095, MutableBytes{back}.first(3), {}) == 0);
  CHECK(back[0] == data[0]);
  CHECK(path->read(where + (kBlock - 1), MutableBytes{back}.first(1), {}) == 0);
  CHECK(back[0] == data[kBlock - 1]);
}

TEST_CASE("many threads share a memory path") {
  Pair pair;
  auto path = pair.open();
  const RemoteMemory where = pair.handler.key(path->uuid());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  constexpr std::size_t kShare = kBlock / 8;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> back(kShare);
      for (unsigned i = 1; i <= 30; ++i) {
        const std::size_t size = i * 7919 * 5 % kShare + 1;
        const auto data = bytes(size, t * 100 + i);
        const RemoteMemory at = where + (t * kShare + i);
        const std::size_t room = std::min(size, kShare - i);
        wrong += path->write(at, ConstBytes{data}.first(room), {}) != 0;
        wrong += path->read(at, MutableBytes{back}.first(room), {}) != 0;
        wrong += !std::equal(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(room),
                             back.begin());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a refused access ends the memory path, and the session lives on") {
  Pair pair;
  auto path = pair.open();
  auto other = pair.open();
  const RemoteMemory where = pair.handler.key(path->uuid());
  std::vector<std::byte> data(64, std::byte{1});
  SUBCASE("beyond the region") { CHECK(path->write(where + (kBlock - 63), data, {}) == EIO); }
  SUBCASE("a key of another path") {
    CHECK(path->read(RemoteMemory{where.address, where.key ^ 0x5A00}, data, {}) == EIO);
  }
  SUBCASE("a key that has ended") {
    pair.handler.retire(path->uuid());
    CHECK(path->write(where, data, {}) == EIO);
  }
  CHECK_FALSE(path->alive());
  CHECK(path->failure() != "");
  CHECK(pair.client->alive());
  // The server's device may say nothing, so the client does.
  pair.handler.revoke(path->uuid());
  CHECK(pair.handler.falls(1));
  CHECK(std::ranges::count(pair.handler.block, std::byte{0}) == kBlock);
  CHECK(other->write(pair.handler.key(other->uuid()), data, {}) == 0);
  EchoOperation echo{"f", {}, {}};
  CHECK(pair.client->run(echo, {}) == 0);
}

TEST_CASE("a revoked memory path writes nothing any more") {
  Pair pair;
  auto path = pair.open();
  const RemoteMemory where = pair.handler.key(path->uuid());
  std::atomic<bool> stop{false};
  std::atomic<unsigned> written{0};
  std::thread writer{[&] {
    const auto data = bytes(256 * 1024, 3);
    while (!stop && path->write(where, data, {}) == 0) ++written;
  }};
  while (written == 0 && path->alive()) std::this_thread::yield();
  CHECK(pair.handler.revoke(path->uuid()));
  CHECK(pair.handler.falls(1));
  std::ranges::fill(pair.handler.block, std::byte{0xEE});
  stop = true;
  writer.join();
  CHECK(dies(*path));
  CHECK(std::ranges::count(pair.handler.block, std::byte{0xEE}) == kBlock);
  CHECK_FALSE(pair.handler.revoke(path->uuid()));
  CHECK(pair.client->alive());
}

TEST_CASE("a memory path that its client closes takes its keys with it, and comes anew") {
  Pair pair;
  auto path = pair.open();
  const auto first = path->uuid();
  path.reset();
  CHECK(pair.handler.falls(1));
  path = pair.open();
  CHECK(path->uuid() != first);
  std::vector<std::byte> data(8);
  CHECK(path->write(pair.handler.key(path->uuid()), data, {}) == 0);
}

TEST_CASE("the end of a session is the end of its memory paths") {
  Pair pair;
  auto path = pair.open();
  SUBCASE("the client leaves") {
    pair.client.reset();
    CHECK(pair.handler.ends());
  }
  SUBCASE("the server stops") {
    CHECK(pair.server->stop(5s));
    pair.server.reset();
    CHECK(pair.handler.ends());
  }
  CHECK(dies(*path));
  std::vector<std::byte> data(8);
  CHECK(path->write({}, data, {}) == EIO);
}

TEST_CASE("who interrupts a transfer ends the memory path") {
  Pair pair;
  auto path = pair.open();
  const RemoteMemory where = pair.handler.key(path->uuid());
  std::vector<std::byte> data(kBlock);
  CHECK(path->write(where, data, Interrupt{[](void*) { return true; }, nullptr}) == EINTR);
  CHECK_FALSE(path->alive());
}

TEST_CASE("no memory path without the feature") {
  const auto [kind, host] = test_transport();
  EchoServer server;
  auto options = client_options(server.port);
  options.features = kFeatures;
  auto client = connect(options);
  const auto refused = client->open_memory_path(options.paths[0], {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().error == ENOTSUP);
}

}  // namespace
}  // namespace rtrs::test::memory_path_test
