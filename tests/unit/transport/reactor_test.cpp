// SPDX-License-Identifier: BSD-3-Clause
// The thread that sleeps for a reactor, and those that wait for it.
#include "rdma/transport/reactor.hpp"

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/transport/echo.hpp"

namespace rtrs {
namespace {

/// A connection that has one event after the other; told apart from others only by its address.
struct Player final : Soloist {
  explicit Player(Reactor& r) : reactor{r} {}

  void have_events(int count) {
    if (count == 0) return;
    boost::asio::post(reactor.io(), [this, count] {
      ++turns;
      reactor.solo(*this);
      have_events(count - 1);
    });
  }
  bool play_on(OneCall* /*call*/) override {
    ++plays;
    if (on_play) on_play();
    return plays != last;
  }
  void play_out() override {}

  Reactor& reactor;
  int turns = 0;
  int plays = 0;
  int last = 0;  ///< finds nothing
  std::function<void()> on_play;
};

/// Answers from another thread, which nobody is woken for while they are looked for.
struct Answers final : Awaited {
  void set_looked_for(bool on) override {
    looked_for = on;
    if (on) ++times;
  }
  bool look() override {
    if (!there.exchange(false)) return false;
    if (on_answer) on_answer();
    return true;
  }

  std::atomic<bool> looked_for{false};
  std::atomic<bool> there{false};
  int times = 0;
  std::function<void()> on_answer;
};

TEST_CASE("an awaited answer is found without a wake-up") {
  Reactor reactor{0};
  Answers answers;
  bool looked_for = false;
  answers.on_answer = [&] {
    looked_for = answers.looked_for;
    reactor.await(nullptr);
    reactor.stop();
  };
  reactor.await(&answers);
  std::atomic<bool> over{false};
  std::thread other{[&] {
    while (!over) {
      if (answers.looked_for) {
        answers.there = true;  // too late, perhaps, and in time the next time
      } else {
        boost::asio::post(reactor.io(), [] {});
      }
      std::this_thread::yield();
    }
  }};
  reactor.run();
  over = true;
  other.join();
  CHECK(looked_for);
  CHECK_FALSE(answers.looked_for);
}

TEST_CASE("the loop gives up looking for answers that come late") {
  Reactor reactor{0};
  Answers answers;
  reactor.await(&answers);
  boost::asio::steady_timer timer{reactor.io()};
  int turns = 0;
  std::function<void()> next = [&] {
    if (++turns == 60) return reactor.stop();
    timer.expires_after(std::chrono::milliseconds{2});
    timer.async_wait([&](boost::system::error_code) { next(); });
  };
  next();
  reactor.run();
  CHECK(answers.times >= 1);
  CHECK(answers.times <= 8);
}

TEST_CASE("answers that are not awaited any more wake the loop again") {
  Reactor reactor{0};
  Answers first;
  Answers second;
  reactor.await(&first);
  bool told = false;
  std::function<void()> look = [&] {
    if (!first.looked_for) return boost::asio::post(reactor.io(), look);
    reactor.await(&second);
    told = !first.looked_for;
    reactor.await(nullptr);
    reactor.stop();
  };
  boost::asio::post(reactor.io(), look);
  reactor.run();
  CHECK(told);
  CHECK_FALSE(second.looked_for);
}

TEST_CASE("a connection that is alone for long sleeps for its reactor") {
  Reactor reactor{0};
  Player player{reactor};
  int first = 0;
  player.on_play = [&] {
    if (first == 0) first = player.turns;
    if (player.plays == 40) reactor.stop();
  };
  player.have_events(2000);
  reactor.run();
  CHECK(first >= 500);
  CHECK(player.plays >= 40);
  // It looks at other events all the time.
  CHECK(player.turns >= first + 2);
}

TEST_CASE("whoever comes beside it waits for some requests at most, and ends the solo") {
  Reactor reactor{0};
  Player player{reactor};
  int came_at = 0;
  int seen_at = 0;
  int turns_then = 0;
  player.on_play = [&] {
    if (player.plays == 20) {
      came_at = player.plays;
      boost::asio::post(reactor.io(), [&] {
        seen_at = player.plays;
        turns_then = player.turns;
      });
    } else if (seen_at != 0) {
      reactor.stop();
    }
  };
  player.have_events(5000);
  reactor.run();
  CHECK(seen_at >= came_at);
  CHECK(seen_at <= came_at + 32);
  CHECK(player.turns >= turns_then + 500);
}

TEST_CASE("one whose wait was in vain has to be alone for long again") {
  Reactor reactor{0};
  Player player{reactor};
  player.last = 3;
  int turns_then = 0;
  player.on_play = [&] {
    if (player.plays == 3) turns_then = player.turns;
    if (player.plays == 4) reactor.stop();
  };
  player.have_events(5000);
  reactor.run();
  CHECK(player.turns >= turns_then + 500);
}

TEST_CASE("of two that take turns neither is alone") {
  Reactor reactor{0};
  Player one{reactor};
  Player other{reactor};
  one.have_events(1000);
  other.have_events(1000);
  std::function<void()> look = [&] {
    if (one.turns + other.turns == 2000) return reactor.stop();
    boost::asio::post(reactor.io(), look);
  };
  look();
  reactor.run();
  CHECK(one.plays == 0);
  CHECK(other.plays == 0);
}

}  // namespace

namespace test {
namespace {

int read_once(Client& client) {
  std::vector<std::byte> buffer(4096);
  EchoOperation read{"abc", buffer, {}};
  const int error = client.run(read, {});
  return error != 0 ? error : buffer[4095] == static_cast<std::byte>(3 + 4095) ? 0 : EILSEQ;
}

TEST_CASE("a client that was alone at its server shares it with the next one, and leaves") {
  ServerOptions options;
  options.reactors = 1;
  EchoServer server{options};
  ClientOptions lone = client_options(server.port);
  lone.lanes = 1;
  auto first = connect(lone);
  int wrong = 0;
  for (int i = 0; i < 2000; ++i) wrong += read_once(*first) != 0;
  // The server sleeps in the first one's connection when the next one comes.
  auto second = connect(client_options(server.port));
  for (int i = 0; i < 200; ++i) wrong += read_once(i % 2 == 0 ? *second : *first) != 0;
  for (int i = 0; i < 2000; ++i) wrong += read_once(*first) != 0;
  first.reset();
  while (server.handler.sessions != 1) std::this_thread::yield();
  for (int i = 0; i < 2000; ++i) wrong += read_once(*second) != 0;
  CHECK(wrong == 0);
}

TEST_CASE("an event loop that receives instead of polling") {
  EchoServer server;
  ClientOptions options = client_options(server.port);
  options.lanes = 1;
  auto client = connect(options);
  const auto loop = client->take_lane(0);
  std::vector<std::byte> buffer(4096);
  const auto start = [&](LaneLoop::Job& job, EchoOperation& operation) {
    job.operation = &operation;
    loop->start(job);
    loop->flush();
  };
  EchoOperation read{"abc", buffer, {}};
  LaneLoop::Job job;

  SUBCASE("gets its answer") {
    CHECK_FALSE(loop->await());  // nothing is under way
    for (int i = 0; i < 500; ++i) {
      EchoOperation next{"abc", buffer, {}};
      start(job, next);
      while (loop->collect() == nullptr) loop->await();
      CHECK(next.error() == 0);
      CHECK(buffer[4095] == static_cast<std::byte>(3 + 4095));
    }
    return;
  }
  if (test_transport().kind == TransportKind::rdma) return;  // which does not receive so

  EchoOperation held{"H", buffer, {}};
  start(job, held);
  while (server.handler.held == nullptr) std::this_thread::yield();
  const auto release = [&] {
    boost::asio::post(reactor_of(*server.handler.held.load()->session)->io(),
                      [&] { server.handler.held.load()->finish(0); });
  };
  SUBCASE("does not wait for long") {
    CHECK_FALSE(loop->await());
    release();
  }
  SUBCASE("leaves the lane to others meanwhile") {
    LaneLoop::Job other;
    start(other, read);
    CHECK_FALSE(loop->await());  // two are under way
    release();
    int collected = 0;
    while (collected < 2) {
      std::vector<pollfd> polled;
      loop->watch(polled);
      ::poll(polled.data(), polled.size(), -1);
      loop->progress(polled);
      for (auto* ended = loop->collect(); ended != nullptr; ended = ended->next) ++collected;
    }
    CHECK(read.error() == 0);
    return;
  }
  while (loop->collect() == nullptr) loop->await();
  CHECK(held.error() == 0);
}

TEST_CASE("an event loop that sleeps for long with a request under way keeps its path") {
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  EchoServer server{server_options};
  ClientOptions options = client_options(server.port);
  options.lanes = 1;
  options.heartbeat_interval = std::chrono::milliseconds{50};
  options.features = wire::kFeatureExactlyOnce;
  auto client = connect(options);
  const auto loop = client->take_lane(0);
  std::vector<std::byte> buffer(4096);
  EchoOperation read{"abc", buffer, {}};
  LaneLoop::Job job;
  job.operation = &read;
  loop->start(job);
  loop->flush();
  std::this_thread::sleep_for(std::chrono::milliseconds{1500});  // misses of 200 ms end a path
  const PathStatus path = client->paths().at(0);
  CHECK(path.state == PathState::connected);
  CHECK(path.connects == 1);
  // The answer was received for it, and that wakes it up.
  std::vector<pollfd> polled;
  CHECK(loop->watch(polled) == 0);
  CHECK(::poll(polled.data(), polled.size(), 0) == 1);
  CHECK(loop->collect() == &job);
  CHECK(read.error() == 0);
}

TEST_CASE("calls beside an event loop that is elsewhere do not wait for a heartbeat") {
  EchoServer server;
  ClientOptions options = client_options(server.port);
  options.lanes = 1;
  options.heartbeat_interval = std::chrono::seconds{5};
  auto client = connect(options);
  const auto loop = client->take_lane(0);
  std::vector<std::byte> buffer(4096);
  EchoOperation read{"abc", buffer, {}};
  LaneLoop::Job job;
  job.operation = &read;
  static std::atomic<int> told{0};
  told = 0;
  job.on_finish = [](LaneLoop::Job&) { ++told; };
  loop->start(job);
  loop->flush();
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> into(4096);
    EchoOperation call{"abc", into, {}};
    CHECK(client->run(call, {}) == 0);
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds{2});
  CHECK(told == 1);  // its job has ended, too, and it will hear of that
  std::vector<pollfd> polled;
  CHECK(loop->watch(polled) == 0);
  CHECK(::poll(polled.data(), polled.size(), 0) == 1);
  CHECK(loop->collect() == &job);
}

/// Counts what it does.
class CountingCall final : public OneCall {
 public:
  CountingCall(std::unique_ptr<OneCall> call, std::atomic<unsigned>& count)
      : call_{std::move(call)}, count_{count} {}
  Result exchange(int socket, std::span<const iovec> from, std::span<std::byte> into,
                  Duration limit) override {
    ++count_;
    return call_->exchange(socket, from, into, limit);
  }

