// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/openers.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

namespace rnbd::openers_test {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

/// nbd0 with a partition, as the kernel shows them.
class Machine {
 public:
  Machine() {
    std::string name = fs::temp_directory_path() / "rnbd-unit-ctl-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
    write("sys/block/nbd0/dev", "43:0");
    write("sys/block/nbd0/nbd0p1/dev", "43:1");
    write("sys/block/nbd0/queue/scheduler", "none");
    write("proc/self/mountinfo", "20 1 8:1 / / rw - ext4 /dev/sda1 rw");
    write("proc/swaps", "Filename Type Size Used Priority");
  }
  ~Machine() { fs::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream{root_ / path, std::ios::app} << text << '\n';
  }
  void link(const std::string& path, const char* target) {
    fs::create_directories((root_ / path).parent_path());
    fs::create_symlink(target, root_ / path);
  }
  Lines openers() const { return openers_of(root_, "nbd0"); }

 private:
  fs::path root_;
};

TEST_CASE("nobody uses a device that nobody uses") {
  Machine machine;
  machine.link("proc/12/fd/3", "/dev/nbd1");
  CHECK(machine.openers().empty());
}

TEST_CASE("mounts, swaps, holders and processes are found, of partitions, too") {
  Machine machine;
  machine.write("proc/self/mountinfo", "30 20 43:1 / /mnt/disk rw - ext4 /dev/nbd0p1 rw");
  machine.write("proc/swaps", "/dev/nbd0p1 partition 1 0 -2");
  machine.write("sys/block/nbd0/holders/dm-3/x", "");
  machine.write("proc/12/comm", "dd");
  machine.link("proc/12/fd/3", "/dev/nbd0");
  machine.write("proc/13/comm", "other");
  machine.link("proc/13/fd/3", "/dev/nbd1");
  CHECK(machine.openers() ==
        Lines{"mounted at /mnt/disk", "swap", "held by dm-3", "open in 12 (dd)"});
}

TEST_CASE("a mount in another namespace is found once, by a process that lives there") {
  Machine machine;
  for (const char* process : {"14", "15"}) {
    const std::string folder = std::string{"proc/"} + process;
    machine.write(folder + "/comm", "service");
    machine.link(folder + "/ns/mnt", "mnt:[4026532001]");
    machine.write(folder + "/mountinfo", "30 20 43:1 / /mnt/disk rw - ext4 /dev/nbd0p1 rw");
  }
  CHECK(machine.openers() == Lines{"mounted at /mnt/disk for 14 (service)"});
}

TEST_CASE("udev alone is known by its processes' names") {
  Machine machine;
  CHECK_FALSE(is_only_udev(machine.openers()));
  machine.write("proc/12/comm", "(udev-worker)");
  machine.link("proc/12/fd/3", "/dev/nbd0");
  machine.write("proc/14/comm", "systemd-udevd");
  machine.link("proc/14/fd/3", "/dev/nbd0");
  CHECK(is_only_udev(machine.openers()));
  machine.write("proc/13/comm", "dd");
  machine.link("proc/13/fd/3", "/dev/nbd0");
  CHECK_FALSE(is_only_udev(machine.openers()));
}

}  // namespace
}  // namespace rnbd::openers_test
