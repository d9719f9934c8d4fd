// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/hidden.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "tests/unit/ctl/machine.hpp"

namespace rnbd::hidden_test {
namespace {

namespace fs = std::filesystem;

/// A /proc of processes with sockets.
struct Processes : ctl_test::Machine {
  Processes() {
    write("/proc/net/unix",
          "Num       RefCount Protocol Flags    Type St Inode Path\n"
          "0000: 00000002 00000000 00010000 0001 01 11 /run/rnbd/disk0.control\n"
          "0000: 00000002 00000000 00010000 0001 01 12 run/rnbd-server/control\n"
          "0000: 00000002 00000000 00010000 0001 01 13\n"
          "0000: 00000002 00000000 00010000 0001 01 14 b/control\n"
          "0000: 00000002 00000000 00010000 0001 01 15 /tmp/nbd.sock\n");
    fs::create_directories(root() + "/run/rnbd-server");
  }

  void add(const std::string& process, const std::vector<std::string>& words,
           const std::string& inode) const {
    std::string line;
    for (const std::string& word : words) line += word + '\0';
    write("/proc/" + process + "/cmdline", line);
    link("/proc/" + process + "/fd/7", "socket:[" + inode + "]");
  }

  std::vector<HiddenProgram> found() const {
    return find_hidden_programs(
        root(), {{"disk0", "/run/rnbd/disk0.control"}, {"server", "/x/run/rnbd-server/control"}});
  }
  std::vector<std::string> hidden() const {
    std::vector<std::string> texts;
    for (const HiddenProgram& each : found()) texts.push_back(each.text);
    return texts;
  }
};

TEST_CASE("who has a socket that is known is not hidden") {
  const Processes processes;
  processes.add("21", {"/usr/sbin/rnbd-bridge", "rnbd+tcp://a/b"}, "11");
  processes.add("22", {"rnbd-server"}, "12");
  processes.add("23", {"bash", "rnbd"}, "13");
  CHECK(processes.hidden().empty());
}

TEST_CASE("who has no such socket is told, with what to do about it") {
  const auto only = [](const std::vector<std::string>& words) {
    const Processes processes;
    processes.add("21", words, "13");
    const auto hidden = processes.hidden();
    return hidden.size() == 1 ? hidden.front() : "";
  };
  CHECK(only({"rnbd-server", "--export", "x=memory:1M"}) ==
        "rnbd-server, process 21, is not shown: it has no control socket; start it with --control "
        "/run/rnbd-server/control");
  CHECK(only({"rnbd-server", "--control=none"}).find("has no control socket") != std::string::npos);
  CHECK(only({"/sbin/rnbd-bridge", "--control", "/tmp/c"}) ==
        "rnbd-bridge, process 21, is not shown: its control socket is elsewhere; ask it with "
        "rnbd-ctl /tmp/c status");
  CHECK(only({"nbdkit", "-f", "rnbd", "uri=x"})
            .ends_with("; mkdir /run/rnbd, and start it with control=/run/rnbd/NAME.control"));
  CHECK(only({"nbdkit", "memory", "1M"}).empty());
}

TEST_CASE("a program in a container is marked, whatever its sockets are called") {
  const Processes processes;
  processes.add("21", {"rnbd-server", "--control", "/run/rnbd-server/control"}, "13");
  processes.add("22", {"/usr/sbin/rnbd-bridge", "rnbd+tcp://a/b"}, "13");
  processes.write("/proc/21/status", "Name:\trnbd-server\nNSpid:\t21\t1\n");
  processes.write("/proc/22/status", "Name:\trnbd-bridge\nNSpid:\t22\n");
  auto found = processes.found();
  REQUIRE(found.size() == 2);
  std::ranges::sort(found, {}, &HiddenProgram::process);
  CHECK(found[0].contained);
  CHECK(found[0].server);
  CHECK(found[0].process == "21");
  CHECK_FALSE(found[1].contained);
}

TEST_CASE("a program in a container whose socket is known is not hidden") {
  const Processes processes;
  processes.add("21", {"/usr/sbin/rnbd-bridge", "rnbd+tcp://a/b"}, "11");
  processes.write("/proc/21/status", "Name:\trnbd-bridge\nNSpid:\t21\t1\n");
  CHECK(processes.found().empty());
}

TEST_CASE("the socket of a server that is elsewhere is found by its arguments or its descriptors") {
  const auto socket_of = [](const std::vector<std::string>& words, const std::string& inode) {
    const Processes processes;
    processes.add("21", words, inode);
    processes.link("/proc/21/cwd", "/srv");
    const auto found = processes.found();
    REQUIRE(found.size() == 1);
    return found.front().socket;
  };
  CHECK(socket_of({"rnbd-server", "--control", "/tmp/c"}, "13") == "/tmp/c");
  CHECK(socket_of({"rnbd-server", "--control=a/c"}, "13") == "/srv/a/c");
  CHECK(socket_of({"rnbd-server"}, "14") == "/srv/b/control");
  CHECK(socket_of({"rnbd-server"}, "15") == "");
  CHECK(socket_of({"rnbd-server", "--control", "none"}, "13") == "");
  CHECK(socket_of({"rnbd-bridge"}, "14") == "");
}

TEST_CASE("a bridge is told apart, unless it will have a socket that is found") {
  const auto is_bridge = [](const std::vector<std::string>& words) {
    const Processes processes;
    processes.add("21", words, "13");
    const auto found = processes.found();
    return found.size() == 1 && found.front().is_bridge;
  };
  CHECK(is_bridge({"rnbd-bridge", "rnbd+tcp://a/b"}));
  CHECK(is_bridge({"rnbd-bridge", "--control", "/tmp/c", "rnbd+tcp://a/b"}));
  CHECK_FALSE(is_bridge({"rnbd-bridge", "--control=/run/rnbd/map/a.control", "rnbd+tcp://a/b"}));
  CHECK_FALSE(is_bridge({"nbdkit", "rnbd"}));
  CHECK_FALSE(is_bridge({"rnbd-server"}));
}

TEST_CASE("a second server gets another place than the first one has") {
  const Processes processes;
  processes.add("21", {"rnbd-server"}, "13");
  const auto beside = find_hidden_programs(
      processes.root(), {{"server", processes.root() + "/run/rnbd-server/control"}});
  REQUIRE(beside.size() == 1);
  CHECK(beside.front().text.ends_with("start it with --control /run/rnbd/NAME.control"));
}

TEST_CASE("of a server of another user its arguments tell the socket") {
  const auto found_with = [](const std::string& control) {
    const Processes processes;
    processes.add("21", {"rnbd-server", "--control=" + control}, "13");
    fs::remove_all(processes.root() + "/proc/21/fd");  // as if it could not be looked into
    return processes.found();
  };
  CHECK(found_with("/run/rnbd-server/control").empty());
  CHECK(found_with("/run/rnbd/other.control").empty());
  REQUIRE(found_with("/srv/control").size() == 1);
  CHECK(found_with("/srv/control").front().socket == "/srv/control");
}

}  // namespace
}  // namespace rnbd::hidden_test
