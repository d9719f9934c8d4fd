// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/listing.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "bridge/ctl/reports.hpp"

namespace rnbd::listing_test {
namespace {

/// A bridge with two paths, a plugin without a session, and a server.
std::vector<CtlReport> three_programs() {
  const CtlJson bridge = CtlJson::parse(R"({
    "server": "rnbd+tcp://10.0.0.1:1234", "server_id": "0123456789abcdef", "session": "web1@store",
    "policy": "min-inflight", "queue_depth": 256, "max_io_size": 262144, "trouble": "",
    "paths": [
      {"address": "tcp:10.0.0.1:1234", "state": "connected", "preference": 0, "in_use": true,
       "leaving": false, "access": "optimized", "requests": 1000, "in_flight": 3, "reconnects": 1,
       "latency_us": 90, "security": "none", "trouble": ""},
      {"address": "tcp:10.0.1.2@10.0.1.1:1234,preference=-1", "state": "waiting", "preference": -1,
       "in_use": false, "leaving": false, "access": null, "requests": 7, "in_flight": 0,
       "reconnects": 2, "latency_us": null, "security": "none", "trouble": "Connection refused"}],
    "devices": [
      {"device": "disk0", "size": 10737418240, "access": "rw",
       "uuid": "6a0b7c2e-0000-4000-8000-000000000001", "users": 1, "trouble": ""}]})");
  const CtlJson counters = CtlJson::parse(R"({"program": "rnbd-bridge", "devices": [
    {"device": "disk0", "read_bytes": 1048576, "write_bytes": 1610612736}], "paths": []})");
  const CtlJson plugin = CtlJson::parse(R"({
    "server": "rnbd://10.9.9.9", "server_id": null, "session": null, "policy": "round-robin",
    "queue_depth": null, "max_io_size": null, "trouble": "no server",
    "paths": [{"address": "rdma:10.9.9.9:1234", "state": "connecting", "requests": 0,
               "in_flight": 0, "reconnects": 0, "trouble": "No route to host"}],
    "devices": []})");
  const CtlJson server = CtlJson::parse(R"({
    "server_id": "fedcba9876543210", "memory": 68157440, "listeners": [],
    "exports": [{"export": "vol1", "state": "open", "size": 1073741824, "read_only": false,
                 "trouble": ""}],
    "sessions": [{"session": "db7@here", "identity": "", "paths": 2, "devices": 1, "requests": 4}],
    "paths": [
      {"session": "db7@here", "client": "10.0.0.7:40000", "listener": "tcp:10.0.0.2:1234",
       "state": "connected", "access": "optimized", "connections": 5, "requests": 4,
       "security": "none"},
      {"session": "db7@here", "client": "10.0.1.7:40002", "listener": "tcp:10.0.1.2:1234",
       "state": "connecting", "access": "optimized", "connections": 1, "requests": 0,
       "security": "none"}],
    "devices": [{"session": "db7@here", "device": "vol1", "access_mode": "rw", "requests": 4}]})");
  return {{{"disk0", "/run/rnbd/disk0.control"}, bridge, counters},
          {{"away", "/run/rnbd/away.control"}, plugin, {}},
          {{"server", "/run/rnbd-server/control"}, server, {}}};
}

const std::vector<KernelDevice> kKernelDevices{
    {"nbd0", "6a0b7c2e-0000-4000-8000-000000000001", "disk0"}, {"nbd3", "u3", "dead"}};

CtlInventory inventory(CtlSide side = CtlSide::both) {
  return take_inventory(three_programs(), kKernelDevices, side);
}

