// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/kernel_devices.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <future>

#include "tests/unit/ctl/machine.hpp"

namespace rnbd::kernel_devices_test {
namespace {

using ctl_test::Machine;

// ---- Identifiers --------------------------------------------------------------------------------

/// A tree with /sys/block as the kernel would have it.
struct Disks : Machine {
  void add(const std::string& device, const char* backend, const char* read_only = "0") const {
    if (backend != nullptr) attach(device, backend);
    write("/sys/block/" + device + "/ro", std::string{read_only} + "\n");
  }
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
  const Disks machine;
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
  const Disks machine;
  machine.add("nbd0", "rnbd:u0:zero");
  machine.add("nbd1", "rnbd:u1:one", "1");
  CHECK_FALSE(is_read_only(machine.root(), "nbd0"));
  CHECK(is_read_only(machine.root(), "nbd1"));
  CHECK_FALSE(is_read_only(machine.root(), "nbd2"));
  CHECK(find_kernel_devices(machine.root()) ==
        std::vector<KernelDevice>{{"nbd0", "u0", "zero"}, {"nbd1", "u1", "one", true}});
}

// ---- Links --------------------------------------------------------------------------------------

constexpr double kLong = 600;  ///< seconds

/// A machine with a disk, and with udev if the test starts it.
class Linked : public Machine {
 public:
  void start_udev() const { write("/run/udev/control", ""); }
  /// udev replaces the old link at once, too.
  void link(const std::string& device) const {
    const std::string path = "/dev/rnbd/by-name/disk0";
    Machine::link(path + ".new", "../../" + device);
    std::filesystem::rename(root() + path + ".new", root() + path);
  }
  void attach() const { Machine::attach("nbd3", "rnbd:u:disk0"); }
  std::string word(const std::string& given) const { return without_link(root(), given); }
  std::string await(double patience) const {
    return await_link(root(), {"nbd3", "u", "disk0"}, patience);
  }
};

TEST_CASE("a link that comes later is waited for, whatever an older one leads to") {
  const Linked machine;
  machine.start_udev();
  machine.link("nbd1");
  auto waits = std::async(std::launch::async, [&] { return machine.await(kLong); });
  CHECK(waits.wait_for(std::chrono::milliseconds{60}) == std::future_status::timeout);
  machine.link("nbd3");
  CHECK(waits.get() == "");
}

TEST_CASE("a link that does not come is told, with the device to use") {
  const Linked machine;
  machine.start_udev();
  CHECK(machine.await(0.05).starts_with(
      "udev has not made /dev/rnbd/by-name/disk0 within 0.05 s; use /dev/nbd3 meanwhile"));
  CHECK(machine.await(0) == "");
}

TEST_CASE("a link to a device stands for it, and one that is gone for the name in it") {
  const Linked machine;
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
  const Linked machine;
  CHECK(machine.await(kLong) == "");
}

// ---- Users --------------------------------------------------------------------------------------

using Lines = std::vector<std::string>;

/// nbd0 with a partition, as the kernel shows them.
struct Used : Machine {
  Used() {
    append("/sys/block/nbd0/dev", "43:0");
    append("/sys/block/nbd0/nbd0p1/dev", "43:1");
    append("/sys/block/nbd0/queue/scheduler", "none");
    append("/proc/self/mountinfo", "20 1 8:1 / / rw - ext4 /dev/sda1 rw");
    append("/proc/swaps", "Filename Type Size Used Priority");
  }
  Lines openers() const { return openers_of(root(), "nbd0"); }
};

TEST_CASE("nobody uses a device that nobody uses") {
  const Used machine;
  machine.link("/proc/12/fd/3", "/dev/nbd1");
  CHECK(machine.openers().empty());
}

TEST_CASE("mounts, swaps, holders and processes are found, of partitions, too") {
  const Used machine;
  machine.append("/proc/self/mountinfo", "30 20 43:1 / /mnt/disk rw - ext4 /dev/nbd0p1 rw");
  machine.append("/proc/swaps", "/dev/nbd0p1 partition 1 0 -2");
  machine.append("/sys/block/nbd0/holders/dm-3/x", "");
  machine.append("/proc/12/comm", "dd");
  machine.link("/proc/12/fd/3", "/dev/nbd0");
  machine.append("/proc/13/comm", "other");
  machine.link("/proc/13/fd/3", "/dev/nbd1");
  CHECK(machine.openers() ==
        Lines{"mounted at /mnt/disk", "swap", "held by dm-3", "open in 12 (dd)"});
}

TEST_CASE("a mount in another namespace is found once, by a process that lives there") {
  const Used machine;
  for (const char* process : {"14", "15"}) {
    const std::string folder = std::string{"/proc/"} + process;
    machine.append(folder + "/comm", "service");
    machine.link(folder + "/ns/mnt", "mnt:[4026532001]");
    machine.append(folder + "/mountinfo", "30 20 43:1 / /mnt/disk rw - ext4 /dev/nbd0p1 rw");
  }
  CHECK(machine.openers() == Lines{"mounted at /mnt/disk for 14 (service)"});
}

TEST_CASE("udev alone is known by its processes' names") {
  const Used machine;
  CHECK_FALSE(is_only_udev(machine.openers()));
  machine.append("/proc/12/comm", "(udev-worker)");
  machine.link("/proc/12/fd/3", "/dev/nbd0");
  machine.append("/proc/14/comm", "systemd-udevd");
  machine.link("/proc/14/fd/3", "/dev/nbd0");
  CHECK(is_only_udev(machine.openers()));
  machine.append("/proc/13/comm", "dd");
  machine.link("/proc/13/fd/3", "/dev/nbd0");
  CHECK_FALSE(is_only_udev(machine.openers()));
}

}  // namespace
}  // namespace rnbd::kernel_devices_test
