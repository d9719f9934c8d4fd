#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test {

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

}  // namespace rnbd::test
