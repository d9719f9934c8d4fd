// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/steering.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "bridge/ctl/reports.hpp"

namespace rnbd::steering_test {
namespace {

/// Two bridges, which share a server, and that server on the same machine.
std::vector<CtlReport> reports() {
  const CtlJson disk0 = CtlJson::parse(R"({
    "server": "rnbd+tcp://10.0.0.1:4321", "session": "web1@store", "policy": "min-inflight",
    "paths": [
      {"address": "tcp:10.0.0.1:1234", "state": "connected", "preference": 0},
      {"address": "tcp:10.0.1.2@10.0.1.1:1234", "state": "waiting", "preference": -1}],
    "missing_paths": [{"missing_path": "tcp:10.0.3.1:1234", "preference": 2},
                      {"missing_path": "rdma:10.0.4.1:1234", "preference": 0}],
    "devices": [{"device": "disk0", "size": 1, "access": "rw", "users": 1, "trouble": ""}]})");
  const CtlJson vol = CtlJson::parse(R"({
    "server": "rnbd+tcp://10.0.0.1:1234", "session": "vol@store", "policy": "min-inflight",
    "paths": [{"address": "tcp:10.0.0.1:1234", "state": "disconnected", "preference": 0}],
    "missing_paths": [{"missing_path": "tcp:[fd99::1]:1234", "preference": -1}],
    "devices": []})");
  const CtlJson server = CtlJson::parse(R"({
    "exports": [], "listeners": [],
    "sessions": [{"session": "web1@store", "requests": 0}, {"session": "far", "identity": "host7", "requests": 0}],
    "paths": [
      {"session": "web1@store", "client": "10.0.0.7:40000", "listener": "tcp:10.0.0.1:1234",
       "state": "connected"},
      {"session": "far", "client": "10.0.0.8:40000", "listener": "tcp:10.0.0.1:1234",
       "state": "connected"}],
    "devices": [{"session": "web1@store", "device": "disk0", "access_mode": "rw"},
                {"session": "far", "device": "disk0", "access_mode": "ro"}]})");
  return {{{"disk0", "D"}, disk0, {}}, {{"vol", "V"}, vol, {}}, {{"server", "S"}, server, {}}};
}

tl::expected<std::vector<CtlStep>, std::string> steps_for(const std::string& line) {
  std::istringstream stream{line};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  const auto action = parse_ctl_words(words);
  REQUIRE_MESSAGE(action.has_value(), (action ? "" : action.error()));
  return steps_of(*action, reports(), {{"nbd5", "", "disk0"}, {"nbd6", "", "other"}});
}

struct Row {
  const char* line;
  std::vector<CtlStep> steps;
};

TEST_CASE("a session is called by each of the disks that share its bridge") {
  std::vector<CtlReport> shared{reports().front()};
  shared[0].program.name = "store:1234-0";
  shared[0].status["disks"] = CtlJson::parse(R"([
    {"disk": "a", "device": "disk0", "state": "serving"}, {"disk": "b", "device": "disk1"}])");
  const std::vector<KernelDevice> kernel{{"nbd5", "", "a"}};
  for (const char* name : {"a", "b", "nbd5", "disk0", "web1@store", "store:1234-0"}) {
    CAPTURE(name);
    const auto steps = steps_of(*parse_ctl_words({"client", "disconnect", name}), shared, kernel);
    REQUIRE_MESSAGE(steps.has_value(), (steps ? "" : steps.error()));
    CHECK(steps->front() == CtlStep{"D", "disconnect tcp:10.0.0.1:1234"});
  }
  CHECK_FALSE(steps_of(*parse_ctl_words({"client", "disconnect", "c"}), shared, kernel));
}

TEST_CASE("a path that leads to another server is trusted only by who names it") {
  const auto steps_of_words = [](const std::vector<std::string>& words) {
    const CtlJson status = CtlJson::parse(R"({
      "server": "rnbd+tcp://10.0.0.1:4321", "session": "web1@store", "policy": "min-inflight",
      "paths": [
        {"address": "tcp:10.0.0.1:1234", "state": "waiting", "preference": 0},
        {"address": "tcp:10.0.1.1:1234", "state": "waiting", "preference": 0, "elsewhere": true}],
      "missing_paths": [], "devices": []})");
    return steps_of(*parse_ctl_words(words), {{{"disk0", "D"}, status, {}}}, {});
  };
  const std::vector<CtlStep> others{{"D", "reconnect tcp:10.0.0.1:1234"}};
  CHECK(steps_of_words({"recover", "all"}) == others);
  CHECK(steps_of_words({"reconnect", "web1@store"}) == others);
  CHECK(steps_of_words({"reconnect", "10.0.1.1"}) ==
        std::vector<CtlStep>{{"D", "reconnect tcp:10.0.1.1:1234"}});
}

