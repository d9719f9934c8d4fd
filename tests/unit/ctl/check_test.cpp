// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/check.hpp"

#include <doctest/doctest.h>

namespace rnbd::check_test {
namespace {

CtlJson client() {
  return CtlJson::parse(R"({
    "server": "rnbd+tcp://10.0.0.1:1234", "session": "vm1", "trouble": "",
    "paths": [
      {"address": "tcp:10.0.0.1:1234", "state": "connected", "in_use": true, "trouble": ""},
      {"address": "tcp:10.0.1.1:1234", "state": "connected", "in_use": true, "trouble": ""}],
    "devices": [{"device": "disk0", "users": 1, "access": "rw", "trouble": ""}]})");
}

CtlJson server() {
  return CtlJson::parse(R"({
    "listeners": [{"listener": "tcp:10.0.0.1:1234", "state": "listening", "trouble": ""}],
    "exports": [{"export": "vol1", "state": "open", "trouble": ""},
                {"export": "vol2", "state": "open", "trouble": ""}],
    "sessions": [], "paths": [], "devices": []})");
}

struct World {
  CtlJson bridge = client(), store = server();
  std::vector<KernelDevice> kernel = {};
  std::map<std::string, std::string> mappings = {};
  std::vector<MissingMount> unmounted = {};
  bool has_server = false;
  std::vector<std::string> silent = {};
  std::vector<HiddenProgram> hidden = {};
  std::vector<CtlProgram> ended = {};
  std::vector<CtlProgram> hung = {};
  std::vector<MountWithoutDisk> without_disk = {};
  CtlJson second_store = nullptr;

  CtlVerdict check(const CtlAction& action = {.verb = CtlVerb::check}) const {
    CtlReports reports{{{{"disk0", "D"}, bridge, {}},
                        {{"server", "S"}, store, {}},
                        {{"/x/control", "/x/control"}, second_store, {}}},
                       silent,
                       hidden,
                       ended,
                       hung};
    std::erase_if(reports.all, [](const CtlReport& report) { return report.status.is_null(); });
    return verdict_on(action, reports, kernel, {mappings, unmounted, without_disk, has_server});
  }
  CtlVerdict named(const std::string& name) const {
    return check({.verb = CtlVerb::check, .names = {name}});
  }
};

bool says(const CtlVerdict& verdict, const char* text) {
  CAPTURE(verdict.text);
  return verdict.text.find(text) != std::string::npos;
}

TEST_CASE("a line with counts comes first, and all is well") {
  const CtlVerdict verdict = World{}.check();
  CHECK(verdict.health == CtlHealth::ok);
  CHECK(verdict.text ==
        "RNBD OK - 1 session, 2 of 2 paths up, 1 device, 2 exports | sessions=1 paths=2 paths_up=2 "
        "devices=1 exports=2 critical=0 warning=0 unknown=0\n");
}

TEST_CASE("a session that lacks some of its paths is a warning, one without a path critical") {
  World world;
  world.bridge["paths"][1]["state"] = "waiting";
  world.bridge["paths"][1]["in_use"] = false;
  world.bridge["paths"][1]["trouble"] = "Connection refused";
  CtlVerdict verdict = world.check();
  CHECK(verdict.health == CtlHealth::warning);
  CHECK(says(verdict, "RNBD WARNING - 1 warning, 1 session, 1 of 2 paths up"));
  CHECK(says(verdict,
             "\nWARNING: session vm1: 1 of 2 paths (tcp:10.0.1.1:1234: Connection "
             "refused)\n"));
  world.bridge["paths"][0]["state"] = "waiting";
  world.bridge["paths"][0]["in_use"] = false;
  world.bridge["seconds_without_path"] = 7;
  verdict = world.check();
  CHECK(verdict.health == CtlHealth::critical);
  CHECK(says(verdict, "\nCRITICAL: session vm1: no path for 7 s"));
  CHECK(says(verdict, "\nCRITICAL: device disk0: its requests wait, no path for 7 s"));
  // Connected, but the server lets nothing over it.
  world.bridge["paths"][0]["state"] = "connected";
  world.bridge["paths"][0]["access"] = "inaccessible";
  CHECK(world.check().health == CtlHealth::critical);
}

