// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/mapping.hpp"

#include <doctest/doctest.h>

#include <built_annexes.hpp>
#include <iterator>
#include <sstream>

#include "bridge/ctl/supervisor.hpp"

namespace rnbd::mapping_test {
namespace {

tl::expected<Mapping, std::string> mapped(const std::string& line) {
  std::istringstream stream{line};
  std::vector<std::string> words{"map"};
  for (std::string word; stream >> word;) words.push_back(word);
  const auto action = parse_ctl_words(words);
  if (!action) return tl::unexpected(action.error());
  return mapping_of(*action);
}

struct Row {
  const char* line;
  Mapping mapping;
};

TEST_CASE("a map becomes a URI and options of the bridge") {
  const Row rows[] = {
      {"disk0 from store", {"disk0", "rnbd+tcp://store/disk0"}},
      {"disk0 from store:1300", {"disk0", "rnbd+tcp://store:1300/disk0"}},
      {"disk0 from ip:10.0.0.1", {"disk0", "rnbd+tcp://10.0.0.1/disk0"}},
      {"disk0 from [fe80::1]:1300", {"disk0", "rnbd+tcp://[fe80::1]:1300/disk0"}},
      {"disk0 from rnbds+tcp://me@store", {"disk0", "rnbds+tcp://me@store/disk0"}},
      {"disk0 from store rdma", {"disk0", "rnbd://store/disk0"}},
      {"disk0 from tcp:store:99", {"disk0", "rnbd+tcp://store:99/disk0"}},
      {"disk0 from rdma:10.0.0.1", {"disk0", "rnbd://10.0.0.1/disk0"}},
      {"disk0 from rdma:10.0.0.1 rdma", {"disk0", "rnbd://10.0.0.1/disk0"}},
      {"/dev/sdb from store", {"sdb", "rnbd+tcp://store//dev/sdb"}},
      {"a?b from store --name ab", {"ab", "rnbd+tcp://store/a%3Fb"}},
      {"rnbd://store/vol/one", {"one", "rnbd://store/vol/one"}},
      {"rnbd+tcp://store/disk0?uuid=1", {"disk0", "rnbd+tcp://store/disk0?uuid=1"}},
      {"disk0 from store --name root --persist", {"root", "rnbd+tcp://store/disk0"}},
      {"disk0 from store name root", {"root", "rnbd+tcp://store/disk0"}},
      {"disk0 from store as nbd3", {"disk0", "rnbd+tcp://store/disk0", "nbd:3"}},
      {"disk0 from store ro", {"disk0", "rnbd+tcp://store/disk0", "nbd", {"--access", "ro"}}},
      {"disk0 from store paths=auto",
       {"disk0", "rnbd+tcp://store/disk0", "nbd", {"--paths", "auto"}}},
      {"disk0 from store 10.0.1.1 --paths=auto -- --lanes 2",
       {"disk0",
        "rnbd+tcp://store/disk0",
        "nbd",
        {"--path", "10.0.1.1", "--paths", "auto", "--lanes", "2"}}},
      {"disk0 from store rw", {"disk0", "rnbd+tcp://store/disk0", "nbd", {"--access", "rw"}}},
      {"disk0 from store migration",
       {"disk0", "rnbd+tcp://store/disk0", "nbd", {"--access", "migration"}}},
      {"disk0 from store 10.0.1.1 ip:10.0.3.2@ip:10.0.2.1",
       {"disk0",
        "rnbd+tcp://store/disk0",
        "nbd",
        {"--path", "10.0.1.1", "--path", "10.0.3.2@10.0.2.1"}}},
      {"disk0 from store -- --no-path-timeout 0",
       {"disk0", "rnbd+tcp://store/disk0", "nbd", {"--no-path-timeout", "0"}}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.line);
    const auto mapping = mapped(row.line);
    REQUIRE_MESSAGE(mapping.has_value(), (mapping ? "" : mapping.error()));
    CHECK(mapping->uri == row.mapping.uri);
    Mapping wanted = row.mapping;
    wanted.bridge = bridge_key(wanted);
    CHECK_FALSE(wanted.bridge.empty());
    CHECK((*mapping == wanted));
    const auto again = read_mapping(mapping->name, file_of(*mapping));
    REQUIRE(again.has_value());
    CHECK((*again == wanted));
    const auto own = mapped("--own-process " + std::string{row.line});
    REQUIRE_MESSAGE(own.has_value(), (own ? "" : own.error()));
    CHECK((*own == row.mapping));
  }
}

TEST_CASE("what no file could hold, or no bridge could do, is refused") {
  struct {
    const char* line;
    const char* says;
  } const rows[] = {
      {"disk0", "write map disk0 from SERVER"},
      {"store/disk0",
       "unless store is one: then write map disk0 from store, or map "
       "rnbd+tcp://store/disk0; else write map store/disk0 from SERVER"},
      {"disk0 from", "write SERVER behind it"},
      {"rnbd://store/disk0 from store", "leave `from` out"},
      {"disk0 from tcp:store rdma", "rdma and tcp:store exclude each other"},
      {"rnbd://store", "names no device"},
      {"a:b from store", "cannot be the name of a mapping"},
      {"disk0 from store --name .x", "cannot be the name"},
      {"disk0 from store --name a/b", "cannot be the name"},
      {"disk0 from store as sda", "'sda' is no device of the kernel"},
      {"disk0 from store as nbd", "no device of the kernel"},
      {"disk0 from store ::1", "[::1]"},
      {"rnbd+tcp://store/a$b --name ab", "has a blank"},
      {"disk0 from store -- --session a\"b", "has a blank, a quote"},
      {"disk0 from store --force", "force does not belong to map"},
      {"disk0 from store --csv", "csv does not belong to map"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.line);
    const auto mapping = mapped(row.line);
    REQUIRE_FALSE(mapping.has_value());
    CAPTURE(mapping.error());
    CHECK(mapping.error().find(row.says) != std::string::npos);
  }
}

TEST_CASE("the file is one for systemd, and people may write it") {
  CHECK(file_of({"disk0", "rnbd+tcp://store/disk0", "nbd:3", {"--access", "ro"}})
            .ends_with(
                "\nURI=\"rnbd+tcp://store/disk0\"\nKERNEL=\"nbd:3\"\nOPTIONS=\"--access ro\"\n"));
  const auto written = read_mapping("x", "# mine\n\nURI=rnbd://s/d\nOTHER=1\n");
  REQUIRE(written.has_value());
  CHECK((*written == Mapping{"x", "rnbd://s/d"}));
  CHECK_FALSE(read_mapping("x", "OPTIONS=\n").has_value());
}

TEST_CASE("files of mappings that last are elsewhere than those that do not") {
  CHECK(path_of_mapping("", "disk0", true) == "/etc/rnbd/map.d/disk0.conf");
  CHECK(path_of_mapping("/r", "disk0", false) == "/r/run/rnbd/map.d/disk0.conf");
}

TEST_CASE("the reason is the last error of a log, or else the last line of the program") {
  CHECK(reason_in_log("") == "");
  CHECK(
      reason_in_log("2026-11-27 22:13:21.395 rnbd-bridge: error: the kernel has no nbd driver\n") ==
      "the kernel has no nbd driver");
  CHECK(reason_in_log("12:00 rnbd-bridge: error: first\n12:01 rnbd-bridge: error: second\n"
                      "12:02 rnbd-bridge: SIGTERM: stopping\n") == "second");
  CHECK(reason_in_log("rnbd-bridge: unknown option '--frob'\nTry 'rnbd-bridge --help'.") ==
        "unknown option '--frob'");
  CHECK(reason_in_log("the server is broken\n\n") == "the server is broken");
}

TEST_CASE("the command for a mapping asks for the same one") {
  Mapping shared{"vol", "rnbd+tcp://store/disk0", "nbd:3", {"--access", "ro"}};
  const Mapping own = shared;
  shared.bridge = bridge_key(shared);
  const std::string begin = "rnbd-ctl map rnbd+tcp://store/disk0 --name vol --as nbd3";
  const std::pair<Mapping, std::string> rows[] = {
    {shared, begin + " --persist -- --access ro"},
    {own, begin + " --own-process --persist -- --access ro"},
#if RNBDKIT_WITH_MIRROR
    {{"m", "rnbd-mirror+tcp://a,b/disk0"},
     "rnbd-ctl map rnbd-mirror+tcp://a,b/disk0 --name m --persist"},
#endif
  };
  for (const auto& [mapping, command] : rows) {
    CHECK(command_for(mapping) == command);
    std::istringstream text{command.substr(command.find(' ') + 1)};
    const auto action = parse_ctl_words({std::istream_iterator<std::string>{text}, {}});
    REQUIRE(action.has_value());
    CHECK(mapping_of(*action) == mapping);
    CHECK(action->persist);
  }
}

}  // namespace
}  // namespace rnbd::mapping_test
