// SPDX-License-Identifier: BSD-3-Clause
// Files that become larger while they are open.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::growth_test {

namespace {

constexpr std::uint64_t kSize = 64 * 1024;
constexpr std::uint64_t kLarger = 256 * 1024;

/// A file that is open, and its name.
struct Grown {
  explicit Grown(std::uint64_t size, const BackendOptions& options = {},
                 const std::string& wrapper = "")
      : path{folder.file("disk", size)}, bench{wrapper + path, options} {}

  std::uint64_t after(std::uint64_t size) {
    std::filesystem::resize_file(path, size);
    return bench.backend().present_size();
  }

  TemporaryFolder folder;
  std::string path;
  Bench bench;
};

void check_new_part(const BackendOptions& options) {
  Grown file{kSize, options};
  CHECK(file.bench.backend().present_size() == kSize);
  CHECK(file.after(kLarger) == kLarger);
  CHECK(file.bench.info().size == kSize);
  // Across the old end, with a queue that was open before.
  const Bytes data = pattern(32 * 1024, 5);
  const std::uint64_t offset = kSize - 16 * 1024;
  CHECK(file.bench.write(offset, data) == 0);
  CHECK(file.bench.read(offset, data.size()) == data);
  const Bytes end = pattern(4096, 6);
  CHECK(file.bench.write(kLarger - 4096, end, /*fua=*/true) == 0);
  CHECK(file.bench.read(kLarger - 4096, 4096) == end);
  CHECK(file.bench.zero(offset, data.size(), {}) == 0);
  CHECK(file.bench.read(offset, data.size()) == Bytes(data.size(), std::byte{0}));
  CHECK(std::filesystem::file_size(file.path) == kLarger);
  const auto extents = file.bench.extents(kLarger - 4096, 4096);
  REQUIRE(extents.size() == 1);
  CHECK_FALSE(extents[0].hole);
}

}  // namespace

TEST_CASE("growth: what a file has grown by can be used in every queue") { check_new_part({}); }
TEST_CASE("growth: the same with direct I/O") { check_new_part({.direct = true}); }
TEST_CASE("growth: the same without io_uring") { check_new_part({.use_uring = false}); }

TEST_CASE(
    "growth: of a file that has shrunk it is known how much is left, until it is large again") {
  Grown file{kLarger, {}, "delay:read=0ms:"};
  CHECK_FALSE(file.bench.backend().shrunk_to().has_value());
  CHECK(file.after(kSize) == kLarger);
  CHECK(file.bench.backend().shrunk_to() == kSize);
  CHECK(file.after(kLarger) == kLarger);
  CHECK_FALSE(file.bench.backend().shrunk_to().has_value());
}

TEST_CASE("growth: nobody reaches beyond the end that was looked at last") {
  Grown file{kSize};
  std::filesystem::resize_file(file.path, kLarger);
  std::ofstream{file.path, std::ios::in | std::ios::out}.seekp(kSize) << "behind the end";
  CHECK(file.bench.write(kSize, pattern(4096, 1)) == 0);  // as into the padding: dropped
  CHECK(file.bench.read(kSize, 4096) == Bytes(4096, std::byte{0}));
  REQUIRE(file.bench.backend().present_size() == kLarger);
  CHECK(file.bench.read(kSize, 1) == Bytes(1, std::byte{'b'}));
}

TEST_CASE("growth: a file that shrinks stays as large as it was, and has EIO where it ended") {
  Grown file{kSize};
  CHECK(file.after(4096) == kSize);
  BackendRequest request;
  Bytes data(4096);
  request.length = data.size();
  request.offset = kSize - 4096;
  request.data = data.data();
  CHECK(file.bench.run(request) == EIO);
  CHECK(file.after(kLarger) == kLarger);
  CHECK(file.after(kSize) == kLarger);
}

TEST_CASE("growth: an end inside a block stays where it is") {
  for (const std::uint64_t size : {kSize + 100, kSize - 1}) {
    Grown file{size};
    CHECK(file.after(kLarger) == size);
  }
  Grown odd_later{kSize};
  CHECK(odd_later.after(kSize + 100) == kSize + 100);
  CHECK(odd_later.after(kLarger) == kSize + 100);
  Grown sector{kSize + 512};
  CHECK(sector.after(kLarger) == kLarger);
  // Direct writes and the page cache would meet in one page.
  Grown direct{kSize + 512, {.direct = true}};
  CHECK(direct.after(kLarger) == kSize + 512);
}

TEST_CASE("growth: with direct I/O an odd new end is reached through the page cache") {
  Grown file{kSize, {.direct = true}};
  const std::uint64_t size = kSize + 4096 + 1000;
  CHECK(file.after(size) == size);
  const Bytes data = pattern(4096 + 1000, 3);
  CHECK(file.bench.write(kSize, data) == 0);
  CHECK(file.bench.read(kSize, data.size()) == data);
  CHECK(std::filesystem::file_size(file.path) == size);
}

TEST_CASE("growth: storage that delays or fails grows as what is behind it") {
  Grown delayed{kSize, {}, "delay:write=1us:"};
  CHECK(delayed.after(kLarger) == kLarger);
  Grown faulty{kSize, {}, "fault:write-eio=0:"};
  CHECK(faulty.after(kLarger) == kLarger);
}

TEST_CASE("growth: storage that cannot grow is as large as it was made") {
  for (const char* specification : {"memory:64K", "null:64K"}) {
    CHECK(must_open(specification)->present_size() == kSize);
  }
}

}  // namespace rnbd::test::growth_test
