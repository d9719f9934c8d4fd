// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/handshake.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "bridge/nbd/handshake_socket.hpp"

namespace handshake_test {

using namespace rnbd;
using namespace rnbd::nbd;
using namespace std::chrono_literals;
using namespace std::string_literals;

namespace {

/// The server's end and the client's.
struct Ends {
  Ends() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0); }
  ~Ends() {
    ::close(fds[0]);
    ::close(fds[1]);
  }
  void client_sends(const std::string& bytes) const {
    REQUIRE(::send(fds[1], bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }

  std::array<int, 2> fds{-1, -1};
};

/// Shakes hands, in front of a server that is not asked.
struct Haggling {
  bool agrees(std::chrono::milliseconds patience = 60s) {
    return shake_hands(ends.fds[0], exports, log, {}, patience).has_value();
  }

  Ends ends;
  std::string said;
  rtrs::Log log = [this](rtrs::LogLevel, const std::string& text) { said += text + "\n"; };
  ClientConfig config;
  Connections connections{config, {}};
  Exports exports{config, connections};
};

const std::string kFlags = "\0\0\0\3"s;

}  // namespace

TEST_CASE("handshake: a client that is slow but steady has one deadline, not one for each byte") {
  const Ends ends;
  const rtrs::Interrupt never{};
  HandshakeSocket socket{ends.fds[0], never, 200ms};
  const auto began = std::chrono::steady_clock::now();
  char byte = 0;
  unsigned received = 0;
  for (; received < 1000; ++received) {
    ends.client_sends("x");
    std::this_thread::sleep_for(5ms);
    if (!socket.receive(&byte, 1)) break;
  }
  CHECK(received < 1000);
  CHECK(std::chrono::steady_clock::now() - began >= 200ms);
}

TEST_CASE("handshake: the deadline is kept while nothing comes, and can be put off") {
  const Ends ends;
  const rtrs::Interrupt never{};
  HandshakeSocket socket{ends.fds[0], never, 20ms};
  char byte = 0;
  CHECK_FALSE(socket.receive(&byte, 1));
  ends.client_sends("x");
  CHECK_FALSE(socket.receive(&byte, 1));
  socket.prolong(60s);
  CHECK(socket.receive(&byte, 1));
}

TEST_CASE("handshake: only what does not exist is unknown; a server that cannot be used is not") {
  for (const int error : {ENOENT, ENXIO, ENODEV, EINVAL}) {
    CHECK(refusal(error) == Reply::unknown);
  }
  for (const int error : {EPERM, EACCES, EROFS, EBUSY, ENOMEM, EOPNOTSUPP}) {
    CHECK(refusal(error) == Reply::policy);
  }
  for (const int error :
       {ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENOTCONN, EIO, ESTALE, EPROTO, EINTR, ESHUTDOWN}) {
    CHECK(refusal(error) == Reply::shutdown);
  }
}

TEST_CASE("handshake: client flags that are missing and those that are unknown are told apart") {
  Haggling haggling;
  SUBCASE("old negotiation has no options but one") {
    haggling.ends.client_sends("\0\0\0\2IHAVEOPT\0\0\0\3\0\0\0\0"s);
    CHECK_FALSE(haggling.agrees());
    CHECK(haggling.said.find("it sent option 3, but not the flag") != std::string::npos);
  }
  SUBCASE("a flag that nobody knows") {
    haggling.ends.client_sends("\0\0\0\7"s);
    CHECK_FALSE(haggling.agrees());
    CHECK(haggling.said.find("not offered (7)") != std::string::npos);
    CHECK(haggling.said.find("newstyle") == std::string::npos);
  }
}

TEST_CASE("handshake: options without end come to an end") {
  Haggling haggling;
  haggling.ends.client_sends(kFlags);
  std::atomic<bool> over{false};
  std::thread client{[&] {
    const std::string unknown = "IHAVEOPT\0\0\0\x63\0\0\0\0"s;
    for (unsigned i = 0; i < 2000 && !over; ++i) {
      (void)::send(haggling.ends.fds[1], unknown.data(), unknown.size(), MSG_NOSIGNAL);
      std::this_thread::sleep_for(5ms);
    }
    ::shutdown(haggling.ends.fds[1], SHUT_WR);
  }};
  const auto began = std::chrono::steady_clock::now();
  CHECK_FALSE(haggling.agrees(200ms));
  CHECK(std::chrono::steady_clock::now() - began < 5s);
  over = true;
  client.join();
}

TEST_CASE("handshake: who always has more to say is interrupted all the same") {
  const Ends ends;
  std::atomic<bool> ends_now{false};
  const rtrs::Interrupt interrupt{
      [](void* context) { return static_cast<std::atomic<bool>*>(context)->load(); }, &ends_now};
  HandshakeSocket socket{ends.fds[0], interrupt, 60s};
  ends.client_sends("xx");
  char byte = 0;
  CHECK(socket.receive(&byte, 1));
  ends_now = true;
  CHECK_FALSE(socket.receive(&byte, 1));
}

TEST_CASE("handshake: extended headers come with or without structured replies, and stay") {
  Haggling haggling;
  const auto option = [](Option number, const std::string& data = {}) {
    OptionHeader header;
    header.magic = kOptionMagic;
    header.option = static_cast<std::uint32_t>(number);
    header.length = static_cast<std::uint32_t>(data.size());
    return bytes_of(header) + data;
  };
  const auto answers = [&haggling](std::size_t count) {
    std::vector<Reply> types;
    while (types.size() < count) {
      OptionReply reply;
      REQUIRE(::recv(haggling.ends.fds[1], &reply, sizeof(reply), MSG_WAITALL) == sizeof(reply));
      std::string text(reply.length, '\0');
      REQUIRE(::recv(haggling.ends.fds[1], text.data(), text.size(), MSG_WAITALL) ==
              static_cast<ssize_t>(text.size()));
      types.push_back(static_cast<Reply>(std::uint32_t{reply.type}));
    }
    return types;
  };
  haggling.ends.client_sends(kFlags + option(Option::extended_headers, "x") +
                             option(Option::structured_reply) + option(Option::extended_headers) +
                             option(Option::extended_headers) + option(Option::structured_reply) +
                             option(Option::export_name, "disk0"));
  CHECK_FALSE(haggling.agrees());
  CHECK(haggling.said.find("EXPORT_NAME after EXTENDED_HEADERS") != std::string::npos);
  Greeting greeting;
  REQUIRE(::recv(haggling.ends.fds[1], &greeting, sizeof(greeting), MSG_WAITALL) ==
          sizeof(greeting));
  CHECK(answers(5) == std::vector{Reply::invalid, Reply::ack, Reply::ack, Reply::ack,
                                  Reply::extended_headers_required});
}

TEST_CASE("handshake: a text that is too long for NBD ends with a whole character") {
  CHECK(clipped("short") == "short");
  CHECK(clipped(std::string(4096, 'x')).size() == 4096);
  CHECK(clipped(std::string(5000, 'x')).size() == 4096);
  const std::string umlaut = "\xC3\xA4";
  CHECK(clipped(std::string(4095, 'x') + umlaut).size() == 4095);
  CHECK(clipped(std::string(4094, 'x') + umlaut + "x").size() == 4096);
}

}  // namespace handshake_test