TEST_CASE("a bridge without a session is critical if somebody asked for one, else it is idle") {
  World world;
  world.bridge["session"] = nullptr;
  world.bridge["devices"] = CtlJson::array();
  for (CtlJson& path : world.bridge["paths"]) path["state"] = "idle";
  CHECK(world.check().health == CtlHealth::ok);
  CHECK(says(world.check(), "0 of 0 paths"));
  world.bridge["trouble"] = "no server";
  CHECK(world.check().health == CtlHealth::critical);
  CHECK(says(world.check(), "CRITICAL: session disk0: no path: no server"));
}

TEST_CASE("a client without any path is critical") {
  World world;
  world.bridge["session"] = nullptr;
  world.bridge["paths"] = world.bridge["devices"] = CtlJson::array();
  for (const char* server : {"rnbd+tcp://10.0.0.1:1234", "rnbd+tcp://disk-mirror:1234"}) {
    world.bridge["server"] = server;
    CHECK(world.check().health == CtlHealth::critical);
  }
}

TEST_CASE("storage that has failed a short while ago is a warning") {
  World world;
  world.store["last_failures"] = CtlJson::parse(R"([
    {"failed": "vol1", "operation": "write", "errno": "ENOSPC", "at": "2026-11-28T23:00:00Z",
     "seconds_ago": 61},
    {"failed": "vol2", "operation": "read", "errno": "EIO", "at": "2026-11-28T21:00:00Z",
     "seconds_ago": 7261},
    {"failed": "a/file", "operation": "flush", "errno": "EIO", "at": "2026-11-28T23:01:00Z",
     "seconds_ago": 1}])");
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(says(world.check(),
             "\nWARNING: export vol1: its storage failed a write with ENOSPC 61 s ago, at "
             "2026-11-28T23:00:00Z; see to it, and to the log of the server\n"));
  CHECK(
      says(world.check(), "\nWARNING: export a/file: its storage failed a flush with EIO 1 s ago"));
  CHECK_FALSE(says(world.check(), "vol2"));
  CHECK(world.named("vol1").health == CtlHealth::warning);
  CHECK(world.named("vol2").health == CtlHealth::ok);
  CHECK(world.named("a/file").health == CtlHealth::warning);
  CHECK(world.check({.verb = CtlVerb::check, .side = CtlSide::client}).health == CtlHealth::ok);
}

TEST_CASE("a file system that fills beneath files with holes is told once") {
  World world;
  const auto place = [&](std::uint64_t free, std::uint64_t whole) {
    world.store["exports"] = CtlJson::parse(R"([
      {"export": "thick", "state": "open", "size": 1073741824, "read_only": false},
      {"export": "vol1", "state": "open", "size": 1073741824, "read_only": false},
      {"export": "vol2", "state": "open", "size": 1073741824, "read_only": false}])");
    std::uint64_t holes = 0;
    for (CtlJson& each : world.store["exports"]) {
      each["space"] = {{"unallocated", holes << 30}, {"free", free << 20}, {"whole", whole << 20}};
      ++holes;
    }
  };
  place(100, 1000);
  CHECK(world.check().health == CtlHealth::ok);
  place(99, 1000);
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(
      says(world.check(),
           "\nWARNING: export vol2: its file system has 99 MiB left of 1000 MiB, and its file may "
           "take 2 GiB yet; so may those of other exports (1); make room, or writes end with "
           "ENOSPC\n"));
  CHECK_FALSE(says(world.check(), "vol1:"));
  CHECK(says(world.named("vol1"), "WARNING: export vol1: "));
  CHECK(world.named("thick").health == CtlHealth::ok);
  place(29, 1000);
  CHECK(world.check().health == CtlHealth::critical);
}

TEST_CASE("a device with an error that lasts is critical") {
  World world;
  world.bridge["devices"][0]["trouble"] = "it is | other storage";
  CHECK(world.check().health == CtlHealth::critical);
  // The bar would begin numbers.
  CHECK(says(world.check(), "\nCRITICAL: device disk0: it is / other storage\n"));
  world.bridge["devices"][0]["trouble"] = "ended";
  world.kernel = {{"nbd3", "u", "disk0"}};
  CHECK(says(world.check(),
             "CRITICAL: device nbd3: ended; unmount it, then write rnbd-ctl remap disk0\n"));
}

