// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/settings.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

namespace settings_test {

using namespace rnbd;
using namespace std::chrono_literals;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string apply(Settings& settings, const std::string& key, const std::string& value) {
  for (const SettingRule& rule : setting_rules()) {
    if (key == rule.key) return rule.apply(settings, value);
  }
  FAIL("no such setting: " << key);
  return "";
}

}  // namespace

TEST_CASE("listen: every form of an address") {
  struct {
    const char* text;
    const char* host;
    int port;
  } const rows[] = {
      {"tcp:127.0.0.1:1234", "127.0.0.1", 1234},
      {"tcp:127.0.0.1", "127.0.0.1", 1234},
      {"tcp:host.example:0", "host.example", 0},
      {"tcp:[::1]:65535", "::1", 65535},
      {"tcp:[fe80::1%eth0]", "fe80::1%eth0", 1234},
      {"tcp:*:5", "*", 5},
      {"tcp::1234", "", 1234},
      {"tcp:[fe80::1%eth0]:1", "fe80::1%eth0", 1},
      {"tcp:[fe80::1%25eth0]:1", "fe80::1%eth0", 1},
      {"tcp:[fec0::1]:1", "fec0::1", 1},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto address = parse_listen(row.text);
    REQUIRE(address.has_value());
    CHECK(address->host == row.host);
    CHECK(address->port == row.port);
  }
}

