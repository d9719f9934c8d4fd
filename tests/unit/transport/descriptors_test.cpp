// SPDX-License-Identifier: BSD-3-Clause
// Sessions and the process's descriptors: they pass none on, and do without more.
#include <fcntl.h>
#include <sys/resource.h>

#include <set>

#include "rdma/descriptor_reserve.hpp"
#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test::descriptors_test {
namespace {

using namespace std::chrono_literals;

std::set<int> open_descriptors() {
  std::set<int> all;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) all.insert(descriptor);
  }
  return all;
}

TEST_CASE("no program that this one starts inherits a descriptor of a session") {
  const auto before = open_descriptors();
  EchoServer server;
  auto client = connect(client_options(server.port));
  EchoOperation read{"x", {}, {}};
  REQUIRE(client->run(read, {}) == 0);
  int checked = 0;
  for (const int descriptor : open_descriptors()) {
    if (before.count(descriptor) != 0) continue;
    CAPTURE(descriptor);
    CHECK((fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
    ++checked;
  }
  CHECK(checked > 6);
}

TEST_CASE("with more descriptors there are no fewer for exports, nor for clients") {
  rlim_t exports = 0;
  rlim_t clients = 0;
  for (rlim_t limit = 8; limit <= 4096; ++limit) {
    CAPTURE(limit);
    const rlim_t kept = descriptors_kept_from_exports(limit);
    REQUIRE(limit - kept >= exports);
    REQUIRE(descriptors_for_all(limit) >= clients);
    REQUIRE(kept >= limit - descriptors_for_all(limit));
    exports = limit - kept;
    clients = descriptors_for_all(limit);
  }
  CHECK(descriptors_kept_from_exports(127) == 31);
  CHECK(descriptors_kept_from_exports(128) == 32);
  CHECK(descriptors_kept_from_exports(192) == 96);
  CHECK(descriptors_kept_from_exports(1024) == 256);
}

/// Allows no descriptor from `limit` on while it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit now{.rlim_cur = limit, .rlim_max = before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

// GCC alone defines it, and has UBSan's check of types, which opens a pipe.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kNeedsDescriptorsItself = true;
#else
constexpr bool kNeedsDescriptorsItself = false;
#endif

TEST_CASE("wherever descriptors run out, connecting fails with a reason and the next try works" *
          doctest::skip(kNeedsDescriptorsItself)) {
  EchoServer server;
  check_good_client(server);  // what libraries open once is open now
  bool connected = false;
  rlim_t first_free = 0;
  while (fcntl(static_cast<int>(first_free), F_GETFD) >= 0) ++first_free;
  for (rlim_t limit = first_free; !connected; ++limit) {
    CAPTURE(limit);
    REQUIRE(limit < first_free + 100);
    auto options = client_options(server.port);
    options.connect_timeout = 300ms;
    const DescriptorLimit few{limit};
    const auto client = Client::connect(std::move(options), {});
    connected = client.has_value();
    if (connected) continue;
    CHECK(client.error().error != 0);
    CHECK_FALSE(client.error().text.empty());
  }
  check_good_client(server);
}

TEST_CASE("a socket that is passed to the server must be one that listens") {
  ServerOptions options;
  SUBCASE("a TCP socket that does not listen") {
    options.listen_fds = {socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  }
  SUBCASE("a UDP socket") { options.listen_fds = {socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)}; }
  EchoHandler handler;
  auto server = Server::create(options, handler);
  const auto started = server->start();
  REQUIRE_FALSE(started.has_value());
  CHECK(started.error().error == EINVAL);
  CHECK(started.error().text.find(".socket unit") != std::string::npos);
  ::close(options.listen_fds[0]);
}

}  // namespace
}  // namespace rtrs::test::descriptors_test
