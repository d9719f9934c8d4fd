// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/config.hpp"

#include <doctest/doctest.h>

#include <built_annexes.hpp>
#include <filesystem>
#if RNBDKIT_WITH_MIRROR
#include "bridge/client/mirror/mirror_config.hpp"
#endif
#include "bridge/protocol/uuid.hpp"
#include "rdma/wire/messages.hpp"

namespace config_test {

using namespace std::chrono_literals;
using rnbd::ClientConfig;
using rnbd::ConfigReader;
using rnbd::Use;
using rnbd::wire::AccessMode;
using rtrs::PathAddress;
using rtrs::TransportKind;

namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

tl::expected<ClientConfig, std::string> read(const Pairs& pairs) {
  ConfigReader reader;
  for (const auto& [key, value] : pairs) {
    if (auto done = reader.set(key, value); !done) return tl::unexpected(done.error());
  }
  return reader.complete();
}

ClientConfig good(const Pairs& pairs) {
  auto config = read(pairs);
  REQUIRE_MESSAGE(config.has_value(), config.error());
  return *config;
}

/// The error about one more pair beside a good URI.
std::string complaint(const std::string& key, const std::string& value) {
  auto config = read({{"uri", "rnbd+tcp://host/disk0"}, {key, value}});
  REQUIRE_MESSAGE(!config.has_value(), key, "=", value);
  return config.error();
}

std::string complaint(const Pairs& pairs) {
  auto config = read(pairs);
  REQUIRE(!config.has_value());
  return config.error();
}

bool mentions(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

}  // namespace

TEST_CASE("a URI is all that is needed") {
  const ClientConfig config = good({{"uri", "rnbd+tcp://10.0.0.1:99/disk0"}});
  REQUIRE(config.paths.size() == 1);
  CHECK(config.paths[0] == PathAddress{TransportKind::tcp, "", "10.0.0.1", 99});
  CHECK(config.device == "disk0");
  CHECK_FALSE(config.access.has_value());
  CHECK(config.connect_timeout == 10s);
  CHECK(config.heartbeat == 500ms);
  CHECK(config.heartbeat_misses == 4);
  CHECK(config.policy == rtrs::PathPolicy::min_inflight);
  CHECK(config.no_path_timeout == 30s);
  CHECK(config.no_path_error == EIO);
  CHECK(config.reconnect_min == 100ms);
  CHECK(config.reconnect_max == 2s);
  CHECK(config.settle_time == 10s);
  CHECK(config.spin == 0s);
  CHECK_FALSE(config.require_extension);
  CHECK(config.header_digest());
  CHECK(config.data_digest());
  CHECK(config.extensions);
  CHECK_FALSE(config.dynamic_export);
  CHECK_FALSE(config.connect_now);
  CHECK(config.session_name.empty());
}

TEST_CASE("server and device may be named apart") {
  const ClientConfig config = good({{"device", "dev/sdb"}, {"server", "[::1]:7"}});
  CHECK(config.paths[0] == PathAddress{TransportKind::tcp, "", "::1", 7});
  CHECK(config.device == "dev/sdb");
  CHECK(config.server() == "rnbd+tcp://[::1]:7");
  CHECK(good({{"uri", "rnbd+tcp://host"}, {"device", "d"}}).device == "d");
  CHECK(good({{"path", "10.0.0.2"}, {"device", "d"}}).paths[0].host == "10.0.0.2");
}

TEST_CASE("a path to the server says from where to reach it") {
  const ClientConfig config =
      good({{"path", "10.0.0.9@10.0.0.1"}, {"uri", "rnbd+tcp://10.0.0.1/disk0"}});
  REQUIRE(config.paths.size() == 1);
  CHECK(config.paths[0] == PathAddress{TransportKind::tcp, "10.0.0.9", "10.0.0.1", 1234});
}

TEST_CASE("every option reaches the configuration") {
  const ClientConfig config = good({{"uri", "rnbd+tcp://host/disk0"},
                                    {"access", "migration"},
                                    {"session", "blue"},
                                    {"lanes", "3"},
                                    {"spin", "50us"},
                                    {"connect", "now"},
                                    {"connect-timeout", "1.5"},
                                    {"heartbeat", "100ms"},
                                    {"heartbeat-misses", "7"},
                                    {"paths", "given"},
                                    {"policy", "min-latency"},
                                    {"no-path-timeout", "0"},
                                    {"no-path-error", "ENOSPC"},
                                    {"reconnect-min", "20ms"},
                                    {"reconnect-max", "5"},
                                    {"settle-time", "0"},
                                    {"digest", "header"},
                                    {"extensions", "no"},
                                    {"discard", "on"},
                                    {"write-zeroes", "off"},
                                    {"dynamic-export", "true"},
                                    {"control", "disk0.ctl"}});
  CHECK(config.access == AccessMode::migration);
  CHECK(config.session_name == "blue");
  CHECK(config.lanes == 3);
  CHECK(config.spin == 50us);
  CHECK(config.connect_now);
  CHECK(config.connect_timeout == 1500ms);
  CHECK(config.heartbeat == 100ms);
  CHECK(config.heartbeat_misses == 7);
  CHECK(config.policy == rtrs::PathPolicy::min_latency);
  CHECK(config.no_path_timeout == 0s);
  CHECK(config.no_path_error == ENOSPC);
  CHECK(config.reconnect_min == 20ms);
  CHECK(config.reconnect_max == 5s);
  CHECK(config.settle_time == 0s);
  CHECK(config.header_digest());
  CHECK_FALSE(config.data_digest());
  CHECK_FALSE(config.extensions);
  CHECK(config.geometry.discard == Use::always);
  CHECK(config.geometry.write_zeroes == Use::never);
  CHECK(config.dynamic_export);
  // nbdkit changes its folder when it goes into the background.
  CHECK(config.control == std::filesystem::absolute("disk0.ctl"));
}

TEST_CASE("a URI of TLS names the user and the keys") {
  const ClientConfig config =
      good({{"uri", "rnbds+tcp://host1@storage/disk0?tls-psk-file=/etc/rnbd/host1.psk"}});
  CHECK(config.tls == rtrs::TlsMode::require);
  CHECK(config.tls_keys.username == "host1");
  CHECK(config.tls_keys.psk == "/etc/rnbd/host1.psk");
  CHECK(config.paths[0].host == "storage");
  CHECK(config.device == "disk0");
  CHECK(config.server() == "rnbds+tcp://storage:1234");
  CHECK_FALSE(config.header_digest());
  CHECK_FALSE(config.data_digest());
}

TEST_CASE("a command that reaches the server has the keys, each as one word of a shell") {
  CHECK(good({{"uri", "rnbd+tcp://h/d"}}).server_and_keys() == "rnbd+tcp://h:1234");
  CHECK(good({{"uri", "rnbds+tcp://me@h/d?tls-psk-file=/k"}}).server_and_keys() ==
        "rnbds+tcp://h:1234 tls-username=me tls-psk=/k");
  CHECK(
      good(
          {{"uri", "rnbds+tcp://h/d"}, {"tls-certificates", "/it's mine"}, {"tls-verify", "false"}})
          .server_and_keys() ==
      "rnbds+tcp://h:1234 tls-certificates='/it'\\''s mine' tls-verify=false");
  CHECK(good({{"uri", "rnbd://h/d"}, {"auth-username", "me"}, {"auth-psk", "/k"}})
            .server_and_keys() == "rnbd://h:1234 auth-username=me auth-psk=/k");
}

#if RNBDKIT_WITH_MIRROR
TEST_CASE("a mirror has its members and how it is used from the URI") {
  const ClientConfig config = good({{"uri", "rnbd-mirror+tcp://a,b:99/disk0?degraded=quorum"}});
  REQUIRE(config.find<rnbd::mirror::MirrorConfig>() != nullptr);
  const auto& mirror = rnbd::mirror::settings_of(config);
  CHECK(config.servers.size() == 2);
  CHECK(mirror.degraded == rnbd::mirror::Degraded::quorum);
  CHECK_FALSE(mirror.near);
  CHECK_FALSE(mirror.create_copy);
  CHECK(rnbd::mirror::settings_of(good({{"uri", "rnbd-mirror+tcp://a,b/disk0?create=copy"}}))
            .create_copy);
  CHECK(config.paths == config.servers.front());
  CHECK(config.server() == "rnbd-mirror+tcp://a:1234,b:99");
  CHECK(good({{"uri", "rnbd+tcp://a/disk0"}}).find<rnbd::mirror::MirrorConfig>() == nullptr);
}

TEST_CASE("a mirror may have a vote, at a server of its own") {
  const ClientConfig config = good({{"uri", "rnbd-mirror+tcp://a,b/disk0?vote=w:99"}});
  REQUIRE(rnbd::mirror::settings_of(config).vote.has_value());
  CHECK(rnbd::host_and_port(*rnbd::mirror::settings_of(config).vote) == "w:99");
  CHECK(rnbd::mirror::servers_of(config) == 3);
  CHECK(rnbd::mirror::settings_of(config).group ==
        rnbd::mirror::settings_of(good({{"uri", "rnbd-mirror+tcp://a,b/disk0"}})).group);
  CHECK(mentions(complaint({{"uri", "rnbd-mirror+tcp://a,b/disk0?vote=b:1234"}}), "outlive"));
  CHECK(mentions(complaint({{"uri", "rnbd+tcp://a/disk0?vote=w"}}), "only a mirror"));
}

TEST_CASE("the identity of a mirror's group follows from servers, order and device, or is given") {
  const auto group = [](const std::string& uri) {
    return rnbd::mirror::settings_of(good({{"uri", uri}})).group;
  };
  const auto first = group("rnbd-mirror+tcp://a,b/disk0");
  CHECK(first == group("rnbd-mirror+tcp://a:1234,b+10.0.0.2/disk0?read=near"));
  for (const char* other : {"b,a/disk0", "a,b/disk1", "a,b,c/disk0", "a,b:99/disk0"})
    CHECK(group(std::string{"rnbd-mirror+tcp://"} + other) != first);
  const std::string uuid = "01234567-89ab-cdef-0123-456789abcdef";
  CHECK(rnbd::uuid_text(group("rnbd-mirror+tcp://x,y/disk0?group=" + uuid)) == uuid);
}

TEST_CASE("what does not go with a mirror is refused") {
  const std::string uri = "rnbd-mirror+tcp://a,b/disk0";
  for (const Pairs::value_type& pair : {Pairs::value_type{"path", "c"},
                                        {"access", "ro"},
                                        {"session", "me"},
                                        {"paths", "auto"},
                                        {"dynamic-export", "true"},
                                        {"uuid", "01234567-89ab-cdef-0123-456789abcdef"},
                                        {"extensions", "false"}})
    CHECK(mentions(complaint({{"uri", uri}, pair}), "does not go with a mirror"));
  CHECK(mentions(complaint({{"uri", uri}, {"tls", "require"}}), "TLS needs keys"));
  const auto wrong = [](const std::string& text) {
    return ConfigReader{}.set("uri", text).error();
  };
  CHECK(mentions(wrong(uri + "?read=fast"), "read=: 'fast' is none of near, round-robin"));
  CHECK(mentions(wrong(uri + "?degraded=no"), "none of allow, quorum"));
  CHECK(mentions(wrong(uri + "?group=1"), "group="));
  CHECK(mentions(wrong("rnbd+tcp://a/disk0?read=near"), "only a mirror has that"));
}
#endif

TEST_CASE("TLS may be asked for by keys, and checksums beside it") {
  const ClientConfig config = good({{"uri", "rnbd+tcp://storage/disk0"},
                                    {"tls", "require"},
                                    {"tls-certificates", "/etc/pki/x"},
                                    {"tls-verify", "false"},
                                    {"digest", "header"}});
  CHECK(config.tls == rtrs::TlsMode::require);
  CHECK(config.tls_keys.certificates == "/etc/pki/x");
  CHECK_FALSE(config.tls_keys.verify_peer);
  CHECK(config.header_digest());
  CHECK_FALSE(config.data_digest());
}

TEST_CASE(
    "nothing is sent in clear that was meant to be encrypted, and nothing is half asked for") {
  const std::string tls = "rnbds+tcp://host/disk0";
  const std::string with_key = tls + "?tls-psk-file=/k";
  CHECK(mentions(complaint("tls", "on"), "require or off"));
  CHECK(mentions(complaint("tls", "require"), "TLS needs keys"));
  CHECK(mentions(complaint("tls-psk", "/k"), "but not that it is used"));
  CHECK(mentions(complaint("tls-psk-file", "/k"), "but not that it is used"));
  CHECK(mentions(complaint({{"uri", with_key}, {"tls", "off"}}), "contradicts the uri"));
  CHECK(mentions(complaint({{"uri", tls}}), "TLS needs keys"));
  CHECK(mentions(complaint({{"uri", with_key}, {"tls-certificates", "/d"}}), "leave one out"));
  CHECK(mentions(complaint({{"uri", "rnbds+tcp://a@host/x?tls-certificates=/d"}}), "shared key"));
  CHECK(mentions(complaint({{"uri", "rnbds+tcp://a:b@host/x?tls-psk-file=/k"}}), "no password"));
  CHECK(
      mentions(complaint({{"uri", with_key}, {"path", "rdma:10.0.0.2"}}), "RDMA does not encrypt"));
  CHECK(mentions(complaint({{"uri", "rnbds://host/disk0"}}), "RDMA does not encrypt"));
}

TEST_CASE("disk and server may be pinned, by keys or in the URI") {
  const std::string uuid = "01234567-89ab-cdef-0123-456789abcdef";
  const std::string id = "00000000000000ab";
  const std::string uri = "rnbd+tcp://host/disk0";
  for (const Pairs& pairs : {Pairs{{"uri", uri}, {"uuid", uuid}, {"server-id", id}},
                             Pairs{{"uri", uri + "?uuid=" + uuid + "&server-id=" + id}}}) {
    const ClientConfig config = good(pairs);
    CHECK(config.device == "disk0");
    CHECK(rnbd::uuid_text(config.uuid) == uuid);
    CHECK(config.server_id == 0xAB);
  }
  CHECK(good({{"uri", uri}}).uuid == rnbd::wire::Uuid{});
  CHECK(mentions(complaint({{"uri", uri + "?uuid=1"}}), "uri=: uuid=: '1'"));
  CHECK(mentions(complaint({{"uri", uri + "?lanes=1"}}), "give 'lanes=' as a separate key"));
  CHECK(mentions(complaint({{"uri", "rnbd+tcp://host"}, {"uuid", uuid}, {"dynamic-export", "yes"}}),
                 "uuid= is that of one disk"));
  CHECK(mentions(complaint({{"uri", uri}, {"uuid", uuid}, {"extensions", "no"}}),
                 "uuid= contradicts extensions=false"));
}

TEST_CASE("a bad value is refused with its key and what to write") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
      {"access", {"", "RW", "readonly"}},
      {"session", {"", "a/b", "a.b", std::string(255, 'x')}},
      {"device", {"", std::string(255, 'x'), "a\nb"}},
      {"lanes", {"", "0", "65", "-1", "2x", "two"}},
      {"spin", {"", "on", "-1us", "50", "1001us"}},
      {"uuid", {"", "disk0"}},
      {"server-id", {"", "0", "12"}},
      {"connect", {"", "later"}},
      {"connect-timeout", {"", "0", "2h", "soon", "-1"}},
      {"heartbeat", {"1ms", "2h", "x"}},
      {"heartbeat-misses", {"0", "1001", ""}},
      {"paths", {"", "true", "10.0.0.1"}},
      {"policy", {"", "roundrobin", "queue-depth"}},
      {"no-path-timeout", {"", "never", "-1", "2h"}},
      {"no-path-error", {"", "5", "enospc", "ETIMEDOUT"}},
      {"reconnect-min", {"0", "x"}},
      {"reconnect-max", {"0", "2h"}},
      {"settle-time", {"", "-1"}},
      {"require-ext", {"", "maybe"}},
      {"digest", {"crc32c", ""}},
      {"extensions", {"maybe", ""}},
      {"dynamic-export", {"2"}},
      {"control", {"", "/run/" + std::string(108, 'x')}},
      {"discard", {"true"}},
      {"write-zeroes", {"yes"}},
      {"transport", {"udp", ""}},
      {"path", {"", "a@b@c", "fd00::1", "tcp:", "udp:host", "rdma:@host"}},
  };
  for (const auto& [key, values] : bad) {
    for (const std::string& value : values) {
      const std::string text = complaint(key, value);
      CAPTURE(text);
      CHECK(mentions(text, key + "=: "));
    }
  }
  CHECK(mentions(complaint({{"uri", "nbd://host/d"}}), "uri=: unknown scheme"));
  CHECK(mentions(complaint({{"server", "::1"}}), "server=: put the IPv6 address in brackets"));
}

