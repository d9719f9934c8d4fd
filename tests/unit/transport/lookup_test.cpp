// SPDX-License-Identifier: BSD-3-Clause
// How names become addresses when the name server is slow, wrong or gone.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "rdma/transport/resolve.hpp"

namespace rtrs::lookup_test {
namespace {

using namespace std::chrono_literals;
namespace asio = boost::asio;
using Addresses = HostLookup::Addresses;
using Result = tl::expected<Addresses, Failure>;

// Addresses that are read by threads of lookups that were given up: these may outlive main().
const Addresses& kHere = *new Addresses{asio::ip::make_address("10.0.0.1")};
const Addresses& kThere = *new Addresses{asio::ip::make_address("10.0.0.2")};

/// A name server that answers when it is told to.
struct NameServer {
  std::atomic<bool> stuck{false};
  std::atomic<bool> fails{false};
  std::atomic<bool> moved{false};
  std::atomic<int> asked{0};

  HostLookup::Resolver resolver() {
    return [this](const std::string&) -> Result {
      ++asked;
      while (stuck) std::this_thread::yield();
      if (fails) return tl::unexpected(Failure{EHOSTUNREACH, "no such name"});
      return moved ? kThere : kHere;
    };
  }
};

/// The addresses that were found; none after a failure.
Addresses found(const Result& result) { return result ? *result : Addresses{}; }

Result search(HostLookup& lookup, Duration patience) {
  asio::io_context io;
  std::optional<Result> result;
  asio::co_spawn(io, lookup.find(patience), [&](const std::exception_ptr& failure, Result found) {
    CHECK(failure == nullptr);
    result = std::move(found);
  });
  io.run();
  REQUIRE(result);
  return *result;
}

TEST_CASE("a host is found by the addresses it had when its name server has gone") {
  static NameServer server;
  const auto lookup = std::make_shared<HostLookup>("storage", server.resolver());
  REQUIRE(found(search(*lookup, 10s)) == kHere);
  SUBCASE("with an error") {
    server.fails = true;
    CHECK(found(search(*lookup, 10s)) == kHere);
  }
  SUBCASE("in silence") {
    server.stuck = true;
    const auto began = std::chrono::steady_clock::now();
    CHECK(found(search(*lookup, 60s)) == kHere);
    CHECK(std::chrono::steady_clock::now() - began < 30s);
    const int asked = server.asked;
    CHECK(found(search(*lookup, 60s)) == kHere);
    CHECK(server.asked == asked);  // not one more thread for each attempt
    server.moved = true;
    server.stuck = false;
    Addresses now = kHere;
    while (now == kHere) now = found(search(*lookup, 60s));
    CHECK(now == kThere);
  }
  server.fails = server.moved = server.stuck = false;
}

TEST_CASE("a name server that does not answer ends the search of a host that was never found") {
  static NameServer server;
  server.stuck = true;
  const auto lookup = std::make_shared<HostLookup>("storage", server.resolver());
  const Result result = search(*lookup, 50ms);
  REQUIRE_FALSE(result);
  CHECK(result.error().error == ETIMEDOUT);
  server.stuck = false;
}

TEST_CASE("a host that moves is found at its new address") {
  static NameServer server;
  const auto lookup = std::make_shared<HostLookup>("storage", server.resolver());
  CHECK(found(search(*lookup, 10s)) == kHere);
  server.moved = true;
  CHECK(found(search(*lookup, 10s)) == kThere);
}

TEST_CASE("numeric addresses, and those of RDMA ports, are not looked up") {
  static NameServer server;
  CHECK(found(search(*std::make_shared<HostLookup>("10.0.0.1", server.resolver()), 1s)) == kHere);
  const Result gid = search(*std::make_shared<HostLookup>("gid:fe80::1", server.resolver()), 1s);
  REQUIRE(gid);
  CHECK(gid->empty());
  CHECK(server.asked == 0);
}

TEST_CASE("a name to listen on is all of its addresses, anything else is itself") {
  for (const char* host : {"127.0.0.1", "::1", "*", "", "gid:fe80::1"}) {
    CHECK(addresses_of_listener(host) == std::vector<std::string>{host});
  }
  const auto local = addresses_of_listener("localhost");
  REQUIRE(local);
  CHECK(std::count(local->begin(), local->end(), "127.0.0.1") == 1);
  CHECK(std::count(local->begin(), local->end(), "localhost") == 0);
  const auto none = addresses_of_listener("no.such.host.invalid");
  REQUIRE_FALSE(none);
  CHECK(none.error().text.find("cannot resolve host 'no.such.host.invalid'") != std::string::npos);
}

}  // namespace
}  // namespace rtrs::lookup_test
