// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/kernel_devices.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

namespace rnbd::kernel_devices_test {
namespace {

using std::filesystem::path;

/// A tree with /sys/block as the kernel would have it.
class Machine {
 public:
  Machine() : root_{std::filesystem::temp_directory_path() / "rnbd-unit-ctl-XXXXXX"} {
    std::string name = root_;
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  std::string root() const { return root_; }
  void add(const std::string& device, const char* backend, const char* read_only = "0") {
    const path folder = root_ / "sys/block" / device;
    std::filesystem::create_directories(folder);
    if (backend != nullptr) std::ofstream{folder / "backend"} << backend << '\n';
    std::ofstream{folder / "ro"} << read_only << '\n';
  }

 private:
  path root_;
};

TEST_CASE("the identifier of a device has the export's UUID and the mapping's name") {
  CHECK(parse_backend_identifier("nbd0", "rnbd:11-22:disk0") ==
        KernelDevice{"nbd0", "11-22", "disk0"});
  CHECK(parse_backend_identifier("nbd0", "rnbd:s:d:1048576:disk0") ==
        KernelDevice{"nbd0", "s:d:1048576", "disk0"});
  for (const char* other : {"", "rnbd", "rnbd:", "rnbd:1-2", "rnbd:1-2:", "qemu:1-2:disk0"}) {
    CAPTURE(other);
    CHECK_FALSE(parse_backend_identifier("nbd0", other));
  }
}

TEST_CASE("of the kernel's devices those are found that are ours, by their numbers") {
  Machine machine;
  machine.add("nbd10", "rnbd:u10:ten");
  machine.add("nbd2", "rnbd:u2:two");
  machine.add("nbd3", "of somebody else");
  machine.add("nbd4", nullptr);
  machine.add("sda", "rnbd:u:sda");
  CHECK(find_kernel_devices(machine.root()) ==
        std::vector<KernelDevice>{{"nbd2", "u2", "two"}, {"nbd10", "u10", "ten"}});
  CHECK(find_kernel_device(machine.root(), "nbd2") == KernelDevice{"nbd2", "u2", "two"});
  CHECK_FALSE(find_kernel_device(machine.root(), "nbd5"));
  CHECK(find_kernel_devices(machine.root() + "/nowhere").empty());
}

TEST_CASE("a device is read-only if the kernel says so") {
  Machine machine;
  machine.add("nbd0", "rnbd:u0:zero");
  machine.add("nbd1", "rnbd:u1:one", "1");
  CHECK_FALSE(is_read_only(machine.root(), "nbd0"));
  CHECK(is_read_only(machine.root(), "nbd1"));
  CHECK_FALSE(is_read_only(machine.root(), "nbd2"));
  CHECK(find_kernel_devices(machine.root()) ==
        std::vector<KernelDevice>{{"nbd0", "u0", "zero"}, {"nbd1", "u1", "one", true}});
}

}  // namespace
}  // namespace rnbd::kernel_devices_test
