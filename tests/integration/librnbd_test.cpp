// SPDX-License-Identifier: BSD-3-Clause
// Disks through librnbd, as a program has them that knows nothing but rnbd.h; librnbd.sh runs it.
// RNBD_URI names a disk of 64 MiB, RNBD_SLOW_URI one whose requests take a second, and the script
// says what else a case needs.
#include <doctest/doctest.h>
#include <poll.h>
#include <rnbd.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {
std::atomic<unsigned long> allocated{0};
thread_local long fails_after = -1;  ///< allocations of this thread; negative: none fails
}  // namespace

#ifndef RNBD_SANITIZED
void* operator new(std::size_t size) {
  ++allocated;
  if (fails_after == 0) throw std::bad_alloc{};
  if (fails_after > 0) --fails_after;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc{};
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace librnbd_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<unsigned char>;

constexpr std::uint64_t kSize = 64 << 20;
constexpr std::uint64_t kBlock = 4096;

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  REQUIRE_MESSAGE(text != nullptr, name);  // it is not set
  return text;
}

struct Close {
  void operator()(rnbd_disk* disk) const { rnbd_close(disk); }
};
using Disk = std::unique_ptr<rnbd_disk, Close>;

std::atomic<unsigned> warnings{0};
void count(void*, rnbd_log_level level, const char* line) {
  if (level < RNBD_WARNING) return;
  ++warnings;
  std::fprintf(stderr, "%s\n", line);
}

Disk open_disk(const std::string& uri, std::vector<const char*> settings = {}, unsigned depth = 0) {
  settings.push_back(nullptr);
  rnbd_options options{};
  options.size = sizeof(options);
  options.settings = settings.data();
  options.depth = depth;
  options.log = count;
  rnbd_error error{};
  Disk disk{rnbd_open(uri.c_str(), &options, &error)};
  REQUIRE_MESSAGE(disk, error.text);
  return disk;
}
Disk open_disk() { return open_disk(variable("RNBD_URI")); }

int refused(const char* uri, const rnbd_options* options, const char* words) {
  rnbd_error error{};
  errno = 0;
  Disk disk{rnbd_open(uri, options, &error)};
  CHECK_FALSE(disk);
  CHECK(errno == error.code);
  CHECK_MESSAGE(std::strstr(error.text, words) != nullptr, error.text);
  return error.code;
}

rnbd_request request(std::uint32_t operation, std::uint64_t offset, std::uint64_t length,
                     void* data = nullptr, std::uint32_t flags = 0, std::uint64_t cookie = 7) {
  return {operation, flags, offset, length, data, cookie, 0};
}

rnbd_end end_of(rnbd_disk* disk, int timeout = 60'000) {
  rnbd_end end{0, -1, 0};
  CHECK(rnbd_reap(disk, &end, 1, timeout) == 1);
  return end;
}

Disk open_beside(rnbd_disk* disk) {
  rnbd_error error{};
  Disk beside{rnbd_open_beside(disk, &error)};
  REQUIRE_MESSAGE(beside, error.text);
  return beside;
}

/// The times that an obedient loop finds the descriptor readable, while it has nothing to do.
unsigned turns_of(rnbd_disk* disk, std::chrono::milliseconds time) {
  pollfd polled{rnbd_fd(disk), POLLIN, 0};
  unsigned turns = 0;
  for (const auto until = Clock::now() + time; Clock::now() < until;) {
    if (::poll(&polled, 1, 50) != 1) continue;
    ++turns;
    rnbd_end end{};
    while (rnbd_reap(disk, &end, 1, 0) > 0) {
    }
  }
  return turns;
}

/// Runs one request to its end.
int run(rnbd_disk* disk, const rnbd_request& one) {
  REQUIRE(rnbd_submit(disk, &one, 1) == 1);
  const rnbd_end end = end_of(disk);
  CHECK(end.cookie == one.cookie);
  return end.error;
}

Bytes random_bytes(std::size_t size) {
  static std::mt19937 random{1};
  Bytes bytes(size);
  for (auto& each : bytes) each = static_cast<unsigned char>(random());
  return bytes;
}

TEST_CASE("a disk is what its server says") {
  const Disk disk = open_disk();
  rnbd_info info{};
  info.size = sizeof(info);
  REQUIRE(rnbd_describe(disk.get(), &info) == 0);
  CHECK(info.bytes == kSize);
  CHECK(info.block == 512);
  CHECK(info.preferred >= 4096);
  CHECK(info.depth == 256);
  CHECK(info.max_request >= 65536);
  CHECK(std::string{info.name} == "disk0");
  CHECK((info.abilities & RNBD_CAN_CHANGE) != 0);
  CHECK((info.abilities & RNBD_CAN_FUA) != 0);
  CHECK(rnbd_describe(disk.get(), nullptr) == EINVAL);
  CHECK(std::string{rnbd_version()}.find('.') != std::string::npos);
  CHECK(std::string{rnbd_strerror(ENOSPC)}.size() > 5);
}

