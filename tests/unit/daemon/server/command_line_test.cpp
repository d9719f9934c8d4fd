// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/command_line.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace command_line_test {

using namespace rnbd;

namespace {

tl::expected<Invocation, EarlyExit> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "rnbd-server");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    const int fd = mkstemp(path.data());
    REQUIRE(fd >= 0);
    ::close(fd);
    std::ofstream{path} << text;
  }
  ~ConfigFile() { std::filesystem::remove(path); }
  std::string path = (std::filesystem::temp_directory_path() / "rnbd-command-line-XXXXXX").string();
};

}  // namespace

TEST_CASE("command line: options arrive, repeated ones in their order") {
  const auto invocation = parse({"--listen", "tcp:127.0.0.1:0", "-l", "tcp:[::1]:0", "--export",
                                 "a=/a", "--export=b=/b,ro", "--queue-depth", "64", "--no-digest",
                                 "--ready-fd", "3", "--check-config"});
  REQUIRE(invocation.has_value());
  CHECK(invocation->settings.listen.size() == 2);
  REQUIRE(invocation->settings.exports.size() == 2);
  CHECK(invocation->settings.exports[0].name == "a");
  CHECK(invocation->settings.exports[1].read_only);
  CHECK(invocation->settings.queue_depth == 64);
  CHECK(invocation->settings.no_digest);
  CHECK(invocation->ready_fd == 3);
  CHECK(invocation->check_config);
}

TEST_CASE("command line: help and version end the program well") {
  const auto help = parse({"--help"});
  REQUIRE_FALSE(help.has_value());
  CHECK(help.error().status == 0);
  CHECK(has(help.error().text, "Examples:"));
  CHECK(has(help.error().text, "no authentication"));
  for (const SettingRule& rule : setting_rules())
    CHECK(has(help.error().text, "--" + std::string{rule.key}));
  const auto version = parse({"--version"});
  CHECK(version.error().status == 0);
  CHECK(version.error().text == "rnbd-server " RNBDKIT_VERSION "\n");
}

TEST_CASE("command line: mistakes are usage errors that name the option and the right form") {
  struct {
    std::vector<const char*> arguments;
    const char* says;
  } const rows[] = {
      {{"--exprot", "a=/a"}, "did you mean --export?"},
      {{"--queue-dept=3"}, "did you mean --queue-depth?"},
      {{"--frobnicate"}, "unknown option '--frobnicate'"},
      {{"-x"}, "unknown option '-x'"},
      {{"/srv/disk.img"}, "--export NAME=PATH"},
      {{"--export"}, "--export"},
      {{"--export", "/srv/disk.img"}, "NAME=PATH"},
      {{"--listen", "1234"}, "tcp:127.0.0.1:1234"},
      {{"--queue-depth", "x"}, "--queue-depth 256"},
      {{"--max-io-size", "1"}, "--max-io-size 256K"},
      {{"--heartbeat", "1m"}, "--heartbeat 500ms"},
      {{"--heartbeat", "500"}, "--heartbeat: did you mean 500ms?"},
      {{"--ready-fd", "x"}, "--ready-fd: 'x' is not a number"},
      {{"--listen", "--export", "a=/a"}, "--listen: the value is missing; write --listen ADDRESS"},
      {{"--queue-depth"}, "--queue-depth: the value is missing; write --queue-depth N"},
      {{"--queue-depth", "4", "--queue-depth", "5"}, "--queue-depth: may be given only once"},
      {{"--direct=maybe"}, "--direct: 'maybe' is no value for it"},
      {{"--ready-fd", "-7"}, "not a file descriptor"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.says);
    const auto invocation = parse(row.arguments);
    REQUIRE_FALSE(invocation.has_value());
    CHECK(invocation.error().status == 2);
    CHECK(has(invocation.error().text, row.says));
    CHECK(has(invocation.error().text, "--help"));
  }
}

TEST_CASE("command line: wins over the file, and adds to its exports") {
  const ConfigFile file{
      "[server]\nlisten = \"tcp:127.0.0.1:1\"\nqueue-depth = 8\nreactors = 3\n"
      "[export.a]\npath = \"/a\"\n"};
  const auto invocation = parse({"--config", file.path.c_str(), "--queue-depth", "16", "--listen",
                                 "tcp:127.0.0.1:2", "--export", "b=/b"});
  REQUIRE(invocation.has_value());
  CHECK(invocation->settings.queue_depth == 16);
  CHECK(invocation->settings.reactors == 3);
  REQUIRE(invocation->settings.listen.size() == 1);
  CHECK(invocation->settings.listen[0].port == 2);
  CHECK(invocation->settings.exports.size() == 2);
  const auto plain = parse({"--config", file.path.c_str()});
  CHECK(plain->settings.listen[0].port == 1);
}

TEST_CASE(
    "command line: a wrong file is status 2 as a wrong option is, one that cannot be read is "
    "status 1") {
  const ConfigFile file{"[server]\nwrong = 1\n"};
  const auto wrong_file = parse({"--config", file.path.c_str()});
  CHECK(wrong_file.error().status == 2);
  CHECK(has(wrong_file.error().text, file.path + ":2:1"));
  const auto both = parse({"--config", file.path.c_str(), "--queue-depth", "x"});
  CHECK(both.error().status == 2);
  CHECK(parse({"--config", "/nonexistent/rnbd.conf"}).error().status == 1);
  CHECK(parse({"--config", "/nonexistent/rnbd.conf", "--check-config"}).error().status == 1);
}

TEST_CASE("command line: a file that is to be checked is read to its end") {
  const ConfigFile file{"[server]\nwrong = 1\n[export.a]\npath = \"/a\"\n"};
  const auto invocation = parse({"--config", file.path.c_str(), "--check-config"});
  REQUIRE(invocation.has_value());
  REQUIRE(invocation->mistakes.size() == 1);
  CHECK(has(invocation->mistakes[0].text, file.path + ":2:1"));
  CHECK(invocation->settings.exports.size() == 1);
  CHECK(invocation->config == file.path);
}

}  // namespace command_line_test
