// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

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
  const std::string crashed = journal + ".crashed";
  std::uint32_t life = 0;
  {
    const auto backend = must_open(tier.specification("2M"));
    life = backend->life();
    std::filesystem::copy_file(journal, crashed);
  }
  CHECK(must_open(tier.specification("2M"))->life() == life);
  CHECK(must_open(tier.specification("2M"))->life() == life);
  std::filesystem::rename(crashed, journal);
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
}

TEST_CASE("brick: a tier has one server") {
  const Tier tier{1};
  const auto first = must_open(tier.specification("2M"));
  check_refused(tier.specification("2M"), EBUSY, "another program");
}

}  // namespace rnbd::test::brick_test
