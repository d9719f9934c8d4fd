// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/disk_files.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "bridge/kernel/mapping.hpp"

namespace disk_files_test {

using namespace rnbd;

namespace {

Mapping mapping_of(const std::string& name, const std::string& uri,
                   std::vector<std::string> options = {}) {
  Mapping mapping{name, uri, "nbd", std::move(options)};
  mapping.bridge = bridge_key(mapping);
  return mapping;
}

/// Two folders of files, which go with this object.
struct Folders {
  Folders() {
    std::string name = std::filesystem::temp_directory_path() / "rnbd-unit-disk-files-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
  }
  ~Folders() { std::filesystem::remove_all(root); }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;

  void write(const char* folder, const Mapping& mapping) const {
    write(folder, mapping.name, file_of(mapping));
  }
  void write(const char* folder, const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(root + "/" + folder);
    std::ofstream{root + "/" + folder + "/" + name + ".conf"} << text;
  }
  DiskFiles files(const std::string& key) const { return {key, {root + "/run", root + "/etc"}}; }

  std::string root;
};

}  // namespace

TEST_CASE("disk files: a bridge has those that name it, with settings of their own") {
  const Folders folders;
  const Mapping disk0 = mapping_of("disk0", "rnbd+tcp://s/disk0", {"--lanes", "2"});
  folders.write("run", disk0);
  folders.write("etc", mapping_of("disk1", "rnbd+tcp://s/one",
                                  {"--access", "ro", "--lanes", "2", "--dead-timeout", "9s"}));
  folders.write("etc", mapping_of("other", "rnbd+tcp://s/two"));
  Mapping own = mapping_of("own", "rnbd+tcp://s/three", {"--lanes", "2"});
  own.bridge.clear();
  folders.write("etc", own);
  DiskFiles files = folders.files(disk0.bridge);
  CHECK(files.names() == std::set<std::string>{"disk0", "disk1"});
  const auto session = files.session();
  REQUIRE(session.has_value());
  CHECK_FALSE(session->kernel.has_value());
  CHECK(session->client.device == "");
  CHECK(session->client.dynamic_export);
  CHECK(session->client.lanes == 2);
  CHECK(session->client.no_path_timeout == std::chrono::seconds{300});
  CHECK(session->client.server() == "rnbd+tcp://s:1234");
  const auto disk1 = files.read("disk1");
  REQUIRE(disk1.has_value());
  CHECK(disk1->client.device == "one");
  CHECK(disk1->client.access == wire::AccessMode::read_only);
  CHECK(disk1->kernel->name == "disk1");
  CHECK(disk1->kernel->dead_timeout == std::chrono::seconds{9});
}

TEST_CASE("disk files: of two files with a name the last one counts") {
  const Folders folders;
  const Mapping early = mapping_of("disk0", "rnbd+tcp://s/early");
  folders.write("run", early);
  folders.write("etc", mapping_of("disk0", "rnbd+tcp://s/late"));
  CHECK(folders.files(early.bridge).read("disk0")->client.device == "late");
}

TEST_CASE("disk files: a file that is wrong is an error of its disk alone") {
  const Folders folders;
  const Mapping good = mapping_of("good", "rnbd+tcp://s/good");
  Mapping moved = mapping_of("another", "rnbd+tcp://elsewhere/disk");
  moved.bridge = good.bridge;
  Mapping typo = mapping_of("atypo", "rnbd+tcp://s/typo", {"--access", "rx"});
  folders.write("etc", good);
  folders.write("etc", moved);
  folders.write("etc", typo);
  folders.write("etc", "empty", "BRIDGE=\"" + good.bridge + "\"\n");
  DiskFiles files = folders.files(good.bridge);
  CHECK(files.session().has_value());
  CHECK(files.read("good").has_value());
  CHECK(files.read("another").error().find("belongs to another bridge") != std::string::npos);
  CHECK(files.read("atypo").error().find("access") != std::string::npos);
  CHECK(files.read("nothing").error().find("cannot be read") != std::string::npos);
}

TEST_CASE("disk files: those with a key of another form are served, if they agree") {
  const Folders folders;
  for (const char* name : {"disk0", "disk1"}) {
    Mapping old = mapping_of(name, std::string{"rnbd+tcp://s/"} + name);
    old.bridge = "s:1234-of-old";
    folders.write("etc", old);
  }
  Mapping changed = mapping_of("other", "rnbd+tcp://elsewhere/disk");
  changed.bridge = "s:1234-of-old";
  folders.write("etc", changed);
  Mapping own = mapping_of("own", "rnbd+tcp://s/own", {"--metrics", "9000"});
  own.bridge = "s:1234-of-old";
  folders.write("etc", own);
  DiskFiles files = folders.files("s:1234-of-old");
  const auto session = files.session();
  REQUIRE(session.has_value());
  CHECK(session->client.server() == "rnbd+tcp://s:1234");
  CHECK(files.read("disk0").has_value());
  CHECK(files.read("disk1").has_value());
  CHECK_FALSE(files.read("other").has_value());
  CHECK_FALSE(files.read("own").has_value());
}

TEST_CASE("disk files: a changed file does not decide about the session of the others") {
  const Folders folders;
  const Mapping good = mapping_of("good", "rnbd+tcp://s/good");
  Mapping changed = mapping_of("another", "rnbd+tcp://elsewhere/disk");
  changed.bridge = good.bridge;
  folders.write("etc", good);
  folders.write("etc", changed);
  DiskFiles files = folders.files(good.bridge);
  CHECK(files.session()->client.server() == "rnbd+tcp://s:1234");
  CHECK(files.read("good").has_value());
}

TEST_CASE("disk files: without a file that is right there is no session, and the reason is told") {
  const Folders folders;
  CHECK(folders.files("s:1-0").session().error() == "no file of a disk names this bridge, s:1-0");
  const Mapping wrong = mapping_of("disk0", "rnbd+tcp://s/disk0", {"--frobnicate"});
  folders.write("run", wrong);
  CHECK(folders.files(wrong.bridge).session().error() == "disk0: unknown option '--frobnicate'");
}

}  // namespace disk_files_test