TEST_CASE("a disk of the kernel without a bridge is critical, with one it recovers") {
  World world;
  world.kernel = {{"nbd3", "u", "gone"}};
  CHECK(world.check().health == CtlHealth::critical);
  CHECK(says(world.check(), "CRITICAL: device nbd3: it is left of 'gone', without a bridge and"));
  CHECK(says(world.check(), "unmount it, and it goes, else write rnbd-ctl unmap gone\n"));
  world.mappings = {{"gone", "gone"}};
  CHECK(world.check().health == CtlHealth::critical);
  CHECK(says(world.check(),
             "CRITICAL: device nbd3: no bridge runs for it; write rnbd-ctl recover "
             "gone"));
  world.mappings = {};
  world.kernel = {{"nbd3", "u", "disk0"}};
  world.bridge["devices"] = CtlJson::array();
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(says(world.check(), "WARNING: device nbd3: it recovers"));
  world = {};
  world.mappings = {{"disk0", "disk0"}, {"lost", "lost"}};
  CHECK(world.check().health == CtlHealth::critical);
  CHECK(says(world.check(), "CRITICAL: device lost: it is mapped, but no bridge runs"));
  CHECK_FALSE(says(world.check(), "device disk0"));
}

TEST_CASE("disks that share a bridge are judged one by one") {
  World world;
  world.bridge["disks"] = CtlJson::parse(R"([
    {"disk": "one", "device": "disk0", "state": "serving", "trouble": ""},
    {"disk": "two", "device": "disk1", "state": "waiting", "trouble": "no such export"},
    {"disk": "three", "device": "disk2", "state": "refused", "trouble": "another disk"},
    {"disk": "four", "device": "disk3", "state": "connecting", "trouble": ""}])");
  world.kernel = {{"nbd1", "u", "one"}, {"nbd2", "u", "three"}};
  for (const char* name : {"one", "two", "three", "four"}) world.mappings[name] = "disk0";
  CHECK(world.check().health == CtlHealth::critical);
  CHECK(says(world.check(), "RNBD CRITICAL - 2 critical, 1 warning, 1 session"));
  CHECK(says(world.check(), "CRITICAL: device two: it is tried again and again: no such export\n"));
  CHECK(says(world.check(),
             "WARNING: device nbd2: it recovers: the bridge of three has not opened "
             "its device yet, another disk\n"));
  CHECK(world.named("one").health == CtlHealth::ok);
  CHECK(world.named("four").health == CtlHealth::ok);
  CHECK(world.named("two").health == CtlHealth::critical);
  CHECK(says(world.check(),
             "CRITICAL: device three: another disk; write rnbd-ctl recover three to try it again"));
  // A bridge that hangs hangs for all of them.
  world.bridge = nullptr;
  world.hung = {{"disk0", "/run/rnbd/map/disk0.control"}};
  CHECK(says(world.named("one"), "CRITICAL: device nbd1: its bridge hangs"));
}

TEST_CASE("an export that waits for its storage is critical, a listener that waits a warning") {
  World world;
  world.store["listeners"][0]["state"] = "waiting";
  world.store["listeners"][0]["trouble"] = "no such address";
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(says(world.check(), "WARNING: listener tcp:10.0.0.1:1234: it waits: no such address"));
  world.store["exports"][1]["state"] = "waiting";
  world.store["exports"][1]["trouble"] = "No such file or directory";
  CHECK(world.check().health == CtlHealth::critical);
  CHECK(says(world.check(),
             "CRITICAL: export vol2: it waits for its storage: No such file or directory"));
  CHECK(world.check({.verb = CtlVerb::check, .side = CtlSide::client}).health == CtlHealth::ok);
  CHECK(world.named("vol1").health == CtlHealth::ok);
  CHECK(world.named("vol2").health == CtlHealth::critical);
  CHECK(world.named("disk0").health == CtlHealth::ok);
}

