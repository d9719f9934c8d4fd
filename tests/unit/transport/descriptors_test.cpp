// What sessions do with the process's descriptors: pass none on, and do without more.
#include <fcntl.h>
#include <sys/resource.h>

#include <set>

#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test {
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
}  // namespace rtrs::test
