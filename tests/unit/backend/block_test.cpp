// SPDX-License-Identifier: BSD-3-Clause
// Block devices, by way of loop devices. Skipped, with the reason, where there are none.
#include <fcntl.h>
#include <sys/mount.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bridge/backend/file.hpp"
#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::block_test {

namespace {

/// A loop device on a file; none if the system does not give one. Goes away with the process,
/// however that ends.
class LoopDevice {
 public:
  explicit LoopDevice(const std::string& file) {
    FILE* const output = popen(("losetup --show -f " + file + " 2> /dev/null").c_str(), "r");
    std::array<char, 64> line{};
    if (output != nullptr && fgets(line.data(), line.size(), output) != nullptr) {
      path_ = line.data();
      path_.pop_back();
    }
    if (output != nullptr) pclose(output);
    if (path_.empty()) {
      MESSAGE("skipped: no loop device (needs root and the loop driver)");
      return;
    }
    fd_ = rtrs::OwnedFd{open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
    // Detaching a device in use takes effect when its last user closes it.
    CHECK(std::system(("losetup -d " + path_).c_str()) == 0);
  }

  bool exists() const { return static_cast<bool>(fd_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  rtrs::OwnedFd fd_;
};

/// A small file system in memory over a folder; false where that is not allowed.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const std::string& folder)
      : folder_{folder}, mounted_{mount("none", folder.c_str(), "tmpfs", 0, "size=1m") == 0} {
    if (!mounted_) MESSAGE("skipped: cannot mount a tmpfs (needs root)");
  }
  ~SmallFileSystem() {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  explicit operator bool() const { return mounted_; }

 private:
  std::string folder_;
  bool mounted_;
};

constexpr std::uint64_t kSize = 4 * 1024 * 1024;

void check_device(const BackendOptions& options) {
  const TemporaryFolder folder;
  const LoopDevice device{folder.file("disk", kSize)};
  if (!device.exists()) return;
  check_conformance({.backend = must_open(device.path(), options)});
}

void check_growth(const BackendOptions& options) {
  const TemporaryFolder folder;
  const std::string file = folder.file("disk", kSize + 512);
  const LoopDevice device{file};
  if (!device.exists()) return;
  Bench bench{device.path(), options};
  std::filesystem::resize_file(file, 2 * kSize);
  CHECK(bench.backend().present_size() == kSize + 512);
  REQUIRE(std::system(("losetup -c " + device.path()).c_str()) == 0);
  CHECK(bench.backend().present_size() == 2 * kSize);
  const Bytes data = pattern(65536, 4);
  CHECK(bench.write(2 * kSize - data.size(), data) == 0);
  CHECK(bench.read(2 * kSize - data.size(), data.size()) == data);
}

/// Checks the size that a client is told when so much of a device is left.
void check_rest(std::uint64_t left, const BackendOptions& options, const std::string& told) {
  const TemporaryFolder folder;
  const std::string file = folder.file("disk", kSize);
  const LoopDevice device{file};
  if (!device.exists()) return;
  std::vector<std::string> log;
  BackendOptions logged = options;
  logged.log = [&](rtrs::LogLevel level, const std::string& line) {
    if (level == rtrs::LogLevel::error) log.push_back(line);
  };
  Bench bench{device.path(), logged};
  std::filesystem::resize_file(file, left);
  REQUIRE(std::system(("losetup -c " + device.path()).c_str()) == 0);
  const Bytes data = pattern(65536, 4);
  const std::uint64_t behind = kSize - 2 * data.size();
  CHECK(bench.write(behind, data) == EIO);
  CHECK(bench.write(behind, data, /*fua=*/true) == EIO);
  CHECK(bench.zero(behind, data.size(), {}) == EIO);
  CHECK(bench.zero(behind, data.size(), {.no_unmap = true}) == EIO);
  CHECK(bench.zero(0, kSize, {}) == EIO);
  CHECK(bench.discard(behind, data.size()) == EIO);
  Bytes read(512);
  BackendRequest request;
  request.offset = behind;
  request.length = read.size();
  request.data = read.data();
  CHECK(bench.run(request) == EIO);
  REQUIRE(log.size() == 1);
  CHECK(log.front().find(told) != std::string::npos);
  CHECK((bench.backend().whereabouts() == Whereabouts::gone) == (left == 0));
  if (left > 0) CHECK(bench.write(0, data) == 0);
}

}  // namespace

TEST_CASE("block device: one that was taken away is EIO, never a lack of space") {
  check_rest(0, {}, "the device is gone");
  check_rest(0, {.direct = true}, "the device is gone");
}
TEST_CASE("block device: behind the end of one that has shrunk is EIO, before it all is well") {
  check_rest(kSize / 2, {}, "has shrunk to 2097152 bytes");
  check_rest(kSize / 2, {.use_uring = false}, "has shrunk to 2097152 bytes");
}

TEST_CASE("block device: behaves like a disk") { check_device({}); }
TEST_CASE("block device, direct: behaves like a disk") { check_device({.direct = true}); }
TEST_CASE("block device, threads: behaves like a disk") { check_device({.use_uring = false}); }

TEST_CASE("block device: a writer keeps other writers and mounts out") {
  const TemporaryFolder folder;
  const LoopDevice device{folder.file("disk", kSize)};
  if (!device.exists()) return;
  const auto writer = must_open(device.path());
  CHECK(writer->info().size == kSize);
  CHECK(!writer->info().can_extents);
  const auto second = open_backend(device.path(), {});
  REQUIRE(!second.has_value());
  CHECK(second.error().error == EBUSY);
  CHECK(second.error().text.find("lsblk") != std::string::npos);
  CHECK(open_backend(device.path(), {.read_only = true}).has_value());
}

TEST_CASE("block device: what it has grown by can be used") { check_growth({}); }
TEST_CASE("block device, direct: what it has grown by can be used") {
  check_growth({.direct = true});
}

TEST_CASE("block device: a flush that failed is never followed by one that succeeds") {
  // A loop device on a file system without room: what is written to it cannot be written back.
  const TemporaryFolder folder;
  const SmallFileSystem small{folder.path()};
  if (!small) return;
  const LoopDevice device{folder.file("disk", kSize)};
  if (!device.exists()) return;
  std::vector<std::string> log;
  Bench bench{device.path(), {.log = [&](rtrs::LogLevel level, const std::string& line) {
                if (level == rtrs::LogLevel::error) log.push_back(line);
              }}};
  CHECK(bench.flush() == 0);
  REQUIRE(bench.write(0, pattern(kSize, 1)) == 0);
  const int first = bench.flush();
  CHECK((first == EIO || first == ENOSPC));
  CHECK(bench.flush() == EIO);
  REQUIRE(bench.discard(0, kSize) == 0);  // room again
  REQUIRE(bench.write(0, pattern(4096, 1)) == 0);
  CHECK(bench.flush() == EIO);
  // The first one may be told of the lost data by the kernel itself.
  for (unsigned i = 0; i < 2; ++i) CHECK(bench.write(0, pattern(4096, 1), /*fua=*/true) == EIO);
  CHECK(log.size() == 1);
}

TEST_CASE("block device: of the durable writes that a disk loses together, none succeeds") {
  const TemporaryFolder folder;
  const SmallFileSystem small{folder.path()};
  if (!small) return;
  const LoopDevice device{folder.file("disk", kSize)};
  if (!device.exists()) return;
  // No room is left in the file system below.
  std::ofstream{folder.path() + "/full"} << std::string(2 * 1024 * 1024, 'x');
  Bench bench{device.path()};
  Bytes data = pattern(64 * 1024, 1);
  std::vector<BackendRequest> requests(16);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].operation = BackendOperation::write;
    requests[i].offset = i * 64 * 1024;
    requests[i].length = 4096;
    requests[i].data = data.data() + i * 4096;
    requests[i].fua = true;
  }
  for (const int error : bench.run(requests)) CHECK(error != 0);
}

}  // namespace rnbd::test::block_test
