// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>
#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bridge/control/control_socket.hpp"
#include "bridge/control/unix_socket.hpp"

namespace rnbd::socket_test {
namespace {

/// A folder that goes with the test.
struct Folder {
  Folder() { REQUIRE(::mkdtemp(name) != nullptr); }
  ~Folder() { std::filesystem::remove_all(name); }
  std::string path() const { return std::string{name} + "/control"; }
  char name[32] = "/tmp/unit_control.XXXXXX";
};

class Peer {
 public:
  explicit Peer(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~Peer() { ::close(fd_); }
  void send(const std::string& text) const { ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  /// The next line with its end; what there was when the other side hung up.
  std::string line() const {
    std::string text;
    for (char c = 0; c != '\n' && ::recv(fd_, &c, 1, 0) == 1;) text += c;
    return text;
  }
  bool hung_up() const {
    char c = 0;
    return ::recv(fd_, &c, 1, 0) <= 0;
  }
  /// Reads nothing.
  void wait_until_dropped() const {
    pollfd hang_up{fd_, 0, 0};
    while (::poll(&hang_up, 1, -1) < 1) {
    }
  }

 private:
  int fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

std::unique_ptr<ControlSocket> serve(const Folder& folder, ControlSocket::Handler handler) {
  auto socket = ControlSocket::open(folder.path(), std::move(handler));
  REQUIRE(socket);
  return std::move(*socket);
}

std::string echo(std::string_view line, ControlCaller) { return "[" + std::string{line} + "]"; }

TEST_CASE("each line is answered by one, however the lines arrive") {
  const Folder folder;
  const auto socket = serve(folder, echo);
  const Peer peer{folder.path()};
  const Peer other{folder.path()};
  peer.send("o");
  other.send("two\r\n");
  CHECK(other.line() == "[two]\n");
  peer.send("ne\nthree\n\nfo");
  CHECK(peer.line() == "[one]\n");
  CHECK(peer.line() == "[three]\n");
  CHECK(peer.line() == "[]\n");
  peer.send("ur\n");
  CHECK(peer.line() == "[four]\n");
}

TEST_CASE("programs that say nothing make room, the oldest first, and those that talk stay") {
  const Folder folder;
  const auto socket = serve(folder, echo);
  const Peer talker{folder.path()};
  talker.send("first\n");
  REQUIRE(talker.line() == "[first]\n");
  std::vector<std::unique_ptr<Peer>> crowd;
  for (unsigned i = 1; i < ControlSocket::kMaxConnections; ++i) {
    crowd.push_back(std::make_unique<Peer>(folder.path()));
  }
  // A peer that has just come may be about to talk.
  for (std::string answer; answer != "[in]\n";) {
    const Peer newcomer{folder.path()};
    newcomer.send("in\n");
    answer = newcomer.line();
    if (answer != "[in]\n") CHECK(answer.find("EBUSY") != std::string::npos);
  }
  CHECK(crowd.front()->hung_up());
  talker.send("still\n");
  CHECK(talker.line() == "[still]\n");
  crowd.back()->send("late\n");
  CHECK(crowd.back()->line() == "[late]\n");
}

TEST_CASE("the socket is its owner's, and its readers' where there is their group") {
  const Folder folder;
  {
    const auto socket = serve(folder, echo);
    struct stat status {};
    REQUIRE(::stat(folder.path().c_str(), &status) == 0);
    const group* const readers = ::getgrnam("rnbd");
    const bool theirs = readers != nullptr && status.st_gid == readers->gr_gid;
    CHECK((status.st_mode & 0777) == (theirs ? 0660 : 0600));
  }
  CHECK(::access(folder.path().c_str(), F_OK) != 0);
}

TEST_CASE("a socket that was left behind is replaced, what is in use or no socket is not") {
  const Folder folder;
  const auto refusal = [&] {
    const auto socket = ControlSocket::open(folder.path(), echo);
    return socket ? std::string{} : socket.error();
  };
  SUBCASE("left behind") {
    const auto fd = listen_on_unix_socket(folder.path(), 0600);
    REQUIRE(fd);
    ::close(*fd);
    const auto socket = serve(folder, echo);
    const Peer peer{folder.path()};
    peer.send("x\n");
    CHECK(peer.line() == "[x]\n");
  }
  SUBCASE("in a directory that is not there, and is not made") {
    const std::string directory = folder.path() + ".d";
    const auto socket = ControlSocket::open(directory + "/control", echo);
    REQUIRE_FALSE(socket);
    CHECK(socket.error().find("there is no directory " + directory + "; create it (mkdir " +
                              directory + "), or name another one") != std::string::npos);
    const auto of_run = ControlSocket::open("/run/no-rnbd.d/control", echo);
    REQUIRE_FALSE(of_run);
    CHECK(
        of_run.error().find("(mkdir /run/no-rnbd.d, or RuntimeDirectory=no-rnbd.d in its unit)") !=
        std::string::npos);
    CHECK(::access(directory.c_str(), F_OK) != 0);
  }
  SUBCASE("in use") {
    const auto socket = serve(folder, echo);
    CHECK(refusal().find("another program listens there") != std::string::npos);
    const Peer peer{folder.path()};
    peer.send("x\n");
    CHECK(peer.line() == "[x]\n");
  }
  SUBCASE("a file") {
    std::ofstream{folder.path()} << "precious";
    CHECK(refusal().find("no socket") != std::string::npos);
    std::string content;
    std::ifstream{folder.path()} >> content;
    CHECK(content == "precious");
  }
  SUBCASE("nowhere") {
    const auto socket = ControlSocket::open(folder.path() + ".d/too/control", echo);
    REQUIRE_FALSE(socket);
    CHECK(socket.error().find(".d/too/control: No such file") != std::string::npos);
    CHECK_FALSE(ControlSocket::open(std::string(108, 'x'), echo));
  }
}

TEST_CASE("a line without an end is refused, and its sender hung up on") {
  const Folder folder;
  const auto socket = serve(folder, echo);
  const Peer peer{folder.path()};
  const std::string longest(ControlSocket::kMaxLine - 1, 'x');
  peer.send(longest + "\n");
  CHECK(peer.line() == "[" + longest + "]\n");
  peer.send(longest + "x\n");
  CHECK(peer.line().find("EMSGSIZE") != std::string::npos);
  CHECK(peer.hung_up());
}

TEST_CASE("who comes when all places are taken is turned away, until one is free") {
  const Folder folder;
  const auto socket = serve(folder, echo);
  std::vector<std::unique_ptr<Peer>> peers;
  for (unsigned i = 0; i < ControlSocket::kMaxConnections; ++i) {
    peers.push_back(std::make_unique<Peer>(folder.path()));
    peers.back()->send("here\n");
    CHECK(peers.back()->line() == "[here]\n");
  }
  {
    const Peer late{folder.path()};
    CHECK(late.line().find("EBUSY") != std::string::npos);
    CHECK(late.hung_up());
  }
  peers.pop_back();
  std::string answer;
  while (answer != "[x]\n") {  // its end is seen when the thread comes to it
    const Peer next{folder.path()};
    next.send("x\n");
    answer = next.line();
  }
  CHECK(answer == "[x]\n");
}

TEST_CASE("who does not read is dropped, and keeps nobody waiting") {
  const Folder folder;
  const std::string much(1 << 20, 'y');
  std::atomic<int> asked{0};
  const auto socket = serve(folder, [&](std::string_view line, ControlCaller caller) {
    ++asked;
    return line == "much" ? much : echo(line, caller);
  });
  const Peer deaf{folder.path()};
  deaf.send("much\nmuch\nmuch\n");
  while (asked == 0) ::usleep(1000);
  const Peer other{folder.path()};
  other.send("x\n");
  CHECK(other.line() == "[x]\n");
  CHECK(asked == 2);  // the deaf one's second line waits for its first answer
  deaf.wait_until_dropped();
  CHECK(asked == 2);
}

TEST_CASE("a handler that throws is an error to who asked, and no more") {
  const Folder folder;
  const auto socket = serve(folder, [](std::string_view line, ControlCaller caller) {
    if (line == "bad") throw std::runtime_error{"oh"};
    return echo(line, caller);
  });
  const Peer peer{folder.path()};
  peer.send("bad\ngood\n");
  CHECK(peer.line().find("\"EIO\"") != std::string::npos);
  CHECK(peer.line() == "[good]\n");
}

TEST_CASE("the end does not wait for those who are connected") {
  const Folder folder;
  auto socket =
      serve(folder, [](std::string_view, ControlCaller) { return std::string(1 << 20, 'y'); });
  const Peer idle{folder.path()};
  const Peer deaf{folder.path()};
  deaf.send("x\n");
  idle.send("unfinished");
  socket.reset();
  CHECK(idle.hung_up());
}

}  // namespace
}  // namespace rnbd::socket_test
