// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/device_link.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <future>

namespace rnbd::device_link_test {
namespace {

namespace fs = std::filesystem;

constexpr double kLong = 600;  ///< seconds

/// A machine with a disk, and with udev if the test starts it.
class Machine {
 public:
  Machine() {
    std::string name = fs::temp_directory_path() / "rnbd-unit-ctl-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~Machine() { fs::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void start_udev() const {
    fs::create_directories(root_ + "/run/udev");
    std::ofstream{root_ + "/run/udev/control"};
  }
  /// As udev does, which replaces the old one at once.
  void link(const std::string& device) const {
    const std::string link = root_ + "/dev/rnbd/by-name/disk0";
    fs::create_directories(fs::path{link}.parent_path());
    fs::create_symlink("../../" + device, link + ".new");
    fs::rename(link + ".new", link);
  }
  void attach() const {
    fs::create_directories(root_ + "/sys/block/nbd3");
    std::ofstream{root_ + "/sys/block/nbd3/backend"} << "rnbd:u:disk0\n";
  }
  std::string word(const std::string& given) const { return without_link(root_, given); }
  std::string await(double patience) const { return await_link(root_, disk_, patience); }

 private:
  std::string root_;
  KernelDevice disk_{"nbd3", "u", "disk0"};
};

TEST_CASE("a link that comes later is waited for, whatever an older one leads to") {
  const Machine machine;
  machine.start_udev();
  machine.link("nbd1");
  auto waits = std::async(std::launch::async, [&] { return machine.await(kLong); });
  CHECK(waits.wait_for(std::chrono::milliseconds{60}) == std::future_status::timeout);
  machine.link("nbd3");
  CHECK(waits.get() == "");
}

TEST_CASE("a link that does not come is told, with the device to use") {
  const Machine machine;
  machine.start_udev();
  CHECK(machine.await(0.05).starts_with(
      "udev has not made /dev/rnbd/by-name/disk0 within 0.05 s; use /dev/nbd3 meanwhile"));
  CHECK(machine.await(0) == "");
}

TEST_CASE("a link to a device stands for it, and one that is gone for the name in it") {
  const Machine machine;
  machine.link("nbd3");
  CHECK(machine.word("/dev/rnbd/by-name/disk0") == "disk0");  // the kernel does not have it
  machine.attach();
  CHECK(machine.word("/dev/rnbd/by-name/disk0") == "nbd3");
  CHECK(machine.word("/dev/rnbd/by-name/disk1") == "disk1");
  CHECK(machine.word("/dev/rnbd/by-uuid/11111111-2222") == "11111111-2222");
  CHECK(machine.word("/dev/nbd3") == "/dev/nbd3");
  CHECK(machine.word("disk0") == "disk0");
}

TEST_CASE("without udev nobody waits for its links") {
  const Machine machine;
  CHECK(machine.await(kLong) == "");
}

}  // namespace
}  // namespace rnbd::device_link_test
