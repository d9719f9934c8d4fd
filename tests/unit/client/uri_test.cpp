// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/uri.hpp"

#include <doctest/doctest.h>

#include <built_annexes.hpp>

namespace uri_test {

using rnbd::DeviceUri;
using rnbd::HostPort;
using rnbd::parse_device_uri;
using rnbd::parse_host_port;
using rnbd::parse_path;
using rtrs::PathAddress;
using rtrs::TransportKind;

namespace {

DeviceUri uri(std::string_view text) {
  auto parsed = parse_device_uri(text);
  REQUIRE_MESSAGE(parsed.has_value(), text);
  return *parsed;
}

std::string complaint(std::string_view text) {
  auto parsed = parse_device_uri(text);
  REQUIRE_MESSAGE(!parsed.has_value(), text);
  return parsed.error();
}

bool mentions(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

}  // namespace

TEST_CASE("a URI names transport, host, port and device") {
  CHECK(uri("rnbd+tcp://127.0.0.1:1234/disk0") ==
        DeviceUri{TransportKind::tcp, "127.0.0.1", 1234, "disk0"});
  CHECK(uri("rnbd://storage-1.example.org:999/disk0") ==
        DeviceUri{TransportKind::rdma, "storage-1.example.org", 999, "disk0"});
}

TEST_CASE("a URI without a port means port 1234") {
  CHECK(uri("rnbd+tcp://host/disk0").port == 1234);
  CHECK(uri("rnbd+tcp://[::1]/disk0").port == 1234);
}

TEST_CASE("the device is what follows the first slash, with the slashes inside it") {
  CHECK(uri("rnbd://host/dev/sdb").device == "dev/sdb");
  CHECK(uri("rnbd://host//dev/sdb").device == "/dev/sdb");
  CHECK(uri("rnbd+tcp://host/a%20b%2Fc%3f").device == "a b/c?");
  CHECK(uri("rnbd+tcp://host/sch%C3%B6n").device == "sch\xC3\xB6n");
}

TEST_CASE("a URI may name only the server") {
  CHECK(uri("rnbd+tcp://host:7").device.empty());
  CHECK(uri("rnbd+tcp://host:7/").device.empty());
}

TEST_CASE("an IPv6 address stands in brackets, with its zone if it has one") {
  CHECK(uri("rnbd+tcp://[fe80::1%25eth0]:5/d") ==
        DeviceUri{TransportKind::tcp, "fe80::1%eth0", 5, "d"});
  CHECK(uri("rnbd+tcp://[::ffff:10.0.0.1]/d").host == "::ffff:10.0.0.1");
  CHECK(mentions(complaint("rnbd+tcp://::1/d"), "brackets: [::1];"));
  CHECK(mentions(complaint("rnbd+tcp://fe80::1/d"), "brackets: [fe80::1];"));
  CHECK(mentions(complaint("rnbd+tcp://::1:1300/d"),
                 "brackets: [::1]:1300, or [::1:1300] if all of it is the address"));
  CHECK(mentions(complaint("rnbd+tcp://fe80::1:99999/d"), "brackets: [fe80::1:99999];"));
  CHECK(mentions(complaint("rnbd+tcp://[::1/d"), "']' is missing"));
  CHECK(mentions(complaint("rnbd+tcp://[host]/d"), "not an IPv6 address"));
  CHECK(mentions(complaint("rnbd+tcp://[]/d"), "not an IPv6 address"));
  CHECK(mentions(complaint("rnbd+tcp://[::1]x/d"), "only a port"));
}

TEST_CASE("a malformed URI is refused with what to write instead") {
  CHECK(mentions(complaint(""), "rnbd+tcp://HOST"));
  CHECK(mentions(complaint("disk0"), "not a URI"));
  CHECK(mentions(complaint("nbd://host/disk0"), "unknown scheme 'nbd'"));
  CHECK(mentions(complaint("rnbd+rdma://host/disk0"), "unknown scheme"));
  CHECK(mentions(complaint("rnbd+tcp:///disk0"), "host is missing"));
  CHECK(mentions(complaint("rnbd+tcp://:1234/disk0"), "host is missing"));
  CHECK(mentions(complaint("rnbd+tcp://host:/d"), "1 to 65535"));
  CHECK(mentions(complaint("rnbd+tcp://host:0/d"), "1 to 65535"));
  CHECK(mentions(complaint("rnbd+tcp://host:65536/d"), "1 to 65535"));
  CHECK(mentions(complaint("rnbd+tcp://host:12x/d"), "1 to 65535"));
  CHECK(mentions(complaint("rnbd+tcp://ho st/d"), "not a host name"));
  CHECK(mentions(complaint("rnbd+tcp://user@host/d"), "path=SRC@DST"));
  CHECK(mentions(complaint("rnbd+tcp://host/d?what"), "%3F"));
  CHECK(mentions(complaint("rnbd+tcp://host/d#1"), "%23"));
  CHECK(mentions(complaint("rnbd+tcp://host/100%"), "%25"));
  CHECK(mentions(complaint("rnbd+tcp://host/%4"), "%25"));
  CHECK(mentions(complaint("rnbd+tcp://host/%zz"), "%25"));
  CHECK(mentions(complaint("rnbd+tcp://host/a%00b"), "control characters"));
  CHECK(mentions(complaint("rnbd+tcp://host/" + std::string(255, 'x')), "at most 254"));
  CHECK(uri("rnbd+tcp://host/" + std::string(254, 'x')).device.size() == 254);
}

TEST_CASE("behind the device a URI may have keys with values") {
  using Options = std::vector<std::pair<std::string, std::string>>;
  const DeviceUri one = uri("rnbd+tcp://host:99/disk0?uuid=1%322&x=");
  CHECK(one.port == 99);
  CHECK(one.device == "disk0");
  CHECK(one.options == Options{{"uuid", "122"}, {"x", ""}});
  CHECK(uri("rnbd+tcp://host?a=b").host == "host");
  CHECK(uri("rnbd+tcp://host/disk0?").options.empty());
}

TEST_CASE("a host may be the GID of an RDMA port") {
  CHECK(uri("rnbd://[gid:fe80::1]:99/disk0") ==
        DeviceUri{TransportKind::rdma, "gid:fe80::1", 99, "disk0"});
  CHECK(parse_path("gid:fe80::2@[gid:fe80::1]", TransportKind::rdma)->source == "gid:fe80::2");
  CHECK(mentions(complaint("rnbd://[gid:host]/disk0"), "not a GID"));
  CHECK(mentions(complaint("rnbd://[gid:fe80::1%eth0]/disk0"), "not a GID"));
}

#if RNBDKIT_WITH_MIRROR
TEST_CASE("a mirror is a list of servers, each with its paths") {
  const auto uri = *parse_device_uri("rnbd-mirror+tcp://a,b:99+10.0.0.2,[fd00::1]/disk0?read=near");
  CHECK(uri.device == "disk0");
  CHECK(uri.path() == PathAddress{TransportKind::tcp, "", "a", 1234});
  REQUIRE(uri.servers.size() == 3);
  CHECK(uri.servers[1] == std::vector<PathAddress>{{TransportKind::tcp, "", "b", 99},
                                                   {TransportKind::tcp, "", "10.0.0.2", 1234}});
  CHECK(uri.servers[2].front().host == "fd00::1");
  CHECK(uri.options.size() == 1);
  const auto mixed = *parse_device_uri("rnbd-mirror://a,tcp:b/x");
  CHECK(mixed.servers[0].front().transport == TransportKind::rdma);
  CHECK(mixed.servers[1].front().transport == TransportKind::tcp);
  const auto secret = *parse_device_uri("rnbds-mirror+tcp://me@a,b/x");
  CHECK(secret.tls);
  CHECK(secret.user == "me");
  CHECK(parse_device_uri("rnbd+tcp://a/x")->servers.empty());
}

TEST_CASE("a mirror with too few or doubled servers is refused") {
  CHECK(mentions(complaint("rnbd-mirror+tcp://a/x"), "2 to 16 servers, not 1"));
  CHECK(mentions(complaint("rnbd-mirror+tcp:///x"), "the host is missing"));
  CHECK(mentions(complaint("rnbd-mirror+tcp://a,b,/x"), "the host is missing"));
  CHECK(mentions(complaint("rnbd-mirror+tcp://a,a/x"), "twice"));
  CHECK(mentions(complaint("rnbd-mirror+tcp://a,b+a/x"), "twice"));
  CHECK(mentions(complaint("rnbd-mirror+tcp://a,,b/x"), "the host is missing"));
  CHECK(mentions(complaint("rnbd-mirror+tcp://a,b+/x"), "the host is missing"));
  CHECK(mentions(complaint("rnbd-mirror+tcp://1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17/x"),
                 "2 to 16 servers, not 17"));
  CHECK(mentions(complaint("rnbds-mirror://a,b/x"), "RDMA does not encrypt"));
}
#endif

TEST_CASE("a path has a destination, and a source and a port when they matter") {
  CHECK(*parse_path("10.0.0.2", TransportKind::tcp) ==
        PathAddress{TransportKind::tcp, "", "10.0.0.2", 1234});
  CHECK(*parse_path("10.0.0.1@10.0.0.2:99", TransportKind::rdma) ==
        PathAddress{TransportKind::rdma, "10.0.0.1", "10.0.0.2", 99});
  CHECK(*parse_path("fd00::1@[fd00::2]:99", TransportKind::tcp) ==
        PathAddress{TransportKind::tcp, "fd00::1", "fd00::2", 99});
  CHECK(*parse_path("rdma:10.0.0.1@10.0.0.2:99", TransportKind::tcp) ==
        PathAddress{TransportKind::rdma, "10.0.0.1", "10.0.0.2", 99});
  CHECK(*parse_path("tcp:[fd00::2]", TransportKind::rdma) ==
        PathAddress{TransportKind::tcp, "", "fd00::2", 1234});
  CHECK(*parse_path("[fd00::1]@[fd00::2]", TransportKind::tcp) ==
        PathAddress{TransportKind::tcp, "fd00::1", "fd00::2", 1234});
}

TEST_CASE("a path has a preference, which is no part of what it leads to") {
  const auto plain = *parse_path("10.0.0.2", TransportKind::tcp);
  const auto spare = *parse_path("10.0.0.2:1234,preference=-9", TransportKind::tcp);
  CHECK(plain.preference == 0);
  CHECK(spare.preference == -9);
  CHECK(spare == plain);
  CHECK(parse_path("rdma:[fd00::1]@[fd00::2]:99,preference=9", TransportKind::tcp)->preference ==
        9);
  for (const char* text : {"host,", "host,preference", "host,preference=", "host,preference=10",
                           "host,preference=-10", "host,preference=1x", "host,prefer=1",
                           "host,preference=1,preference=2", "host,preference= 1"}) {
    const auto parsed = parse_path(text, TransportKind::tcp);
    REQUIRE_MESSAGE(!parsed.has_value(), text);
    CHECK(mentions(parsed.error(), "DST[:PORT][,preference=N]"));
  }
  CHECK(mentions(parse_path("host,pref=3", TransportKind::tcp).error(),
                 "only preference=N is possible, not 'pref=3'"));
}

TEST_CASE("a malformed path is refused with the form to write") {
  for (const char* text : {"", "@", "@host", "a b@host", "host:", "10.0.0.1:7@host", "a@b@c",
                           "10.0.0.1@", "fd00::2", "[fd00::2", "host:99999"}) {
    auto parsed = parse_path(text, TransportKind::tcp);
    REQUIRE_MESSAGE(!parsed.has_value(), text);
    CHECK(mentions(parsed.error(), "[SRC@]DST[:PORT]"));
  }
}

}  // namespace uri_test
