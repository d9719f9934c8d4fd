// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/boot_mounts.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "bridge/ctl/mapping.hpp"

namespace rnbd::boot_mounts_test {
namespace {

namespace fs = std::filesystem;

class Machine {
 public:
  explicit Machine(const std::string& fstab) {
    std::string name = fs::temp_directory_path() / "rnbd-unit-ctl-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
    fs::create_directories(root_ + "/etc");
    std::ofstream{root_ + "/etc/fstab"} << fstab;
  }
  ~Machine() { fs::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void map(const std::string& name, bool persist) const {
    const fs::path path = path_of_mapping(root_, name, persist);
    fs::create_directories(path.parent_path());
    std::ofstream{path} << file_of({.name = name, .uri = "rnbd+tcp://a/" + name});
  }
  std::vector<MountWithoutDisk> mounts(const std::vector<KernelDevice>& devices = {}) const {
    return mounts_without_disk(root_, devices);
  }

 private:
  std::string root_;
};

constexpr const char* kByName =
    "/dev/rnbd/by-name/vol /mnt/vol ext4 _netdev 0 0\n"
    "/dev/rnbd/by-name/vol-part2 /mnt/part ext4 _netdev,nofail 0 0\n"
    "/dev/rnbd/by-name/asked /mnt/asked ext4 noauto 0 0\n"
    "/dev/sda1 / ext4 defaults 0 1\n";
const std::vector<KernelDevice> kVol{{"nbd0", "11-22", "vol"}};

TEST_CASE("a line whose name nothing is mapped as is left over") {
  const Machine machine{kByName};
  const auto mounts = machine.mounts();
  REQUIRE(mounts.size() == 2);
  CHECK(mounts[0].link == "/dev/rnbd/by-name/vol");
  CHECK(mounts[0].point == "/mnt/vol");
  CHECK(mounts[0].mapping == "vol");
  CHECK(mounts[0].keep == "");
  CHECK(mounts[0].awaited);
  CHECK(mounts[1].mapping == "vol");
  CHECK_FALSE(mounts[1].awaited);
  // Something else than rnbd-ctl brings this disk.
  CHECK(machine.mounts(kVol).empty());
}

TEST_CASE("a disk that is mapped until the next boot does not come for its line") {
  const Machine machine{kByName};
  machine.map("vol", false);
  for (const auto& devices : {kVol, std::vector<KernelDevice>{}}) {
    const auto mounts = machine.mounts(devices);
    REQUIRE(mounts.size() == 2);
    CHECK(mounts[0].mapping == "vol");
    CHECK(mounts[0].keep == "rnbd-ctl map rnbd+tcp://a/vol --name vol --persist");
  }
  machine.map("vol", true);
  CHECK(machine.mounts(kVol).empty());
  CHECK(machine.mounts().empty());
}

TEST_CASE("a line with a UUID is left over only if that of each mapping is known") {
  const Machine machine{"/dev/rnbd/by-uuid/11-22 none swap sw 0 0\n"};
  CHECK(machine.mounts().size() == 1);
  CHECK(machine.mounts().front().mapping == "");
  machine.map("vol", true);
  CHECK(machine.mounts().empty());  // its disk may have this UUID
  CHECK(machine.mounts({{"nbd0", "33", "vol"}}).size() == 1);
  CHECK(machine.mounts(kVol).empty());
  machine.map("new", false);
  CHECK(machine.mounts({{"nbd0", "33", "vol"}}).empty());
  const auto mounts = machine.mounts({{"nbd0", "33", "vol"}, {"nbd1", "11-22", "new"}});
  REQUIRE(mounts.size() == 1);
  CHECK(mounts[0].keep == "rnbd-ctl map rnbd+tcp://a/new --name new --persist");
}

}  // namespace
}  // namespace rnbd::boot_mounts_test
