// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/words.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/program_words.hpp"

namespace rnbd::words_test {
namespace {

using Words = std::vector<std::string>;
constexpr auto kList = CtlVerb::list, kShow = CtlVerb::show;
constexpr auto kClient = CtlSide::client, kServer = CtlSide::server, kBoth = CtlSide::both;
constexpr auto kDevice = CtlObject::device, kSession = CtlObject::session, kPath = CtlObject::path;

Words split(const std::string& line) {
  std::istringstream stream{line};
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

struct Row {
  const char* line;
  CtlAction action;
};

TEST_CASE("command lines become what they ask for") {
  const Row rows[] = {
      {"help", {}},
      {"list help", {.topic = kList}},
      {"show --help", {.topic = kShow}},
      {"list sessions help", {.topic = kList, .object = kSession}},
      {"show help", {.topic = kShow}},
      {"map help", {.topic = CtlVerb::map}},
      {"unmap help", {.topic = CtlVerb::unmap}},
      {"server disconnect help", {.topic = CtlVerb::disconnect}},
      {"path remove help", {.topic = CtlVerb::remove}},
      {"recover help", {.topic = CtlVerb::recover}},
      {"show device help", {.verb = kShow, .object = kDevice, .names = {"help"}}},
      {"map help from s", {.verb = CtlVerb::map, .names = {"help"}, .server = "s"}},
      {"path --help", {.object = kPath}},
      {"server help", {.side = kServer}},
      {"client path help", {.side = kClient, .object = kPath}},
      {"list", {.verb = kList}},
      {"sessions", {.verb = kList, .object = kSession}},
      {"server", {.verb = kList, .side = kServer}},
      {"client paths csv",
       {.verb = kList, .side = kClient, .object = kPath, .format = CtlFormat::csv}},
      {"devices interval 2", {.verb = kList, .object = kDevice, .watch = true, .interval = "2"}},
      {"check", {.verb = CtlVerb::check}},
      {"check disk0 vm1 json",
       {.verb = CtlVerb::check, .names = {"disk0", "vm1"}, .format = CtlFormat::json}},
      {"server check", {.verb = CtlVerb::check, .side = kServer}},
      {"ls", {.verb = kList}},
      {"list devices", {.verb = kList, .object = kDevice}},
      {"devices list", {.verb = kList, .object = kDevice}},
      {"dev ls", {.verb = kList, .object = kDevice}},
      {"list sessions", {.verb = kList, .object = kSession}},
      {"sess list", {.verb = kList, .object = kSession}},
      {"list paths", {.verb = kList, .object = kPath}},
      {"path list", {.verb = kList, .object = kPath}},
      {"client list", {.verb = kList, .side = kClient}},
      {"server list", {.verb = kList, .side = kServer}},
      {"both list", {.verb = kList, .side = kBoth}},
      {"list server", {.verb = kList, .side = kServer}},
      {"client sessions list", {.verb = kList, .side = kClient, .object = kSession}},
      {"server list paths", {.verb = kList, .side = kServer, .object = kPath}},
      {"list csv", {.verb = kList, .format = CtlFormat::csv}},
      {"list --csv", {.verb = kList, .format = CtlFormat::csv}},
      {"list json", {.verb = kList, .format = CtlFormat::json}},
      {"--json list", {.verb = kList, .format = CtlFormat::json}},
      {"list xml paths", {.verb = kList, .object = kPath, .format = CtlFormat::xml}},
      {"list B", {.verb = kList, .unit = 'B'}},
      {"list sessions K", {.verb = kList, .object = kSession, .unit = 'K'}},
      {"list M", {.verb = kList, .unit = 'M'}},
      {"list G", {.verb = kList, .unit = 'G'}},
      {"list T", {.verb = kList, .unit = 'T'}},
      {"list E", {.verb = kList, .unit = 'E'}},
      {"list notree", {.verb = kList, .tree = false}},
      {"list noheaders", {.verb = kList, .headers = false}},
      {"list --noheaders", {.verb = kList, .headers = false}},
      {"list nototals", {.verb = kList, .totals = false}},
      {"list all", {.verb = kList, .all_fields = true}},
      {"list notree noheaders nototals",
       {.verb = kList, .tree = false, .headers = false, .totals = false}},
      {"list devname", {.verb = kList, .fields = {"devname"}}},
      {"list devname,state", {.verb = kList, .fields = {"devname,state"}}},
      {"list +size", {.verb = kList, .fields = {"+size"}}},
      {"list -state", {.verb = kList, .fields = {"-state"}}},
      {"list +size,uuid -state", {.verb = kList, .fields = {"+size,uuid", "-state"}}},
      {"list paths +hca_name", {.verb = kList, .object = kPath, .fields = {"+hca_name"}}},
      {"list sessname csv", {.verb = kList, .fields = {"sessname"}, .format = CtlFormat::csv}},
      {"list --root /tmp/x", {.verb = kList, .root = "/tmp/x"}},
      {"list --root=/tmp/x", {.verb = kList, .root = "/tmp/x"}},
      {"--root /tmp/x list", {.verb = kList, .root = "/tmp/x"}},
      {"show disk0", {.verb = kShow, .names = {"disk0"}}},
      {"show device disk0", {.verb = kShow, .object = kDevice, .names = {"disk0"}}},
      {"device show disk0", {.verb = kShow, .object = kDevice, .names = {"disk0"}}},
      {"show session host@server", {.verb = kShow, .object = kSession, .names = {"host@server"}}},
      {"client show path tcp:10.0.0.1:1234",
       {.verb = kShow, .side = kClient, .object = kPath, .names = {"tcp:10.0.0.1:1234"}}},
      {"path reconnect 10.0.0.1 verbose",
       {.verb = CtlVerb::reconnect, .object = kPath, .names = {"10.0.0.1"}}},
      {"session recover all add-missing verbose",
       {.verb = CtlVerb::recover, .object = kSession, .names = {"all"}, .add_missing = true}},
      {"map verbose from store", {.verb = CtlVerb::map, .names = {"verbose"}, .server = "store"}},
      {"show verbose", {.verb = kShow, .names = {"verbose"}}},
      {"show device device", {.verb = kShow, .object = kDevice, .names = {"device"}}},
      {"show list", {.verb = kShow, .names = {"list"}}},
      {"show csv", {.verb = kShow, .names = {"csv"}}},
      {"show --csv disk0", {.verb = kShow, .names = {"disk0"}, .format = CtlFormat::csv}},
      {"show disk0 json", {.verb = kShow, .names = {"disk0"}, .format = CtlFormat::json}},
      {"show disk0 state", {.verb = kShow, .names = {"disk0"}, .fields = {"state"}}},
      {"show disk0 +size K", {.verb = kShow, .names = {"disk0"}, .fields = {"+size"}, .unit = 'K'}},
      {"show K", {.verb = kShow, .names = {"K"}}},
      {"show nbd0", {.verb = kShow, .names = {"nbd0"}}},
      {"map disk0 from store", {.verb = CtlVerb::map, .names = {"disk0"}, .server = "store"}},
      {"map device disk0 from store",
       {.verb = CtlVerb::map, .object = kDevice, .names = {"disk0"}, .server = "store"}},
      {"map /dev/sdb from host 10.0.0.1 src@dst ro",
       {.verb = CtlVerb::map,
        .names = {"/dev/sdb"},
        .server = "host",
        .paths = {"10.0.0.1", "src@dst"},
        .access = "ro"}},
      {"map d from s read-only",
       {.verb = CtlVerb::map, .names = {"d"}, .server = "s", .access = "ro"}},
      {"map d from s --readonly ro tcp:host host:1234",
       {.verb = CtlVerb::map,
        .names = {"d"},
        .server = "s",
        .paths = {"tcp:host", "host:1234"},
        .access = "ro"}},
      {"map d from s read-write",
       {.verb = CtlVerb::map, .names = {"d"}, .server = "s", .access = "rw"}},
      {"map ro from from", {.verb = CtlVerb::map, .names = {"ro"}, .server = "from"}},
      {"map d from s --persist --name n as nbd1 rdma",
       {.verb = CtlVerb::map,
        .names = {"d"},
        .server = "s",
        .map_name = "n",
        .kernel_device = "nbd1",
        .rdma = true,
        .persist = true}},
      {"map d from s -- --force list",
       {.verb = CtlVerb::map, .names = {"d"}, .server = "s", .options = {"--force", "list"}}},
      {"unmap nbd0", {.verb = CtlVerb::unmap, .names = {"nbd0"}}},
      {"unmap disk0 force", {.verb = CtlVerb::unmap, .names = {"disk0"}, .force = true}},
      {"unmap --force disk0", {.verb = CtlVerb::unmap, .names = {"disk0"}, .force = true}},
      {"unmap force", {.verb = CtlVerb::unmap, .names = {"force"}}},
      {"remap disk0 --force", {.verb = CtlVerb::remap, .names = {"disk0"}, .force = true}},
      {"resize disk0", {.verb = CtlVerb::resize, .names = {"disk0"}}},
      {"resize disk0 10G", {.verb = CtlVerb::resize, .names = {"disk0", "10G"}}},
      {"resize disk0 10 G", {.verb = CtlVerb::resize, .names = {"disk0", "10"}, .unit = 'G'}},
      {"udev nbd0", {.verb = CtlVerb::udev, .names = {"nbd0"}}},
      {"list --watch", {.verb = kList, .watch = true}},
      {"show disk0 watch", {.verb = kShow, .names = {"disk0"}, .watch = true}},
      {"list interval 0.5 csv",
       {.verb = kList, .format = CtlFormat::csv, .watch = true, .interval = "0.5"}},
      {"path add s1 10.0.0.2",
       {.verb = CtlVerb::add, .object = kPath, .names = {"s1", "10.0.0.2"}}},
      {"client path add s1 ip:10.0.0.2@ip:10.0.0.1",
       {.verb = CtlVerb::add,
        .side = kClient,
        .object = kPath,
        .names = {"s1", "ip:10.0.0.2@ip:10.0.0.1"}}},
      {"path delete 10.0.0.2", {.verb = CtlVerb::remove, .object = kPath, .names = {"10.0.0.2"}}},
      {"path remove s1 10.0.0.2",
       {.verb = CtlVerb::remove, .object = kPath, .names = {"s1", "10.0.0.2"}}},
      {"path readd 10.0.0.2", {.verb = CtlVerb::readd, .object = kPath, .names = {"10.0.0.2"}}},
      {"path readd 10.0.0.2 --wait=0",
       {.verb = CtlVerb::readd, .object = kPath, .names = {"10.0.0.2"}, .wait = "0"}},
      {"recover all wait 2.5", {.verb = CtlVerb::recover, .names = {"all"}, .wait = "2.5"}},
      {"disconnect path 10.0.0.2",
       {.verb = CtlVerb::disconnect, .object = kPath, .names = {"10.0.0.2"}}},
      {"server session disconnect vm1 force",
       {.verb = CtlVerb::disconnect,
        .side = kServer,
        .object = kSession,
        .names = {"vm1"},
        .force = true}},
      {"session reconnect s1", {.verb = CtlVerb::reconnect, .object = kSession, .names = {"s1"}}},
      {"reconnect 10.0.0.2", {.verb = CtlVerb::reconnect, .names = {"10.0.0.2"}}},
      {"remap web1@store", {.verb = CtlVerb::remap, .names = {"web1@store"}}},
      {"session remap web1@store force",
       {.verb = CtlVerb::remap, .object = kSession, .names = {"web1@store"}, .force = true}},
      {"remap session session", {.verb = CtlVerb::remap, .object = kSession, .names = {"session"}}},
      {"recover all", {.verb = CtlVerb::recover, .names = {"all"}}},
      {"recover session s1 add-missing",
       {.verb = CtlVerb::recover, .object = kSession, .names = {"s1"}, .add_missing = true}},
      {"client session recover --add-missing all",
       {.verb = CtlVerb::recover,
        .side = kClient,
        .object = kSession,
        .names = {"all"},
        .add_missing = true}},
      {"recover add-missing", {.verb = CtlVerb::recover, .names = {"add-missing"}}},
      {"recover device nbd0", {.verb = CtlVerb::recover, .object = kDevice, .names = {"nbd0"}}},
      {"client reconnect s1", {.verb = CtlVerb::reconnect, .side = kClient, .names = {"s1"}}},
      {"server disconnect vm1", {.verb = CtlVerb::disconnect, .side = kServer, .names = {"vm1"}}},
      {"both recover s1", {.verb = CtlVerb::recover, .side = kBoth, .names = {"s1"}}},
      {"close disk0", {.verb = CtlVerb::close, .names = {"disk0"}}},
      {"server close disk0 vm1 --force",
       {.verb = CtlVerb::close, .side = kServer, .names = {"disk0", "vm1"}, .force = true}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.line);
    const Words words = split(row.line);
    CHECK(begins_with_ctl_word(words));
    const auto action = parse_ctl_words(words);
    REQUIRE_MESSAGE(action.has_value(), (action ? "" : action.error()));
    CHECK((*action == row.action));
  }
}

struct Mistake {
  const char* line;
  const char* says;
};

TEST_CASE("mistakes are told with what to write instead") {
  const Mistake mistakes[] = {
      {"--csv", "write what to do"},
      {"unmap disk0 --wait 3", "wait does not belong to unmap"},
      {"check --csv", "csv does not belong to check"},
      {"show", "write rnbd-ctl [client|server] show [device|session|path] NAME"},
      {"show device", "show [device|session|path] NAME"},
      {"udev", "udev nbdN | NAME --wait SECONDS"},
      {"list --jason", "did you mean json?"},
      {"list --frobnicate", "'--frobnicate' has no meaning here; `rnbd-ctl help`"},
      {"list show Z9", "'Z9' has no meaning"},
      {"list --csv=yes", "it takes no value"},
      {"list --root", "write DIRECTORY behind it"},
      {"map", "write rnbd-ctl map DEVICE from SERVER"},
      {"unmap", "write rnbd-ctl unmap NAME|nbdN"},
      {"list --force", "force does not belong to list"},
      {"recover disk0 --force", "force does not belong to recover"},
      {"reconnect s1 --add-missing", "add-missing does not belong to reconnect"},
      {"remap", "write rnbd-ctl remap [device] NAME|nbdN | [session] SESSION"},
      {"path add s1", "write rnbd-ctl path add SESSION|DEVICE [SRC@]DST"},
      {"unmap disk0 --watch", "watch does not belong to unmap"},
      {"list --interval", "write SECONDS behind it"},
      {"unmap disk0 disk1", "'disk1' has no meaning"},
      {"unmap disk0 -- --x", "only map takes options"},
      {"list 4", "'4' has no meaning"},
      {"server reconnect a", "reconnect is a command of the client side; write rnbd-ctl client "},
      {"server path add s1 10.0.0.2", "write rnbd-ctl client path add SESSION|DEVICE"},
      {"server path remove 10.0.0.2", "remove is a command of the client side"},
      {"server map d from s", "write rnbd-ctl client map DEVICE from SERVER"},
      {"client close a", "close is a command of the server side; write rnbd-ctl server close "},
      {"map d from s read-onyl", "'read-onyl' is no word of map; did you mean read-only?"},
      {"map d from s R/O", "; write from SERVER, rdma, paths=auto, ro, rw, migration, name NAME"},
      {"map d from s host", "or a path: an address, tcp:HOST, rdma:HOST or HOST:PORT"},
      {"map rnbd+tcp://s/d read_only", "'read_only' is no word of map"},
      {"path del", "write rnbd-ctl path delete [SESSION] PATH"},
      {"path remove", "write rnbd-ctl path delete [SESSION] PATH"},
      {"map from store disk0", "write rnbd-ctl map disk0 from store"},
      {"map from store", "write rnbd-ctl map DEVICE from store"},
      {"map disk0 store", "if it is the server write map disk0 from store"},
      {"map d from s rw ro", "rw and ro exclude each other"},
      {"map d from s --read-only migration", "ro and migration exclude each other"},
  };
  for (const Mistake& mistake : mistakes) {
    CAPTURE(mistake.line);
    const auto action = parse_ctl_words(split(mistake.line));
    REQUIRE_FALSE(action.has_value());
    CAPTURE(action.error());
    CHECK(action.error().find(mistake.says) != std::string::npos);
  }
}

TEST_CASE("what begins with a socket, or with a command of a program, is none of these") {
  for (const char* line :
       {"", "/run/rnbd/list status", "status", "--json status", "./list status", "reload --check",
        "server status", "client reload", "--root /list status", "--version"}) {
    CAPTURE(line);
    CHECK_FALSE(begins_with_ctl_word(split(line)));
  }
}

TEST_CASE("a word that is no command of a side or an object is told, with what to write") {
  const auto complaint = [](const std::string& line) {
    return complaint_about_ctl_group(split(line));
  };
  CHECK(
      complaint("path dele 10.0.0.1") ==
      "'dele' is no command of `rnbd-ctl path`; did you mean delete? `rnbd-ctl path help` tells of "
      "all");
  CHECK(complaint("client session frobnicate") ==
        "'frobnicate' is no command of `rnbd-ctl client session`; `rnbd-ctl client session help` "
        "tells of all");
  CHECK(
      complaint("server evict a --force") ==
      "'evict' is told to the server itself, and no control socket of one is found; write its "
      "socket instead, rnbd-ctl /PATH/control evict a --force, or start rnbd-server with --control "
      "/run/rnbd-server/control");
  CHECK(complaint("server clos a").find("did you mean close?") != std::string::npos);
  CHECK(complaint("status") == "");
  CHECK(complaint("server") == "");
}

TEST_CASE("a device may have the name of a word of map") {
  const auto action = parse_ctl_words({"map", "from", "from", "store"});
  REQUIRE(action.has_value());
  CHECK(action->names == std::vector<std::string>{"from"});
  CHECK(action->server == "store");
}

TEST_CASE("words of map that come before the device are these words still") {
  const CtlAction disk0{.verb = CtlVerb::map, .names = {"disk0"}, .server = "store"};
  CtlAction lasting = disk0, reads = disk0, named = disk0;
  lasting.persist = reads.persist = true;
  reads.access = "ro";
  named.names = {"persist"};
  CHECK(parse_ctl_words({"map", "persist", "disk0", "from", "store"}) == lasting);
  CHECK(parse_ctl_words({"map", "--persist", "disk0", "from", "store"}) == lasting);
  CHECK(parse_ctl_words({"map", "disk0", "from", "store", "persist"}) == lasting);
  CHECK(parse_ctl_words({"map", "ro", "persist", "disk0", "from", "store"}) == reads);
  CHECK(parse_ctl_words({"map", "persist", "from", "store"}) == named);
  named.access = "ro";
  CHECK(parse_ctl_words({"map", "persist", "ro", "from", "store"}) == named);
}

TEST_CASE("the help on a verb has the words that belong to it") {
  const std::string help = help_on_ctl_words({.topic = CtlVerb::map});
  CHECK(help.starts_with("rnbd-ctl map DEVICE from SERVER"));
  CHECK(help.find("\n  --persist ") != std::string::npos);
  CHECK(help.find("write --persist, and") != std::string::npos);
  CHECK(help.find("csv") == std::string::npos);
  CHECK(help.find("unmap") == std::string::npos);
  CHECK(help.find("/dev/rnbd/by-name/NAME /mnt/NAME ext4 "
                  "_netdev,x-systemd.after=UNIT.service 0 0\n") != std::string::npos);
}

TEST_CASE("the help on a side or an object has its commands, and no others") {
  const auto has = [](const CtlAction& help, const char* text) {
    return help_on_ctl_words(help).find(text) != std::string::npos;
  };
  CHECK(has({.object = kPath}, "path readd [SESSION] PATH"));
  CHECK_FALSE(has({.object = kPath}, "unmap"));
  CHECK(has({.object = kPath}, "wait SECONDS"));
  CHECK(has({.side = kServer}, "server close DEVICE"));
  CHECK_FALSE(has({.side = kServer}, "map DEVICE"));
  CHECK(has({.side = kClient}, "map DEVICE"));
  CHECK_FALSE(has({.side = kClient}, "server close"));
  CHECK(has({.object = kSession}, "recover"));
}

/// Whether a line of it has this field with its meaning, and ends in column 100 at most.
bool explains(const std::string& help, const CtlField& field, bool stars = true) {
  const std::string field_name = std::string{field.name} + (stars && field.usual ? "*" : "");
  std::istringstream lines{help};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words{line};
    std::string name, meaning;
    words >> name >> std::ws;
    std::getline(words, meaning);
    if (name == field_name && meaning == field.meaning) return line.size() <= 100;
  }
  return false;
}

TEST_CASE("the help on lists explains every field, that on all commands has its name") {
  for (const CtlObject object : {kDevice, kSession, kPath}) {
    for (const CtlField& field : fields_of(object)) {
      CAPTURE(field.name);
      CHECK(field.meaning.ends_with('.'));
      CHECK((field.kind != CtlKind::bytes || field.meaning.starts_with("Bytes ")));
      CHECK(explains(help_on_ctl_words({.topic = kList}), field));
      CHECK(explains(help_on_ctl_words({.topic = kShow}), field, /*stars=*/false));
      CHECK(explains(help_on_ctl_words({.topic = kList, .object = object}), field));
      CHECK(help_on_ctl_words().find(" " + std::string{field.name} + (field.usual ? "*" : "")) !=
            std::string::npos);
    }
  }
  CHECK(help_on_ctl_words({.topic = kList, .object = kPath}).find("mapping_path") ==
        std::string::npos);
}

/// The lists of the man page, as the table of fields makes them.
std::string fields_for_manual() {
  std::string text;
  for (const CtlObject object : {kDevice, kSession, kPath}) {
    text += "=head2 Fields of a " + std::string{name_of(object)} + "\n\n=over 4\n\n";
    for (const CtlField& field : fields_of(object)) {
      text += "=item B<" + std::string{field.name} + ">\n\n" + std::string{field.meaning} + "\n\n";
    }
    text += "=back\n\n";
  }
  return text;
}

TEST_CASE("the man page says of each field what the help says") {
  std::ifstream file{RNBD_MANUAL};
  const std::string manual{std::istreambuf_iterator<char>{file}, {}};
  const std::size_t begin = manual.find("=head2 Fields of a device");
  const std::size_t end = manual.find("=head2 Values of fields");
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  CHECK(manual.substr(begin, end - begin) == fields_for_manual());
}

TEST_CASE("the help on lists and on show says where it is found who has a disk open") {
  for (const CtlVerb verb : {kList, kShow}) {
    CHECK(help_on_ctl_words({.topic = verb}).find("Who has it open? `rnbd-ctl show NAME`") !=
          std::string::npos);
  }
}

TEST_CASE("every verb is in the help, and has one of its own, also by its other words") {
  const std::string all = help_on_ctl_words(), in_short = ctl_verbs_in_short();
  for (const CtlVerbWord& verb : ctl_verb_words()) {
    CAPTURE(verb.word);
    if (!verb.form.empty()) {
      CHECK(all.find("\n  " + std::string{verb.form}) != std::string::npos);
      CHECK(in_short.find("  " + std::string{verb.form}) != std::string::npos);
    }
    const auto asked = parse_ctl_words({std::string{verb.word}, "--help"});
    REQUIRE(asked.has_value());
    const std::string help = help_on_ctl_words(*asked);
    CHECK(help.starts_with("rnbd-ctl "));
    CHECK(help.find(verb.help) != std::string::npos);
  }
  for (const ProgramWord& word : program_words()) {
    CAPTURE(word.word);
    const std::string form =
        std::string{word.word} + (word.argument.empty() ? "" : " ") + std::string{word.argument};
    CHECK(all.find("\n  " + form) != std::string::npos);
    CHECK(in_short.find("\n  " + form) != std::string::npos);
    for (const bool of_server : {true, false}) {
      const CtlSide its = of_server ? kServer : kClient;
      const bool has = word.side == kBoth || word.side == its;
      CHECK((help_on_ctl_words({.side = its}).find("\n  " + form) != std::string::npos) == has);
      if (!has) continue;
      const std::string socket = of_server ? "server" : "disk0";
      const auto help = help_on_program_word({socket, std::string{word.word}, "--help"});
      REQUIRE(help.has_value());
      CHECK(help->find(" " + form + "\n" + std::string{word.help} + "\n") != std::string::npos);
      CHECK(help_on_program_word({std::string{word.word}, "-h"}).has_value());
    }
  }
}

TEST_CASE("only who asks for help on a command of a program gets it") {
  CHECK_FALSE(help_on_program_word({"server", "reload"}).has_value());
  CHECK_FALSE(help_on_program_word({"--help"}).has_value());
  CHECK_FALSE(help_on_program_word({"server", "relaod", "--help"}).has_value());
  CHECK_FALSE(help_on_program_word({"x", "y", "status", "--help"}).has_value());
  CHECK(help_on_program_word({"--json", "server", "evict", "vm1", "--help"})
            ->starts_with(
                "rnbd-ctl server evict SESSION|DEVICE [for TIME] [--force]\nEnds this session"));
  CHECK(help_on_program_word({"server", "disconnect", "-h"})->find("DST") == std::string::npos);
}

TEST_CASE("a server is written as a URI, a host, or as paths are shown") {
  for (const auto& item : std::initializer_list<std::pair<const char*, const char*>>{
           {"store", "rnbd+tcp://store"},
           {"store:99", "rnbd+tcp://store:99"},
           {"ip:10.0.0.1", "rnbd+tcp://10.0.0.1"},
           {"tcp:10.0.0.1", "rnbd+tcp://10.0.0.1"},
           {"tcp:[fd99::1]:99", "rnbd+tcp://[fd99::1]:99"},
           {"tcp://store", "rnbd+tcp://store"},
           {"rdma:store", "rnbd://store"},
           {"rdma://store:99", "rnbd://store:99"},
           {"tcp:1234", "rnbd+tcp://tcp:1234"},
           {"tcpstore", "rnbd+tcp://tcpstore"},
           {"rnbds+tcp://me@store", "rnbds+tcp://me@store"}}) {
    CAPTURE(item.first);
    CHECK(uri_of_server(item.first) == item.second);
  }
  CHECK(uri_of_server("store", "rdma") == "rnbd://store");
}

TEST_CASE("words of other tools lead to ours") {
  CHECK(ctl_verb_like("connect") == "; did you mean map DEVICE from SERVER?");
  CHECK(ctl_verb_like("lists") == "; did you mean list?");
  CHECK(ctl_verb_like("/run/x") == "");
}

TEST_CASE("every verb, and every command of programs, is found with a letter missing or swapped") {
  CHECK(ctl_verb_like("umap") == "; did you mean unmap?");
  CHECK(ctl_verb_like("lsit") == "; did you mean list?");
  std::vector<std::string> verbs{"discover", "keygen", "certgen"};
  for (const ProgramWord& each : program_words()) verbs.emplace_back(each.word);
  for (const CtlVerbWord& each : ctl_verb_words()) {
    if (!each.form.empty()) verbs.emplace_back(each.word);
  }
  CHECK(verbs.size() > 30);
  for (const std::string& verb : verbs) {
    CAPTURE(verb);
    CHECK(ctl_verb_like(verb) == "");  // nothing to guess
    std::string swapped = verb;
    std::swap(swapped[1], swapped[2]);
    if (swapped != verb) CHECK(ctl_verb_like(swapped) == "; did you mean " + verb + "?");
    if (verb.size() < 5) continue;  // "ad" may be many
    const std::string shorter = verb.substr(0, 2) + verb.substr(3);
    CHECK(ctl_verb_like(shorter) == "; did you mean " + verb + "?");
  }
}

TEST_CASE("the help has every verb and word") {
  const std::string help = help_on_ctl_words();
  for (const char* word : {"list", "show", "udev nbdN", "csv", "json", "xml", "notree", "noheaders",
                           "nototals", "all", "root DIRECTORY", "+a"}) {
    CAPTURE(word);
    CHECK(help.find(word) != std::string::npos);
  }
}

}  // namespace
}  // namespace rnbd::words_test
