// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/server_place.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace rnbd::server_place_test {
namespace {

namespace fs = std::filesystem;

/// A machine's /etc and /sys, and a state directory.
struct Machine {
  Machine() {
    std::string name = (fs::temp_directory_path() / "rnbd-place-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
    set("etc/machine-id", "1111");
    add_card("eth0", "52:54:00:00:00:01");
  }
  ~Machine() { fs::remove_all(root); }
  void set(const std::string& path, const std::string& line) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream{root / path} << line << '\n';
  }
  void add_card(const std::string& name, const std::string& address,
                const std::string& assigned = "0") const {
    const std::string folder = "sys/class/net/" + name;
    set(folder + "/address", address);
    set(folder + "/addr_assign_type", assigned);
    set(folder + "/device/vendor", "0x1af4");
  }
  void remove_card(const std::string& name) const { fs::remove_all(root / "sys/class/net" / name); }
  /// A start of the server. Returns the change that it finds.
  std::string start(const std::set<std::string>& addresses = {}) const {
    PlaceFile file{root.string()};
    const ServerPlace now = this_place(addresses, root.string());
    const auto change = file.change(now);
    REQUIRE(change);
    REQUIRE(file.save(now));
    return *change;
  }
  fs::path root;
};

TEST_CASE("place: a server that starts again finds no change") {
  const Machine machine;
  CHECK(machine.start().empty());
  CHECK(machine.start().empty());
}

TEST_CASE("place: on another machine the first start tells, and no other") {
  const Machine machine;
  machine.start();
  machine.set("etc/machine-id", "2222");
  CHECK(machine.start() == "its /etc/machine-id was 1111 and is 2222");
  CHECK(machine.start().empty());
}

TEST_CASE("place: a machine with none of the network cards of before is another one") {
  const Machine machine;
  machine.add_card("eth1", "52:54:00:00:00:02");
  machine.start();
  SUBCASE("one of several is exchanged") {
    machine.remove_card("eth0");
    machine.add_card("eth2", "52:54:00:00:00:03");
    CHECK(machine.start().empty());
  }
  SUBCASE("all are other ones") {
    machine.add_card("eth0", "52:54:00:00:00:04");
    machine.remove_card("eth1");
    CHECK(machine.start() ==
          "its network cards were 52:54:00:00:00:01, 52:54:00:00:00:02 and are 52:54:00:00:00:04");
  }
}

TEST_CASE("place: cards that come and go are known once and for all") {
  const Machine machine;
  machine.add_card("eth1", "52:54:00:00:00:02");
  machine.start();
  machine.remove_card("eth1");
  CHECK(machine.start().empty());
  machine.remove_card("eth0");
  machine.add_card("eth1", "52:54:00:00:00:02");
  CHECK(machine.start().empty());
  SUBCASE("those of another machine replace them") {
    machine.set("etc/machine-id", "2222");
    machine.add_card("eth2", "52:54:00:00:00:03");
    CHECK_FALSE(machine.start().empty());
    machine.remove_card("eth1");
    machine.remove_card("eth2");
    machine.add_card("eth0", "52:54:00:00:00:01");
    CHECK_FALSE(machine.start().empty());
  }
}

TEST_CASE("place: a mark that is unknown, or made up at each boot, is not compared") {
  const Machine machine;
  machine.start({"192.0.2.1"});
  SUBCASE("no machine-id") { machine.set("etc/machine-id", ""); }
  SUBCASE("no card") { machine.remove_card("eth0"); }
  SUBCASE("a random address") { machine.add_card("eth0", "02:00:00:00:00:09", "1"); }
  SUBCASE("a card without hardware") {
    machine.remove_card("eth0");
    machine.set("sys/class/net/veth0/address", "02:00:00:00:00:09");
    machine.set("sys/class/net/veth0/addr_assign_type", "0");
  }
  CHECK(machine.start().empty());
  machine.set("etc/machine-id", "2222");
  CHECK_FALSE(machine.start().empty());  // a known mark was kept meanwhile
}

TEST_CASE("place: a server at none of its addresses of before is another one") {
  const Machine machine;
  machine.start({"192.0.2.1", "192.0.2.2"});
  CHECK(machine.start({"192.0.2.2", "192.0.2.3"}).empty());
  CHECK(machine.start({}).empty());  // everywhere
  CHECK(machine.start({"192.0.2.4"}) ==
        "it listened on 192.0.2.1, 192.0.2.2, 192.0.2.3 and listens on 192.0.2.4");
  CHECK_FALSE(machine.start({"192.0.2.1"}).empty());  // those of before are forgotten
}

TEST_CASE("place: what belongs to another place is done only where that can be recorded") {
  const Machine machine;
  machine.start();
  machine.set("etc/machine-id", "2222");
  const ServerPlace now = this_place({}, machine.root.string());
  PlaceFile file{machine.root.string()};
  REQUIRE_FALSE(file.change(now).value().empty());
  unsigned done = 0;
  SUBCASE("it cannot") {
    fs::create_directory(machine.root / "server-place.new");
    CHECK_FALSE(file.save(now, [&]() -> PlaceFile::Saved { return ++done, PlaceFile::Saved{}; }));
    CHECK(done == 0);
  }
  SUBCASE("it can") {
    CHECK(file.save(now, [&]() -> PlaceFile::Saved { return ++done, PlaceFile::Saved{}; }));
    CHECK(done == 1);
    CHECK(machine.start().empty());
  }
  SUBCASE("it fails, so that the next start has to do it") {
    const auto failed =
        file.save(now, [] { return PlaceFile::Saved{tl::unexpected(std::string{"no"})}; });
    CHECK(failed.error() == "no");
    CHECK_FALSE(machine.start().empty());
  }
}

TEST_CASE("place: `any` in the file lets the server be anywhere") {
  const Machine machine;
  machine.set("server-place", "any");
  machine.start();
  machine.set("etc/machine-id", "2222");
  CHECK(machine.start().empty());
  PlaceFile file{machine.root.string()};
  CHECK(file.change(ServerPlace{.machine = "3333", .cards = {}, .addresses = {}}).value().empty());
  CHECK(file.is_anywhere());
}

}  // namespace
}  // namespace rnbd::server_place_test
