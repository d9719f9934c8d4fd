// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/config_file.hpp"

#include <doctest/doctest.h>

#include <filesystem>

namespace config_file_test {

using namespace rnbd;
using namespace std::chrono_literals;

namespace {

std::string error_of(const std::string& text) {
  const auto settings = parse_config(text, "test.conf");
  if (settings) return "";
  std::string all;
  for (const ConfigMistake& mistake : settings.error().mistakes) all += mistake.text + "\n";
  return all;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("configuration: everything that can be said is understood") {
  const auto settings = parse_config(R"(
# comment
[server]
listen = ["tcp:127.0.0.1:1234", "tcp:[::1]:1234"]
search-path = "/srv/rnbd"
log-level = "debug"
pid-file = "/run/x.pid"
queue-depth = 64
max-io-size = "128K"
memory-limit = "512M"
max-sessions = 10
max-connections = 20
reactors = 1
heartbeat = "1s"
handshake-timeout = 5
session-iops-limit = 1000
session-bandwidth-limit = "20M"
no-digest = true
direct = true
no-uring = true

[export.disk0]
path = "/srv/a, b.img"
description = "the first, the best"

[export."dev/sdb"]
path = "fault:line.img"
read-only = true
direct = true

[export.scratch]
storage = "memory:64M"
iops-limit = 500
bandwidth-limit = "10M"
)",
                                     "test.conf");
  REQUIRE_MESSAGE(settings.has_value(), (settings ? "" : settings.error().mistakes.front().text));
  CHECK(settings->listen.size() == 2);
  CHECK(settings->listen[1].host == "::1");
  CHECK(settings->search_path == "/srv/rnbd");
  CHECK(settings->log_level == rtrs::LogLevel::debug);
  CHECK(settings->pid_file == "/run/x.pid");
  CHECK(settings->queue_depth == 64);
  CHECK(settings->max_io_size == 128 * 1024);
  CHECK(settings->memory_limit == 512ULL << 20);
  CHECK(settings->max_sessions == 10);
  CHECK(settings->max_connections == 20);
  CHECK(settings->reactors == 1);
  CHECK(settings->heartbeat == 1s);
  CHECK(settings->handshake_timeout == 5s);
  CHECK(settings->no_digest);
  CHECK(settings->direct);
  CHECK(settings->no_uring);
  REQUIRE(settings->exports.size() == 3);
  CHECK(settings->exports[0].name == "disk0");
  CHECK(settings->exports[0].storage == "/srv/a, b.img");
  CHECK(settings->exports[0].description == "the first, the best");
  CHECK_FALSE(settings->exports[0].read_only);
  CHECK(settings->exports[1].name == "dev/sdb");
  CHECK(settings->exports[1].storage == "./fault:line.img");
  CHECK(settings->exports[1].read_only);
  CHECK(settings->exports[1].direct);
  CHECK(settings->exports[2].storage == "memory:64M");
  CHECK(settings->exports[2].limits == Limits{.iops = 500, .bandwidth = 10 << 20});
  CHECK(settings->session_limits == Limits{.iops = 1000, .bandwidth = 20 << 20});
}

TEST_CASE("configuration: addresses that are advertised, and exports of other servers") {
  const auto settings = parse_config(R"(
[server]
advertise = ["tcp:192.0.2.1", "rdma:[2001:db8::1]:99"]
[referral.vm7]
server = "rnbds+tcp://192.0.2.2/vm7"
users = ["host1", "vm-*"]
[referral.vm8]
server = "rnbd://192.0.2.3:99/other?uuid=01234567-89ab-cdef-0123-456789abcdef"
)",
                                     "test.conf");
  REQUIRE_MESSAGE(settings.has_value(), (settings ? "" : settings.error().mistakes.front().text));
  const Directions& told = settings->directions;
  CHECK(told.paths == std::vector<std::string>{"tcp:192.0.2.1:1234", "rdma:[2001:db8::1]:99"});
  REQUIRE(told.referrals.size() == 2);
  CHECK(told.referrals[0].name == "vm7");
  CHECK(told.referrals[0].uri == "rnbds+tcp://192.0.2.2/vm7");
  CHECK(told.referrals[0].rights.ro == std::vector<std::string>{"host1", "vm-*"});
  CHECK_FALSE(told.referrals[1].rights.given());
  CHECK(contradiction_in(*settings).empty());  // there may be nothing else
  CHECK(error_of("[server]\nadvertise = \"tcp:192.0.2.1\"\n") == "");
}

TEST_CASE("configuration: a time may be a number with a fraction, as on the command line") {
  const auto settings =
      parse_config("[server]\nhandshake-timeout = 1.5\nheartbeat = 2.5e-1\n", "test.conf");
  REQUIRE(settings);
  CHECK(settings->handshake_timeout == 1500ms);
  CHECK(settings->heartbeat == 250ms);
  for (const char* bad : {"inf", "nan", "-1.5", "1e308", "1e-300"}) {
    CAPTURE(bad);
    CHECK(has(error_of(std::string{"[server]\nheartbeat = "} + bad + "\n"), "heartbeat: "));
  }
  CHECK(has(error_of("[server]\nqueue-depth = 1.5\n"), "'1.5' is not a number"));
  CHECK(has(error_of("[server]\nheartbeat = 500\n"), "did you mean 500ms?"));
}

TEST_CASE("configuration: every setting of the command line has its key") {
  for (const SettingRule& rule : setting_rules()) {
    CAPTURE(rule.key);
    const std::string value =
        rule.value == nullptr ? "true" : "\"" + std::string{rule.example} + "\"";
    CHECK(error_of("[server]\n" + std::string{rule.key} + " = " + value + "\n") == "");
  }
}

TEST_CASE("configuration: an empty file is no mistake, a switch may be off") {
  CHECK(error_of("") == "");
  CHECK(error_of("[server]\nno-digest = false\nlisten = \"tcp:localhost\"\n") == "");
}

TEST_CASE("configuration: mistakes are named with line, column, key and what to write instead") {
  struct {
    const char* text;
    const char* place;
    const char* says;
  } const rows[] = {
      {"[server]\nqueue_depth = 3\n", "test.conf:2:1", "did you mean 'queue-depth'?"},
      {"[server]\nfrobnicate = 3\n", "test.conf:2:1", "known are: listen"},
      {"[servers]\n", "test.conf:1", "did you mean 'server'?"},
      {"[exports.disk0]\npath=\"/a\"\n", "test.conf:1", "did you mean 'export'?"},
      {"server = 1\n", "test.conf:1", "write [server]"},
      {"[server]\n  queue-depth = \"many\"\n", "test.conf:2:17", "write e.g. queue-depth = 256"},
      {"[server]\nqueue-depth = 0\n", "test.conf:2:15", "1 to 65535"},
      {"[server]\nqueue-depth = 1.5\n", "test.conf:2:15", "is not a number from 1"},
      {"[server]\nmax-io-size = \"12Q\"\n", "test.conf:2:15", "max-io-size = \"256K\""},
      {"[server]\nheartbeat = \"5m\"\n", "test.conf:2:13", "heartbeat = \"500ms\""},
      {"[server]\nno-digest = \"yes\"\n", "test.conf:2:13", "no-digest = true"},
      {"[server]\nlisten = 1234\n", "test.conf:2:10", "list of strings"},
      {"[server]\nlisten = [\"tcp:[::1]:1\", \"1234\"]\n", "test.conf:2:26", "transport"},
      {"[server]\nlisten = \"rdma:\"\n", "test.conf:2:10", "missing"},
      {"[server]\nadvertise = 7\n", "test.conf:2:13", "list of strings"},
      {"[server]\nadvertise = [\"tcp:a\", \"a\"]\n", "test.conf:2:23", "transport"},
      {"[server]\nadvertise = [\"tcp:a\", \"tcp:a:1234\"]\n", "test.conf:2:23", "twice"},
      {"[server]\nadvertise = [\"tcp:a:1\", \"tcp:a:2\", \"tcp:a:3\", \"tcp:a:4\", \"tcp:a:5\", "
       "\"tcp:a:6\", \"tcp:a:7\", \"tcp:a:8\", \"tcp:a:9\"]\n",
       "test.conf:2:102", "at most 8"},
      {"[referral]\nvm7 = \"rnbd://a/b\"\n", "test.conf:2:7", "write [referral.vm7]"},
      {"[referral.vm7]\n", "test.conf:1", "says not which server"},
      {"[referral.vm7]\nserver = 7\n", "test.conf:2:10", "is a string"},
      {"[referral.vm7]\nserver = \"192.0.2.2\"\n", "test.conf:2:10", "is not a URI"},
      {"[referral.vm7]\nserver = \"rnbd://a/b\"\nuser = \"x\"\n", "test.conf:3:1",
       "did you mean 'users'?"},
      {"[referral.vm7]\nserver = \"rnbd://a/b\"\nusers = []\n", "test.conf:3:9", "is empty"},
      {"[referral.\"a/../b\"]\nserver = \"rnbd://a/b\"\n", "test.conf:1", "component"},
      {"[export]\ndisk0 = \"/a\"\n", "test.conf:2:9", "write [export.disk0]"},
      {"[export.disk0]\n", "test.conf:1", "says not what to export"},
      {"[export.disk0]\npath = \"/a\"\nstorage = \"memory:1M\"\n", "test.conf:1", "keep one"},
      {"[export.disk0]\npath = 7\n", "test.conf:2:8", "path = \"/srv/disk.img\""},
      {"[export.disk0]\npath = \"\"\n", "test.conf:2:8", "is a string"},
      {"[export.disk0]\nstorage = 7\n", "test.conf:2:11", "storage = \"memory:64M\""},
      {"[export.disk0]\npath = \"/a\"\nreadonly = true\n", "test.conf:3:1",
       "did you mean 'read-only'?"},
      {"[export.disk0]\npath = \"/a\"\nread-only = 1\n", "test.conf:3:13", "read-only = true"},
      {"[export.disk0]\npath = \"/a\"\niops-limit = 0\n", "test.conf:3:14",
       "iops-limit = 1000, or leave it out"},
      {"[export.disk0]\npath = \"/a\"\niops-limit = true\n", "test.conf:3:14", "wrong type"},
      {"[export.disk0]\npath = \"/a\"\nbandwidth-limit = \"fast\"\n", "test.conf:3:19",
       "bandwidth-limit = \"100M\""},
      {"[server]\nsession-iops-limit = -1\n", "test.conf:2:22", "session-iops-limit = 1000"},
      {"[export.\"a/../b\"]\npath = \"/a\"\n", "test.conf:1", "component"},
      {"[export.disk0]\npath = /srv/a\n", "test.conf:2", "between quotes"},
      {"[export.a]\npath = \"/a\"\n[export.a]\npath = \"/b\"\n", "test.conf:3", "TOML"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const std::string error = error_of(row.text);
    CAPTURE(error);
    CHECK(error.starts_with(row.place));
    CHECK(has(error, row.says));
  }
}

TEST_CASE("configuration: a text without an end is told where it begins") {
  struct Row {
    const char* text;
    const char* place;
    const char* says;
  };
  const Row rows[] = {
      {"[export.a]\npath = \"/srv/a.img\nread-only = true\n",
       "test.conf:2:8:", "no closing quote; end it with \" in the same line"},
      {"[export.a]\npath = '/srv/a.img\n", "test.conf:2:8:", "end it with ' in the same line"},
      {"[export.a]\npath = \"/srv/a.img", "test.conf:2:8:", "end it with \""},
      {"[export.a]\npath = \"/srv/a\"\ndescription = \"\"\"two\nlines\n",
       "test.conf:3:15:", "end it with \"\"\""},
      {"[server]\nlisten = [\"tcp:1.2.3.4:1\", \"tcp:1.2.3.4:2]\n",
       "test.conf:2:28:", "no closing quote"},
      {"[export.\"a]\npath = \"/srv/a\"\n", "test.conf:1:9:", "no closing quote"},
      {"[export.a]\npath = \"C:\\\"\nread-only = true\n",
       "test.conf:2:8:", "write \\\\ for a backslash"},
      // Quotes in comments and in other texts begin nothing.
      {"# it's\n[export.a]\npath = \"it's\" # don't\ndescription = \"x\n",
       "test.conf:4:15:", "no closing quote"},
      {"[export.\"\u00e4\"]\npath = '''a'b''''\ndescription = ['\u00e4', 'b]\n",
       "test.conf:3:21:", "end it with '"},
      // The first mistake is told.
      {"[export.a]\npath = it's\n", "test.conf:2:9:", "between quotes"},
      {"[server]\nlisten = [\"a, \"b\"]\n", "test.conf:2:16:", "expected comma"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const std::string error = error_of(row.text);
    CAPTURE(error);
    CHECK(error.starts_with(row.place));
    CHECK(has(error, row.says));
  }
}

TEST_CASE("configuration: all mistakes are told at once") {
  const auto settings = parse_config(
      "[server]\nqueue-dept = 1\nreactors = \"x\"\n[export.a]\nfile = \"/a\"\n", "test.conf");
  REQUIRE_FALSE(settings.has_value());
  CHECK(settings.error().mistakes.size() == 3);
}

TEST_CASE(
    "configuration: mistakes and exports are in the order of the file, what is right is kept") {
  const auto settings = parse_config(
      "[server]\nreactors = 1\nqueue-dept = 1\n[export.z]\npath = \"/z\"\n"
      "[export.b]\nfile = \"/b\"\n[export.a]\npath = \"/a\"\ndirect = 1\n"
      "[export.c]\npath = \"/c\"\n[server2]\n",
      "test.conf");
  REQUIRE_FALSE(settings.has_value());
  std::vector<unsigned> lines;
  for (const ConfigMistake& mistake : settings.error().mistakes) lines.push_back(mistake.line);
  CHECK(lines == std::vector<unsigned>{3, 7, 10, 13});
  const Settings& rest = settings.error().rest;
  CHECK(rest.reactors == 1);
  REQUIRE(rest.exports.size() == 2);
  CHECK(rest.exports[0].name == "z");
  CHECK(rest.exports[0].line == 4);
  CHECK(rest.exports[1].name == "c");
}

TEST_CASE("configuration: a file that cannot be read is said to be so") {
  const auto missing = load_config("/nonexistent/rnbd.conf");
  CHECK(has(missing.error().mistakes.front().text, "/nonexistent/rnbd.conf: No such file"));
  const auto directory = load_config(std::filesystem::temp_directory_path().string());
  CHECK(has(directory.error().mistakes.front().text, "Is a directory"));
}

}  // namespace config_file_test
