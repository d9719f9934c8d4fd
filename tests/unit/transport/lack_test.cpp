// SPDX-License-Identifier: BSD-3-Clause
// A server that lacks memory while clients come in.
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <fstream>
#include <future>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/allocations.hpp"
#include "tests/unit/sanitizer.hpp"
#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test::lack_test {
namespace {

using namespace std::chrono_literals;

/// Sets it on the thread of the server's only reactor, and returns what was there.
Lack set_lack(EchoServer& server, Lack wanted) {
  std::promise<Lack> before;
  boost::asio::post(server.server->reactors()[0]->io(),
                    [&] { before.set_value(test::set_lack(wanted)); });
  return before.get_future().get();
}

/// A whole handshake, and no more. False: the server closed.
bool comes_in(const EchoServer& server, std::uint8_t id) {
  RawClient client{server.port};
  client.hello(parameters(0, 1, id));
  tcp::Hello hello;
  if (!client.hear(std::as_writable_bytes(std::span{&hello, 1}))) return false;
  const auto record =
      wire::decode_connect_response(tcp::decode_hello(wire::bytes_of(hello))->record);
  if (record->error != 0) return false;
  client.frame(tcp::Opcode::send, 0, 0, 0, 0,
               wire::bytes_of(wire::encode_info_request("newcomer")));
  tcp::FrameHeader header;
  return client.hear(std::as_writable_bytes(std::span{&header, 1}));
}

TEST_CASE("wherever memory runs out while a client comes in, others go on and the next comes in") {
  unsigned refused = 0;
  SUBCASE("once") { refused = 1; }
  SUBCASE("three times") { refused = 3; }
  // A place that is not given back would soon lack.
  ServerOptions options;
  options.reactors = 1;
  options.max_handshakes = 2;
  options.max_sessions = 3;
  options.max_connections = 8;
  options.handshake_timeout = 2s;
  options.log = [](LogLevel, const std::string&) {};
  EchoServer server{options};
  const auto there = connect(client_options(server.port));
  check_good_client(server);
  bool enough = false;
  for (unsigned n = 0; !enough; ++n) {
    CAPTURE(n);
    REQUIRE(n < 1000);
    set_lack(server, {n, refused});
    const bool came = comes_in(server, 77);
    while (server.handler.sessions > 1) std::this_thread::yield();
    enough = set_lack(server, {}).refused == refused;
    if (enough) CHECK(came);
    check_good_client(server);
    EchoOperation read{"x", {}, {}};
    REQUIRE(there->run(read, {}) == 0);
  }
}

/// Allows so many bytes of address space more than there are in use, while it lives.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(rlim_t more) {
    rlim_t pages = 0;
    std::ifstream{"/proc/self/statm"} >> pages;
    REQUIRE(getrlimit(RLIMIT_AS, &before_) == 0);
    const rlimit now{.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + more,
                     .rlim_max = before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_AS, &now) == 0);
  }
  ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &before_); }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;

 private:
  rlimit before_{};
};

// The sanitizer's allocator needs address space of its own, and ends the process without it.
TEST_CASE("a client whose chunks would leave nothing to the heap does not come in" *
          doctest::skip(kAddressSanitizer)) {
  ServerOptions options;
  options.reactors = 1;
  EchoServer server{options};
  CHECK(comes_in(server, 77));
  while (server.handler.sessions != 0) std::this_thread::yield();
  for (int turn = 0; turn < 2; ++turn) set_lack(server, {});  // its chunks are gone then
  {
    constexpr rlim_t kChunks = 256 * 266'240;  // bytes, by default
    const AddressSpaceLimit limit{kChunks + (1 << 20)};
    CHECK_FALSE(comes_in(server, 78));
  }
  CHECK(comes_in(server, 79));
}

}  // namespace
}  // namespace rtrs::test::lack_test