TEST_CASE("a program that says nonsense keeps nobody from the others") {
  const CtlJson nonsense = CtlJson::parse(R"({
    "paths": [{"address": "tcp:10.0.0.9:1", "state": 7, "preference": [], "elsewhere": "no"},
              {"elsewhere": null}, 5],
    "missing_paths": [7, {}, {"missing_path": 7}, {"missing_path": "x", "preference": "y"}],
    "devices": []})");
  auto all = reports();
  all.insert(all.begin(), {{"liar", "L"}, nonsense, {}});
  const auto steps = steps_of(*parse_ctl_words({"recover", "all", "add-missing"}), all, {});
  REQUIRE(steps.has_value());
  const auto is_for = [](const char* socket) {
    return [socket](const CtlStep& step) { return step.socket == socket; };
  };
  CHECK(std::ranges::count_if(*steps, is_for("D")) == 3);
  CHECK(std::ranges::count_if(*steps, is_for("V")) == 2);
}

TEST_CASE("words about sessions and paths become commands of the program that has them") {
  const Row rows[] = {
      {"path add web1@store ip:10.0.2.2@ip:10.0.2.1",
       {{"D", "add-path tcp:10.0.2.2@10.0.2.1:4321"}}},
      {"path add disk0 10.0.2.1,preference=3", {{"D", "add-path tcp:10.0.2.1:4321,preference=3"}}},
      {"path add nbd5 10.0.2.1:99", {{"D", "add-path tcp:10.0.2.1:99"}}},
      {"path add /dev/nbd5 rdma:10.0.2.1", {{"D", "add-path rdma:10.0.2.1:4321"}}},
      {"path delete 10.0.1.1", {{"D", "remove-path tcp:10.0.1.2@10.0.1.1:1234"}}},
      {"path delete vol 10.0.0.1", {{"V", "remove-path tcp:10.0.0.1:1234"}}},
      {"path readd 10.0.1.2@10.0.1.1",
       {{"D", "remove-path tcp:10.0.1.2@10.0.1.1:1234"},
        {"D", "add-path tcp:10.0.1.2@10.0.1.1:1234,preference=-1"}}},
      {"disconnect web1@store tcp:10.0.0.1:1234", {{"D", "disconnect tcp:10.0.0.1:1234"}}},
      {"client disconnect web1@store",
       {{"D", "disconnect tcp:10.0.0.1:1234"}, {"D", "disconnect tcp:10.0.1.2@10.0.1.1:1234"}}},
      {"server session disconnect web1@store force", {{"S", "evict web1@store --force"}}},
      {"disconnect far", {{"S", "evict far"}}},
      {"disconnect tcp:10.0.1.1", {{"D", "disconnect tcp:10.0.1.2@10.0.1.1:1234"}}},
      {"disconnect tcp:10.0.1.2@10.0.1.1", {{"D", "disconnect tcp:10.0.1.2@10.0.1.1:1234"}}},
      {"reconnect vol tcp:10.0.0.1", {{"V", "reconnect tcp:10.0.0.1:1234"}}},
      {"server path disconnect 10.0.0.8:40000", {{"S", "disconnect 10.0.0.8:40000"}}},
      {"reconnect web1@store",
       {{"D", "disconnect tcp:10.0.0.1:1234"},
        {"D", "reconnect tcp:10.0.0.1:1234"},
        {"D", "reconnect tcp:10.0.1.2@10.0.1.1:1234"}}},
      {"recover session disk0", {{"D", "reconnect tcp:10.0.1.2@10.0.1.1:1234"}}},
      {"recover path 10.0.1.1", {{"D", "reconnect tcp:10.0.1.2@10.0.1.1:1234"}}},
      {"recover all",
       {{"D", "reconnect tcp:10.0.1.2@10.0.1.1:1234"}, {"V", "reconnect tcp:10.0.0.1:1234"}}},
      {"recover session disk0 add-missing",
       {{"D", "add-path tcp:10.0.3.1:1234,preference=2"},
        {"D", "add-path rdma:10.0.4.1:1234"},
        {"D", "reconnect tcp:10.0.1.2@10.0.1.1:1234"}}},
      {"recover vol@store add-missing",
       {{"V", "add-path tcp:[fd99::1]:1234,preference=-1"}, {"V", "reconnect tcp:10.0.0.1:1234"}}},
      {"session recover all add-missing",
       {{"D", "add-path tcp:10.0.3.1:1234,preference=2"},
        {"D", "add-path rdma:10.0.4.1:1234"},
        {"V", "add-path tcp:[fd99::1]:1234,preference=-1"},
        {"D", "reconnect tcp:10.0.1.2@10.0.1.1:1234"},
        {"V", "reconnect tcp:10.0.0.1:1234"}}},
      {"server close disk0", {{"S", "evict web1@store"}, {"S", "evict far"}}},
      {"server close disk0 far --force", {{"S", "evict far --force"}}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.line);
    const auto steps = steps_for(row.line);
    REQUIRE_MESSAGE(steps.has_value(), (steps ? "" : steps.error()));
    CHECK(*steps == row.steps);
  }
}

