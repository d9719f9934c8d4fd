// SPDX-License-Identifier: BSD-3-Clause
// Callers that look for their answers again and again before they sleep.
#include <sys/resource.h>

#include <boost/asio/post.hpp>
#include <ctime>
#include <thread>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/echo.hpp"

namespace rtrs::test::spin_test {
namespace {

using namespace std::chrono_literals;

ClientOptions spinning(std::uint16_t port) {
  ClientOptions options = client_options(port);
  options.lanes = 1;
  options.spin = kMaxSpin;
  return options;
}

Duration cpu(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
}

/// How often this thread has slept.
long sleeps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

int read_once(Client& client, const std::string& message, std::size_t bytes) {
  std::vector<std::byte> buffer(bytes);
  EchoOperation read{message, buffer, {}};
  if (const int error = client.run(read, {}); error != 0) return error;
  return buffer.back() == static_cast<std::byte>(message.size() + bytes - 1) ? 0 : EILSEQ;
}

void release(EchoServer& server) {
  ServerRequest* const held = server.handler.held.exchange(nullptr);
  boost::asio::post(reactor_of(*held->session)->io(), [held] { held->finish(0); });
}

/// A request that is answered after `time`, and the CPU that its caller spent.
Duration cpu_of_held(EchoServer& server, Client& client, Duration time) {
  std::thread releaser{[&] {
    while (server.handler.held == nullptr) std::this_thread::sleep_for(100us);
    std::this_thread::sleep_for(time);
    release(server);
  }};
  const Duration before = cpu(CLOCK_THREAD_CPUTIME_ID);
  EchoOperation held{"H", {}, {}};
  CHECK(client.run(held, {}) == 0);
  const Duration spent = cpu(CLOCK_THREAD_CPUTIME_ID) - before;
  releaser.join();
  return spent;
}

TEST_CASE("answers that come at once are found without sleeping") {
  EchoServer server;
  auto client = connect(spinning(server.port));
  int wrong = 0;
  constexpr long kFew = 100;  // each request and each answer would be one
  long fewest = 1000;
  // Where CPUs are busy answers do not come at once.
  for (int round = 0; round < 100 && fewest >= kFew; ++round) {
    const long before = sleeps();
    for (int i = 0; i < 100; ++i) wrong += read_once(*client, "abc", 4096) != 0;
    fewest = std::min(fewest, sleeps() - before);
  }
  CHECK(wrong == 0);
  CHECK(fewest < kFew);
}

TEST_CASE("who waits for slow answers stops spinning") {
  EchoServer server;
  auto client = connect(spinning(server.port));
  for (int i = 0; i < 8; ++i) cpu_of_held(server, *client, 5ms);
  Duration spent{};
  for (int i = 0; i < 20; ++i) spent += cpu_of_held(server, *client, 5ms);
  CHECK(spent < 20 * kMaxSpin / 2);
}

TEST_CASE("nobody spins while nothing is under way, nor for long while something is") {
  EchoServer server;
  auto client = connect(spinning(server.port));
  for (int i = 0; i < 100; ++i) REQUIRE(read_once(*client, "abc", 4096) == 0);
  SUBCASE("idle") {
    const Duration before = cpu(CLOCK_PROCESS_CPUTIME_ID);
    std::this_thread::sleep_for(200ms);
    CHECK(cpu(CLOCK_PROCESS_CPUTIME_ID) - before < 20ms);
  }
  SUBCASE("one request that takes long") { CHECK(cpu_of_held(server, *client, 200ms) < 20ms); }
}

TEST_CASE("several callers share a lane whose leader spins, and each gets its own answer") {
  EchoServer server;
  auto client = connect(spinning(server.port));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 300; ++i) {
        const std::string message(1 + (t * 31 + i) % 200, 'x');
        wrong += read_once(*client, message, 1 + (t * 977 + i * 131) % 30'000) != 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a caller that spins leaves when it is interrupted") {
  EchoServer server;
  auto client = connect(spinning(server.port));
  std::atomic<bool> left{false};
  std::thread caller{[&] {
    EchoOperation hangs{"H", {}, {}};
    CHECK(client->run(hangs, Interrupt{[](void*) { return true; }, nullptr}) == EINTR);
    left = true;
  }};
  while (server.handler.held == nullptr) std::this_thread::yield();
  SUBCASE("alone") {}
  SUBCASE("while others keep its lane busy") {
    const auto patience = std::chrono::steady_clock::now() + 20s;
    while (!left && std::chrono::steady_clock::now() < patience) {
      CHECK(read_once(*client, "x", 64) == 0);
    }
    CHECK(left);
  }
  caller.join();
  release(server);
  CHECK(read_once(*client, "x", 64) == 0);
}

void turn(LaneLoop& loop) {
  std::vector<pollfd> polled;
  loop.watch(polled);
  ::poll(polled.data(), polled.size(), 10);
  loop.progress(polled);
}

int read_in(LaneLoop& loop) {
  std::vector<std::byte> buffer(4096);
  EchoOperation read{"abc", buffer, {}};
  LaneLoop::Job job;
  job.operation = &read;
  loop.start(job);
  loop.flush();
  while (loop.collect() == nullptr) {
    if (!loop.await()) turn(loop);
  }
  if (read.error() != 0) return read.error();
  return buffer[4095] == static_cast<std::byte>(3 + 4095) ? 0 : EILSEQ;
}

TEST_CASE("an event loop spins before it sleeps for an answer, too") {
  EchoServer server;
  auto client = connect(spinning(server.port));
  const auto loop = client->take_lane(0);
  int wrong = 0;
  for (int i = 0; i < 500; ++i) wrong += read_in(*loop) != 0;
  CHECK(wrong == 0);
}

TEST_CASE("a leader does not receive beside the event loop that takes its place") {
  EchoServer server;
  ClientOptions options = client_options(server.port);
  options.lanes = 1;
  SUBCASE("from one that spins") { options.spin = kMaxSpin; }
  SUBCASE("from one that sleeps") {}
  auto client = connect(options);
  for (int i = 0; i < 12; ++i) {
    std::atomic<bool> left{false};
    std::thread leader{[&] {
      EchoOperation hangs{"H", {}, {}};
      CHECK(client->run(hangs, {}) == 0);
      left = true;
    }};
    while (server.handler.held == nullptr) std::this_thread::yield();
    std::this_thread::sleep_for(i % 4 * 1ms);
    const auto loop = client->take_lane(0);
    for (int reads = 0; reads < 5; ++reads) CHECK(read_in(*loop) == 0);
    release(server);
    while (!left) turn(*loop);
    leader.join();
  }
}

TEST_CASE("a spin longer than a millisecond is refused") {
  ClientOptions options = client_options(1);
  options.spin = kMaxSpin + 1ns;
  const auto client = Client::connect(options, {});
  REQUIRE_FALSE(client.has_value());
  CHECK(client.error().error == EINVAL);
}

}  // namespace
}  // namespace rtrs::test::spin_test
