// SPDX-License-Identifier: BSD-3-Clause
// Flushes and FUA of files: which way they take, and what becomes of them when they fail.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <utility>

#include "bridge/backend/file_queue.hpp"
#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::flush_test {

namespace {

constexpr std::uint64_t kSize = 1024 * 1024;

/// Durable writes that threads make. What io_uring does is not seen here.
struct OnThreads {
  /// Lets each wait until so many are under way.
  void gather(unsigned count) {
    const std::lock_guard lock{mutex};
    awaited = count;
    together = true;
  }
  void enter() {
    std::unique_lock lock{mutex};
    if (++entered >= awaited) changed.notify_all();
    together = changed.wait_for(lock, std::chrono::seconds{20}, [this] {
      return entered >= awaited;
    }) && together;
  }

  std::mutex mutex;
  std::condition_variable changed;
  unsigned entered = 0, awaited = 0;
  bool together = true;
  bool fail_next = false;
};
std::atomic<OnThreads*> on_threads = nullptr;

/// Watches while it is there.
struct Watch : OnThreads {
  Watch() { on_threads = this; }
  ~Watch() { on_threads = nullptr; }
};

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
  /// Lets every flush of the next queue fail: with a pipe in the place of the file.
  void fail_flushes() {
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    close(ends[1]);
    give_back(state, rtrs::OwnedFd{ends[0]});
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

std::vector<BackendRequest> durable_writes(Bytes& data, unsigned count) {
  std::vector<BackendRequest> requests(count);
  const std::size_t length = data.size() / count;
  for (unsigned i = 0; i < count; ++i) {
    requests[i].operation = BackendOperation::write;
    requests[i].offset = i * length;
    requests[i].length = length;
    requests[i].data = data.data() + i * length;
    requests[i].fua = true;
  }
  return requests;
}

void check_failed_fua(bool use_uring) {
  const TemporaryFolder folder;
  auto file = std::make_unique<OpenFile>(folder.file("disk", kSize), use_uring);
  file->fail_flushes();
  FileState& state = file->state;
  Bench bench{std::move(file)};
  Watch watch;
  const Bytes data = pattern(4096, 1);
  CHECK(bench.write(0, data, /*fua=*/true) == 0);
  CHECK_FALSE(state.flush_failed);
  watch.fail_next = true;
  CHECK(bench.write(0, data, /*fua=*/true) == ENOSPC);
  CHECK(state.flush_failed);
  CHECK(bench.write(0, data, /*fua=*/true) == EIO);
  CHECK(bench.zero(0, 4096, {.fua = true}) == EIO);
  CHECK(bench.flush() == EIO);
  CHECK(watch.entered == 4);
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

TEST_CASE("file: durable writes to the page cache do not wait for each other") {
  const TemporaryFolder folder;
  auto file = std::make_unique<OpenFile>(folder.file("disk", kSize), /*use_uring=*/true);
  Bench bench{std::move(file)};
  Watch watch;
  watch.gather(8);
  Bytes data = pattern(64 * 1024, 1);
  auto requests = durable_writes(data, 8);
  CHECK(bench.run(requests) == std::vector<int>(8, 0));
  CHECK(watch.entered == 8);
  CHECK(watch.together);
  CHECK(bench.read(0, data.size()) == data);
}

TEST_CASE("file, direct: durable writes stay with io_uring, but for what the page cache gets") {
  const TemporaryFolder folder;
  Bench bench{must_open(folder.file("disk", kSize + 100), {.direct = true})};
  if (make_uring_engine(bench.reactor()) == nullptr) return;
  Watch watch;
  CHECK(bench.write(0, pattern(kSize, 1), /*fua=*/true) == 0);
  CHECK(watch.entered == 0);
  CHECK(bench.write(kSize, pattern(512, 1), /*fua=*/true) == 0);
  CHECK(watch.entered == 1);
}

TEST_CASE("file: a FUA that failed and whose flush fails lets no later one succeed") {
  check_failed_fua(/*use_uring=*/true);
}
TEST_CASE("file, threads: a FUA that failed and whose flush fails lets no later one succeed") {
  check_failed_fua(/*use_uring=*/false);
}

TEST_CASE("file: a flush that failed is never followed by a FUA that succeeds") {
  check_fua_after_failed_flush(/*use_uring=*/true);
}
TEST_CASE("file, threads: a flush that failed is never followed by a FUA that succeeds") {
  check_fua_after_failed_flush(/*use_uring=*/false);
}

}  // namespace rnbd::test::flush_test

// In the place of the C library's.
extern "C" ssize_t pwritev2(int fd, const iovec* vectors, int count, off_t offset, int flags) {
  using namespace rnbd::test::flush_test;
  static const auto real = reinterpret_cast<decltype(&pwritev2)>(dlsym(RTLD_NEXT, "pwritev2"));
  OnThreads* const watching = on_threads;
  if (watching != nullptr && (flags & RWF_DSYNC) != 0) {
    watching->enter();
    if (std::exchange(watching->fail_next, false)) {
      errno = ENOSPC;
      return -1;
    }
  }
  return real(fd, vectors, count, offset, flags);
}