struct Mistake {
  const char* line;
  const char* says;
};

TEST_CASE("a name that means nothing, or several things, changes nothing") {
  const Mistake mistakes[] = {
      {"path add nobody 10.0.0.9", "there is no session or device 'nobody'"},
      {"path add nbd6 10.0.0.9", "there is no session or device 'nbd6'"},
      {"path add disk0 10.0.0.9:x", "port"},
      {"path delete 10.9.9.9", "there is no path '10.9.9.9'"},
      {"path delete rdma:10.0.1.1", "there is no path 'rdma:10.0.1.1'"},
      {"recover nothing", "there is no session or path 'nothing'"},
      {"session reconnect 10.0.1.1", "there is no session '10.0.1.1'"},
      {"recover 10.0.1.1 add-missing", "there is no session '10.0.1.1'"},
      {"recover path 10.0.1.1 add-missing", "add-missing is for sessions"},
      {"recover vol 10.0.0.1 add-missing", "write recover session SESSION add-missing"},
      {"reconnect 10.0.0.1",
       "'10.0.0.1' may be path tcp:10.0.0.1:1234 of session web1@store (client), path "
       "tcp:10.0.0.1:1234 of session vol@store (client); write the session in front"},
      {"disconnect web1@store", "write client or server in front"},
      {"server close disk9", "nobody has 'disk9' open"},
      {"server close disk0 vm7", "nobody has 'disk0' open in session vm7"},
  };
  for (const Mistake& mistake : mistakes) {
    CAPTURE(mistake.line);
    const auto steps = steps_for(mistake.line);
    REQUIRE_FALSE(steps.has_value());
    CAPTURE(steps.error());
    CHECK(steps.error().find(mistake.says) != std::string::npos);
  }
}

TEST_CASE("of paths to one address in one session the whole path tells which is meant") {
  const CtlJson status = CtlJson::parse(R"({
    "server": "rnbd+tcp://10.0.0.1:1234", "session": "web1@store", "policy": "min-inflight",
    "paths": [{"address": "tcp:10.0.0.1:1234", "state": "connected", "preference": 0},
              {"address": "tcp:10.0.0.1:1235", "state": "connected", "preference": 0}],
    "missing_paths": [], "devices": []})");
  const auto steps_of_words = [&](const std::vector<std::string>& words) {
    return steps_of(*parse_ctl_words(words), {{{"disk0", "D"}, status, {}}}, {});
  };
  const auto vague = steps_of_words({"path", "delete", "web1@store", "10.0.0.1"});
  REQUIRE_FALSE(vague.has_value());
  CHECK(vague.error().ends_with("; write the whole path, as in tcp:10.0.0.1:1234"));
  CHECK(steps_of_words({"path", "delete", "web1@store", "tcp:10.0.0.1:1234"}) ==
        std::vector<CtlStep>{{"D", "remove-path tcp:10.0.0.1:1234"}});
}

TEST_CASE("the programs of a session are its clients, not its servers") {
  CHECK(programs_of_session("web1@store", reports()) == std::vector<std::string>{"disk0"});
  CHECK(programs_of_session("far", reports()).empty());
  CHECK(programs_of_session("disk0", reports()).empty());
}

TEST_CASE("what was taken away is told, and whether it comes again") {
  CtlJson answer = CtlJson::object();
  const auto told = [&](const CtlStep& step) { return told_of(step, reports(), answer); };
  answer["evicted"] = CtlJson::parse(
      R"([{"let_in_by": "readmit @10.0.0.7"}, {"let_in_by": "readmit @[fd00::]/64"}])");
  CHECK(told({"S", "evict web1@store --force"}) ==
        "session web1@store: ended; its users of disk0 get EIO until they open it anew; its client "
        "opens nothing here until you write rnbd-ctl server readmit @10.0.0.7 and rnbd-ctl server "
        "readmit @[fd00::]/64");
  answer["evicted"] = CtlJson::parse(R"([{"let_in_by": "readmit host7"}])");
  CHECK(told({"S", "evict far"}) ==
        "session far: ended; its client opens nothing here until you write rnbd-ctl server readmit "
        "host7");
  answer["evicted"] = CtlJson::array();
  CHECK(told({"S", "evict nothing"}) == "session nothing: ended; its client may open it anew");
  CHECK(told({"S", "disconnect 10.0.0.8:40000"}) ==
        "path 10.0.0.8:40000: closed; its client may connect it again by itself");
  CHECK(told({"D", "remove-path tcp:10.0.0.1:1234"}) ==
        "path tcp:10.0.0.1:1234 of session web1@store: deleted");
  CHECK(told({"V", "disconnect tcp:10.0.0.1:1234"}) ==
        "path tcp:10.0.0.1:1234 of session vol@store: out of service until reconnect or recover");
  CHECK(told({"D", "reconnect tcp:10.0.0.1:1234"}) == "");
  CHECK(told({"X", "evict far"}) == "");
}

