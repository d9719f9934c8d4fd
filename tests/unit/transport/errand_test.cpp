// SPDX-License-Identifier: BSD-3-Clause
// Errands of a client: operations for which nobody waits.
#include <doctest/doctest.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/transport/load.hpp"

namespace rtrs::errand_test {
namespace {

using namespace std::chrono_literals;
using test::EchoOperation;
using test::EchoServer;
using test::Keeper;
using test::patient;

TEST_CASE("what was left to do while there was no path is done when one is back") {
  Keeper keeper;
  EchoServer server;
  auto client = test::connect(patient(server.port, keeper));
  REQUIRE(client->disconnect(client->paths()[0].address));
  keeper.errands = 3;
  REQUIRE(client->reconnect(client->paths()[0].address));
  while (keeper.errands > 0) std::this_thread::yield();
  CHECK(client->paths()[0].requests == 3);
}

TEST_CASE("what is left to do later is done, though no path comes or goes") {
  Keeper keeper;
  EchoServer server;
  auto client = test::connect(patient(server.port, keeper));
  keeper.errands = 2;
  const auto late = std::chrono::steady_clock::now() + 20s;
  while (keeper.errands > 0 && std::chrono::steady_clock::now() < late) {
    std::this_thread::sleep_for(10ms);
  }
  CHECK(keeper.errands == 0);
  CHECK(client->paths()[0].requests == 2);
}

TEST_CASE("an errand that hangs makes room for the next one, but leaves a permit to others") {
  Keeper keeper;
  ServerOptions server_options;
  server_options.features = wire::kFeatureExactlyOnce;
  EchoServer server{server_options};
  ClientOptions options = patient(server.port, keeper);
  const auto done = [&] {
    const auto late = std::chrono::steady_clock::now() + 20s;
    while (keeper.errands > 0 && std::chrono::steady_clock::now() < late) {
      std::this_thread::sleep_for(10ms);
    }
    return keeper.errands == 0;
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
    keeper.errands = keeper.hanging_errands = 1;
    CHECK(done());
    CHECK(keeper.given_up == 1);
    keeper.hanging_errands = 100;
    std::this_thread::sleep_for(6 * kErrandPause);
    EchoOperation other{"E0", {}, {}};
    CHECK(client->run_control(other, {}) == 0);
    CHECK(keeper.given_up == 2);
    keeper.hanging_errands = 0;
    end_all();
  }
  SUBCASE("not where those who open things would wait for its end") {
    auto client = test::connect(options);
    keeper.errands = keeper.hanging_errands = 1;
    std::this_thread::sleep_for(3 * kErrandPause);
    CHECK(keeper.given_up == 0);
    CHECK(keeper.errands == 1);
    end_all();
    CHECK(done());
  }
}

}  // namespace
}  // namespace rtrs::errand_test