tl::expected<std::string, std::string> answer_to(const std::string& line) {
  std::istringstream stream{line};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  const auto action = parse_ctl_words(words);
  REQUIRE_MESSAGE(action.has_value(), (action ? "" : action.error()));
  const CtlInventory all = inventory(action->side);
  return action->verb == CtlVerb::show ? showing(*action, all) : listing(*action, all);
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string shown(const std::string& line) {
  const auto text = answer_to(line);
  REQUIRE_MESSAGE(text.has_value(), (text ? "" : text.error()));
  return *text;
}

/// UPDATE=1 writes the files anew.
void check_golden(const std::string& line, const std::string& name) {
  CAPTURE(line);
  const std::string path = std::string{RNBD_GOLDEN} + '/' + name;
  const std::string text = shown(line);
  if (std::getenv("UPDATE") != nullptr) std::ofstream{path} << text;
  std::stringstream golden;
  golden << std::ifstream{path}.rdbuf();
  CHECK(text == golden.str());
}

TEST_CASE("the usual tables are those of the golden files") {
  check_golden("list", "devices.txt");
  check_golden("list sessions", "sessions.txt");
  check_golden("list paths", "paths.txt");
  check_golden("client list", "client-devices.txt");
  check_golden("client list sessions", "client-sessions.txt");
  check_golden("client list paths", "client-paths.txt");
  check_golden("server list", "server-devices.txt");
  check_golden("server list sessions", "server-sessions.txt");
  check_golden("server list paths", "server-paths.txt");
  check_golden("show disk0 --root x device", "show-device.txt");
  check_golden("client list sessions xml", "sessions.xml");
  check_golden("list sessions json", "sessions.json");
  check_golden("list paths csv", "paths.csv");
}

TEST_CASE("programs of several versions are told apart, and one that does not tell is another") {
  std::vector<CtlReport> reports = three_programs();
  const auto listed = [&](CtlFormat format, std::vector<std::string> fields = {}) {
    return *listing({.verb = CtlVerb::list, .fields = std::move(fields), .format = format},
                    take_inventory(reports, kKernelDevices, CtlSide::both));
  };
  CHECK_FALSE(mentions(listed(CtlFormat::table), "VERSION"));
  CHECK(mentions(listed(CtlFormat::json, {"+version"}), R"("version": "")"));
  for (CtlReport& report : reports) report.status["version"] = "1.2.3";
  CHECK_FALSE(mentions(listed(CtlFormat::table), "VERSION"));  // a disk without a bridge has none
  CHECK(mentions(listed(CtlFormat::json, {"+version"}), R"("version": "1.2.3")"));
  CHECK(mentions(listed(CtlFormat::json, {"+version"}), R"("version": null)"));
  reports.back().status["version"] = "1.2.4";
  CHECK(mentions(listed(CtlFormat::table), "VERSION"));
  CHECK(mentions(listed(CtlFormat::table), "1.2.4"));
  reports.back().status.erase("version");
  CHECK(mentions(listed(CtlFormat::table), "VERSION"));
}

TEST_CASE("fields are chosen, added and left out") {
  CHECK(shown("client list mapping_path,size") ==
        "MAPPING_PATH  SIZE\n"
        "disk0          10G\n"
        "-                -\n"
        "TOTAL          10G\n");
  CHECK(shown("list mapping_path,size noheaders nototals B server") == "vol1  1073741824\n");
  CHECK(shown("client list sessions csv sessname +path_cnt -sessname") == "path_cnt\n2\n1\n");
  CHECK(shown("show disk0 device state") == "state:  open\n");
  CHECK(shown("show disk0 device state users openers") ==
        shown("show disk0 device state,users,openers"));
  CHECK(shown("client list csv mapping_path -mapping_path state,users devname")
            .starts_with("state,users,devname\n"));
  CHECK(shown("show session web1@store tx_bytes") == "tx_bytes:  1.5G\n");
  CHECK(shown("show session web1@store tx_bytes M") == "tx_bytes:  1536\n");
  CHECK(shown("show session web1@store tx_bytes,rx_bytes csv G") == "tx_bytes,rx_bytes\n1.5,0\n");
}

TEST_CASE("a disk is read-only if the kernel has it so, whatever its bridge asked for") {
  const auto access_of = [](std::vector<KernelDevice> disks) {
    std::vector<CtlJson> accesses;
    for (const CtlJson& row : take_inventory(three_programs(), disks, CtlSide::client).devices)
      accesses.push_back(row["access_mode"]);
    return accesses;
  };
  std::vector<KernelDevice> disks = kKernelDevices;
  CHECK(access_of(disks) == std::vector<CtlJson>{"rw", nullptr});
  disks[0].read_only = disks[1].read_only = true;
  CHECK(access_of(disks) == std::vector<CtlJson>{"ro", "ro"});
  // A disk with another UUID is another one.
  disks[0].uuid = "u9";
  CHECK(access_of(disks) == std::vector<CtlJson>{"rw", "ro", "ro"});
}

TEST_CASE("a server tells who has an export open, in each format") {
  constexpr const char* kOpener = "'db7@here' (10.0.0.7:40000, 10.0.1.7:40002) rw";
  CHECK(shown("server show vol1 openers") == std::string{"openers:  "} + kOpener + "\n");
  CHECK(shown("server show vol1 openers csv") == std::string{"openers\n\""} + kOpener + "\"\n");
  CHECK(CtlJson::parse(shown("server show vol1 json"))["devices"][0]["openers"] == kOpener);
  CHECK(shown("server show vol1 xml").find(std::string{"<openers>"} + kOpener + "<") !=
        std::string::npos);
}

TEST_CASE("an export that nobody has open, or a session without a path, is told as such") {
  std::vector<CtlReport> reports = three_programs();
  reports[2].status["paths"] = CtlJson::array();
  CHECK(take_inventory(reports, {}, CtlSide::server).devices.front()["openers"] ==
        "'db7@here' (no path at present) rw");
  reports[2].status["devices"] = CtlJson::array();
  CHECK(take_inventory(reports, {}, CtlSide::server).devices.front()["openers"] == "");
}

TEST_CASE("programs find the same columns whatever the rows have") {
  CHECK(shown("server list paths csv")
            .starts_with("sessname,hca_name,hca_port,dst_addr,state,tx_bytes,rx_bytes,inflights,"
                         "reconnects,direction,trouble\n"));
  const auto json = CtlJson::parse(shown("server list paths json"));
  CHECK(json["paths"][0]["hca_name"].is_null());
  CHECK(json["paths"].size() == 2);
}

std::vector<std::string> words_of(std::string line, char between) {
  std::vector<std::string> words;
  std::istringstream stream{line.substr(0, line.find('\n'))};
  for (std::string word; std::getline(stream, word, between);) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

TEST_CASE("every column of a table is a field of all formats for programs") {
  for (const std::string side : {"", "client ", "server "}) {
    for (const std::string object : {"devices", "sessions", "paths"}) {
      CAPTURE(side);
      CAPTURE(object);
      const std::string line = side + "list " + object;
      const std::vector<std::string> fields = words_of(shown(line + " csv"), ',');
      for (std::string heading : words_of(shown(line), ' ')) {
        for (char& c : heading) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
        CAPTURE(heading);
        CHECK(std::ranges::find(fields, heading) != fields.end());
      }
      const CtlJson rows = CtlJson::parse(shown(line + " json"))[object];
      REQUIRE_FALSE(rows.empty());
      std::vector<std::string> keys;
      for (const auto& [key, value] : rows[0].items()) keys.push_back(key);
      CHECK(keys == fields);
    }
  }
}

CtlInventory with_changes(const char* patch) {
  CtlJson status = three_programs()[0].status;
  status.merge_patch(CtlJson::parse(patch));
  return take_inventory({{{"x", "y"}, status, {}}}, {}, CtlSide::both);
}

TEST_CASE("exports that nobody has open are listed with 0 users, others once for each session") {
  const CtlJson server = CtlJson::parse(R"({
    "exports": [{"export": "a", "state": "open", "size": 1024, "read_only": false, "trouble": ""},
                {"export": "b", "state": "open", "size": 2048, "read_only": true, "trouble": ""},
                {"export": "c", "state": "waiting", "size": null, "read_only": false,
                 "trouble": "no file"},
                {"export": "d", "state": "shrunk", "size": 4096, "read_only": false,
                 "trouble": "it has shrunk"}],
    "sessions": [{"session": "s"}, {"session": "t"}], "paths": [],
    "devices": [{"session": "s", "device": "a", "access_mode": "rw"},
                {"session": "t", "device": "a", "access_mode": "ro"},
                {"session": "s", "device": "below/search/path", "access_mode": "ro"}]})");
  const CtlInventory all = take_inventory({{{"server", "S"}, server, {}}}, {}, CtlSide::both);
  CHECK(*listing({.verb = CtlVerb::list,
                  .fields = {"sessname,mapping_path,state,access_mode,size,users,trouble"},
                  .format = CtlFormat::csv,
                  .headers = false},
                 all) ==
        "s,a,open,rw,1024,1,\n"
        "t,a,open,ro,1024,1,\n"
        "s,below/search/path,open,ro,,1,\n"
        ",b,free,ro,2048,0,\n"
        ",c,waiting,rw,,0,no file\n"
        ",d,shrunk,rw,4096,0,it has shrunk\n");
  // An export has its size once, whoever has it open.
  CHECK(listing({.verb = CtlVerb::list, .fields = {"mapping_path,size"}}, all)
            ->ends_with("TOTAL                7K\n"));
}

TEST_CASE("a table tells which of several servers has an export") {
  const auto list_of = [](const std::vector<CtlReport>& reports, std::vector<std::string> words) {
    const auto action = *parse_ctl_words(words);
    return *listing(action, take_inventory(reports, kKernelDevices, action.side));
  };
  std::vector<CtlReport> reports = three_programs();
  CHECK(list_of(reports, {"list"}).find("PROGRAM") == std::string::npos);
  reports.push_back(reports.back());
  reports.back().program = {"second", "/run/rnbd/second.control"};
  for (const char* object : {"devices", "sessions"}) {
    const std::string table = list_of(reports, {"server", "list", object});
    CAPTURE(table);
    CHECK(table.find("PROGRAM") != std::string::npos);
    CHECK(table.find("server") != std::string::npos);
    CHECK(table.find("second") != std::string::npos);
  }
  CHECK(list_of(reports, {"client", "list"}).find("PROGRAM") == std::string::npos);
  CHECK(list_of(reports, {"list", "csv"}).find("program") == std::string::npos);
}

TEST_CASE("imports and exports are summed apart") {
  const std::string table = shown("list sessions sessname,inflights notree");
  CAPTURE(table);
  CHECK(table.find("TOTAL import") != std::string::npos);
  CtlInventory all = inventory();
  all.devices.push_back(all.devices[1]);
  all.devices.back()["mapping_path"] = "vol2";
  CHECK(*listing({.verb = CtlVerb::list, .fields = {"mapping_path,size"}}, all) ==
        "MAPPING_PATH  SIZE\n"
        "disk0          10G\n"
        "vol1            1G\n"
        "-                -\n"
        "vol2            1G\n"
        "TOTAL import   10G\n"
        "TOTAL export    2G\n");
  CHECK(listing({.verb = CtlVerb::list, .fields = {"size"}}, all)->find("11G") ==
        std::string::npos);
}

TEST_CASE("programs get the paths of a session, too, unless they want no tree") {
  const CtlJson session = CtlJson::parse(shown("client list sessions json"))["sessions"][0];
  REQUIRE(session["paths"].size() == 2);
  CHECK(session["paths"][1]["dst_addr"] == "10.0.1.1:1234");
  CHECK(session["paths"][1]["state"] == "waiting");
  CHECK(session["paths"][0] == CtlJson::parse(shown("client list paths json"))["paths"][0]);
  CHECK(shown("client list sessions csv paths noheaders") ==
        "\"tcp:10.0.0.1:1234 tcp:10.0.1.2@10.0.1.1:1234,preference=-1\"\n"
        "rdma:10.9.9.9:1234\n");
  CHECK_FALSE(CtlJson::parse(shown("list sessions json notree"))["sessions"][0].contains("paths"));
  CHECK(shown("server list sessions csv paths noheaders") == "10.0.0.7:40000 10.0.1.7:40002\n");
  CHECK(shown("list sessions").find("PATHS") == std::string::npos);
  CHECK(shown("show session db7@here paths") == "paths:  10.0.0.7:40000 10.0.1.7:40002\n");
}

TEST_CASE("a device of a client whose export has shrunk says so, unless something is worse") {
  const CtlInventory all = with_changes(R"({"devices": [
    {"device": "a", "size": 1, "trouble": "", "shrunk": true},
    {"device": "b", "size": 1, "trouble": "lost", "shrunk": true}]})");
  CHECK(all.devices[0]["state"] == "shrunk");
  CHECK(all.devices[0]["trouble"].get<std::string>().starts_with("its export has shrunk"));
  CHECK(all.devices[1]["state"] == "closed");
  CHECK(all.devices[1]["trouble"] == "lost");
}

