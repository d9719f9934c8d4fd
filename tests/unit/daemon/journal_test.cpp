// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/journal.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>

namespace rnbd::test::journal_test {
namespace {

/// In the journal's place.
class Reader {
 public:
  Reader() {
    path_ = std::filesystem::temp_directory_path() / ("journal-test-" + std::to_string(getpid()));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path_.size() < sizeof(address.sun_path));
    std::memcpy(address.sun_path, path_.data(), path_.size());
    REQUIRE(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~Reader() { unlink(path_.c_str()); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const std::string& path() const { return path_; }
  std::string read() const {
    std::array<char, 4096> message{};
    const ssize_t n = recv(socket_.get(), message.data(), message.size(), MSG_DONTWAIT);
    return n < 0 ? std::string{} : std::string{message.data(), static_cast<std::size_t>(n)};
  }

 private:
  std::string path_;
  rtrs::OwnedFd socket_{socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
};

TEST_CASE("journal: there is a field for each fact that is known") {
  CHECK(journal_fields({}).empty());
  CHECK(journal_fields({.event = "path_lost", .path = "tcp:10.0.0.1:1234", .error = 5}) ==
        "RNBD_EVENT=path_lost\nRNBD_PATH=tcp:10.0.0.1:1234\nERRNO=5\n");
  CHECK(journal_fields({.event = "device_opened", .session = "vm 1", .device = "disk=0"}) ==
        "RNBD_EVENT=device_opened\nRNBD_SESSION=vm 1\nRNBD_DEVICE=disk=0\n");
}

TEST_CASE("journal: the name of a session cannot add a field of its own") {
  const std::string fields = journal_fields({.session = "vm\nPRIORITY=0\n_UID=0"});
  CHECK(fields.starts_with("RNBD_SESSION=vm"));
  CHECK(fields.find('\n') == fields.size() - 1);
}

TEST_CASE("journal: a line goes with its priority and its fields, to whoever listens now") {
  const std::string name = program_invocation_short_name;
  const Reader reader;
  const Journal journal{reader.path()};
  CHECK(journal.send(4, "path lost", "RNBD_EVENT=path_lost\n"));
  CHECK(reader.read() == "MESSAGE=path lost\nPRIORITY=4\nSYSLOG_FACILITY=3\nSYSLOG_IDENTIFIER=" +
                             name + "\nRNBD_EVENT=path_lost\n");
  unlink(reader.path().c_str());
  CHECK_FALSE(journal.send(4, "path lost", "RNBD_EVENT=path_lost\n"));
  CHECK(reader.read().empty());
}

/// Seen by whoever passes lines on.
std::string facts_now() {
  const rtrs::LogFacts* facts = rtrs::LogAbout::now();
  return facts == nullptr ? "" : journal_fields(*facts);
}

TEST_CASE("journal: lines are about the innermost subject, and then about the one before") {
  CHECK(facts_now().empty());
  {
    const rtrs::LogAbout outer{{.event = "outer", .session = "vm1"}};
    {
      const rtrs::LogAbout inner{{.event = "inner"}};
      CHECK(facts_now() == "RNBD_EVENT=inner\n");
    }
    CHECK(facts_now() == "RNBD_EVENT=outer\nRNBD_SESSION=vm1\n");
  }
  CHECK(facts_now().empty());
}

}  // namespace
}  // namespace rnbd::test::journal_test
