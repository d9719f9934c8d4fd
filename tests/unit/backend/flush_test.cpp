// SPDX-License-Identifier: BSD-3-Clause
// Flushes and FUA of files: which way they take, and what becomes of them when they fail.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
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
#include <set>
#include <thread>
#include <utility>

#include "bridge/backend/file_queue.hpp"
#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::flush_test {

namespace {

constexpr std::uint64_t kSize = 1024 * 1024;

/// Counts the durable writes that threads make. It does not see those of io_uring.
struct OnThreads {
  /// Lets each wait until so many are under way.
  void gather(unsigned count) {
    const std::lock_guard lock{mutex};
    awaited = count;
    together = true;
  }
  void enter(int fd) {
    struct stat status {};
    if (fstat(fd, &status) == 0 && status.st_ino == passes) return;
    std::unique_lock lock{mutex};
    ++entered;
    changed.notify_all();
    await(lock, [this] { return entered >= awaited; });
  }
  /// Lets those that hang go on.
  void release() {
    const std::lock_guard lock{mutex};
    awaited = 0;
    changed.notify_all();
  }
  /// How many are under way, once there are so many.
  unsigned await_entered(unsigned count) {
    std::unique_lock lock{mutex};
    await(lock, [this, count] { return entered >= count; });
    return entered;
  }
  /// The disk loses all that is written, and each open file is told so once.
  bool is_told(int fd) {
    const std::lock_guard lock{mutex};
    return loses && told.insert(fd).second;
  }

  std::mutex mutex;
  std::condition_variable changed;
  unsigned entered = 0, awaited = 0;
  bool together = true;  ///< none has waited in vain
  ino_t passes = 0;      ///< of the file whose writes are not waited for, nor counted
  std::atomic<bool> fail_next = false;
  bool loses = false;
  std::set<int> told;

 private:
  template <class Condition>
  void await(std::unique_lock<std::mutex>& lock, Condition condition) {
    if (changed.wait_for(lock, std::chrono::seconds{20}, condition)) return;
    together = false;
    awaited = 0;
    changed.notify_all();
  }
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

void check_lost_together(bool use_uring) {
  const TemporaryFolder folder;
  Bench bench{std::make_unique<OpenFile>(folder.file("disk", kSize), use_uring)};
  Watch watch;
  watch.gather(2);
  watch.loses = true;
  Bytes data = pattern(8192, 1);
  auto requests = durable_writes(data, 2);
  CHECK(bench.run(requests) == std::vector<int>(2, EIO));
  CHECK(watch.entered == 2);
  CHECK(watch.together);
}

/// Durable writes to some files, which hang while this is there.
class Hanging {
 public:
  Hanging(const TemporaryFolder& folder, Watch& watch, unsigned files, unsigned writes)
      : watch_{watch} {
    watch_.gather(files * writes + 1);
    for (unsigned i = 0; i < files; ++i) {
      threads_.emplace_back([path = folder.file("hangs" + std::to_string(i), kSize), writes] {
        Bench bench{std::make_unique<OpenFile>(path, /*use_uring=*/true)};
        Bytes data = pattern(4096 * writes, 1);
        auto requests = durable_writes(data, writes);
        CHECK(bench.run(requests) == std::vector<int>(writes, 0));
        CHECK(bench.read(0, data.size()) == data);
      });
    }
  }
  Hanging(const Hanging&) = delete;
  Hanging& operator=(const Hanging&) = delete;
  ~Hanging() {
    watch_.release();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  Watch& watch_;
  std::vector<std::thread> threads_;
};

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
  watch.gather(4);
  Bytes data = pattern(64 * 1024, 1);
  auto requests = durable_writes(data, 4);
  CHECK(bench.run(requests) == std::vector<int>(4, 0));
  CHECK(watch.entered == 4);
  CHECK(watch.together);
  CHECK(bench.read(0, data.size()) == data);
}

TEST_CASE("file: durable writes that a disk loses together fail together") {
  check_lost_together(/*use_uring=*/true);
}
TEST_CASE("file, threads: durable writes that a disk loses together fail together") {
  check_lost_together(/*use_uring=*/false);
}

TEST_CASE("file: durable writes that hang keep no thread from other files") {
  const TemporaryFolder folder;
  const std::string path = folder.file("disk", kSize);
  Bench other{must_open(path)};
  struct stat status {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  if (make_uring_engine(other.reactor()) == nullptr) return;
  const Bytes data = pattern(4096, 1);
  for (const unsigned files : {1U, 6U}) {
    Watch watch;
    watch.passes = status.st_ino;
    const Hanging hanging{folder, watch, files, /*writes=*/32};
    const unsigned held = files == 1 ? 4 : 12;
    watch.await_entered(held);
    CHECK(other.write(0, data, /*fua=*/true) == 0);
    CHECK(other.flush() == 0);
    CHECK_FALSE(other.extents(0, kSize).empty());  // made on a thread, always
    CHECK(watch.await_entered(held) == held);
    CHECK(watch.together);
  }
}

TEST_CASE("file: durable writes for which no open file is left succeed with a flush, and fail so") {
  for (const bool fails : {false, true}) {
    const TemporaryFolder folder;
    auto file = std::make_unique<OpenFile>(folder.file("disk", kSize), /*use_uring=*/true);
    if (fails) file->fail_flushes();
    FileState& state = file->state;
    for (LentFile& lent : state.lent_files) lent.taken = true;
    Bench bench{std::move(file)};
    Watch watch;
    const Bytes data = pattern(4096, 1);
    CHECK((bench.write(0, data, /*fua=*/true) != 0) == fails);
    CHECK((bench.zero(4096, 4096, {.fua = true}) != 0) == fails);
    CHECK(state.flush_failed == fails);
    CHECK(bench.read(0, data.size()) == data);
    CHECK(watch.entered == 0);
  }
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
    watching->enter(fd);
    if (watching->fail_next.exchange(false)) {
      errno = ENOSPC;
      return -1;
    }
    if (watching->is_told(fd)) {
      errno = EIO;
      return -1;
    }
  }
  return real(fd, vectors, count, offset, flags);
}