TEST_CASE("unknown parameters are refused") {
  CHECK(mentions(complaint("acces", "ro"), "unknown parameter 'acces'; did you mean 'access'?"));
  CHECK(mentions(complaint("no_path_timeout", "1"), "did you mean 'no-path-timeout'?"));
  CHECK_FALSE(mentions(complaint("frobnicate", "1"), "did you mean"));
  CHECK(mentions(complaint("", "x"), "unknown parameter"));
}

TEST_CASE("parameters that contradict each other are refused") {
  const std::string uri = "rnbd+tcp://host/disk0";
  CHECK(mentions(complaint("server", "other"), "uri= or server="));
  CHECK(mentions(complaint("uri", "rnbd+tcp://other/disk0"), "uri=: may be given only once"));
  CHECK(mentions(complaint("transport", "rdma"), "contradicts uri="));
  CHECK(mentions(complaint("device", "disk1"), "'disk0'"));
  CHECK(good({{"uri", uri}, {"device", "disk0"}, {"transport", "tcp"}}).device == "disk0");
  CHECK(mentions(complaint({{"uri", uri}, {"extensions", "no"}, {"require-ext", "yes"}}),
                 "require-ext=true contradicts"));
  CHECK(good({{"uri", uri}, {"require-ext", "yes"}}).require_extension);
  CHECK(mentions(complaint({{"uri", uri}, {"extensions", "no"}, {"paths", "auto"}}),
                 "paths=auto contradicts"));
  CHECK(good({{"uri", uri}, {"paths", "auto"}}).paths_of_server);
  CHECK_FALSE(good({{"uri", uri}}).paths_of_server);
  CHECK(mentions(complaint("heartbeat", "500"), "heartbeat=: did you mean 500ms?"));
  CHECK(mentions(complaint("reconnect-max", "2000"), "did you mean 2000ms?"));
  CHECK(mentions(complaint("reconnect-min", "3s"), "longer than reconnect-max="));
}