TEST_CASE("an export that nobody has open cannot be closed") {
  auto all = reports();
  all[2].status["exports"] = CtlJson::parse(R"([{"export": "unused", "state": "open"}])");
  const auto steps = steps_of(*parse_ctl_words({"server", "close", "unused"}), all, {});
  REQUIRE_FALSE(steps.has_value());
  CHECK(steps.error().starts_with("nobody has 'unused' open"));
}

TEST_CASE("a path that was told to connect is waited for, and the address may lack a preference") {
  const auto steps = steps_for("path readd disk0 10.0.1.1");
  REQUIRE(steps.has_value());
  CHECK(awaited_paths(*steps, reports()) ==
        std::vector<CtlAwaited>{{"D", "web1@store", "tcp:10.0.1.2@10.0.1.1:1234,preference=-1"}});
  CHECK(awaited_paths(*steps_for("client disconnect web1@store"), reports()).empty());
  const CtlJson status = CtlJson::parse(R"({"paths": [
    {"address": "tcp:a:1", "state": "connected", "trouble": ""},
    {"address": "tcp:b:1", "state": "waiting", "trouble": "Connection refused"},
    {"address": "tcp:c:1", "state": "idle", "trouble": ""},
    {"address": "tcp:d:1", "state": "connecting", "trouble": ""}]})");
  CHECK(news_of_path(status, "tcp:a:1,preference=3").progress == CtlProgress::connected);
  CHECK(news_of_path(status, "tcp:b:1").progress == CtlProgress::under_way);
  CHECK(news_of_path(status, "tcp:b:1").trouble == "Connection refused");
  CHECK(news_of_path(status, "tcp:c:1").progress == CtlProgress::idle);
  CHECK(news_of_path(status, "tcp:d:1").progress == CtlProgress::under_way);
  CHECK(news_of_path(status, "tcp:e:1").progress == CtlProgress::gone);
}

TEST_CASE("a device that is closed is told with its remedy, whatever it is called") {
  auto all = reports();
  CHECK(closed_devices("all", all, {}).empty());
  all[0].status["devices"][0]["trouble"] = "the server has ended it";
  const std::vector<KernelDevice> kernel{{"nbd5", "", "disk0"}};
  for (const char* name : {"all", "disk0", "web1@store", "nbd5", "/dev/nbd5"}) {
    CAPTURE(name);
    const auto closed = closed_devices(name, all, kernel);
    REQUIRE(closed.size() == 1);
    CHECK(remedy_for_closed(closed[0]) ==
          "the server has ended it; unmount it, then write rnbd-ctl remap disk0");
  }
  CHECK(closed_devices("vol", all, kernel).empty());
  CHECK(remedy_for_closed(closed_devices("all", all, {})[0]) == "the server has ended it");
  CHECK(told_of_closed(closed_devices("all", all, kernel)) ==
        std::vector<std::string>{"nbd5 is closed: the server has ended it; unmount it, then write "
                                 "rnbd-ctl remap disk0"});
  CHECK(told_of_closed(closed_devices("all", all, {})) ==
        std::vector<std::string>{"disk0 is closed: the server has ended it; its NBD clients have "
                                 "to connect anew"});
  // Of the programs that a command was for.
  CHECK(closed_devices("all", reports_of({{"V", "reconnect x"}}, all), kernel).empty());
  CHECK(closed_devices("all", reports_of({{"V", ""}, {"D", ""}}, all), kernel).size() == 1);
}

TEST_CASE("who loses the last connected path is cut off, and nobody else") {
  const auto cut_off = [](const char* line) {
    std::vector<std::string> names;
    for (const CtlReport& report : cut_off_by(*steps_for(line), reports())) {
      names.push_back(report.program.name);
    }
    return names;
  };
  CHECK(cut_off("client disconnect web1@store") == std::vector<std::string>{"disk0"});
  CHECK(cut_off("disconnect path disk0 10.0.0.1") == std::vector<std::string>{"disk0"});
  CHECK(cut_off("disconnect path disk0 10.0.1.1").empty());  // the other one is connected
  CHECK(cut_off("server path disconnect 10.0.0.8:40000").empty());
}

}  // namespace
}  // namespace rnbd::steering_test
