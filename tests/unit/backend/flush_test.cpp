// SPDX-License-Identifier: BSD-3-Clause
// Flushes and FUA of files that fail.
#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <iterator>

#include "bridge/backend/file_queue.hpp"
#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::flush_test {

namespace {

constexpr std::uint64_t kSize = 1024 * 1024;

/// A file whose state the test has at hand. It has neither holes nor zero ranges: those are
/// written.
class OpenFile final : public Backend {
 public:
  OpenFile(const std::string& path, bool use_uring) {
    state.path = path;
    state.use_uring = use_uring;
    state.punch_hole = state.zero_range = false;
    state.info.size = kSize;
    state.size = kSize;
    state.fd = rtrs::OwnedFd{open(path.c_str(), O_RDWR | O_CLOEXEC)};
    REQUIRE(state.fd);
  }
  const BackendInfo& info() const override { return state.info; }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) override {
    return std::make_unique<FileQueue>(state, *reactor, take_flush_fd(state));
  }

  FileState state;
};

void check_fua_after_failed_flush(bool use_uring) {
  const TemporaryFolder folder;
  auto file = std::make_unique<OpenFile>(folder.file("disk", kSize), use_uring);
  FileState& state = file->state;
  Bench bench{std::move(file)};
  const Bytes data = pattern(4096, 1);
  CHECK(bench.write(0, data, /*fua=*/true) == 0);
  CHECK(bench.zero(0, 4096, {.fua = true}) == 0);
  CHECK(bench.flush() == 0);
  state.flush_failed = true;
  CHECK(bench.write(0, data, /*fua=*/true) == EIO);
  CHECK(bench.zero(0, 4096, {.fua = true}) == EIO);
  CHECK(bench.flush() == EIO);
  CHECK(bench.write(0, data) == 0);
  CHECK(bench.read(0, data.size()) == data);
}

std::size_t open_descriptors() {
  using Entries = std::filesystem::directory_iterator;
  return static_cast<std::size_t>(std::distance(Entries{"/proc/self/fd"}, Entries{}));
}

}  // namespace

TEST_CASE("file: what flushes need is there with the storage, or the queue is not") {
  const TemporaryFolder folder;
  Bench bench{must_open(folder.file("disk", kSize), {.queues = 1})};
  const Bytes data = pattern(4096, 1);
  rtrs::Reactor other{1};
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const int of_write = bench.write(0, data, /*fua=*/true);
  const int of_flush = bench.flush();
  const bool one_more = bench.backend().open_queue(&other) != nullptr;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(of_write == 0);
  CHECK(of_flush == 0);
  CHECK_FALSE(one_more);
  CHECK(bench.backend().open_queue(&other) != nullptr);
}

TEST_CASE("file: queues that come and go use one descriptor for flushes") {
  const TemporaryFolder folder;
  const auto file = std::make_unique<OpenFile>(folder.file("disk", kSize), /*use_uring=*/false);
  rtrs::Reactor reactor{0};
  std::vector<std::size_t> counts;
  for (unsigned round = 0; round < 3; ++round) {
    const auto queue = file->open_queue(&reactor);
    BackendRequest request;
    request.operation = BackendOperation::flush;
    request.context = &reactor;
    request.done = [](BackendRequest& finished, int error) {
      CHECK(error == 0);
      static_cast<rtrs::Reactor*>(finished.context)->stop();
    };
    reactor.io().restart();
    queue->submit(request);
    reactor.run();
    counts.push_back(open_descriptors());
  }
  CHECK(counts == std::vector<std::size_t>(3, counts.front()));
}

TEST_CASE("file: a flush that failed is never followed by a FUA that succeeds") {
  check_fua_after_failed_flush(/*use_uring=*/true);
}
TEST_CASE("file, threads: a flush that failed is never followed by a FUA that succeeds") {
  check_fua_after_failed_flush(/*use_uring=*/false);
}

}  // namespace rnbd::test::flush_test
