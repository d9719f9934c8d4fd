// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/fstab.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

namespace rnbd::fstab_test {
namespace {

namespace fs = std::filesystem;

/// A machine with these files.
class Machine {
 public:
  Machine(const std::string& fstab, const std::string& mountinfo) {
    std::string name = fs::temp_directory_path() / "rnbd-unit-ctl-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
    fs::create_directories(root_ + "/etc");
    fs::create_directories(root_ + "/proc/self");
    std::ofstream{root_ + "/etc/fstab"} << fstab;
    std::ofstream{root_ + "/proc/self/mountinfo"} << mountinfo;
  }
  ~Machine() { fs::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  std::vector<std::string> points(const KernelDevice& device) const {
    std::vector<std::string> points;
    for (const FstabLine& line : fstab_lines_of(root_, device)) points.push_back(line.point);
    return points;
  }
  std::vector<FstabLine> lines(const KernelDevice& device) const {
    return fstab_lines_of(root_, device);
  }
  std::vector<std::string> missing() const {
    std::vector<std::string> points;
    for (const MissingMount& each : missing_mounts(root_, {disk0_})) points.push_back(each.point);
    return points;
  }

 private:
  std::string root_;
  KernelDevice disk0_{"nbd0", "11-22", "disk0"};
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
  const Machine machine{kFstab, ""};
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
  CHECK(Machine{kFstab, ""}.missing() == Points{"/mnt/a b", "/mnt/part"});
  CHECK(Machine{kFstab, "30 20 43:0 / /mnt/a\\040b rw - ext4 /dev/nbd0 rw\n"}.missing() ==
        Points{"/mnt/part"});
  CHECK(Machine{kFstab, "31 20 43:0 / /mnt/part rw - autofs systemd-1 rw\n"}.missing() ==
        Points{"/mnt/a b"});
}

}  // namespace
}  // namespace rnbd::fstab_test
