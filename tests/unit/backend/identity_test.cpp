// SPDX-License-Identifier: BSD-3-Clause
// The identity of storage, with a system that the tests make up.
#include "bridge/backend/identity.hpp"

#include <fcntl.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::identity_test {

namespace {

/// A /sys and a /proc of our own.
class System {
 public:
  System() { set("/proc/sys/kernel/random/boot_id", "first-boot"); }
  const std::string& root() const { return folder_.path(); }
  void set(const std::string& path, const std::string& line) const {
    const std::filesystem::path file{root() + path};
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << line << '\n';
  }
  /// A disk or a partition, known by its number, too.
  void add(const std::string& number, const std::string& device) const {
    set("/sys/devices/" + device + "/dev", number);
    std::filesystem::create_directories(root() + "/sys/dev/block");
    std::filesystem::create_symlink(root() + "/sys/devices/" + device,
                                    root() + "/sys/dev/block/" + number);
  }
  void remove(const std::string& number, const std::string& device) const {
    std::filesystem::remove_all(root() + "/sys/devices/" + device);
    std::filesystem::remove(root() + "/sys/dev/block/" + number);
  }
  std::string identity(unsigned major, unsigned minor) const {
    struct statx stat {};
    stat.stx_mode = S_IFBLK;
    stat.stx_rdev_major = major;
    stat.stx_rdev_minor = minor;
    return identity_of(stat, root());
  }

 private:
  TemporaryFolder folder_;
};

struct statx file_status(const std::string& path) {
  struct statx stat {};
  REQUIRE(statx(AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS | STATX_BTIME, &stat) == 0);
  return stat;
}

/// Two disks that say `one` and `two` in an attribute.
void check_told_apart_by(const std::string& attribute) {
  const System system;
  system.add("8:0", "a");
  system.set("/sys/devices/a/" + attribute, "one");
  const std::string one = system.identity(8, 0);
  // The same disk at another number, after another boot.
  system.set("/proc/sys/kernel/random/boot_id", "second-boot");
  system.add("8:16", "b");
  system.set("/sys/devices/b/" + attribute, " one ");
  CHECK(system.identity(8, 16) == one);
  // Another disk at its number.
  system.set("/sys/devices/a/" + attribute, "two");
  CHECK(system.identity(8, 0) != one);
}

}  // namespace

TEST_CASE("identity: a block device is what it says it is, whatever its number is") {
  for (const char* const attribute :
       {"dm/uuid", "wwid", "device/wwid", "serial", "device/serial"}) {
    CAPTURE(attribute);
    check_told_apart_by(attribute);
  }
}

TEST_CASE(
    "identity: the volume's own name counts more than what lies below, an empty one nothing") {
  const System system;
  system.add("8:0", "a");
  system.set("/sys/devices/a/serial", "serial");
  const std::string serial = system.identity(8, 0);
  system.set("/sys/devices/a/wwid", "");
  CHECK(system.identity(8, 0) == serial);
  system.set("/sys/devices/a/wwid", "name");
  const std::string name = system.identity(8, 0);
  CHECK(name != serial);
  system.set("/sys/devices/a/dm/uuid", "volume");
  CHECK(system.identity(8, 0) != name);
}

TEST_CASE("identity: a partition is a part of its disk") {
  const System system;
  const auto partition = [&](const char* number, const std::string& device, const char* start) {
    system.add(number, device);
    system.set("/sys/devices/" + device + "/partition", "1");
    system.set("/sys/devices/" + device + "/start", start);
  };
  system.add("8:0", "a");
  system.set("/sys/devices/a/wwid", "one");
  partition("8:1", "a/a1", "2048");
  const std::string one = system.identity(8, 1);
  CHECK(one != system.identity(8, 0));
  system.add("8:16", "b");
  system.set("/sys/devices/b/wwid", "one");
  partition("8:17", "b/b1", "2048");
  CHECK(system.identity(8, 17) == one);
  system.set("/sys/devices/b/b1/start", "4096");
  CHECK(system.identity(8, 17) != one);
  system.set("/sys/devices/b/b1/start", "2048");
  system.set("/sys/devices/b/b1/partition", "2");
  CHECK(system.identity(8, 17) != one);
  system.set("/sys/devices/b/b1/partition", "1");
  system.set("/sys/devices/b/wwid", "two");
  CHECK(system.identity(8, 17) != one);
}

TEST_CASE("identity: a loop device is a part of its file") {
  const System system;
  const TemporaryFolder files;
  const auto loop = [&](const char* number, const std::string& device, const std::string& file) {
    system.add(number, device);
    system.set("/sys/devices/" + device + "/loop/backing_file", file);
    system.set("/sys/devices/" + device + "/loop/offset", "0");
    system.set("/sys/devices/" + device + "/loop/sizelimit", "0");
  };
  const std::string first = files.file("first", 4096);
  loop("7:0", "loop0", first);
  const std::string one = system.identity(7, 0);
  loop("7:1", "loop1", first);
  CHECK(system.identity(7, 1) == one);
  system.set("/sys/devices/loop1/loop/offset", "512");
  CHECK(system.identity(7, 1) != one);
  system.set("/sys/devices/loop1/loop/offset", "0");
  system.set("/sys/devices/loop1/loop/sizelimit", "512");
  CHECK(system.identity(7, 1) != one);
  loop("7:2", "loop2", files.file("second", 4096));
  CHECK(system.identity(7, 2) != one);
  // A file that has no name any more.
  loop("7:3", "loop3", first + " (deleted)");
  CHECK(system.identity(7, 3).find("7:3") != std::string::npos);
}

TEST_CASE(
    "identity: a number is no name: what comes after it, or after a boot, is another device") {
  const System system;
  system.add("43:0", "nbd0");
  system.set("/sys/devices/nbd0/diskseq", "7");
  const std::string one = system.identity(43, 0);
  CHECK(system.identity(43, 0) == one);
  system.set("/sys/devices/nbd0/diskseq", "8");
  CHECK(system.identity(43, 0) != one);
  system.set("/sys/devices/nbd0/diskseq", "7");
  system.set("/proc/sys/kernel/random/boot_id", "second-boot");
  CHECK(system.identity(43, 0) != one);
  CHECK(system.identity(43, 1) != system.identity(43, 2));
}

TEST_CASE("identity: a file is its inode and its birth, and its file system only without one") {
  struct statx stat = file_status("/proc/self/exe");
  stat.stx_mask |= STATX_BTIME;
  stat.stx_btime = {};
  stat.stx_btime.tv_sec = 1700000000;
  const std::string one = identity_of(stat);
  struct statx other = stat;
  other.stx_dev_minor += 1;  // a file system that was mounted again
  CHECK(identity_of(other) == one);
  other.stx_btime.tv_nsec += 1;
  CHECK(identity_of(other) != one);
  other = stat;
  other.stx_ino += 1;
  CHECK(identity_of(other) != one);
  for (struct statx* const each : {&stat, &other}) each->stx_mask &= ~STATX_BTIME;
  CHECK(identity_of(stat) != identity_of(other));
  other = stat;
  CHECK(identity_of(stat) == identity_of(other));
  other.stx_dev_minor += 1;
  CHECK(identity_of(stat) != identity_of(other));
}

TEST_CASE("identity: other words, other UUID") {
  CHECK(uuid_of("wwid naa.1") == uuid_of("wwid naa.1"));
  CHECK(uuid_of("wwid naa.1") != uuid_of("wwid naa.2"));
}

}  // namespace rnbd::test::identity_test