TEST_CASE("a server's check counts the sessions of its clients, their paths and devices") {
  World world;
  world.bridge = nullptr;
  world.store["sessions"] = CtlJson::parse(R"([{"session": "vm1"}, {"session": "vm2"}])");
  world.store["paths"] = CtlJson::parse(R"([
    {"session": "vm1", "client": "10.0.0.2:1", "state": "connected"},
    {"session": "vm1", "client": "10.0.0.2:2", "state": "connected"},
    {"session": "vm2", "client": "10.0.0.3:1", "state": "connected"}])");
  world.store["devices"] = CtlJson::parse(R"([
    {"session": "vm1", "device": "vol1"}, {"session": "vm2", "device": "vol1"},
    {"session": "vm2", "device": "vol2"}])");
  const CtlAction server{.verb = CtlVerb::check, .side = CtlSide::server};
  CHECK(
      says(world.check(server), "RNBD OK - 2 sessions, 3 of 3 paths up, 3 devices, 2 exports | "));
  CHECK(says(world.named("vm1"), "RNBD OK - 1 session, 2 of 2 paths up, 1 device, 0 exports | "));
  CHECK(says(world.named("vol2"), "RNBD OK - 1 session, 1 of 1 path up, 1 device, 1 export | "));
  CHECK(world.named("vm3").health == CtlHealth::unknown);
  const CtlAction client{.verb = CtlVerb::check, .side = CtlSide::client};
  CHECK(says(world.check(client), " 0 sessions, "));
}

TEST_CASE("exports that wait for the same are one line for people, and one finding each") {
  World world;
  world.store["exports"] = CtlJson::array();
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    world.store["exports"].push_back(
        {{"export", name},
         {"state", "waiting"},
         {"trouble", std::string{"/srv/"} + name + ": of the 1024 descriptors the last ones"}});
  }
  const CtlVerdict verdict = world.check();
  CHECK(says(verdict, "RNBD CRITICAL - 5 critical"));
  CHECK(says(verdict,
             "CRITICAL: 5 exports (a, b, c and 2 more): of the 1024 descriptors the last ones\n"));
  CHECK_FALSE(says(verdict, "export d"));
  world.store["exports"].erase(4);
  world.store["exports"].erase(3);
  CHECK(says(world.check(), "CRITICAL: export a: it waits for its storage: /srv/a: of the 1024"));
  CHECK(says(world.check(), "CRITICAL: export c: it waits for its storage: /srv/c: of the 1024"));
}

TEST_CASE("of two limits with one cause the nearer one is told, and that the other goes with it") {
  World world;
  world.store["limits"] = CtlJson::parse(R"([{"limit": "LimitNOFILE", "used": 95, "most": 100},
                         {"limit": "max-sessions", "used": 9, "most": 10},
                         {"limit": "memory-limit", "used": 98, "most": 100}])");
  const CtlVerdict verdict = world.check();
  CHECK(says(verdict, "RNBD WARNING - 2 warning, "));
  CHECK(says(verdict,
             "WARNING: limit memory-limit: 98 of 100 are used, and clients beyond are refused; "
             "raise memory-limit and max-sessions, which is nearly used, too: each path of a "
             "session takes its part of memory-limit, or see who is there"));
  CHECK(verdict.text.find("limit memory-limit") < verdict.text.find("limit LimitNOFILE"));
  CHECK_FALSE(says(verdict, "limit max-sessions"));
}

TEST_CASE("nine tenths of a limit of a bridge are a warning") {
  World world;
  world.bridge["limits"] =
      CtlJson::parse(R"([{"limit": "max-connections", "used": 9, "most": 10}])");
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(says(world.check(),
             "WARNING: limit max-connections: at the bridge of disk0: 9 of 10 are used, and "
             "clients beyond are refused; raise --max-connections\n"));
  world.bridge["limits"][0]["used"] = 8;
  CHECK(world.check().health == CtlHealth::ok);
}

