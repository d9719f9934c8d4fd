// SPDX-License-Identifier: BSD-3-Clause
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::file_test {

namespace {

constexpr std::uint64_t kSize = 4 * 1024 * 1024;
constexpr std::uint64_t kOddSize = kSize + 1000;

/// Opens a new file of the folder once for each run of a check.
void check_file(const std::string& parent, std::uint64_t size, const BackendOptions& options) {
  const TemporaryFolder folder{parent};
  const std::string path = folder.file("disk", size);
  check_conformance({must_open(path, options)});
  CHECK(std::filesystem::file_size(path) == size);
}

}  // namespace

TEST_CASE("file on a disk: behaves like a disk") { check_file("/tmp", kSize, {}); }
TEST_CASE("file on a disk: behaves like a disk of odd size") { check_file("/tmp", kOddSize, {}); }
TEST_CASE("file on a disk, threads: behaves like a disk") {
  check_file("/tmp", kOddSize, {.use_uring = false});
}
TEST_CASE("file on a disk, direct: behaves like a disk") {
  check_file("/tmp", kSize, {.direct = true});
}
TEST_CASE("file on a disk, direct: behaves like a disk of odd size") {
  check_file("/tmp", kOddSize, {.direct = true});
}
TEST_CASE("file on a disk, direct, threads: behaves like a disk") {
  check_file("/tmp", kOddSize, {.direct = true, .use_uring = false});
}
TEST_CASE("file in memory: behaves like a disk") { check_file("/dev/shm", kOddSize, {}); }
TEST_CASE("file in memory, threads: behaves like a disk") {
  check_file("/dev/shm", kOddSize, {.use_uring = false});
}

TEST_CASE("file: what is written is in the file, and nothing else") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", kSize);
  const Bytes data = pattern(8192, 1);
  {
    Bench bench{path};
    CHECK(bench.info().size == kSize);
    REQUIRE(bench.write(4096, data, /*fua=*/true) == 0);
  }
  std::ifstream file{path};
  Bytes content(kSize);
  REQUIRE(file.read(reinterpret_cast<char*>(content.data()), kSize));
  CHECK(Bytes(content.begin() + 4096, content.begin() + 4096 + 8192) == data);
  std::fill_n(content.begin() + 4096, 8192, std::byte{0});
  CHECK(content == Bytes(kSize, std::byte{0}));
}

TEST_CASE(
    "file: a discard and a zeroing that may unmap give blocks back, one that may not keeps them") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", kSize);
  const auto allocated = [&] {
    struct stat stat {};
    REQUIRE(::stat(path.c_str(), &stat) == 0);
    return static_cast<std::uint64_t>(stat.st_blocks) * 512;
  };
  Bench bench{path};
  REQUIRE(bench.info().can_discard);
  REQUIRE(bench.write(0, pattern(kSize, 1)) == 0);
  REQUIRE(bench.flush() == 0);
  const std::uint64_t full = allocated();
  CHECK(full >= kSize);
  REQUIRE(bench.zero(0, kSize, {.no_unmap = true}) == 0);
  REQUIRE(bench.flush() == 0);
  CHECK(allocated() >= kSize);
  REQUIRE(bench.discard(0, kSize / 2, /*fua=*/true) == 0);
  CHECK(allocated() <= full - kSize / 2);
  REQUIRE(bench.zero(0, kSize, {.fast = true}) == 0);
  REQUIRE(bench.flush() == 0);
  CHECK(allocated() < 64 * 1024);
}

TEST_CASE("file: a writer keeps everybody else out, readers share") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", kSize);
  const auto error_of = [&](bool read_only) {
    const auto backend = open_backend(path, {.read_only = read_only});
    if (backend) return 0;
    CHECK(backend.error().text.find("in use") != std::string::npos);
    return backend.error().error;
  };
  for (const bool direct : {false, true}) {
    const auto writer = must_open(path, {.direct = direct});
    CHECK(error_of(false) == EBUSY);
    CHECK(error_of(true) == EBUSY);
    CHECK(open_backend(path, {.lock = false}).has_value());
  }
  const auto reader = must_open(path, {.read_only = true});
  CHECK(error_of(true) == 0);
  CHECK(error_of(false) == EBUSY);
}

TEST_CASE("file: opened read-only refuses every change, and a flush is nothing") {
  const TemporaryFolder folder;
  Bench bench{folder.file("disk", kSize), {.read_only = true}};
  CHECK(bench.info().read_only);
  CHECK(bench.write(0, pattern(512, 1)) == EROFS);
  CHECK(bench.zero(0, 512, {}) == EROFS);
  CHECK(bench.discard(0, 512) == EROFS);
  CHECK(bench.flush() == 0);
  CHECK(bench.read(0, 512) == Bytes(512, std::byte{0}));
}