TEST_CASE("a device whose session has no path waits, and it is told since when and why") {
  const CtlInventory all = with_changes(R"({"seconds_without_path": 12, "paths": [
    {"address": "tcp:a:1", "state": "waiting", "in_use": false, "trouble": "Connection refused"},
    {"address": "tcp:b:1", "state": "disconnected", "in_use": false, "trouble": ""}]})");
  CHECK(all.devices[0]["state"] == "waiting");
  CHECK(all.devices[0]["trouble"] ==
        "no path for 12 s (tcp:a:1: Connection refused; tcp:b:1: disconnected by command)");
  CHECK(all.sessions[0]["state"] == "disconnected");
  CHECK(all.sessions[0]["path_uu"] == "__");
  const CtlInventory inaccessible = with_changes(R"({"paths": [
    {"address": "tcp:a:1", "state": "connected", "in_use": false, "access": "inaccessible"}]})");
  CHECK(inaccessible.devices[0]["state"] == "waiting");
  CHECK(inaccessible.devices[0]["trouble"] == "no path (tcp:a:1: inaccessible)");
}

TEST_CASE("a disk whose bridge has not opened it yet recovers, and one without a bridge does not") {
  const CtlJson bridge = CtlJson::parse(R"({"session": null, "trouble": "", "devices": [],
    "paths": [{"address": "tcp:a:1", "state": "connecting", "trouble": "Connection refused"}]})");
  const CtlInventory all =
      take_inventory({{{"disk0", "D"}, bridge, {}}},
                     {{"nbd0", "u", "disk0"}, {"nbd1", "u", "disk1"}}, CtlSide::client);
  REQUIRE(all.devices.size() == 2);
  CHECK(all.devices[0]["state"] == "recovering");
  CHECK(all.devices[0]["trouble"] == "Connection refused");
  CHECK(all.devices[1]["state"] == "unattended");
}