 private:
  std::unique_ptr<OneCall> call_;
  std::atomic<unsigned>& count_;
};

TEST_CASE("both ends of a client that is alone send and wait in one call, beside other callers") {
  if (test_transport().kind == TransportKind::rdma) return;  // which does not receive so
  if (make_uring_call() == nullptr) {
    MESSAGE("no io_uring here, or none of Linux 6.1");
    return;
  }
  std::atomic<unsigned> at_server{0};
  std::atomic<unsigned> at_client{0};
  ServerOptions server_options;
  server_options.reactors = 1;
  server_options.make_call = [&] {
    return std::make_unique<CountingCall>(make_uring_call(), at_server);
  };
  EchoServer server{server_options};
  ClientOptions options = client_options(server.port);
  options.lanes = 1;
  auto client = connect(options);
  CountingCall call{make_uring_call(), at_client};
  std::atomic<bool> over{false};
  std::atomic<bool> left{false};
  std::atomic<int> wrong{0};
  std::thread caller{[&] {
    while (!over) {
      wrong += read_once(*client) != 0;
      std::this_thread::sleep_for(std::chrono::milliseconds{50});
    }
    left = true;
  }};
  const auto loop = client->take_lane(0);
  const auto turn = [&] {
    loop->flush();
    std::vector<pollfd> polled;
    loop->watch(polled);
    ::poll(polled.data(), polled.size(), 10);
    loop->progress(polled);
  };
  std::vector<std::byte> buffer(4096);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  unsigned requests = 0;
  for (; (requests < 2000 || at_server < 100) && std::chrono::steady_clock::now() < end;
       ++requests) {
    const std::string message(1 + requests % 7, 'a');
    EchoOperation read{message, buffer, {}};
    LaneLoop::Job job;
    job.operation = &read;
    loop->start(job);
    while (loop->collect() == nullptr) {
      if (loop->await(&call)) continue;
      turn();
    }
    wrong += read.error() != 0 || buffer[4095] != static_cast<std::byte>(message.size() + 4095);
  }
  over = true;
  while (!left) turn();  // the caller's answer comes to the loop
  caller.join();
  CHECK(wrong == 0);
  CHECK(at_server >= 100);
  CHECK(at_client > requests / 2);
}

}  // namespace
}  // namespace test
}  // namespace rtrs
