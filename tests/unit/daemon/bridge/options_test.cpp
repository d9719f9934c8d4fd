// SPDX-License-Identifier: BSD-3-Clause
// The command line of rnbd-bridge.
#include "bridge/daemon/bridge/options.hpp"

#include <doctest/doctest.h>

namespace bridge_options_test {

using namespace rnbd;

namespace {

tl::expected<BridgeOptions, EarlyExit> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "rnbd-bridge");
  return parse_bridge_options(static_cast<int>(arguments.size()), arguments.data());
}

/// Status 2, and a message with this in it.
bool refuses(const std::vector<const char*>& arguments, const std::string& part) {
  const auto options = parse(arguments);
  if (options) return false;
  CAPTURE(options.error().text);
  CHECK(options.error().text.find(part) != std::string::npos);
  return options.error().status == 2;
}

}  // namespace

TEST_CASE("bridge options: a URI is enough") {
  const auto options = parse({"rnbd+tcp://storage:99/disk0"});
  REQUIRE(options);
  CHECK(options->client.device == "disk0");
  CHECK_FALSE(options->client.dynamic_export);
  CHECK(options->client.server() == "rnbd+tcp://storage:99");
  CHECK(options->listen.empty());
  CHECK(options->max_connections == 256);
  CHECK(options->ready_fd == -1);
}

TEST_CASE("bridge options: a disk of the kernel") {
  const auto any = parse({"--kernel", "nbd", "--map-name", "a", "rnbd+tcp://storage/disk0"});
  REQUIRE(any);
  REQUIRE(any->kernel);
  CHECK_FALSE(any->kernel->index);
  CHECK(any->kernel->name == "a");
  CHECK(any->kernel->dead_timeout == std::chrono::hours{1});
  CHECK(any->kernel->retry == std::chrono::milliseconds{900});
  CHECK(any->client.no_path_timeout == std::chrono::seconds{300});
  const auto exact =
      parse({"--kernel", "nbd:3", "--map-name", "a", "--dead-timeout", "90", "--kernel-retry", "5s",
             "--no-path-timeout", "0", "rnbd+tcp://storage/disk0"});
  REQUIRE(exact);
  CHECK(exact->kernel->index == 3U);
  CHECK(exact->kernel->dead_timeout == std::chrono::seconds{90});
  CHECK(exact->kernel->retry == std::chrono::seconds{5});
  CHECK(exact->client.no_path_timeout == std::chrono::seconds{0});
}

TEST_CASE("bridge options: what makes no disk of the kernel is refused") {
  const char* const uri = "rnbd+tcp://storage/disk0";
  CHECK(refuses({"--kernel", "nbd", uri}, "--map-name"));
  CHECK(refuses({"--kernel", "nbd", "--map-name", "a/b", uri}, "letters, digits"));
  CHECK(refuses({"--kernel", "ublk", "--map-name", "a", uri}, "'ublk' is not nbd or nbd:N"));
  CHECK(refuses({"--kernel", "nbd:", "--map-name", "a", uri}, "is not nbd or nbd:N"));
  CHECK(refuses({"--kernel", "nbd:-1", "--map-name", "a", uri}, "'-1' is not a number"));
  CHECK(refuses({"--kernel", "nbd", "--map-name", "a", "rnbd+tcp://storage"}, "needs a device"));
  CHECK(refuses({"--kernel", "nbd", "--map-name", "a", "--kernel-retry", "31s", uri},
                "500ms to 30s"));
  CHECK(refuses({"--kernel", "nbd", "--map-name", "a", "--dead-timeout", "x", uri},
                "--dead-timeout"));
  CHECK(refuses({"--map-name", "a", uri}, "--kernel nbd"));
}

TEST_CASE("bridge options: without a device the client chooses the export") {
  const auto all = parse({"rnbd+tcp://storage"});
  REQUIRE(all);
  CHECK(all->client.dynamic_export);
  const auto one = parse({"rnbd+tcp://storage", "--device", "disk1"});
  REQUIRE(one);
  CHECK_FALSE(one->client.dynamic_export);
  CHECK(one->client.device == "disk1");
}

TEST_CASE("bridge options: the plugin's parameters are options, and paths add up") {
  const auto options =
      parse({"--listen", "unix:/run/a.sock", "-l", "tcp:[::1]:0", "--path", "192.0.2.1",
             "--path=192.0.2.2:77", "--no-path-timeout", "5s", "--lanes", "3", "--access", "ro",
             "--policy", "round-robin", "--connect", "now", "rnbd+tcp://storage/disk0"});
  REQUIRE(options);
  REQUIRE(options->listen.size() == 2);
  CHECK(options->listen[0].path == "/run/a.sock");
  CHECK(options->listen[1].host == "::1");
  const ClientConfig& client = options->client;
  CHECK(client.lanes == 3);
  CHECK(client.event_loops);
  CHECK(client.access == wire::AccessMode::read_only);
  CHECK(client.connect_now);
}