TEST_CASE("file: without permission to write it is opened read-only if asked, else refused") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", kSize);
  REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
  REQUIRE(chmod(path.c_str(), 0444) == 0);
  const auto previous = setfsuid(65534);  // root is allowed everything
  const auto refused = open_backend(path, {});
  const auto opened = open_backend(path, {.read_only_fallback = true});
  setfsuid(static_cast<uid_t>(previous));
  REQUIRE(!refused.has_value());
  CHECK(refused.error().error == EACCES);
  CHECK(refused.error().text.find("read-only") != std::string::npos);
  REQUIRE(opened.has_value());
  CHECK((*opened)->info().read_only);
}

TEST_CASE("file: what cannot be an export says why") {
  const TemporaryFolder folder;
  const auto error_of = [](const std::string& path) {
    const auto backend = open_backend(path, {});
    REQUIRE(!backend.has_value());
    CHECK(backend.error().text.find(path) == 0);
    CHECK(backend.error().text.size() > path.size() + 10);
    return backend.error().error;
  };
  CHECK(error_of(folder.path() + "/none") == ENOENT);
  CHECK(error_of(folder.path()) == EISDIR);
  CHECK(error_of("/dev/null") == EINVAL);
  const std::string fifo = folder.path() + "/fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(error_of(fifo) == EINVAL);
}

TEST_CASE("file: an empty one is served, and what it grows by can be used") {
  const TemporaryFolder folder;
  const std::string path = folder.file("empty", 0);
  std::vector<std::string> log;
  Bench bench{path, {.log = [&](rtrs::LogLevel, const auto& line) { log.push_back(line); }}};
  CHECK(bench.info().size == 0);
  CHECK(log.back().find("it is empty") != std::string::npos);
  CHECK(bench.flush() == 0);
  std::filesystem::resize_file(path, 8192);
  CHECK(bench.backend().present_size() == 8192);
  CHECK(bench.write(4096, pattern(4096, 1)) == 0);
  CHECK(bench.read(4096, 4096) == pattern(4096, 1));
}

TEST_CASE("file: the advice about what is missing fits the place") {
  const TemporaryFolder folder;
  const auto advice = [](const std::string& path) {
    const auto backend = open_backend(path, {});
    REQUIRE(!backend.has_value());
    CHECK(backend.error().error == ENOENT);
    return backend.error().text;
  };
  const auto says = [&](const std::string& path, const std::string& words) {
    const std::string text = advice(path);
    CAPTURE(text);
    CHECK(text.find(words) != std::string::npos);
    return text.find("truncate") != std::string::npos;
  };
  CHECK(says(folder.path() + "/none", "truncate -s SIZE " + folder.path() + "/none'"));
  CHECK(says(folder.path() + "/no ne", "truncate -s SIZE \"" + folder.path() + "/no ne\"'"));
  CHECK(says("/dev/shm/rnbdkit-none", "truncate -s SIZE /dev/shm/rnbdkit-none'"));
  CHECK_FALSE(says("/dev/vg0/vm7", "plug it in, or activate it"));
  CHECK_FALSE(says("/dev/rnbdkit-none", "plug it in, or activate it"));
  CHECK_FALSE(says("/tmp/../dev/rnbdkit-none", "plug it in, or activate it"));
  CHECK_FALSE(says(folder.path() + "/none/disk", "no directory " + folder.path() + "/none;"));
  CHECK_FALSE(says("/proc/none", "there is no such file"));
  CHECK_FALSE(says("memoryy:1M", "no backend begins like that"));
  std::filesystem::create_symlink("/dev/vg0/vm7", folder.path() + "/link");
  CHECK_FALSE(says(folder.path() + "/link", "a link to /dev/vg0/vm7: there is no such device"));
  std::filesystem::create_symlink("none", folder.path() + "/near");
  CHECK(says(folder.path() + "/near", "truncate -s SIZE " + folder.path() + "/none'"));
  // A path that is mistyped.
  folder.file("disk0.img", 4096);
  std::filesystem::create_directory(folder.path() + "/images");
  CHECK(says(folder.path() + "/dsik0.img",
             "there is no such file; the most similar name beside it is 'disk0.img'; if the path "
             "is right, and the file is to be created: 'truncate -s SIZE "));
  CHECK_FALSE(says(folder.path() + "/imagse/disk0.img",
                   "/imagse; the most similar name beside it is 'images'; mount it, or make it"));
  CHECK(says(folder.path() + "/backup", "there is no such file; if the path is right, and"));
}