TEST_CASE("a session that nobody asks for is idle, and one that fails is not") {
  const CtlInventory idle = with_changes(R"({"session": null, "devices": [], "paths": [
    {"address": "tcp:a:1", "state": "idle", "trouble": ""},
    {"address": "tcp:b:1", "state": "idle", "trouble": ""}]})");
  CHECK(idle.sessions[0]["state"] == "idle");
  CHECK(idle.sessions[0]["path_uu"] == "--");
  const CtlInventory failing = with_changes(R"({"session": null, "trouble": "no server",
    "devices": [], "paths": [{"address": "tcp:a:1", "state": "idle", "trouble": "refused"}]})");
  CHECK(failing.sessions[0]["state"] == "disconnected");
}

TEST_CASE("a device of the kernel is found by all of its names") {
  for (const char* name : {"disk0", "nbd0", "/dev/nbd0", "6a0b7c2e-0000-4000-8000-000000000001"}) {
    CAPTURE(name);
    CHECK(shown("show " + std::string{name} + " devname") == "devname:  nbd0\n");
  }
  CHECK(shown("show nbd3 state,program") == "state:    unattended\nprogram:  dead\n");
}

TEST_CASE("a client's session is found by its program, too, where nothing else can be meant") {
  CHECK(shown("session show disk0 sessname") == "sessname:  web1@store\n");
  CHECK(shown("show disk0 devname") == "devname:  nbd0\n");
}