TEST_CASE("bridge options: mistakes name the option as it is written here") {
  CHECK(refuses({}, "write e.g. rnbd-bridge rnbd+tcp://storage/disk0"));
  CHECK(refuses({"--lanes", "3"}, "no server is named"));
  CHECK(refuses({"rnbd+tcp://a/b", "rnbd+tcp://c/d"}, "one URI only"));
  CHECK(refuses({"rnbd+tcp://a/b", "--lanes", "x"}, "--lanes: "));
  CHECK(refuses({"rnbd+tcp://a/b", "--no-path-timeout", "never"}, "--no-path-timeout: "));
  CHECK(refuses({"rnbd+tcp://a/b", "--listen", "nowhere"}, "--listen 'nowhere': "));
  CHECK(refuses({"rnbd+tcp://a/b", "--max-connections", "0"}, "--max-connections"));
  CHECK(refuses({"rnbd+tcp://a/b", "--log-level", "all"}, "--log-level"));
  CHECK(refuses({"rnbd+tcp://a/b", "--dynamic-export", "true"}, "--dynamic-export"));
  CHECK(refuses({"rnbd+tcp://a/b", "--lsiten", "unix:x"}, "did you mean --listen"));
  CHECK(refuses({"nbd://a/b"}, "rnbd"));
}

TEST_CASE("bridge options: a missing value is not what comes next, and one option is not two") {
  const char* uri = "rnbd+tcp://a/b";
  CHECK(refuses({uri, "--listen"}, "--listen: the value is missing; write --listen ADDRESS"));
  CHECK(refuses({uri, "-l"}, "-l: the value is missing; write -l ADDRESS"));
  CHECK(refuses({"--lanes=", uri}, "--lanes: the value is missing; write --lanes N"));
  CHECK(refuses({"--pid-file", "", uri}, "--pid-file: the value is missing"));
  CHECK(refuses({"--pid-file", "--listen", "unix:x", uri},
                "--pid-file: the value is missing; write --pid-file FILE (behind it is the option "
                "--listen)"));
  for (const char* option : {"--pid-file", "--listen", "--lanes", "--session", "--control"}) {
    CHECK(refuses({option, uri}, std::string{option} + ": the value is missing; it has taken"));
  }
  CHECK(refuses({"--max-connections", uri}, "--max-connections: 'rnbd+tcp://a/b' is not a number"));
  CHECK(refuses({"--pid-file", "a", "--pid-file", "b", uri}, "--pid-file: may be given only once"));
  CHECK(refuses({"--ready-fd", "x", uri}, "--ready-fd: 'x' is not a number"));
  CHECK(refuses({"--log-level", "all", uri}, "'all' is not a level; use debug, info"));
}

TEST_CASE("bridge options: no message has the plugin's spelling") {
  const char* uri = "rnbd+tcp://a/b";
  CHECK(refuses({uri, "--reconnect-min", "5s"}, "--reconnect-min is longer than --reconnect-max "));
  CHECK(refuses({uri, "--require-ext", "true", "--extensions", "false"},
                "--require-ext true contradicts --extensions false;"));
  CHECK(refuses({uri, "--device", "c"}, "the uri names the device 'b' and --device another one"));
  CHECK(refuses({"rnbd+tcp://x@a/b"}, "name a source address with --path SRC@DST[:PORT]"));
  CHECK(refuses({uri, "--path", "a"}, "--path: 'a' is there already"));
}

TEST_CASE("bridge options: disks of files") {
  const auto options =
      parse({"--disks", "s:1-0", "--disk-files", "/a", "--disk-files", "/b", "--control", "/c"});
  REQUIRE(options);
  CHECK(options->disks == "s:1-0");
  CHECK(options->disk_files == std::vector<std::string>{"/a", "/b"});
  CHECK(options->client.control == "/c");
  CHECK(parse({"--disks", "s:1-0"})->disk_files.back() == "/etc/rnbd/map.d");
  CHECK(refuses({"--disks", "s:1-0", "rnbd+tcp://storage/disk0"}, "leave them out"));
  CHECK(refuses({"--disks", "s:1-0", "--listen", "unix:/x"}, "leave them out"));
  CHECK(refuses({"--disks", "s:1-0", "--lanes", "2"}, "leave --lanes out"));
}

}  // namespace bridge_options_test