TEST_CASE("listen: wrong forms are refused with the right one") {
  struct {
    const char* text;
    const char* says;
  } const rows[] = {
      {"127.0.0.1:1234", "begins with its transport"},
      {"udp:127.0.0.1", "begins with its transport"},
      {"", "begins with its transport"},
      {"tcp:", "missing"},
      {"tcp:[]", "missing"},
      {"rdma", "missing"},
      {"rdma:::1", "brackets"},
      {"tcp:127.0.0.1:65536", "0 to 65535"},
      {"tcp:127.0.0.1:", "0 to 65535"},
      {"tcp:127.0.0.1:-1", "0 to 65535"},
      {"tcp:127.0.0.1:12x", "0 to 65535"},
      {"tcp:::1", "brackets"},
      {"tcp:fe80::1:1234", "brackets"},
      {"tcp:[::1", "not closed"},
      {"tcp:[fe80::1]:1234", "needs its interface; write e.g. [fe80::1%eth0]"},
      {"rdma:[FEBF::1]", "needs its interface"},
      {"tcp:[::1]1234", "colon"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto address = parse_listen(row.text);
    REQUIRE_FALSE(address.has_value());
    CHECK(has(address.error(), row.says));
    CHECK(has(address.error(), "'" + std::string{row.text} + "'"));
  }
}

TEST_CASE("the memory of the machine is what its control groups leave") {
  namespace fs = std::filesystem;
  std::string root = fs::temp_directory_path() / "rnbd-unit-settings-XXXXXX";
  REQUIRE(::mkdtemp(root.data()) != nullptr);
  const auto write = [&](const std::string& file, const std::string& text) {
    fs::create_directories(fs::path{root + file}.parent_path());
    std::ofstream{root + file} << text << "\n";
  };
  const std::uint64_t all = rtrs::memory_of_machine(root);
  CHECK(all >= rtrs::memory_of_machine());
  write("/proc/self/cgroup", "1:name=systemd:/other\n0::/system.slice/one.service");
  write("/sys/fs/cgroup/system.slice/one.service/memory.max", "max");
  CHECK(rtrs::memory_of_machine(root) == all);
  write("/sys/fs/cgroup/system.slice/memory.max", "40000000");
  CHECK(rtrs::memory_of_machine(root) == 40000000);
  write("/sys/fs/cgroup/system.slice/one.service/memory.max", "30000000");
  CHECK(rtrs::memory_of_machine(root) == 30000000);
  write("/sys/fs/cgroup/memory.max", "20000000");
  CHECK(rtrs::memory_of_machine(root) == 20000000);
  write("/proc/self/cgroup", "0::/");
  CHECK(rtrs::memory_of_machine(root) == 20000000);
  fs::remove_all(root);
}

TEST_CASE("listen: the transport is told by the first word") {
  CHECK(parse_listen("tcp:10.0.0.1:7")->transport == rtrs::TransportKind::tcp);
  CHECK(parse_listen("rdma:10.0.0.1:7")->transport == rtrs::TransportKind::rdma);
}

TEST_CASE("listen: an address may be worse than others") {
  const auto worse = parse_listen("tcp:[::1]:7,non-optimized");
  REQUIRE(worse.has_value());
  CHECK(worse->host == "::1");
  CHECK(worse->port == 7);
  CHECK(worse->access == rtrs::wire::PathAccess::non_optimized);
  CHECK(parse_listen("tcp:[::1]:7")->access == rtrs::wire::PathAccess::optimized);
  CHECK_FALSE(parse_listen("tcp:[::1]:7,slow").has_value());
  CHECK_FALSE(parse_listen("tcp:[::1]:7,").has_value());
}

TEST_CASE("listen: only loopback addresses count as such") {
  CHECK(is_loopback(*parse_listen("tcp:127.3.2.1:1")));
  CHECK(is_loopback(*parse_listen("tcp:[::1]:1")));
  CHECK(is_loopback(*parse_listen("tcp:localhost")));
  CHECK_FALSE(is_loopback(*parse_listen("tcp:*:1")));
  CHECK_FALSE(is_loopback(*parse_listen("tcp:192.0.2.1")));
  CHECK_FALSE(is_loopback(*parse_listen("tcp:[::]:1")));
}

TEST_CASE("export: options stand behind commas, the description takes the rest") {
  struct {
    const char* text;
    const char* storage;
    bool read_only, direct;
    const char* description;
  } const rows[] = {
      {"disk0=/srv/a.img", "/srv/a.img", false, false, ""},
      {"disk0=/srv/a.img,ro", "/srv/a.img", true, false, ""},
      {"disk0=/srv/a.img,direct,ro", "/srv/a.img", true, true, ""},
      {"disk0=/srv/a=b.img", "/srv/a=b.img", false, false, ""},
      {"disk0=a.img,ro,description=one, two,ro", "a.img", true, false, "one, two,ro"},
      {"disk0=memory:64M", "memory:64M", false, false, ""},
      {"disk0=memory:64M,ro", "memory:64M", true, false, ""},
      {"disk0=fault:write-error=0.1,seed=3:memory:1M", "fault:write-error=0.1,seed=3:memory:1M",
       false, false, ""},
      {"disk0=delay:read=1ms,write=2ms:/srv/a.img,ro,direct", "delay:read=1ms,write=2ms:/srv/a.img",
       true, true, ""},
      {"disk0=nbd:nbd://h/x,y,description=far away", "nbd:nbd://h/x,y", false, false, "far away"},
      {"disk0=/srv/a:b.img,ro", "/srv/a:b.img", true, false, ""},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto specification = parse_export(row.text);
    REQUIRE(specification.has_value());
    CHECK(specification->name == "disk0");
    CHECK(specification->storage == row.storage);
    CHECK(specification->read_only == row.read_only);
    CHECK(specification->direct == row.direct);
    CHECK(specification->description == row.description);
  }
}

TEST_CASE("export: limits are among its options") {
  const auto one = parse_export("a=memory:1M,iops-limit=500,bandwidth-limit=10M,description=x");
  REQUIRE(one.has_value());
  CHECK(one->limits == Limits{.iops = 500, .bandwidth = 10 << 20});
  CHECK_FALSE(parse_export("a=/a").value().limits.any());
}

TEST_CASE("export: what cannot be meant is refused with the right form") {
  struct {
    std::string text;
    const char* says;
  } const rows[] = {
      {"/srv/a.img", "NAME=PATH"},
      {"=/srv/a.img", "NAME=PATH"},
      {"disk0=", "NAME=PATH"},
      {"", "NAME=PATH"},
      {"disk0=,ro", "storage is missing"},
      {"disk0=/a,r0", "did you mean 'ro'"},
      {"disk0=/a,rw", "writable unless it says ro"},
      {"disk0=/a,readonly", "use ro, direct, rw=USER, ro=USER, iops-limit=N"},
      {"disk0=/a,ro,", "unknown option ''"},
      {"disk0=/a,iops-limit=0", "'0' is not a number from 1"},
      {"disk0=/a,iops-limit=many", "'many' is not a number from 1"},
      {"disk0=/a,bandwidth-limit=5Q", "5Q"},
      {"disk0=/a,iops-limt=5", "did you mean 'iops-limit='?"},
      {"disk0=/a,b/c.img", "configuration file"},
      {std::string(255, 'x') + "=/a", "255 bytes"},
      {"a/../b=/a", "component"},
      {"a\tb=/a", "control character"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto specification = parse_export(row.text);
    REQUIRE_FALSE(specification.has_value());
    CHECK(has(specification.error(), row.says));
  }
}

TEST_CASE("settings: each rule's example is right, and no key is there twice") {
  std::set<std::string> keys;
  for (const SettingRule& rule : setting_rules()) {
    CAPTURE(rule.key);
    CHECK(keys.insert(rule.key).second);
    Settings settings;
    CHECK(rule.apply(settings, rule.example) == "");
    CHECK(rule.apply(settings, "nonsense?") != (rule.value == nullptr ? "" : "x"));
  }
}

TEST_CASE("settings: values arrive, and values outside their range do not") {
  Settings settings;
  CHECK(apply(settings, "queue-depth", "512").empty());
  CHECK(apply(settings, "max-io-size", "1M").empty());
  CHECK(apply(settings, "memory-limit", "2G").empty());
  CHECK(apply(settings, "heartbeat", "1.5s").empty());
  CHECK(apply(settings, "log-level", "warning").empty());
  CHECK(apply(settings, "no-digest", "true").empty());
  CHECK(apply(settings, "always-invalidate", "true").empty());
  CHECK(settings.queue_depth == 512);
  CHECK(settings.max_io_size == 1 << 20);
  CHECK(settings.memory_limit == 2ULL << 30);
  CHECK(settings.heartbeat == 1500ms);
  CHECK(apply(settings, "handshake-timeout", "30").empty());
  CHECK(settings.handshake_timeout == 30s);
  CHECK(settings.log_level == rtrs::LogLevel::warning);
  CHECK(settings.no_digest);
  CHECK(settings.always_invalidate);

  CHECK(has(apply(settings, "queue-depth", "0"), "1 to 65535"));
  CHECK(has(apply(settings, "queue-depth", "65536"), "1 to 65535"));
  CHECK(has(apply(settings, "queue-depth", "-1"), "1 to 65535"));
  CHECK(has(apply(settings, "queue-depth", "10 "), "1 to 65535"));
  CHECK(has(apply(settings, "max-io-size", "1024"), "4096"));
  CHECK(has(apply(settings, "max-io-size", "12Q"), "not a size"));
  CHECK(has(apply(settings, "heartbeat", "5m"), "not a duration"));
  CHECK(has(apply(settings, "heartbeat", "1us"), "between 10ms and 60s"));
  CHECK(has(apply(settings, "heartbeat", "500"), "did you mean 500ms?"));
  CHECK(has(apply(settings, "handshake-timeout", "1500"), "did you mean 1500ms?"));
  CHECK(has(apply(settings, "log-level", "loud"), "debug, info"));
  CHECK(has(apply(settings, "no-digest", "yes"), "neither true nor false"));
  CHECK(has(apply(settings, "search-path", ""), "empty"));
  CHECK(apply(settings, "control", "none").empty());
  CHECK(has(apply(settings, "control", "/run/" + std::string(103, 'c')), "longer than 107 bytes"));
  CHECK(settings.queue_depth == 512);
}

TEST_CASE("settings: what cannot work together is said before anything is opened") {
  Settings settings;
  CHECK(has(contradiction_in(settings), "nothing to export"));
  settings.search_path = "/srv";
  CHECK(contradiction_in(settings) == "");
  settings.max_io_size = 5000;
  CHECK(has(contradiction_in(settings), "multiple of 4096"));
  settings.max_io_size = 1 << 20;
  settings.queue_depth = 4096;
  CHECK(has(contradiction_in(settings), "do not fit"));
  settings.max_io_size = 256 * 1024;
  settings.queue_depth = 256;
  settings.memory_limit = 256 * 12 * 1024 + 8 * 256 * 1024;
  CHECK(contradiction_in(settings) == "");
  settings.memory_limit -= 1;
  CHECK(has(contradiction_in(settings), "raise memory-limit"));
  // RDMA locks all of a path's memory.
  settings.memory_limit = 256 * (256 + 4) * 1024 - 1;
  CHECK(contradiction_in(settings) == "");
  settings.listen.push_back({.transport = rtrs::TransportKind::rdma, .host = {}});
  CHECK(has(contradiction_in(settings), "raise memory-limit"));
}

TEST_CASE("settings: by default a server has as many clients as fit into its machine") {
  constexpr std::uint64_t kGiB = 1ULL << 30, kMany = 1 << 20;
  CHECK(default_max_sessions(kGiB) == 51);
  CHECK(default_max_sessions(24 * kGiB) == 1024);
  CHECK(default_max_sessions(0) == 1024);
  CHECK(default_max_sessions(1) == 16);
  CHECK(default_max_connections(kGiB, kMany) == 1310);
  CHECK(default_max_connections(24 * kGiB, kMany) == 8192);
  CHECK(default_max_connections(24 * kGiB, 1024) == 512);
  CHECK(default_max_connections(0, kMany) == 8192);
  CHECK(default_max_connections(0, 64) == 64);
  CHECK(Settings{}.max_connections <= 8192);
}

TEST_CASE("rights: they are taken from the options of an export") {
  const auto parsed = parse_export("disk0=/a,rw=host1,rw=vm-*,ro,ro=backup,description=b,c");
  REQUIRE(parsed.has_value());
  CHECK(parsed->rights == Rights{.rw = {"host1", "vm-*"}, .ro = {"backup"}});
  CHECK(parsed->read_only);
  CHECK(parsed->storage == "/a");
  CHECK_FALSE(parse_export("disk0=/a,rw=a*b").has_value());
}

TEST_CASE("rights: where clients prove their names, it is said of everything who may use it") {
  Settings settings;
  settings.exports.push_back(parse_export("a=memory:1M").value());
  settings.search_path = "/srv/%IDENTITY%";
  CHECK_FALSE(contradiction_in(settings).empty());  // nobody proves a name
  settings.search_path = "/srv";
  CHECK(contradiction_in(settings).empty());
  settings.tls_keys.psk = "/keys";
  CHECK(contradiction_in(settings).find("'a'") != std::string::npos);
  settings.exports[0].rights.ro = {"*"};
  CHECK(contradiction_in(settings).find("--search-rw") != std::string::npos);
  settings.search_rights.rw = {"*"};
  CHECK(contradiction_in(settings).empty());
  settings.search_path = "/srv/%SESSNAME%";
  CHECK(contradiction_in(settings).find("%IDENTITY%") != std::string::npos);
}

}  // namespace settings_test