TEST_CASE("file: a deleted or replaced one has lost its name, and works as before") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", 1 << 20);
  Bench bench{path};
  CHECK(bench.backend().whereabouts() == Whereabouts::named);
  SUBCASE("deleted") { std::filesystem::remove(path); }
  SUBCASE("replaced") { std::filesystem::rename(folder.file("other", 1 << 20), path); }
  CHECK(bench.backend().whereabouts() == Whereabouts::unnamed);
  CHECK(bench.write(0, pattern(512, 1)) == 0);
  CHECK(bench.flush() == 0);
}

TEST_CASE("file: zeroes are not written where somebody has cut it") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", 1 << 20);
  Bench bench{path};
  std::filesystem::resize_file(path, 4096);
  CHECK(bench.zero(0, 4096, {}) == 0);
  CHECK(bench.zero(0, 8192, {}) == EIO);
  CHECK(bench.zero(65536, 4096, {.no_unmap = true}) == EIO);
}

TEST_CASE("file: a file that was truncated behind our back gives EIO where it ends, not zeroes") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", kSize);
  for (const bool direct : {false, true}) {
    CAPTURE(direct);
    std::filesystem::resize_file(path, kSize);
    Bench bench{path, {.direct = direct}};
    std::filesystem::resize_file(path, kSize / 2);
    Bytes data(8192);
    BackendRequest request;
    request.offset = kSize / 2 - 4096;
    request.length = data.size();
    request.data = data.data();
    CHECK(bench.run(request) == EIO);
    CHECK(bench.read(kSize / 2 - 4096, 4096) == Bytes(4096, std::byte{0}));
  }
}

TEST_CASE("file: what was cut off behind our back is no hole") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", kSize);
  Bench bench{path};
  std::filesystem::resize_file(path, kSize / 2);
  std::uint64_t told = 0;
  for (const BackendExtent& extent : bench.extents(0, kSize)) told += extent.length;
  CHECK(told == kSize / 2);
  BackendRequest request;
  std::vector<BackendExtent> extents;
  request.operation = BackendOperation::extents;
  request.offset = kSize / 2;
  request.length = 4096;
  request.extents = &extents;
  request.max_extents = 8;
  CHECK(bench.run(request) == EIO);
}

TEST_CASE("file: the identity is the file's, whatever its name") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", kSize);
  const auto uuid = must_open(path)->info().uuid;
  std::filesystem::rename(path, path + ".moved");
  CHECK(must_open(path + ".moved")->info().uuid == uuid);
  CHECK(must_open(folder.file("disk", kSize))->info().uuid != uuid);
}

TEST_CASE("file, direct: memory that is not aligned is served all the same") {
  const TemporaryFolder folder;
  Bench bench{folder.file("disk", kSize), {.direct = true}};
  constexpr std::size_t kRequests = 64;  // more than there are bounce buffers
  constexpr std::size_t kLength = 32 * 1024;
  std::vector<Bytes> buffers;
  std::vector<Bytes> expected;
  for (std::size_t i = 0; i < kRequests; ++i) {
    expected.push_back(pattern(kLength, i));
    buffers.emplace_back(1);
    buffers.back().insert(buffers.back().end(), expected[i].begin(), expected[i].end());
  }
  for (const auto operation : {BackendOperation::write, BackendOperation::read}) {
    std::vector<BackendRequest> requests(kRequests);
    for (std::size_t i = 0; i < kRequests; ++i) {
      requests[i].operation = operation;
      requests[i].offset = i * kLength;
      requests[i].length = kLength;
      requests[i].data = buffers[i].data() + 1;
    }
    CHECK(bench.run(requests) == std::vector<int>(kRequests, 0));
    for (std::size_t i = 0; i < kRequests; ++i) {
      CHECK(std::equal(expected[i].begin(), expected[i].end(), buffers[i].begin() + 1));
      if (operation == BackendOperation::write)
        std::fill(buffers[i].begin(), buffers[i].end(), std::byte{0});
    }
  }
  // Longer than a bounce buffer.
  const Bytes large = pattern(1024 * 1024, 99);
  CHECK(bench.write(kSize / 2, large) == 0);
  CHECK(bench.read(kSize / 2, large.size()) == large);
}

}  // namespace rnbd::test::file_test
