// SPDX-License-Identifier: BSD-3-Clause
// Reads a tree as the kernel makes it.
#include "bridge/kernel/sysfs.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace rnbd::kernel {
namespace {

namespace fs = std::filesystem;

class Tree {
 public:
  Tree() {
    std::string name = (fs::temp_directory_path() / "rnbd-sysfs-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root = name;
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  ~Tree() { fs::remove_all(root); }

  void file(const std::string& name, const std::string& text) const {
    fs::create_directories((root / name).parent_path());
    std::ofstream{root / name} << text;
  }
  fs::path root;
};

TEST_CASE("devices that have an identifier are found, and no others") {
  const Tree tree;
  tree.file("nbd0/backend", "rnbd:1:one\n");
  tree.file("nbd1/size", "0\n");
  tree.file("nbd12/backend", "other\n");
  tree.file("nbdx/backend", "rnbd:1:one\n");
  tree.file("sda/backend", "rnbd:1:one\n");
  const Sysfs sysfs{tree.root};
  const auto mapped = sysfs.mapped();
  REQUIRE(mapped.size() == 2);
  for (const Mapped& one : mapped) CHECK(one.backend == (one.index == 0 ? "rnbd:1:one" : "other"));
  CHECK(sysfs.backend(1) == "");
  CHECK(Sysfs{tree.root / "nothing"}.mapped().empty());
}

TEST_CASE("sizes are bytes, and requests of all kinds count") {
  const Tree tree;
  tree.file("nbd0/size", "65536\n");
  tree.file("nbd0/ro", "1\n");
  tree.file("nbd0/stat", "  10 0 80 5  20 0 160 9  3 14 15  1 0 8 1  2 3\n");
  const Sysfs sysfs{tree.root};
  CHECK(sysfs.size(0) == 32 * 1024 * 1024);
  CHECK(sysfs.read_only(0));
  CHECK_FALSE(sysfs.read_only(1));
  CHECK(sysfs.flow(0).ended == 31);
  CHECK(sysfs.flow(0).under_way == 3);
}

TEST_CASE("one process at a time serves a device") {
  const Tree tree;
  tree.file("nbd0/backend", "rnbd:1:one\n");
  const Sysfs sysfs{tree.root};
  const int first = sysfs.lock(0);
  REQUIRE(first >= 0);
  CHECK(sysfs.lock(0) == -1);
  CHECK(errno == EWOULDBLOCK);
  ::close(first);
  const int second = sysfs.lock(0);
  CHECK(second >= 0);
  ::close(second);
  CHECK(sysfs.lock(1) == -1);
  CHECK(errno == ENOENT);
}

TEST_CASE("attributes of the queue are written, and a missing one is an error that names it") {
  const Tree tree;
  tree.file("nbd0/queue/io_timeout", "9999\n");
  const Sysfs sysfs{tree.root};
  REQUIRE(sysfs.set_queue(0, "io_timeout", "2000"));
  CHECK(sysfs.queue(0, "io_timeout") == 2000);
  const auto missing = sysfs.set_queue(0, "scheduler", "none");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().error == ENOENT);
  CHECK(missing.error().text.find("nbd0/queue/scheduler") != std::string::npos);
}

}  // namespace
}  // namespace rnbd::kernel
