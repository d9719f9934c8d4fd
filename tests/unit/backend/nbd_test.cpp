// SPDX-License-Identifier: BSD-3-Clause
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <mutex>

#include "tests/unit/backend/bench.hpp"
#include "tests/unit/backend/nbd_server.hpp"

namespace rnbd::test::nbd_test {

namespace {

using Arguments = std::vector<std::string>;

/// A server in a folder of its own.
struct Served {
  explicit Served(const Arguments& arguments) : server{folder.path() + "/socket", arguments} {}
  TemporaryFolder folder;
  NbdServer server;
};

/// False, with the reason, where there is no nbdkit.
bool can_run() {
  const bool can = NbdServer::installed();
  if (!can) MESSAGE("skipped: nbdkit is not installed");
  return can;
}

void check_served(const Arguments& arguments, bool shows_holes = true) {
  if (!can_run()) return;
  const Served served{arguments};
  check_conformance({.backend = must_open(served.server.uri()), .shows_holes = shows_holes});
}

}  // namespace

TEST_CASE("nbd: behaves like a disk") { check_served({"memory", "4M"}); }
TEST_CASE("nbd: behaves like a disk of odd size") { check_served({"memory", "4195304"}); }
TEST_CASE("nbd, one connection for all: behaves like a disk") {
  check_served({"--filter=limit", "--filter=multi-conn", "memory", "4M", "multi-conn-mode=disable",
                "limit=1"});
}
TEST_CASE("nbd, a server without FUA: behaves like a disk") {
  check_served({"--filter=fua", "memory", "4M"});
}
TEST_CASE("nbd, a server without extents: behaves like a disk") {
  check_served({"--filter=noextents", "memory", "4M"}, /*shows_holes=*/false);
}
TEST_CASE("nbd, a server without zeroing: behaves like a disk") {
  check_served({"--filter=nozero", "memory", "4M", "zeromode=none"});
}
TEST_CASE("nbd, old protocol: reads what was written") {
  if (!can_run()) return;
  const Served served{{"-o", "memory", "1M"}};
  Bench bench{served.server.uri()};
  CHECK(!bench.info().can_extents);
  CHECK(bench.write(0, pattern(4096, 1)) == 0);
  CHECK(bench.read(0, 4096) == pattern(4096, 1));
}

TEST_CASE("nbd: a question for extents goes on while the other server tells few") {
  if (!can_run()) return;
  constexpr std::uint64_t kG = std::uint64_t{1} << 30;
  const Served served{{"memory", "20G"}};
  Bench bench{served.server.uri()};
  const auto all_hole = bench.extents(0, 20 * kG);
  REQUIRE(all_hole.size() == 1);
  CHECK(all_hole[0].length == 20 * kG);
  for (int i = 0; i < 4; ++i) {
    REQUIRE(bench.write(6 * kG + static_cast<std::uint64_t>(i) * 1024 * 1024, pattern(4096, 1)) ==
            0);
  }
  std::uint64_t told = 0;
  for (const auto& extent : bench.extents(0, 20 * kG)) told += extent.length;
  CHECK(told > 6 * kG);
  CHECK(told < 20 * kG);
  CHECK(bench.extents(0, 20 * kG, 1).size() == 1);
}

TEST_CASE("nbd: what the server cannot do is not claimed") {
  if (!can_run()) return;
  const Served served{{"--filter=nozero", "--filter=fua", "--filter=blocksize-policy", "null", "1G",
                       "zeromode=none", "blocksize-minimum=4096", "blocksize-preferred=65536",
                       "blocksize-maximum=32M"}};
  Bench bench{served.server.uri()};
  CHECK(bench.info().size == std::uint64_t{1} << 30);
  CHECK(!bench.info().can_write_zeroes);
  CHECK(!bench.info().can_fast_zero);
  CHECK(bench.info().logical_block == 4096);
  CHECK(bench.info().physical_block == 32768);
  CHECK(bench.zero(0, 4096, {}) == EOPNOTSUPP);
}

TEST_CASE("nbd: a read-only export is opened read-only, and the log tells who did not ask so") {
  if (!can_run()) return;
  const Served served{{"-r", "memory", "1M"}};
  for (BackendOptions options : {BackendOptions{}, BackendOptions{.read_only = true},
                                 BackendOptions{.read_only_fallback = true}}) {
    std::string told;
    options.log = [&told](rtrs::LogLevel, const std::string& line) { told += line + "\n"; };
    Bench bench{served.server.uri(), options};
    const bool asked = options.read_only || options.read_only_fallback;
    CHECK((told.find("served read-only") == std::string::npos) == asked);
    CHECK(bench.info().read_only);
    CHECK(bench.write(0, pattern(512, 1)) == EROFS);
    CHECK(bench.read(0, 512) == Bytes(512, std::byte{0}));
  }
}

TEST_CASE("nbd: the server's errors arrive") {
  if (!can_run()) return;
  const Served served{{"--filter=error", "memory", "1M", "error-pwrite=ENOSPC",
                       "error-pwrite-rate=100%", "error-pread=EIO", "error-pread-rate=100%"}};
  Bench bench{served.server.uri()};
  CHECK(bench.write(0, pattern(512, 1)) == ENOSPC);
  Bytes data(512);
  BackendRequest request;
  request.length = data.size();
  request.data = data.data();
  CHECK(bench.run(request) == EIO);
  CHECK(bench.flush() == 0);
}

namespace {

/// A disk that keeps nothing, and fails a flush or a write with FUA once for each time that the
/// file `fail` is made, with the error in it.
Arguments fails_when_told(const TemporaryFolder& folder) {
  const std::string told = "f=" + folder.path() +
                           "/fail; if test -e $f; then cat $f >&2; rm $f; "
                           "exit 1; fi";
  return {"eval",
          "get_size=echo 1048576",
          "pread=dd if=/dev/zero count=$3 iflag=count_bytes",
          "can_write=exit 0",
          "can_flush=exit 0",
          "can_fua=echo native",
          "pwrite=cat > /dev/null; case $5 in *fua*) " + told + ";; esac",
          "flush=" + told};
}

void fail_next(const TemporaryFolder& folder, const char* error) {
  std::ofstream{folder.path() + "/fail"} << error << "\n";
}

}  // namespace

TEST_CASE("nbd: a flush that failed is never followed by one that succeeds, nor by such a FUA") {
  if (!can_run()) return;
  const TemporaryFolder told;
  const Served served{fails_when_told(told)};
  std::vector<std::string> log;
  Bench bench{served.server.uri(),
              {.log = [&](rtrs::LogLevel, const auto& line) { log.push_back(line); }}};
  const Bytes data = pattern(512, 1);
  int expected = 0;
  SUBCASE("a flush, EIO") {
    fail_next(told, "EIO");
    expected = bench.flush();
    CHECK(expected == EIO);
  }
  SUBCASE("a flush, ENOSPC") {
    fail_next(told, "ENOSPC");
    expected = bench.flush();
    CHECK(expected == ENOSPC);
  }
  SUBCASE("a write with FUA that fails says nothing of others") {
    fail_next(told, "EIO");
    CHECK(bench.write(0, data, /*fua=*/true) == EIO);
  }
  SUBCASE("what is only refused is no loss") {
    fail_next(told, "EINVAL");
    CHECK(bench.flush() == EINVAL);
  }
  CHECK(bench.write(0, data) == 0);
  for (unsigned i = 0; i < 2; ++i) {
    CHECK(bench.flush() == expected);
    CHECK(bench.write(0, data, /*fua=*/true) == expected);
  }
  CHECK(log.size() == (expected != 0 ? 1 : 0));
}

TEST_CASE("nbd: a range longer than a command can name is zeroed and discarded in pieces") {
  if (!can_run()) return;
  const Served served{{"memory", "16G"}};
  Bench bench{served.server.uri()};
  const std::uint64_t far = (std::uint64_t{9} << 30) + 4096;
  REQUIRE(bench.write(far, pattern(4096, 1)) == 0);
  REQUIRE(bench.zero(0, std::uint64_t{10} << 30, {}) == 0);
  CHECK(bench.read(far, 4096) == Bytes(4096, std::byte{0}));
  REQUIRE(bench.write(far, pattern(4096, 1)) == 0);
  REQUIRE(bench.discard(0, std::uint64_t{10} << 30) == 0);
  CHECK(bench.read(far, 4096) == Bytes(4096, std::byte{0}));
}

TEST_CASE("nbd: a server that dies gives EIO and a message, and a queue opened later works again") {
  if (!can_run()) return;
  const TemporaryFolder folder;
  const std::string socket = folder.path() + "/socket";
  std::mutex mutex;
  std::vector<std::string> log;
  const Arguments slow{"eval",
                       "get_size=echo 1048576",
                       "can_write=exit 0",
                       "can_flush=exit 0",
                       "pwrite=cat > /dev/null",
                       "pread=exit 1",
                       "flush=sleep 5"};
  auto server = std::make_unique<NbdServer>(socket, slow);
  const auto backend = must_open(server->uri(), {.log = [&](rtrs::LogLevel, const auto& line) {
                                   const std::lock_guard lock{mutex};
                                   log.push_back(line);
                                 }});
  rtrs::Reactor reactor{0};
  struct Job {
    rtrs::Reactor& reactor;
    int error = -1;
  } job{reactor};
  Bytes data = pattern(4096, 1);
  const auto start = [&](BackendQueue& queue, BackendRequest& request, BackendOperation operation) {
    request = {};
    request.operation = operation;
    request.length = data.size();
    request.data = data.data();
    request.context = &job;
    request.done = [](BackendRequest& finished, int error) {
      auto& mine = *static_cast<Job*>(finished.context);
      mine.error = error;
      mine.reactor.stop();
    };
    job.error = -1;
    reactor.io().restart();
    queue.submit(request);
  };
  const auto wait = [&] {
    if (job.error == -1) reactor.run();
    return job.error;
  };
  BackendRequest request;
  auto queue = backend->open_queue(&reactor);
  CHECK(!queue->broken());
  start(*queue, request, BackendOperation::write);
  CHECK(wait() == 0);
  // A flush that got no answer is no flush that failed.
  start(*queue, request, BackendOperation::flush);
  server->kill();
  CHECK(wait() == EIO);
  CHECK(log.size() == 1);
  CHECK(queue->broken());
  start(*queue, request, BackendOperation::flush);
  CHECK(wait() == EIO);
  server.reset();

  SUBCASE("a server that comes back serves a new queue, not the old one") {
    server = std::make_unique<NbdServer>(socket, Arguments{"memory", "1M"});
    start(*queue, request, BackendOperation::write);
    CHECK(wait() == EIO);
    queue = backend->open_queue(&reactor);
    start(*queue, request, BackendOperation::write);
    CHECK(wait() == 0);
    start(*queue, request, BackendOperation::flush);
    CHECK(wait() == 0);
    CHECK(backend->distant_size()->take(2 << 20));
  }
  SUBCASE("a server that comes back with another size is not the same storage") {
    server = std::make_unique<NbdServer>(socket, Arguments{"memory", "2M"});
    for (unsigned i = 0; i < 2; ++i) {
      CHECK(backend->distant_size()->ask() == std::uint64_t{2 << 20});
      CHECK_FALSE(backend->distant_size()->take(2 << 20));
      CHECK(backend->present_size() == 1 << 20);
      queue = backend->open_queue(&reactor);
      start(*queue, request, BackendOperation::write);
      CHECK(wait() == EIO);
    }
  }
  SUBCASE("no server at all is EIO, until there is one") {
    queue = backend->open_queue(&reactor);
    for (unsigned i = 0; i < 3; ++i) {
      start(*queue, request, BackendOperation::write);
      CHECK(wait() == EIO);
    }
    CHECK(!queue->broken());
    CHECK(log.size() == 2);
    server = std::make_unique<NbdServer>(socket, Arguments{"memory", "1M"});
    start(*queue, request, BackendOperation::write);
    CHECK(wait() == 0);
  }
}

namespace {

void check_growth(const Arguments& arguments, std::uint64_t other_size) {
  if (!can_run()) return;
  const TemporaryFolder folder;
  const std::string image = folder.file("image", 1 << 20);
  Arguments with_image = arguments;
  for (std::string& word : with_image) word = word == "IMAGE" ? image : word;
  const Served served{with_image};
  std::vector<std::string> log;
  const auto backend = must_open(
      served.server.uri(), {.log = [&](rtrs::LogLevel, const auto& line) { log.push_back(line); }});
  DistantSize* const distant = backend->distant_size();
  REQUIRE(distant != nullptr);
  CHECK(distant->may_be_asked());
  CHECK(distant->ask() == std::uint64_t{1 << 20});
  CHECK_FALSE(distant->take(1 << 20));
  rtrs::Reactor reactor{0};
  const auto run = [&](BackendQueue& queue, BackendOperation operation, std::uint64_t offset) {
    struct Job {
      rtrs::Reactor& reactor;
      int error = -1;
    } job{reactor};
    Bytes data = pattern(4096, offset);
    BackendRequest request;
    request.operation = operation;
    request.offset = offset;
    request.length = data.size();
    request.data = data.data();
    request.context = &job;
    request.done = [](BackendRequest& finished, int error) {
      auto& mine = *static_cast<Job*>(finished.context);
      mine.error = error;
      mine.reactor.stop();
    };
    reactor.io().restart();
    queue.submit(request);
    if (job.error == -1) reactor.run();
    return job.error;
  };
  auto queue = backend->open_queue(&reactor);
  CHECK(run(*queue, BackendOperation::write, 0) == 0);
  REQUIRE(truncate(image.c_str(), static_cast<off_t>(other_size)) == 0);
  CHECK(backend->present_size() == 1 << 20);
  CHECK(distant->ask() == other_size);
  if (other_size > (1 << 20)) {
    CHECK(distant->take(other_size));
    CHECK(backend->present_size() == other_size);
    CHECK_FALSE(backend->shrunk_to());
    CHECK(queue->broken());
    queue.reset();  // its connection ends before the next one is used
    queue = backend->open_queue(&reactor);
    CHECK_FALSE(queue->broken());
    CHECK(run(*queue, BackendOperation::write, other_size - 4096) == 0);
    CHECK(run(*queue, BackendOperation::read, 0) == 0);
    CHECK(log.empty());
  } else {
    CHECK_FALSE(distant->take(other_size));
    CHECK(backend->present_size() == 1 << 20);
    CHECK(backend->shrunk_to() == other_size);
    CHECK_FALSE(queue->broken());
    const auto next = backend->open_queue(&reactor);  // its own connection, or the same one
    for (const auto& each : {queue.get(), next.get()}) {
      CHECK(run(*each, BackendOperation::read, 0) == 0);
      CHECK(run(*each, BackendOperation::read, other_size) == EIO);
    }
    distant->ask();
    CHECK(log.size() == 1);
  }
}

}  // namespace

TEST_CASE("nbd: of an export that has grown a new queue has all") {
  check_growth({"file", "IMAGE"}, 3 << 20);
}
TEST_CASE("nbd, one connection for all: of an export that has grown a new queue has all") {
  check_growth({"--filter=multi-conn", "file", "IMAGE", "multi-conn-mode=disable"}, 3 << 20);
}
TEST_CASE("nbd: a server that ends with its last client outlives that its export has grown") {
  check_growth({"--filter=exitlast", "file", "IMAGE"}, 3 << 20);
}
TEST_CASE("nbd, one connection for all: such a server, too") {
  check_growth(
      {"--filter=exitlast", "--filter=multi-conn", "file", "IMAGE", "multi-conn-mode=disable"},
      3 << 20);
}
TEST_CASE("nbd: an export that has shrunk has EIO where it ended") {
  check_growth({"file", "IMAGE"}, 1 << 19);
}
TEST_CASE("nbd, one connection for all: an export that has shrunk has EIO where it ended") {
  check_growth({"--filter=multi-conn", "file", "IMAGE", "multi-conn-mode=disable"}, 1 << 19);
}

TEST_CASE("nbd: an end inside a sector stays where it is") {
  if (!can_run()) return;
  const Served served{{"memory", "1000"}};
  const auto backend = must_open(served.server.uri());
  CHECK_FALSE(backend->distant_size()->take(2000));
  CHECK(backend->present_size() == 1000);
}

TEST_CASE("nbd: a server that does not answer is not asked for its size again and again") {
  if (!can_run()) return;
  const Served served{{"memory", "1M"}};
  const auto backend = must_open(served.server.uri());
  served.server.freeze();
  CHECK_FALSE(backend->distant_size()->ask());
  CHECK_FALSE(backend->distant_size()->may_be_asked());
}

TEST_CASE("nbd: blocks that RNBD has no room for are refused, not misused") {
  if (!can_run()) return;
  const Served served{{"--filter=blocksize-policy", "null", "1G", "blocksize-minimum=65536",
                       "blocksize-preferred=65536"}};
  const auto backend = open_backend(served.server.uri(), {});
  REQUIRE(!backend.has_value());
  CHECK(backend.error().error == EINVAL);
  CHECK(backend.error().text.find("blocksize filter") != std::string::npos);
}

TEST_CASE("nbd: what cannot be opened says what to look at") {
  const auto failure_of = [](const std::string& specification) {
    const auto backend = open_backend(specification, {});
    REQUIRE(!backend.has_value());
    return backend.error();
  };
  const TemporaryFolder folder;
  const Failure none = failure_of("nbd+unix:///?socket=" + folder.path() + "/none");
  CHECK(none.error == ENOENT);
  CHECK(none.text.find("nbdinfo") != std::string::npos);
  CHECK(failure_of("nbd:/some/path").text.find("nbd://HOST") != std::string::npos);
  CHECK(failure_of("nbd:nbd+unix:///?socket=/none").error == ENOENT);
  CHECK(failure_of("nbd://[").error == EINVAL);
}

}  // namespace rnbd::test::nbd_test