TEST_CASE("nine tenths of a limit of a server are a warning") {
  World world;
  const auto use = [&](const char* limit, unsigned used, unsigned most) {
    world.store["limits"] = {{{"limit", limit}, {"used", used}, {"most", most}}};
  };
  use("max-sessions", 8, 10);
  CHECK(world.check().health == CtlHealth::ok);
  use("LimitNOFILE", 59000, 65536);
  CHECK(says(world.check(),
             "WARNING: limit LimitNOFILE: 59000 of 65536 are used, and clients "
             "beyond are refused; raise LimitNOFILE of the unit"));
  use("max-sessions", 9, 10);
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(says(world.check(), "WARNING: limit max-sessions: 9 of 10 are used"));
  CHECK(world.named("vol1").health == CtlHealth::ok);
}

TEST_CASE("storage that has shrunk beneath an export is critical, at both ends") {
  World world;
  world.store["exports"][1]["state"] = "shrunk";
  world.store["exports"][1]["trouble"] = "its storage has shrunk to 1 bytes";
  CHECK(world.check().health == CtlHealth::critical);
  CHECK(says(world.check(), "CRITICAL: export vol2: its storage has shrunk to 1 bytes\n"));
  CHECK(world.named("disk0").health == CtlHealth::ok);
  world.bridge["devices"][0]["shrunk"] = true;
  CHECK(world.named("disk0").health == CtlHealth::critical);
  CHECK(says(world.named("disk0"), "CRITICAL: device disk0: its export has shrunk at the server"));
}

TEST_CASE("an export whose path leads elsewhere is critical, and a warning if nobody may write") {
  World world;
  world.store["exports"][1]["state"] = "displaced";
  world.store["exports"][1]["trouble"] = "its file /srv/a was replaced";
  world.store["exports"][1]["read_only"] = false;
  CHECK(says(world.named("vol2"), "CRITICAL: export vol2: its file /srv/a was replaced\n"));
  CHECK(world.named("vol2").health == CtlHealth::critical);
  CHECK(world.named("vol1").health == CtlHealth::ok);
  world.store["exports"][1]["read_only"] = true;
  CHECK(world.named("vol2").health == CtlHealth::warning);
}

TEST_CASE("what cannot be asked or is not there is unknown, unless something is worse") {
  World world;
  CHECK(world.named("vm9").health == CtlHealth::unknown);
  CHECK(says(world.named("vm9"), "UNKNOWN: name vm9: nothing is called vm9"));
  world.silent = {"/run/rnbd/x.control: it hangs"};
  CHECK(world.check().health == CtlHealth::unknown);
  world.bridge["devices"][0]["trouble"] = "lost";
  CHECK(world.check().health == CtlHealth::critical);
}

TEST_CASE("nothing is well at a client that has no disks, and unknown at a server") {
  World empty;
  empty.bridge = empty.store = nullptr;
  const CtlAction client{.verb = CtlVerb::check, .side = CtlSide::client};
  const CtlAction server{.verb = CtlVerb::check, .side = CtlSide::server};
  CHECK(empty.check().health == CtlHealth::ok);
  CHECK(empty.check().text.starts_with("RNBD OK - no disks are mapped, 0 sessions, "));
  CHECK(empty.check(server).health == CtlHealth::unknown);
  CHECK(empty.named("disk0").health == CtlHealth::unknown);
  empty.has_server = true;
  CHECK(says(empty.check(), "UNKNOWN: no server runs here that can be asked"));
  CHECK(empty.check(client).health == CtlHealth::ok);
  empty.has_server = false;
  empty.hidden = {{false, "rnbd-bridge, process 7, is not shown"}};
  CHECK(says(empty.check(), "UNKNOWN: rnbd-bridge, process 7"));
  empty.hidden.clear();
  empty.mappings = {{"disk0", "disk0"}};
  CHECK(empty.check().health == CtlHealth::critical);
  empty.mappings.clear();
  empty.silent = {"/run/rnbd/map/disk0.control: Permission denied"};
  CHECK(empty.check().health == CtlHealth::unknown);
}

TEST_CASE("a mount of the boot that is missing is a warning, and how to mount it is told") {
  World world;
  world.kernel = {{"nbd0", "", "disk0"}};
  world.unmounted = {{"nbd0", "/mnt/disk0"}, {"nbd7", "/mnt/of/another"}};
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(says(world.check(),
             "WARNING: mount /mnt/disk0: /etc/fstab has it for nbd0, and it is not "
             "mounted; write mount /mnt/disk0\n"));
  CHECK_FALSE(says(world.check(), "/mnt/of/another"));
  CHECK(world.named("disk0").health == CtlHealth::warning);
  CHECK(world.named("server").health == CtlHealth::ok);
}