TEST_CASE("what is missing is named") {
  CHECK(mentions(complaint(Pairs{}), "no server is named"));
  CHECK(mentions(complaint({{"device", "disk0"}}), "no server is named"));
  CHECK(mentions(complaint({{"uri", "rnbd+tcp://host"}}), "no device is named"));
  CHECK(good({{"uri", "rnbd+tcp://host"}, {"dynamic-export", "on"}}).device.empty());
}

TEST_CASE("further paths follow the one of the URI, with its transport unless they say another") {
  const ClientConfig config = good({{"path", "10.0.0.9@10.0.0.1"},
                                    {"path", "10.0.1.1:99"},
                                    {"uri", "rnbd://10.0.0.1/disk0"},
                                    {"path", "tcp:10.0.0.8@10.0.0.1"},
                                    {"path", "10.0.1.9@10.0.0.1"}});
  CHECK(config.paths ==
        std::vector<PathAddress>{{TransportKind::rdma, "10.0.0.9", "10.0.0.1", 1234},
                                 {TransportKind::rdma, "", "10.0.1.1", 99},
                                 {TransportKind::tcp, "10.0.0.8", "10.0.0.1", 1234},
                                 {TransportKind::rdma, "10.0.1.9", "10.0.0.1", 1234}});
  CHECK(config.server() == "rnbd://10.0.0.1:1234");
}