TEST_CASE("a path is found as commands take it, by its address alone, too") {
  for (const char* name :
       {"tcp:10.0.1.2@10.0.1.1:1234,preference=-1", "10.0.1.1:1234", "10.0.1.1",
        "10.0.1.2@10.0.1.1", "ip:10.0.1.2@ip:10.0.1.1", "tcp:10.0.1.1", "tcp:10.0.1.1:1234"}) {
    CAPTURE(name);
    CHECK(shown("path show " + std::string{name} + " hostname") == "hostname:  10.0.1.1\n");
  }
  CHECK(shown("server path show 10.0.0.7 hostname") == "hostname:  10.0.0.7\n");
}

TEST_CASE("fields and names that there are not are told") {
  CHECK(answer_to("list devnam").error() ==
        "a device has no field 'devnam'; did you mean devname?");
  CHECK(answer_to("list paths +zzz")
            .error()
            .starts_with("a path has no field 'zzz'; there are sessname, pathname, "));
  CHECK(answer_to("show disk9").error() ==
        "there is no device, session or path 'disk9'; `rnbd-ctl list` tells of all");
  CHECK(answer_to("list paths +zzz").error().find(" hostname, ") != std::string::npos);
  CHECK(answer_to("show path disk0").error().starts_with("there is no path 'disk0'"));
  CHECK(answer_to("show disk0 state -state").error() == "no field is left to show");
}