TEST_CASE("a mount whose disk does not come with the next boot is a warning, at the client") {
  World world;
  world.without_disk = {{"/dev/rnbd/by-name/old", "/mnt/old", true, "old"},
                        {"/dev/rnbd/by-uuid/7", "none", false, "disk0", "rnbd-ctl map X --persist"},
                        {"/dev/rnbd/by-uuid/8", "/mnt/8", false}};
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(says(world.check(),
             "\nWARNING: mount /mnt/old: /etc/fstab has a line for /dev/rnbd/by-name/old, which "
             "each boot awaits, and nothing is mapped as that; remove the line, or write rnbd-ctl "
             "map DEVICE from SERVER --name old --persist\n"));
  CHECK(says(world.check(),
             "\nWARNING: mount /dev/rnbd/by-uuid/7: /etc/fstab has a line for "
             "/dev/rnbd/by-uuid/7, but the disk is mapped until the next boot only; write "
             "rnbd-ctl map X --persist\n"));
  CHECK(says(world.check(), "or write rnbd-ctl map DEVICE from SERVER --persist\n"));
  CHECK(world.check({.verb = CtlVerb::check, .side = CtlSide::server}).health == CtlHealth::ok);
  CHECK(says(world.named("old"), "1 warning, 0 sessions"));
  CHECK(says(world.named("/mnt/8"), "1 warning, 0 sessions"));
  CHECK(says(world.named("disk0"), "WARNING: mount /dev/rnbd/by-uuid/7"));
  CHECK(world.named("vol1").health == CtlHealth::ok);
  world.bridge = world.store = nullptr;
  CHECK(says(world.check(), "RNBD WARNING - 3 warning, no disks are mapped, "));
}

TEST_CASE(
    "each server counts: an export that waits is told with its server, if there are several") {
  World world;
  world.second_store = server();
  CHECK(says(world.check(), " 4 exports | "));
  world.second_store["exports"][0]["state"] = "waiting";
  CHECK(world.check().health == CtlHealth::critical);
  CHECK(says(world.check(),
             "\nCRITICAL: export vol1: at the server of /x/control: it waits for its storage\n"));
  CHECK(world.named("/x/control").health == CtlHealth::critical);
  CHECK(world.named("server").health == CtlHealth::ok);
}

TEST_CASE("a server that cannot be asked is unknown, also beside one that can") {
  World world;
  world.hidden = {{true, "rnbd-server, process 7, is not shown"}};
  const CtlAction server{.verb = CtlVerb::check, .side = CtlSide::server};
  const CtlAction client{.verb = CtlVerb::check, .side = CtlSide::client};
  CHECK(world.check().health == CtlHealth::unknown);
  CHECK(says(world.check(server), "\nUNKNOWN: rnbd-server, process 7, is not shown\n"));
  CHECK(world.check(client).health == CtlHealth::ok);
  CHECK(world.named("vol1").health == CtlHealth::ok);
  world.bridge = world.store = nullptr;
  CHECK(world.check(client).health == CtlHealth::ok);
  CHECK(says(world.check(server), "no server runs here that can be asked"));
  CHECK(says(world.check(server), "RNBD UNKNOWN - 2 unknown, "));
}

TEST_CASE("a bridge that cannot be asked is a warning, at the client, with what to do") {
  World world;
  world.hidden = {
      {.server = false, .text = "rnbd-bridge, process 7, is not shown: x", .is_bridge = true}};
  const CtlAction server{.verb = CtlVerb::check, .side = CtlSide::server};
  CHECK(world.check().health == CtlHealth::warning);
  CHECK(says(world.check(), "\nWARNING: rnbd-bridge, process 7, is not shown: x\n"));
  CHECK(world.check(server).health == CtlHealth::ok);
  CHECK(world.named("vol1").health == CtlHealth::ok);
  world.bridge = world.store = nullptr;
  CHECK(says(world.check(), "RNBD WARNING - 1 warning, 1 unknown, "));
  CHECK(says(world.check(), "no program runs here that can be asked"));
}