TEST_CASE("what is written, zeroed and discarded is read back so") {
  const Disk disk = open_disk();
  for (const std::uint64_t size : {std::uint64_t{512}, kBlock, std::uint64_t{5} << 20}) {
    Bytes data = random_bytes(size);
    Bytes found(size);
    CHECK(run(disk.get(), request(RNBD_WRITE, 1 << 20, size, data.data(), RNBD_FUA)) == 0);
    CHECK(run(disk.get(), request(RNBD_READ, 1 << 20, size, found.data())) == 0);
    CHECK(found == data);
  }
  Bytes found(2 * kBlock, 1);
  CHECK(run(disk.get(), request(RNBD_WRITE_ZEROES, 1 << 20, kBlock, nullptr, RNBD_KEEP)) == 0);
  CHECK(run(disk.get(), request(RNBD_DISCARD, (1 << 20) + kBlock, kBlock)) == 0);
  CHECK(run(disk.get(), request(RNBD_FLUSH, 0, 0)) == 0);
  CHECK(run(disk.get(), request(RNBD_READ, 1 << 20, 2 * kBlock, found.data())) == 0);
  CHECK(found == Bytes(2 * kBlock, 0));
}

TEST_CASE("parts of blocks are changed, and what is beside them stays") {
  const Disk disk = open_disk();
  Bytes data = random_bytes(4 * kBlock);
  CHECK(run(disk.get(), request(RNBD_WRITE, 0, data.size(), data.data())) == 0);
  Bytes part(1000, 'x');
  std::vector<rnbd_request> many;
  for (std::uint64_t i = 0; i < 16; ++i)  // all at once, several in a block
    many.push_back(request(RNBD_WRITE, 100 + i * 1000, 1000, part.data(), 0, i));
  REQUIRE(rnbd_submit(disk.get(), many.data(), 16) == 16);
  for (int i = 0; i < 16; ++i) CHECK(end_of(disk.get()).error == 0);
  Bytes found(data.size() - 3);
  CHECK(run(disk.get(), request(RNBD_READ, 3, found.size(), found.data())) == 0);
  std::fill(data.begin() + 100, data.begin() + 16'100, 'x');
  CHECK(std::equal(found.begin(), found.end(), data.begin() + 3));
  CHECK(run(disk.get(), request(RNBD_READ, kSize, 0, nullptr)) == 0);
}

TEST_CASE("a request that is wrong ends with an errno, and the next one is done") {
  const Disk disk = open_disk();
  Bytes data(kBlock);
  const auto fails = [&](const rnbd_request& wrong) { return run(disk.get(), wrong) == EINVAL; };
  for (const std::uint64_t offset : {kSize, kSize - 512, kSize + kBlock, UINT64_MAX - 511}) {
    CHECK(fails(request(RNBD_READ, offset, kBlock, data.data())));
    CHECK(fails(request(RNBD_WRITE, offset, kBlock, data.data())));
    CHECK(fails(request(RNBD_DISCARD, offset, kBlock)));
    CHECK(fails(request(RNBD_WRITE_ZEROES, offset, kBlock)));
    CHECK(fails(request(RNBD_WRITE, offset + 1, kBlock, data.data())));
  }
  CHECK(fails(request(RNBD_READ, 0, UINT64_MAX, data.data())));
  CHECK(fails(request(RNBD_READ, 0, kBlock, nullptr)));
  CHECK(fails(request(RNBD_DISCARD, 0, kBlock, data.data())));
  CHECK(fails(request(RNBD_FLUSH, kBlock, 0)));
  CHECK(fails(request(RNBD_FLUSH, 0, 0, data.data())));
  CHECK(fails(request(RNBD_LOOK, 0, 0, nullptr, RNBD_FUA)));
  CHECK(fails(request(RNBD_READ, 0, kBlock, data.data(), RNBD_FUA)));
  CHECK(fails(request(RNBD_WRITE, 0, kBlock, data.data(), RNBD_KEEP)));
  CHECK(fails(request(RNBD_WRITE, 0, kBlock, data.data(), 1U << 30)));
  CHECK(fails(request(99, 0, kBlock, data.data())));
  rnbd_request reserved = request(RNBD_READ, 0, kBlock, data.data());
  reserved.reserved = 1;
  CHECK(fails(reserved));
  CHECK(run(disk.get(), request(RNBD_READ, 0, kBlock, data.data())) == 0);
  CHECK(rnbd_pending(disk.get()) == 0);
}

TEST_CASE("a call that is wrong is refused") {
  const std::string uri = variable("RNBD_URI");
  rnbd_options options{};
  CHECK(refused(uri.c_str(), &options, "sizeof") == EINVAL);
  options.size = sizeof(options);
  options.depth = 5000;
  CHECK(refused(uri.c_str(), &options, "depth is at most 4096") == EINVAL);
  options.depth = 0;
  const char* settings[] = {"heartbeat", nullptr};
  options.settings = settings;
  CHECK(refused(uri.c_str(), &options, "KEY=VALUE") == EINVAL);
  settings[0] = "hartbeat=1s";
  CHECK(refused(uri.c_str(), &options, "did you mean 'heartbeat'") == EINVAL);
  settings[0] = "dynamic-export=true";
  CHECK(refused(uri.c_str(), &options, "name the disk") == EINVAL);
  CHECK(refused(nullptr, nullptr, "is not a URI") == EINVAL);
  CHECK(refused((uri + "x").c_str(), nullptr, "cannot open") == ENOENT);
  CHECK(rnbd_open("", nullptr, nullptr) == nullptr);

  const Disk disk = open_disk();
  rnbd_request one = request(RNBD_FLUSH, 0, 0);
  rnbd_end end{};
  CHECK(rnbd_submit(nullptr, &one, 1) == -1);
  CHECK(errno == EINVAL);
  CHECK(rnbd_submit(disk.get(), nullptr, 1) == -1);
  CHECK(rnbd_submit(disk.get(), &one, -1) == -1);
  CHECK(rnbd_submit(disk.get(), nullptr, 0) == 0);
  CHECK(rnbd_reap(nullptr, &end, 1, 0) == -1);
  CHECK(rnbd_reap(disk.get(), nullptr, 1, 0) == -1);
  CHECK(rnbd_reap(disk.get(), &end, -1, 0) == -1);
  CHECK(rnbd_reap(disk.get(), &end, 1, -1) == 0);  // nothing is under way
  CHECK(rnbd_describe(nullptr, nullptr) == EINVAL);
  CHECK(rnbd_fd(nullptr) == -1);
  CHECK(rnbd_open_beside(nullptr, nullptr) == nullptr);
  CHECK(rnbd_pending(nullptr) == 0);
  rnbd_close(nullptr);
}

TEST_CASE("a reader changes nothing, and neither does a second client of a writer") {
  const Disk reader = open_disk(variable("RNBD_URI"), {"access=ro"});
  rnbd_info info{};
  info.size = sizeof(info);
  REQUIRE(rnbd_describe(reader.get(), &info) == 0);
  CHECK((info.abilities & (RNBD_CAN_CHANGE | RNBD_CAN_FUA | RNBD_CAN_DISCARD)) == 0);
  Bytes data(kBlock);
  for (const std::uint32_t change : {RNBD_WRITE, RNBD_DISCARD, RNBD_WRITE_ZEROES})
    CHECK(run(reader.get(),
              request(change, 0, kBlock, change == RNBD_WRITE ? data.data() : nullptr)) == EROFS);
  CHECK(run(reader.get(), request(RNBD_WRITE, 1, 1, data.data())) == EROFS);
  CHECK(run(reader.get(), request(RNBD_READ, 0, kBlock, data.data())) == 0);

  const Disk one = open_disk();
  const Disk two = open_disk();
  CHECK(run(one.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == 0);
  const int error = run(two.get(), request(RNBD_WRITE, 0, kBlock, data.data()));
  CHECK((error == EPERM || error == ESTALE));
  CHECK(run(two.get(), request(RNBD_READ, 0, kBlock, data.data())) == 0);
}

TEST_CASE("a program that never reaps is stopped at the depth of the disk") {
  const Disk disk = open_disk(variable("RNBD_URI"), {}, 8);
  Bytes data(20 * kBlock);
  std::vector<rnbd_request> many;
  for (std::uint64_t i = 0; i < 20; ++i)
    many.push_back(request(RNBD_READ, i * kBlock, kBlock, data.data() + i * kBlock, 0, i));
  CHECK(rnbd_submit(disk.get(), many.data(), 20) == 8);
  CHECK(rnbd_submit(disk.get(), many.data() + 8, 12) == -1);
  CHECK(errno == EAGAIN);
  std::this_thread::sleep_for(100ms);
  CHECK(rnbd_submit(disk.get(), many.data() + 8, 12) == -1);  // ended, but not reaped
  CHECK(rnbd_pending(disk.get()) == 8);
  for (int i = 0; i < 3; ++i) CHECK(end_of(disk.get()).error == 0);
  CHECK(rnbd_submit(disk.get(), many.data() + 8, 12) == 3);
  CHECK(rnbd_pending(disk.get()) == 8);
}

TEST_CASE("a disk that is closed gives the memory of its requests back") {
  for (const bool whole : {true, false}) {
    Disk disk = open_disk(variable("RNBD_SLOW_URI"));
    auto data = std::make_unique<Bytes>(32 * kBlock);
    std::vector<rnbd_request> many;
    for (std::uint64_t i = 0; i < 32; ++i)
      many.push_back(request(i % 2 == 0 ? RNBD_READ : RNBD_WRITE, i * kBlock + (whole ? 0 : 1),
                             whole ? kBlock : 100, data->data() + i * kBlock, 0, i));
    REQUIRE(rnbd_submit(disk.get(), many.data(), 32) == 32);
    const auto began = Clock::now();
    disk.reset();
    data.reset();  // a sanitizer tells who writes there
    CHECK(Clock::now() - began < 8s);
    std::this_thread::sleep_for(1500ms);
  }
}

TEST_CASE("in a child of fork() every function refuses, and the parent goes on") {
  const Disk disk = open_disk();
  Bytes data(kBlock);
  rnbd_request one = request(RNBD_READ, 0, kBlock, data.data());
  REQUIRE(rnbd_submit(disk.get(), &one, 1) == 1);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    rnbd_end end{};
    rnbd_info info{};
    info.size = sizeof(info);
    errno = 0;
    bool right = rnbd_submit(disk.get(), &one, 1) == -1 && errno == RNBD_FORKED;
    right = right && rnbd_reap(disk.get(), &end, 1, -1) == -1 && errno == RNBD_FORKED;
    right = right && rnbd_describe(disk.get(), &info) == RNBD_FORKED &&
            rnbd_run(disk.get(), &one) == RNBD_FORKED;
    right = right && rnbd_fd(disk.get()) == -1 && rnbd_open_beside(disk.get(), nullptr) == nullptr;
    rnbd_close(disk.get());
    // It may have one of its own.
    Disk own{rnbd_open(std::getenv("RNBD_URI"), nullptr, nullptr)};
    right = right && own && rnbd_submit(own.get(), &one, 1) == 1 &&
            rnbd_reap(own.get(), &end, 1, -1) == 1 && end.error == 0;
    own.reset();
    _exit(right ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(end_of(disk.get()).error == 0);
  CHECK(run(disk.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == 0);
}

TEST_CASE("a loop of the program waits for the disk's descriptor") {
  const Disk disk = open_disk();
  const int fd = rnbd_fd(disk.get());
  REQUIRE(fd >= 0);
  CHECK(rnbd_fd(disk.get()) == fd);
  std::vector<Bytes> data(32, Bytes(kBlock));
  pollfd polled{fd, POLLIN, 0};
  CHECK(::poll(&polled, 1, 0) == 0);
  unsigned begun = 0;
  const auto submit = [&](unsigned index) {
    const bool part = begun % 50 == 7;  // a thread of the library has it
    const rnbd_request one = request(begun % 3 == 0 ? RNBD_WRITE : RNBD_READ, index * kBlock + part,
                                     part ? 77 : kBlock, data[index].data(), 0, index);
    ++begun;
    CHECK(rnbd_submit(disk.get(), &one, 1) == 1);
  };
  for (unsigned i = 0; i < 32; ++i) submit(i);
  int left = 32;
  while (left > 0) {
    REQUIRE(::poll(&polled, 1, 10'000) == 1);
    rnbd_end ends[5];
    int count = 0;
    while ((count = rnbd_reap(disk.get(), ends, 5, 0)) > 0) {
      for (int i = 0; i < count; ++i) {
        CHECK(ends[i].error == 0);
        begun < 3000 ? submit(static_cast<unsigned>(ends[i].cookie)) : void(--left);
      }
    }
  }
  CHECK(::poll(&polled, 1, 20) == 0);
  // An end that comes at once makes it readable, too.
  const rnbd_request wrong = request(RNBD_READ, kSize, kBlock, data[0].data());
  CHECK(rnbd_submit(disk.get(), &wrong, 1) == 1);
  CHECK(::poll(&polled, 1, 0) == 1);
  CHECK(end_of(disk.get()).error == EINVAL);
  CHECK(::poll(&polled, 1, 0) == 0);
}

TEST_CASE("the descriptor of a disk at rest is not readable") {
  const Disk disk = open_disk(variable("RNBD_URI"), {"heartbeat=200ms"});
  Bytes data(kBlock);
  REQUIRE(rnbd_fd(disk.get()) >= 0);
  for (const std::uint32_t operation : {RNBD_READ, RNBD_WRITE}) {
    for (const std::uint64_t offset : {0, 1}) {  // a part of a block is another thread's
      const rnbd_request one = request(operation, offset, kBlock, data.data());
      REQUIRE(rnbd_submit(disk.get(), &one, 1) == 1);
      std::this_thread::sleep_for(700ms);  // the background receives meanwhile
      CHECK(end_of(disk.get()).error == 0);
      CHECK(turns_of(disk.get(), 500ms) < 20);
      pollfd polled{rnbd_fd(disk.get()), POLLIN, 0};
      CHECK(::poll(&polled, 1, 0) == 0);
    }
  }
}

TEST_CASE("parts of blocks wait for no heartbeat beside a disk that nobody uses") {
  // A write that waits for a heartbeat takes 10 s, and all of them hours.
  const Disk idle = open_disk(variable("RNBD_URI"), {"lanes=2", "heartbeat=10s"});
  Bytes data(100);
  CHECK(run(idle.get(), request(RNBD_WRITE, 1, 100, data.data())) == 0);
  const Disk disk = open_beside(idle.get());
  for (std::uint64_t i = 0; i < 400; ++i)
    CHECK(run(disk.get(), request(RNBD_WRITE, i * kBlock + 1, 100, data.data())) == 0);
}

TEST_CASE("a write waits for no other thread to reap") {
  Bytes data(kBlock);
  for (const bool early : {true, false}) {
    const Disk one = open_disk(variable("RNBD_URI"), {"lanes=2", "heartbeat=200ms"});
    CHECK(run(one.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == 0);
    Disk two = early ? open_beside(one.get()) : nullptr;
    const rnbd_request write = request(RNBD_WRITE, early ? 1 << 20 : 0, kBlock, data.data());
    REQUIRE(rnbd_submit(one.get(), &write, 1) == 1);
    if (!two) two = open_beside(one.get());
    std::atomic<bool> done{false};
    std::thread other{[&] {
      const rnbd_request same = request(RNBD_WRITE, 1 << 20, kBlock, data.data());
      CHECK(rnbd_run(two.get(), &same) == 0);
      done = true;
    }};
    for (const auto until = Clock::now() + 3s; !done && Clock::now() < until;)
      std::this_thread::sleep_for(10ms);
    CHECK(done);
    CHECK(end_of(one.get()).error == 0);
    other.join();
  }
}

TEST_CASE("a disk is closed while its neighbour waits for storage") {
  Disk one = open_disk(variable("RNBD_SLOWER_URI"), {"lanes=2"});
  Bytes data(kBlock);
  CHECK(run(one.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == 0);
  Disk two = open_beside(one.get());
  std::vector<rnbd_request> many;
  for (std::uint64_t i = 0; i < 17; ++i)
    many.push_back(request(RNBD_READ, i * kBlock + 1, 100, data.data() + i * 100, 0, i));
  REQUIRE(rnbd_submit(one.get(), many.data(), 17) == 17);
  std::this_thread::sleep_for(200ms);
  const rnbd_request part = request(RNBD_READ, 1, 100, data.data() + 2000);
  REQUIRE(rnbd_submit(two.get(), &part, 1) == 1);
  std::this_thread::sleep_for(200ms);
  two.reset();
  rnbd_end end{};
  CHECK(rnbd_reap(one.get(), &end, 1, 0) == 0);  // so nobody has waited for the storage
}

TEST_CASE("memory that lacks is told with an errno") {
#ifndef RNBD_SANITIZED
  const Disk disk = open_disk(variable("RNBD_URI"), {"lanes=2"});
  Bytes data(kBlock);
  const rnbd_request one = request(RNBD_READ, 0, kBlock, data.data());
  REQUIRE(rnbd_submit(disk.get(), &one, 1) == 1);
  rnbd_end end{};
  const auto without_memory = [](auto call) {
    fails_after = 0;
    const auto result = call();
    fails_after = -1;
    return result;
  };
  std::this_thread::sleep_for(50ms);
  CHECK(without_memory([&] { return rnbd_reap(disk.get(), &end, 1, 5); }) >= 0);
  if (rnbd_pending(disk.get()) != 0) CHECK(end_of(disk.get()).error == 0);
  const rnbd_request part = request(RNBD_READ, 1, 100, data.data());
  CHECK(without_memory([&] { return rnbd_run(disk.get(), &part); }) == ENOMEM);
  CHECK(without_memory([&] { return rnbd_fd(disk.get()); }) >= 0);
  CHECK(turns_of(disk.get(), 300ms) < 20);
  CHECK(run(disk.get(), part) == 0);
  // A lane is not lost with the disk that did not open.
  Disk beside;
  int failed = 0;
  for (long after = 0; !beside && after < 1000; ++after) {
    fails_after = after;
    beside.reset(rnbd_open_beside(disk.get(), nullptr));
    fails_after = -1;
    if (beside) break;
    CHECK(errno == ENOMEM);
    ++failed;
  }
  CHECK(failed > 0);
  CHECK(beside);
#endif
}

TEST_CASE("a program of another version has the members that both know") {
  const Disk disk = open_disk();
  struct Newer {
    rnbd_info info;
    unsigned char more[64];
  } newer;
  std::memset(&newer, 0xff, sizeof(newer));
  newer.info.size = sizeof(newer);
  REQUIRE(rnbd_describe(disk.get(), &newer.info) == 0);
  CHECK(newer.info.bytes == kSize);
  CHECK(newer.info.size == sizeof(newer));
  for (const unsigned char each : newer.more) CHECK(each == 0);
  static_assert(sizeof(rnbd_options) == offsetof(rnbd_options, log_context) + sizeof(void*));
  static_assert(offsetof(rnbd_options, log) ==
                offsetof(rnbd_options, reserved) + sizeof(rnbd_options::reserved));
  static_assert(sizeof(rnbd_info) == offsetof(rnbd_info, reserved) + sizeof(rnbd_info::reserved));
  rnbd_options options{};
  options.size = sizeof(options);
  options.reserved = 1;
  CHECK(refused(variable("RNBD_URI").c_str(), &options, "0") == EINVAL);
}

TEST_CASE("threads with a disk each share a session, and write both") {
  Disk one = open_disk(variable("RNBD_URI"), {"lanes=2"});
  rnbd_error error{};
  Disk two{rnbd_open_beside(one.get(), &error)};
  REQUIRE_MESSAGE(two, error.text);
  CHECK(rnbd_open_beside(one.get(), &error) == nullptr);
  CHECK(error.code == ENOSPC);
  std::atomic<int> wrong{0};
  const auto write = [&](rnbd_disk* disk, unsigned parity) {
    Bytes data(kBlock, static_cast<unsigned char>('a' + parity));
    rnbd_end end{};
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const rnbd_request change =
          request(RNBD_WRITE, (i % 16 * 2 + parity) * kBlock, kBlock, data.data());
      wrong += rnbd_submit(disk, &change, 1) != 1;
      wrong += rnbd_reap(disk, &end, 1, -1) != 1 || end.error != 0;
    }
  };
  std::thread other{[&] { write(two.get(), 1); }};
  write(one.get(), 0);
  other.join();
  CHECK(wrong == 0);
  one.reset();
  Bytes found(2 * kBlock);
  CHECK(run(two.get(), request(RNBD_READ, 0, found.size(), found.data())) == 0);
  CHECK((found[0] == 'a' && found[kBlock] == 'b'));
  const Disk third{rnbd_open_beside(two.get(), &error)};
  CHECK(third);
}

TEST_CASE("a program that is elsewhere for seconds finds its answers, and its path in place") {
  warnings = 0;
  const Disk disk = open_disk(variable("RNBD_URI"), {"heartbeat=100ms"});
  Bytes data(64 * kBlock);
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<rnbd_request> many;
    for (std::uint64_t i = 0; i < 64; ++i)
      many.push_back(request(turn == 0 ? RNBD_READ : RNBD_WRITE, i * kBlock, kBlock,
                             data.data() + i * kBlock, 0, i));
    REQUIRE(rnbd_submit(disk.get(), many.data(), 64) == 64);
    std::this_thread::sleep_for(3s);
    rnbd_end ends[64];
    int ended = 0;
    for (int count = 1; ended < 64 && count > 0; ended += count)
      count = rnbd_reap(disk.get(), ends, 64, 1000);
    CHECK(ended == 64);
  }
  std::this_thread::sleep_for(2s);  // with nothing under way
  CHECK(run(disk.get(), request(RNBD_READ, 0, kBlock, data.data())) == 0);
  CHECK(warnings == 0);
}

TEST_CASE("one request at a time is carried out, from any thread") {
  const Disk disk = open_disk();
  int wrong = 0;
  const auto many = [&] {
    Bytes data(kBlock), found(kBlock);
    for (unsigned i = 0; i < 2000; ++i) {
      data.assign(kBlock, static_cast<unsigned char>(i));
      const rnbd_request write = request(RNBD_WRITE, i % 64 * kBlock, kBlock, data.data());
      const rnbd_request read = request(RNBD_READ, i % 64 * kBlock, kBlock, found.data());
      wrong +=
          rnbd_run(disk.get(), &write) != 0 || rnbd_run(disk.get(), &read) != 0 || found != data;
    }
    Bytes large(3 << 20);
    const rnbd_request read = request(RNBD_READ, 1, large.size(), large.data());
    wrong += rnbd_run(disk.get(), &read) != 0;
  };
  many();
  std::thread{many}.join();
  many();
  CHECK(wrong == 0);
  Bytes data(kBlock);
  const rnbd_request one = request(RNBD_READ, kSize, kBlock, data.data());
  CHECK(rnbd_run(disk.get(), &one) == EINVAL);
  CHECK(rnbd_run(disk.get(), nullptr) == EINVAL);
  CHECK(rnbd_run(nullptr, &one) == EINVAL);
  REQUIRE(rnbd_submit(disk.get(), &one, 1) == 1);
  CHECK(rnbd_run(disk.get(), &one) == EBUSY);
  CHECK(end_of(disk.get()).error == EINVAL);
}

TEST_CASE("no memory is allocated for whole blocks") {
#ifndef RNBD_SANITIZED
  const Disk disk = open_disk();
  Bytes data(32 * kBlock);
  rnbd_request many[32];
  rnbd_end ends[32];
  const auto turn = [&] {
    for (std::uint64_t i = 0; i < 32; ++i)
      many[i] = request(i % 2 == 0 ? RNBD_READ : RNBD_WRITE, i * kBlock, kBlock,
                        data.data() + i * kBlock, 0, i);
    int wrong = rnbd_submit(disk.get(), many, 32) != 32;
    for (int ended = 0; ended < 32;) ended += rnbd_reap(disk.get(), ends, 32, -1);
    return wrong;
  };
  for (int i = 0; i < 100; ++i) CHECK(turn() == 0);
  const unsigned long before = allocated;
  int wrong = 0;
  for (int i = 0; i < 300; ++i) wrong += turn();
  CHECK(wrong == 0);
  CHECK(allocated - before < 20);  // the thread of the heartbeats has some
#endif
}

TEST_CASE("growth is told when it is asked for") {
  const std::string file = variable("RNBD_FILE");
  const Disk disk = open_disk();
  CHECK(run(disk.get(), request(RNBD_LOOK, 0, 0)) == 0);
  rnbd_info info{};
  info.size = sizeof(info);
  CHECK(rnbd_describe(disk.get(), &info) == 0);
  CHECK(info.bytes == kSize);
  REQUIRE(::truncate(file.c_str(), 2 * kSize) == 0);
  Bytes data(kBlock, 'g');
  CHECK(run(disk.get(), request(RNBD_WRITE, kSize, kBlock, data.data())) == EINVAL);
  CHECK(run(disk.get(), request(RNBD_LOOK, 0, 0)) == 0);
  CHECK(rnbd_describe(disk.get(), &info) == 0);
  CHECK(info.bytes == 2 * kSize);
  CHECK(run(disk.get(), request(RNBD_WRITE, 2 * kSize - kBlock, kBlock, data.data())) == 0);
}

TEST_CASE("without a server a loop that has nothing to do sleeps") {
  const Disk disk = open_disk(variable("RNBD_URI"), {"heartbeat=200ms"});
  Bytes data(kBlock);
  CHECK(run(disk.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == 0);
  CHECK(turns_of(disk.get(), 500ms) < 20);
  REQUIRE(::kill(std::stoi(variable("RNBD_SERVER_PID")), SIGKILL) == 0);
  CHECK(turns_of(disk.get(), 2s) < 50);
}

/// A child has copies of all descriptors, and those that the parent closes stay open in it.
TEST_CASE(
    "the server is killed and comes back: a loop sleeps also when a child has its descriptors") {
  const Disk disk = open_disk(variable("RNBD_URI"), {"heartbeat=200ms", "reconnect-max=200ms"});
  Bytes data(kBlock);
  CHECK(run(disk.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == 0);
  CHECK(turns_of(disk.get(), 300ms) < 20);
  const pid_t child = fork();
  if (child == 0) {
    ::pause();
    _exit(0);
  }
  REQUIRE(std::system(variable("RNBD_RESTART").c_str()) == 0);
  CHECK(turns_of(disk.get(), 2s) < 50);
  CHECK(run(disk.get(), request(RNBD_READ, 0, kBlock, data.data())) == 0);
  CHECK(turns_of(disk.get(), 1s) < 20);
  ::kill(child, SIGKILL);
  CHECK(waitpid(child, nullptr, 0) == child);
}

TEST_CASE("without a server requests end when no-path-timeout has passed") {
  const Disk disk = open_disk(variable("RNBD_URI"), {"no-path-timeout=1s"});
  Bytes data(8 * kBlock);
  CHECK(run(disk.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == 0);
  REQUIRE(::kill(std::stoi(variable("RNBD_SERVER_PID")), SIGKILL) == 0);
  std::vector<rnbd_request> many;
  for (std::uint64_t i = 0; i < 8; ++i)
    many.push_back(request(i % 2 == 0 ? RNBD_READ : RNBD_WRITE, i * kBlock + (i == 6 ? 1 : 0),
                           i == 6 ? 5 : kBlock, data.data() + i * kBlock, 0, i));
  const auto began = Clock::now();
  REQUIRE(rnbd_submit(disk.get(), many.data(), 8) == 8);
  rnbd_end end{};
  CHECK(rnbd_reap(disk.get(), &end, 1, 100) == 0);
  for (int i = 0; i < 8; ++i) CHECK(end_of(disk.get(), 20'000).error == EIO);
  const auto took = Clock::now() - began;
  CHECK((took > 900ms && took < 15s));
}

TEST_CASE("a disk that is withdrawn fails, and others of its server do not") {
  const Disk disk = open_disk();
  Bytes data(kBlock);
  CHECK(run(disk.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == 0);
  REQUIRE(std::system(variable("RNBD_WITHDRAW").c_str()) == 0);
  int error = 0;
  for (const auto until = Clock::now() + 20s; error == 0 && Clock::now() < until;)
    error = run(disk.get(), request(RNBD_READ, 0, kBlock, data.data()));
  CHECK(error == EIO);
  CHECK(run(disk.get(), request(RNBD_WRITE, 0, kBlock, data.data())) == EIO);
  CHECK(refused(variable("RNBD_URI").c_str(), nullptr, "cannot open") == ENOENT);
  const Disk other = open_disk(variable("RNBD_SLOW_URI"));
  CHECK(run(other.get(), request(RNBD_READ, 0, kBlock, data.data())) == 0);
}

/// Random writes and reads at depth 32 for RNBD_SECONDS, with RNBD_SETTINGS. Each block has a stamp
/// of its place and of the number of its write, which each read checks; no request may fail. Prints
/// how many there were.
TEST_CASE("load") {
  std::vector<std::string> words;
  std::string text = variable("RNBD_SETTINGS") + " ";
  for (std::size_t at = 0, next = 0; (next = text.find(' ', at)) != text.npos; at = next + 1)
    if (next > at) words.push_back(text.substr(at, next - at));
  std::vector<const char*> settings;
  for (const auto& word : words) settings.push_back(word.c_str());
  const Disk disk = open_disk(variable("RNBD_URI"), settings);

  struct Slot {
    alignas(16) std::uint64_t data[kBlock / 8];
    std::uint64_t block = 0;
    bool writes = false;
  };
  constexpr std::uint64_t kBlocks = kSize / kBlock;
  std::vector<Slot> slots(32);
  std::vector<std::uint64_t> newest(kBlocks);
  std::vector<bool> busy(kBlocks);
  std::mt19937_64 random{static_cast<std::uint64_t>(::getpid())};
  std::uint64_t requests = 0, wrong = 0, failed = 0;
  Clock::duration longest{};
  const auto until = Clock::now() + std::chrono::seconds{std::stoi(variable("RNBD_SECONDS"))};
  const auto submit = [&](unsigned index) {
    Slot& slot = slots[index];
    do slot.block = random() % kBlocks;
    while (busy[slot.block]);
    busy[slot.block] = true;
    slot.writes = newest[slot.block] == 0 || random() % 2 == 0;
    if (slot.writes) {
      ++newest[slot.block];
      for (std::size_t i = 0; i < kBlock / 8; ++i)
        slot.data[i] = i % 2 == 0 ? slot.block : newest[slot.block];
    }
    ++requests;
    const rnbd_request one =
        request(slot.writes ? RNBD_WRITE : RNBD_READ, slot.block * kBlock, kBlock, slot.data,
                random() % 64 == 0 && slot.writes ? RNBD_FUA : 0, index);
    REQUIRE(rnbd_submit(disk.get(), &one, 1) == 1);
  };
  const auto check = [&](const rnbd_end& end) {
    Slot& slot = slots[end.cookie];
    busy[slot.block] = false;
    failed += end.error != 0;
    if (slot.writes || end.error != 0) return;
    for (std::size_t i = 0; i < kBlock / 8; ++i)
      wrong += slot.data[i] != (i % 2 == 0 ? slot.block : newest[slot.block]);
  };
  for (unsigned i = 0; i < 32; ++i) submit(i);
  auto last = Clock::now();
  for (unsigned under_way = 32; under_way > 0;) {
    rnbd_end ends[32];
    const int count = rnbd_reap(disk.get(), ends, 32, 60'000);
    REQUIRE(count > 0);
    const auto now = Clock::now();
    longest = std::max(longest, now - last);
    last = now;
    for (int i = 0; i < count; ++i) {
      check(ends[i]);
      now < until ? submit(static_cast<unsigned>(ends[i].cookie)) : void(--under_way);
    }
  }
  std::printf("%llu requests, longest pause %lld ms\n", static_cast<unsigned long long>(requests),
              static_cast<long long>(
                  std::chrono::duration_cast<std::chrono::milliseconds>(longest).count()));
  std::fflush(stdout);
  CHECK(wrong == 0);
  CHECK(failed == 0);
  CHECK(requests > 1000);
}

}  // namespace
}  // namespace librnbd_test
