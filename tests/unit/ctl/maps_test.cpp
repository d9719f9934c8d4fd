// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/maps.hpp"

#include <doctest/doctest.h>

#include "bridge/ctl/mapping.hpp"
#include "bridge/ctl/reports.hpp"
#include "tests/unit/ctl/machine.hpp"

namespace rnbd::maps_test {
namespace {

/// A machine with files of mappings and disks of the kernel.
struct Machine : ctl_test::Machine {
  void map(const std::string& name, const std::string& uri) const {
    write(path_of_mapping("", name, false), file_of({name, uri}));
  }
  void attach(const std::string& device, const std::string& name) const {
    ctl_test::Machine::attach(device, "rnbd:u:" + name);
  }
};

CtlJson row_of_device(const char* program, const char* name) {
  return {{"program", program}, {"mapping_path", name}, {"uuid", "u-1"}, {"direction", "import"}};
}

using Names = std::set<std::string>;

TEST_CASE("a disk without a bridge is listed with its export, which its file has") {
  const Machine machine;
  machine.map("two", "rnbd+tcp://store/a");
  const std::vector<KernelDevice> devices{{"nbd0", "u", "two"}, {"nbd1", "u", "of-nobody"}};
  CtlInventory inventory = take_inventory({}, devices, CtlSide::both);
  REQUIRE(inventory.devices.size() == 2);
  add_exports_of_mappings(machine.root(), inventory);
  CHECK(inventory.devices[0]["mapping_path"] == "a");
  CHECK(inventory.devices[1]["mapping_path"].is_null());
}

TEST_CASE("a disk is found by its export, from its file or from its bridge") {
  const Machine machine;
  machine.map("two", "rnbd+tcp://store/a");
  machine.map("other", "rnbd+tcp://store/b");
  machine.map("odd", "rnbd+tcp://store/c%20d");
  CHECK(mappings_of_export(machine.root(), "a", {}) == Names{"two"});
  CHECK(mappings_of_export(machine.root(), "c d", {}) == Names{"odd"});
  CHECK(mappings_of_export(machine.root(), "two", {}).empty());
  machine.map("three", "rnbd+tcp://store/a");
  CHECK(mappings_of_export(machine.root(), "a", {}) == Names{"three", "two"});

  // A bridge of NBD clients has no disk of the kernel.
  machine.attach("nbd4", "manual");
  CtlInventory inventory;
  inventory.devices = {row_of_device("manual", "x"), row_of_device("clients", "x")};
  CHECK(mappings_of_export(machine.root(), "x", inventory) == Names{"manual"});
  CHECK(mappings_of_export(machine.root(), "u-1", inventory) == Names{"manual"});
}

TEST_CASE("of a disk that was unmapped by force all commands tell the same") {
  const Machine machine;
  machine.attach("nbd4", "a");
  const CtlAction about_it{.names = {"a"}, .root = machine.root()};
  const std::string story = "nbd4 is left of 'a', without a bridge and without a mapping";
  CtlAction map = about_it;
  map.server = "store";
  for (const CtlOutcome& answer :
       {map_device(map), recover_devices(about_it), remap_devices(about_it, {"a"})}) {
    CHECK(answer.status == 1);
    CHECK_MESSAGE(answer.error.starts_with(story), answer.error);
    CHECK(answer.error.find("`rnbd-ctl unmap a` takes it away") != std::string::npos);
  }
}

TEST_CASE("the size at the server is known while a path is up, and told else that it is not") {
  CtlReport bridge{{"a", "A"},
                   CtlJson::parse(R"({
    "session": "s", "seconds_without_path": 3,
    "paths": [{"address": "tcp:h:1", "state": "connected", "in_use": true, "trouble": ""}],
    "devices": [{"device": "x", "size": 4096, "trouble": ""}]})"),
                   {}};
  CHECK(size_told_by(bridge, "a") == 4096);
  CtlJson& path = bridge.status["paths"][0];
  path["state"] = "waiting";
  path["in_use"] = false;
  path["trouble"] = "Connection refused";
  CHECK(size_told_by(bridge, "a").error() ==
        "its size at the server is not known: a is waiting, no path for 3 s (tcp:h:1: Connection "
        "refused)");
  bridge.status["devices"][0]["trouble"] = "it was ended";
  CHECK(size_told_by(bridge, "a").error() ==
        "its size at the server is not known: a is closed, it was ended");
  bridge.status["devices"] = CtlJson::array();
  CHECK(size_told_by(bridge, "a").error() == "the bridge of a has no device open");
  CHECK_FALSE(size_told_by({{"a", "A"}, nullptr, {}}, "a").has_value());
}

TEST_CASE("the size of a disk is its own, also where others share its bridge") {
  const CtlReport bridge{{"store:1234-0", "A"},
                         CtlJson::parse(R"({
    "session": "s",
    "paths": [{"address": "tcp:h:1", "state": "connected", "in_use": true, "trouble": ""}],
    "devices": [{"device": "x", "size": 4096, "trouble": ""},
                {"device": "dev/y", "size": 8192, "trouble": ""}],
    "disks": [{"disk": "b", "device": "/dev/y"}, {"disk": "a", "device": "x"}]})"),
                         {}};
  CHECK(size_told_by(bridge, "a") == 4096);
  CHECK(size_told_by(bridge, "b") == 8192);
  CHECK(size_told_by(bridge, "c").error() == "the bridge of c has no device open");
}

}  // namespace
}  // namespace rnbd::maps_test
