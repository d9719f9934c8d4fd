// SPDX-License-Identifier: BSD-3-Clause
// BackgroundJobs of a client: operations for which nobody waits.
#include <doctest/doctest.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/load.hpp"

namespace rtrs::background_job_test {
namespace {

using namespace std::chrono_literals;
using test::EchoOperation;
using test::EchoServer;
using test::patient;
using test::TestRecovery;

TEST_CASE("what was left to do while there was no path is done when one is back") {
  TestRecovery recovery;
  EchoServer server;
  auto client = test::connect(patient(server.port, recovery));
  REQUIRE(client->disconnect(client->paths()[0].address));
  recovery.background_jobs = 3;
  REQUIRE(client->reconnect(client->paths()[0].address));
  while (recovery.background_jobs > 0) std::this_thread::yield();
  CHECK(client->paths()[0].requests == 3);
}

TEST_CASE("what is left to do later is done, though no path comes or goes") {
  TestRecovery recovery;
  EchoServer server;
  auto client = test::connect(patient(server.port, recovery));
  recovery.background_jobs = 2;
  const auto late = std::chrono::steady_clock::now() + 20s;
  while (recovery.background_jobs > 0 && std::chrono::steady_clock::now() < late) {
    std::this_thread::sleep_for(10ms);
  }
  CHECK(recovery.background_jobs == 0);
  CHECK(client->paths()[0].requests == 2);
}

TEST_CASE(
    "a background job that hangs makes room for the next one, but leaves a permit to others") {
  TestRecovery recovery;
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  EchoServer server{server_options};
  ClientOptions options = patient(server.port, recovery);
  const auto done = [&] {
    const auto late = std::chrono::steady_clock::now() + 20s;
    while (recovery.background_jobs > 0 && std::chrono::steady_clock::now() < late) {
      std::this_thread::sleep_for(10ms);
    }
    return recovery.background_jobs == 0;
  };
  const auto end_all = [&] {
    std::promise<void> ended;
    boost::asio::post(reactor_of(*server.handler.held.load()->session)->io(), [&] {
      for (ServerRequest* request : server.handler.all_held) request->finish(0);
      ended.set_value();
    });
    ended.get_future().wait();
  };
  SUBCASE("between own peers") {
    options.features = wire::kFeatureExactlyOnce;
    auto client = test::connect(options);
    recovery.background_jobs = recovery.hanging_background_jobs = 1;
    CHECK(done());
    CHECK(recovery.given_up == 1);
    recovery.hanging_background_jobs = 100;
    std::this_thread::sleep_for(6 * kBackgroundPause);
    EchoOperation other{"E0", {}, {}};
    CHECK(client->run_control(other, {}) == 0);
    CHECK(recovery.given_up == 2);
    recovery.hanging_background_jobs = 0;
    end_all();
  }
  SUBCASE("not where those who open things would wait for its end") {
    auto client = test::connect(options);
    recovery.background_jobs = recovery.hanging_background_jobs = 1;
    std::this_thread::sleep_for(3 * kBackgroundPause);
    CHECK(recovery.given_up == 0);
    CHECK(recovery.background_jobs == 1);
    end_all();
    CHECK(done());
  }
}

}  // namespace
}  // namespace rtrs::background_job_test
