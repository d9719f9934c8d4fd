// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/directions.hpp"

#include <doctest/doctest.h>

#include <built_annexes.hpp>

#include "rdma/path_list.hpp"

namespace rnbd::directions_test {
namespace {

struct Row {
  std::string text;
  const char* says;
};

bool mentions(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

TEST_CASE("an advertised address has a transport, a host and perhaps a port") {
  const std::pair<const char*, const char*> rows[] = {
      {"tcp:10.0.0.1", "tcp:10.0.0.1:1234"},
      {"tcp:10.0.0.1:99", "tcp:10.0.0.1:99"},
      {"rdma:store.example:7", "rdma:store.example:7"},
      {"tcp:[2001:db8::1]", "tcp:[2001:db8::1]:1234"},
      {"rdma:[gid:fe80::1]:5", "rdma:[gid:fe80::1]:5"}};
  for (const auto& [text, whole] : rows) {
    const auto path = parse_advertised(text);
    REQUIRE_MESSAGE(path.has_value(), (path ? "" : path.error()));
    CHECK(rtrs::to_string(*path) == whole);
    CHECK(path->preference == 0);
    CHECK(parse_advertised(whole).has_value());  // as it is told
  }
}

TEST_CASE("an address that means nothing on another machine is not advertised") {
  const Row rows[] = {{"", "begins with its transport"},
                      {"10.0.0.1", "begins with its transport"},
                      {"udp:10.0.0.1", "begins with its transport"},
                      {"tcp:", "host is missing"},
                      {"tcp:10.0.0.9@10.0.0.1", "knows its own address"},
                      {"tcp:10.0.0.1,preference=3", "nothing may follow"},
                      {"tcp:[fe80::1%eth0]:1", "interface"},
                      {"tcp:[fe80::1%25eth0]:1", "interface"},
                      {"tcp:0.0.0.0", "every address"},
                      {"tcp:[::]:1234", "every address"},
                      {"tcp:*:1234", "not a host name"},
                      {"tcp:10.0.0.1:0", "1 to 65535"},
                      {"tcp:10.0.0.1:65536", "1 to 65535"},
                      {"tcp:::1", "brackets"},
                      {"tcp:a b", "not a host name"},
                      {"tcp:a\x1b[2J", "not a host name"},
                      {"tcp:" + std::string(64, 'a'), "63 characters"}};
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const auto path = parse_advertised(row.text);
    REQUIRE_FALSE(path.has_value());
    CHECK(mentions(path.error(), row.says));
    CHECK(path.error().find('\x1b') == std::string::npos);
  }
}

TEST_CASE("a referral names one device of one server") {
  const auto uri = parse_referral("rnbds+tcp://store2.example:99/vm7?server-id=1234567890abcdef");
  REQUIRE_MESSAGE(uri.has_value(), (uri ? "" : uri.error()));
  CHECK(uri->host == "store2.example");
  CHECK(uri->device == "vm7");
  CHECK(uri->tls);
  CHECK(parse_referral("rnbd://[2001:db8::1]/dev/sdb").has_value());
  CHECK(parse_referral("rnbd+tcp://a/b?uuid=01234567-89ab-cdef-0123-456789abcdef").has_value());
}

TEST_CASE("a referral says nothing that is for the client to say") {
  const Row rows[] = {{"", "is not a URI"},
                      {"nbd://a/b", "unknown scheme"},
                      {"rnbd+tcp://a", "device is missing"},
                      {"rnbd+tcp://a/", "device is missing"},
                      {"rnbds+tcp://root@a/b", "its own user"},
                      {"rnbds+tcp://a/b?tls-psk-file=/etc/shadow", "uuid= and server-id="},
                      {"rnbds+tcp://a/b?tls-verify=off", "uuid= and server-id="},
                      {"rnbd+tcp://a/b?uuid=disk", "no UUID"},
                      {"rnbd+tcp://a/b?server-id=12", "server"},
                      {"rnbd+tcp://0.0.0.0/b", "every address"},
                      {"rnbd+tcp://[fe80::1%eth0]/b", "interface"},
                      {"rnbd+tcp://a/" + std::string(1024, 'b'), "at most 1024"}};
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const auto uri = parse_referral(row.text);
    REQUIRE_FALSE(uri.has_value());
    CHECK(mentions(uri.error(), row.says));
  }
#if RNBDKIT_WITH_MIRROR
  CHECK(mentions(parse_referral("rnbd-mirror+tcp://a,c/b").error(), "several servers"));
#endif
}

}  // namespace
}  // namespace rnbd::directions_test
