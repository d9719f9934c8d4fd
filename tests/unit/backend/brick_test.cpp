// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>
#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bridge/backend/brick/disk_file.hpp"
#include "bridge/backend/brick/mark.hpp"
#include "tests/unit/backend/bench.hpp"

#ifdef __SANITIZE_THREAD__
/// A brick stores a block while clients write to it, as it does under those that write one-sided:
/// their marks come behind their bytes, and it is stored again.
extern "C" const char* __tsan_default_suppressions() {
  return "race:rnbd::brick::BrickWorker::write_part\n";
}
#endif

namespace rnbd::test::brick_test {
namespace {

constexpr std::uint64_t kBlock = 2 * 1024 * 1024;

/// A tier of `blocks` in a folder that goes with it.
class Tier {
 public:
  explicit Tier(std::uint64_t blocks) : path_{folder_.file("tier", blocks * kBlock)} {}

  const std::string& path() const { return path_; }
  std::string specification(const std::string& memory) const {
    return "brick:" + memory + ",file=" + path_;
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

void check_refused(const std::string& specification, int error, const std::string& says) {
  const auto opened = open_backend(specification, {});
  REQUIRE_FALSE(opened);
  CHECK(opened.error().error == error);
  CHECK(opened.error().text.find(says) != std::string::npos);
}

}  // namespace

TEST_CASE("brick: what is written while the block is stored is stored again") {
  const Tier tier{1};
  Bytes last;
  {
    Bench bench{tier.specification("2M")};
    for (unsigned round = 0; round < 50; ++round) {
      last = pattern(4096, round);
      std::vector<BackendRequest> requests(2);
      requests[0].operation = BackendOperation::flush;
      requests[1].operation = BackendOperation::write;
      requests[1].data = last.data();
      requests[1].length = last.size();
      REQUIRE(bench.run(requests) == std::vector<int>{0, 0});
    }
    REQUIRE(bench.flush() == 0);
  }
  CHECK(Bench{tier.specification("2M")}.read(0, last.size()) == last);
}

TEST_CASE("brick: behaves like a disk") {
  check_conformance({.backend = must_open("brick:4M"), .shows_holes = false});
}

TEST_CASE("brick: behaves like a disk when half of it has room in memory") {
  const Tier tier{4};
  check_conformance({.backend = must_open(tier.specification("4M")), .shows_holes = false});
}

TEST_CASE("brick: what was written is there after the server has ended") {
  const Tier tier{4};
  const Bytes data = pattern(65536, 3);
  {
    Bench bench{tier.specification("2M")};
    CHECK(bench.info().size == 4 * kBlock);
    for (std::uint64_t block = 0; block < 3; ++block)
      REQUIRE(bench.write(block * kBlock + 4096, data) == 0);
    REQUIRE(bench.zero(kBlock, kBlock, {}) == 0);
  }
  Bench bench{tier.specification("2M")};
  CHECK(bench.read(4096, data.size()) == data);
  CHECK(bench.read(2 * kBlock + 4096, data.size()) == data);
  CHECK(bench.read(kBlock + 4096, data.size()) == Bytes(data.size()));
  CHECK(bench.read(3 * kBlock, data.size()) == Bytes(data.size()));
}

TEST_CASE("brick: its life is another one after a crash, and the same after an end") {
  const Tier tier{4};
  const std::string journal = tier.path() + ".brick";
  const std::vector<std::string> files{journal, tier.path()};
  std::uint32_t life = 0;
  {
    const auto backend = must_open(tier.specification("2M"));
    life = backend->life();
    for (const auto& file : files) std::filesystem::copy_file(file, file + ".crashed");
  }
  CHECK(must_open(tier.specification("2M"))->life() == life);
  CHECK(must_open(tier.specification("2M"))->life() == life);
  for (const auto& file : files) std::filesystem::rename(file + ".crashed", file);
  CHECK(must_open(tier.specification("2M"))->life() != life);
}

TEST_CASE("brick: a block that was given back shows zeros when it is there again") {
  const Tier tier{2};
  const Bytes data = pattern(65536, 4);
  Bench bench{tier.specification("2M")};
  REQUIRE(bench.write(0, data) == 0);
  REQUIRE(bench.write(kBlock, data) == 0);
  REQUIRE(bench.zero(0, kBlock, {}) == 0);
  REQUIRE(bench.write(512, Bytes(512, std::byte{1})) == 0);
  CHECK(bench.read(1024, 512) == Bytes(512));
  CHECK(bench.read(kBlock, data.size()) == data);
}

TEST_CASE("brick: specifications that cannot be are refused with advice") {
  const Tier tier{1};
  check_refused("brick:1M", EINVAL, "multiple of 2M");
  check_refused("brick:x", EINVAL, "not a size");
  check_refused("brick:2M,meta=/tmp/x", EINVAL, "file=TIER");
  check_refused("brick:2M,fil=/tmp/x", EINVAL, "no option");
  check_refused("brick:2M,file=/nowhere/tier", ENOENT, "truncate");
  std::ofstream{tier.path() + ".brick"} << "this is no journal";
  check_refused(tier.specification("2M"), EBADMSG, "remove it");
  check_refused("brick:2M,new", EINVAL, "file=TIER");
  check_refused("brick:2M,adopt", EINVAL, "file=TIER");
}

TEST_CASE("brick: a tier with data anywhere gets no new journal unless one says so") {
  const Tier tier{4};
  for (const std::uint64_t at : {std::uint64_t{0}, 3 * kBlock + 12345, 4 * kBlock - 1}) {
    std::filesystem::resize_file(tier.path(), 0);
    std::filesystem::resize_file(tier.path(), 4 * kBlock);
    std::fstream{tier.path(), std::ios::in | std::ios::out}.seekp(static_cast<long>(at)).put('x');
    check_refused(tier.specification("2M"), ENOENT, "its journal is not there");
    CHECK_FALSE(std::filesystem::exists(tier.path() + ".brick"));
  }
  CHECK(Bench{tier.specification("2M,new")}.read(3 * kBlock, 65536) == Bytes(65536));
  check_refused(tier.specification("2M,new"), ENOTEMPTY, "leave 'new' out");
  check_refused(tier.specification("2M,adopt"), ENOTEMPTY, "leave 'adopt' out");
  must_open(tier.specification("2M"));
}

/// The server dies behind the file, or behind the first mark with some of the journal written.
TEST_CASE("brick: a start that died while it made the journal is repeated with the same words") {
  const Tier tier{1};
  const std::string journal = tier.path() + ".brick";
  const auto leave_journal = [&](std::uintmax_t size) {
    std::ofstream{journal, std::ios::trunc};
    std::filesystem::resize_file(journal, size);
  };
  const auto mark = [&] {
    brick::DiskFile file{rtrs::OwnedFd{open(tier.path().c_str(), O_RDWR | O_CLOEXEC)}};
    REQUIRE(brick::write_mark(file, 1, {.uuid = {5}, .version = 1, .to_follow = true}) == 0);
  };
  for (const std::string words : {"2M", "2M,new"}) {
    leave_journal(0);
    must_open(tier.specification(words));
    must_open(tier.specification("2M"));
    for (const std::uintmax_t size : {0, 8192, 20000}) {
      mark();
      leave_journal(size);
      must_open(tier.specification(words));
      must_open(tier.specification("2M"));
    }
  }
  leave_journal(0);
  check_refused(tier.specification("2M"), EBADMSG, "damaged");
  leave_journal(8192);
  check_refused(tier.specification("2M,new"), EBADMSG, "damaged");
  mark();
  std::filesystem::remove(journal);
  check_refused(tier.specification("2M"), ENOENT, "its journal is not there");
}

TEST_CASE("brick: 'new' with a journal that cannot be made leaves the mark of the tier") {
  const Tier tier{1};
  must_open(tier.specification("2M"));
  check_refused(tier.specification("2M,new,meta=/nowhere/journal"), ENOENT, "make its directory");
  must_open(tier.specification("2M"));
}

TEST_CASE("brick: a tier has one server") {
  const Tier tier{1};
  const auto first = must_open(tier.specification("2M"));
  check_refused(tier.specification("2M"), EBUSY, "another program");
}

}  // namespace rnbd::test::brick_test