TEST_CASE("a program that was killed is critical, on its side, unless its disk tells it") {
  World world;
  world.store = nullptr;
  world.ended = {{"server", "/run/rnbd-server/control"}};
  const CtlAction server{.verb = CtlVerb::check, .side = CtlSide::server};
  const CtlAction client{.verb = CtlVerb::check, .side = CtlSide::client};
  CHECK(world.check(server).health == CtlHealth::critical);
  CHECK(says(world.check(server),
             "CRITICAL: program server: rnbd-server of /run/rnbd-server/control does not answer: "
             "it has ended\n"));
  CHECK_FALSE(says(world.check(server), "no program runs"));
  CHECK(world.check(client).health == CtlHealth::ok);
  CHECK(world.named("disk0").health == CtlHealth::ok);
  world.ended = {{"vm1", "/run/rnbd-bridge/vm1/control"}, {"x", "/run/rnbd/x.control"}};
  CHECK(says(world.check(client), "rnbd-bridge of /run/rnbd-bridge/vm1/control does not answer"));
  CHECK_FALSE(says(world.check(server), "vm1"));
  CHECK(says(world.named("x"), "the program of /run/rnbd/x.control does not answer"));
  // A disk of the kernel is told of as such, and the socket of one that is unmapped is old.
  world.ended = {{"disk9", "/run/rnbd/disk9.control"}, {"old", "/run/rnbd/map/old.control"}};
  world.kernel = {{"nbd3", "u", "disk9"}};
  CHECK(says(world.check(), "CRITICAL: device nbd3: "));
  CHECK_FALSE(says(world.check(), "CRITICAL: program"));
}

TEST_CASE("a program that hangs is critical by name, on its side, and not silent besides") {
  World world;
  world.store = nullptr;
  world.hung = {{"server", "/run/rnbd-server/control"}};
  world.silent = {"/run/rnbd-server/control: it hangs"};
  const CtlAction server{.verb = CtlVerb::check, .side = CtlSide::server};
  const CtlAction client{.verb = CtlVerb::check, .side = CtlSide::client};
  CHECK(world.check(server).health == CtlHealth::critical);
  CHECK(world.check(server).text.ends_with(
      "\nCRITICAL: program server: rnbd-server of /run/rnbd-server/control hangs: no answer for 4 "
      "s\n"));
  CHECK(world.check(client).health == CtlHealth::ok);
  CHECK(world.named("disk0").health == CtlHealth::ok);
  CHECK(world.named("server").health == CtlHealth::critical);
  // A disk whose bridge hangs is there, and needs no other bridge.
  world.hung = {{"disk9", "/run/rnbd/map/disk9.control"}};
  world.silent = {"/run/rnbd/map/disk9.control: it hangs"};
  world.mappings = {{"disk9", "disk9"}};
  CHECK(says(world.check(client), "CRITICAL: program disk9: rnbd-bridge of /run/rnbd/map/"));
  CHECK_FALSE(says(world.check(client), "no bridge runs"));
  CHECK(world.named("disk9").health == CtlHealth::critical);
  world.kernel = {{"nbd3", "u", "disk9"}};
  CHECK(says(world.check(client), "CRITICAL: device nbd3: its bridge hangs: no answer for 4 s\n"));
  CHECK_FALSE(says(world.check(client), "no bridge runs"));
  world.store = World{}.store;
  CHECK(world.check(server).health == CtlHealth::ok);
}

TEST_CASE("programs read the same as people") {
  World world;
  world.bridge["devices"][0]["trouble"] = "lost";
  const CtlJson json =
      CtlJson::parse(world.check({.verb = CtlVerb::check, .format = CtlFormat::json}).text);
  CHECK(json["status"] == "CRITICAL");
  CHECK(json["code"] == 2);
  CHECK(json["counts"]["sessions"] == 1);
  CHECK(json["findings"] == CtlJson::parse(R"([{"status": "CRITICAL", "kind": "device",
                                               "name": "disk0", "text": "lost"}])"));
}

}  // namespace
}  // namespace rnbd::check_test