TEST_CASE("what a peer calls itself moves no cursor and breaks no format") {
  CtlJson status = three_programs()[0].status;
  status["session"] = "a\x1b[2J<&>,\"\xff";
  const CtlInventory all = take_inventory({{{"x", "y"}, status, {}}}, {}, CtlSide::both);
  const auto as = [&](CtlFormat format) {
    return *listing({.verb = CtlVerb::list,
                     .object = CtlObject::session,
                     .fields = {"sessname"},
                     .format = format,
                     .tree = false,
                     .headers = false},
                    all);
  };
  CHECK(as(CtlFormat::table) == "a?[2J<&>,\"?\n");
  CHECK(as(CtlFormat::csv) == "\"a?[2J<&>,\"\"?\"\n");
  CHECK(as(CtlFormat::xml).find("<sessname>a?[2J&lt;&amp;&gt;,\"?</sessname>") !=
        std::string::npos);
  CHECK(CtlJson::parse(as(CtlFormat::json))["sessions"].size() == 1);
}

TEST_CASE("an answer that lacks everything makes rows without values") {
  const CtlInventory all = take_inventory(
      {{{"x", "y"}, CtlJson::parse(R"({"devices":[{}],"paths":[{}],"session":3})"), {}},
       {{"z", "y"}, CtlJson::parse(R"({"sessions":[{}],"devices":"none","paths":[{}]})"), {}}},
      {}, CtlSide::both);
  for (const CtlObject object : {CtlObject::device, CtlObject::session, CtlObject::path}) {
    CHECK(listing({.verb = CtlVerb::list, .object = object}, all).has_value());
  }
  CHECK(all.sessions.size() == 2);
}

}  // namespace
}  // namespace rnbd::listing_test