TEST_CASE("a path that is named twice and one too many are refused") {
  CHECK(mentions(complaint("path", "host"), "path=: 'host' is there already"));
  Pairs pairs = {{"uri", "rnbd+tcp://host/disk0"}};
  for (int i = 1; i < 8; ++i) pairs.emplace_back("path", "host" + std::to_string(i));
  CHECK(good(pairs).paths.size() == 8);
  pairs.emplace_back("path", "host8");
  CHECK(mentions(complaint(pairs), "at most 8 paths, not 9"));
}

TEST_CASE("the URI's scheme tells the transport") {
  using rtrs::TransportKind;
  CHECK(good({{"uri", "rnbd://host/disk0"}}).paths[0].transport == TransportKind::rdma);
  CHECK(good({{"uri", "rnbd+tcp://host/disk0"}}).paths[0].transport == TransportKind::tcp);
  CHECK(good({{"server", "host"}, {"transport", "rdma"}, {"device", "d"}}).paths[0].transport ==
        TransportKind::rdma);
}

TEST_CASE("the help has one line per parameter that the reader knows") {
  const std::string help = rnbd::config_help();
  for (const char* key : {"uri",           "server",
                          "transport",     "path",
                          "paths",         "uuid",
                          "device",        "dynamic-export",
                          "access",        "session",
                          "lanes",         "spin",
                          "connect",       "connect-timeout",
                          "heartbeat",     "heartbeat-misses",
                          "policy",        "no-path-timeout",
                          "reconnect-min", "reconnect-max",
                          "settle-time",   "no-path-error",
                          "control",       "digest",
                          "extensions",    "require-ext",
                          "discard",       "write-zeroes"}) {
    CHECK(("\n" + help).find("\n" + std::string{key} + "=") != std::string::npos);
    ConfigReader reader;
    auto done = reader.set(key, "\x01");
    CHECK((done || !mentions(done.error(), "unknown parameter")));
  }
}

TEST_CASE("a made up session name is valid and never the same twice") {
  const std::string name = rnbd::make_session_name();
  CHECK(rtrs::wire::is_valid_session_name(name));
  CHECK(rtrs::wire::is_valid_session_name(name + "-probe"));
  CHECK(name != rnbd::make_session_name());
}

}  // namespace config_test
