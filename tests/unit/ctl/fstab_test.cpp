// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/fstab.hpp"

#include <doctest/doctest.h>

#include "bridge/ctl/mapping.hpp"
#include "tests/unit/ctl/machine.hpp"

namespace rnbd::fstab_test {
namespace {

using ctl_test::Machine;

// ---- Lines, and mounts that are missing ---------------------------------------------------------

/// A machine with these files.
class Mounted : public Machine {
 public:
  Mounted(const std::string& fstab, const std::string& mountinfo) {
    write("/etc/fstab", fstab);
    write("/proc/self/mountinfo", mountinfo);
  }
  std::vector<std::string> points(const KernelDevice& device) const {
    std::vector<std::string> points;
    for (const FstabLine& line : lines(device)) points.push_back(line.point);
    return points;
  }
  std::vector<FstabLine> lines(const KernelDevice& device) const {
    return fstab_lines_of(root(), device);
  }
  std::vector<std::string> missing() const {
    std::vector<std::string> points;
    for (const MissingMount& each : missing_mounts(root(), {{"nbd0", "11-22", "disk0"}}))
      points.push_back(each.point);
    return points;
  }
};

constexpr const char* kFstab = R"(# /dev/rnbd/by-name/disk0 /comment ext4 defaults 0 0
/dev/rnbd/by-name/disk0	/mnt/a\040b	ext4	_netdev	0	2
/dev/rnbd/by-name/disk0-part1 /mnt/part ext4 _netdev,nofail
/dev/rnbd/by-uuid/11-22 /mnt/uuid/ ext4 noauto 0 0
/dev/rnbd/by-uuid/11-22-part12 none swap sw 0 0
/dev/rnbd/by-name/disk01 /mnt/other ext4 _netdev 0 0
/dev/rnbd/by-name/disk0-partial /mnt/partial ext4 _netdev 0 0
/dev/nbd0 /mnt/number ext4 _netdev 0 0
)";
using Points = std::vector<std::string>;

TEST_CASE("the lines of a disk are those with its links, or its partitions'") {
  const Mounted machine{kFstab, ""};
  CHECK(machine.points({"nbd0", "11-22", "disk0"}) ==
        Points{"/mnt/a b", "/mnt/part", "/mnt/uuid", "none"});
  CHECK(machine.points({"", "", "disk0"}) == Points{"/mnt/a b", "/mnt/part"});
  CHECK(machine.points({"", "", "disk"}).empty());
  const auto lines = machine.lines({"nbd0", "11-22", "disk0"});
  CHECK(lines[0].text == "/dev/rnbd/by-name/disk0 /mnt/a\\040b ext4 _netdev 0 2");
  CHECK(lines[0].awaited);
  CHECK((lines[1].automatic && !lines[1].awaited));
  CHECK_FALSE((lines[2].automatic || lines[2].awaited));
}

TEST_CASE("a mount of the boot is missing unless something is mounted there") {
  CHECK(Mounted{kFstab, ""}.missing() == Points{"/mnt/a b", "/mnt/part"});
  CHECK(Mounted{kFstab, "30 20 43:0 / /mnt/a\\040b rw - ext4 /dev/nbd0 rw\n"}.missing() ==
        Points{"/mnt/part"});
  CHECK(Mounted{kFstab, "31 20 43:0 / /mnt/part rw - autofs systemd-1 rw\n"}.missing() ==
        Points{"/mnt/a b"});
}

// ---- Mounts whose disk does not come ------------------------------------------------------------

/// A machine with mappings.
class Booted : public Machine {
 public:
  explicit Booted(const std::string& fstab) { write("/etc/fstab", fstab); }

  void map(const std::string& name, bool persist) const {
    write(path_of_mapping("", name, persist),
          file_of({.name = name, .uri = "rnbd+tcp://a/" + name}));
  }
  std::vector<MountWithoutDisk> mounts(const std::vector<KernelDevice>& devices = {}) const {
    return mounts_without_disk(root(), devices);
  }
};

constexpr const char* kByName =
    "/dev/rnbd/by-name/vol /mnt/vol ext4 _netdev 0 0\n"
    "/dev/rnbd/by-name/vol-part2 /mnt/part ext4 _netdev,nofail 0 0\n"
    "/dev/rnbd/by-name/asked /mnt/asked ext4 noauto 0 0\n"
    "/dev/sda1 / ext4 defaults 0 1\n";
const std::vector<KernelDevice> kVol{{"nbd0", "11-22", "vol"}};

TEST_CASE("a line whose name nothing is mapped as is left over") {
  const Booted machine{kByName};
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
  const Booted machine{kByName};
  machine.map("vol", false);
  for (const auto& devices : {kVol, std::vector<KernelDevice>{}}) {
    const auto mounts = machine.mounts(devices);
    REQUIRE(mounts.size() == 2);
    CHECK(mounts[0].mapping == "vol");
    CHECK(mounts[0].keep == "rnbd-ctl map rnbd+tcp://a/vol --name vol --own-process --persist");
  }
  machine.map("vol", true);
  CHECK(machine.mounts(kVol).empty());
  CHECK(machine.mounts().empty());
}

TEST_CASE("a line with a UUID is left over only if that of each mapping is known") {
  const Booted machine{"/dev/rnbd/by-uuid/11-22 none swap sw 0 0\n"};
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
  CHECK(mounts[0].keep == "rnbd-ctl map rnbd+tcp://a/new --name new --own-process --persist");
}

}  // namespace
}  // namespace rnbd::fstab_test
