// SPDX-License-Identifier: BSD-3-Clause
// OPENs that hang: what their clients are told, and what becomes of what comes too late.
#include <doctest/doctest.h>

#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "bridge/server/open_lines.hpp"
#include "tests/unit/allocations.hpp"
#include "tests/unit/server/fixture.hpp"

namespace late_open_test {

using namespace rnbd;
using namespace rnbd::test;
namespace fs = std::filesystem;

namespace {

/// With the files "a", "b" and "c".
struct Directory {
  Directory() {
    std::string name = (fs::temp_directory_path() / "rnbd-late-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
    for (const char* file : {"a", "b", "c"}) std::ofstream{path / file} << std::string(4096, 'x');
  }
  ~Directory() { fs::remove_all(path); }
  fs::path path;
};

struct Job {
  std::function<void()> work, then;
};

/// Time and threads are the test's: what may hang is held until it is run.
struct LateWorld : World {
  LateWorld()
      : files{{.open = [this](const std::string& storage, const BackendOptions& options)
                   -> tl::expected<std::unique_ptr<Backend>, Failure> {
          auto backend = std::make_unique<FakeBackend>(fs::file_size(storage));
          backend->info_.read_only = options.read_only;
          backend->on_close = [this] { --open_files; };
          ++open_files;
          return backend;
        }}},
        file_queues{nullptr, files, services} {
    REQUIRE(files.files().set(directory.path.string()).has_value());
    services.on_later = [](rtrs::Reactor*, std::function<void()> work) { work(); };
    services.on_offload = [this](rtrs::Reactor*, std::function<void()> work,
                                 std::function<void()> then) {
      offloaded.push_back({std::move(work), std::move(then)});
    };
    services.on_record = [this](rtrs::Reactor*, std::function<void()> work,
                                std::function<void()> then) {
      records.push_back({std::move(work), std::move(then)});
    };
    services.on_after = [this](rtrs::Reactor*, rtrs::Duration, std::function<void()> work) {
      auto token = std::make_shared<int>();
      timers.emplace_back(token, std::move(work));
      return token;
    };
  }
  std::unique_ptr<BlockSession> file_session(bool extensions = true) {
    SessionFacts facts;
    facts.name = "alice";
    facts.extensions = extensions;
    facts.queue_depth = 4;
    facts.max_io_size = 4096;
    return std::make_unique<BlockSession>(facts, files, file_queues, services);
  }
  static void run(std::deque<Job>& jobs) {
    REQUIRE(!jobs.empty());
    const Job job = std::move(jobs.front());
    jobs.pop_front();
    if (job.work) job.work();
    if (job.then) job.then();
  }
  static void run_all(std::deque<Job>& jobs) {
    while (!jobs.empty()) run(jobs);
  }
  void settle() {
    while (!offloaded.empty() || !records.empty()) {
      run_all(offloaded);
      run_all(records);
    }
  }
  /// For all that runs.
  void time_is_over() {
    for (auto& [token, work] : std::exchange(timers, {})) {
      if (!token.expired()) work();
    }
  }
  unsigned limited() const {
    unsigned count = 0;
    for (const auto& [token, work] : timers) count += token.expired() ? 0 : 1;
    return count;
  }
  bool logged(const std::string& text) const {
    for (const std::string& line : log) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }

  Directory directory;
  int open_files = 0;
  std::deque<Job> offloaded, records;
  std::vector<std::pair<std::weak_ptr<void>, std::function<void()>>> timers;
  ExportCatalogue files;
  QueueTable file_queues;
};

}  // namespace

TEST_CASE("wherever a thread lacks memory, the OPEN is refused or good, and the next one is good") {
  const auto in_want = [](const Job& job, unsigned n) {
    rtrs::test::set_lack({n, 1});
    job.work();
    return rtrs::test::set_lack({}).refused == 0;
  };
  bool at_file = false;
  SUBCASE("while it looks for the file") { at_file = true; }
  SUBCASE("while it records the writer") {}
  bool lacked = true;
  for (unsigned n = 0; lacked; ++n) {
    CAPTURE(n);
    REQUIRE(n < 1000);
    LateWorld world;
    const auto session = world.file_session();
    Call& call = world.open(*session, "a");
    if (!at_file) LateWorld::run(world.offloaded);
    auto& jobs = at_file ? world.offloaded : world.records;
    REQUIRE_FALSE(jobs.empty());
    const Job job = std::move(jobs.front());
    jobs.pop_front();
    lacked = in_want(job, n);
    job.then();
    world.settle();
    REQUIRE(call.finished == 1);
    if (!lacked) REQUIRE(call.error == 0);
    if (call.error != 0) {
      CHECK((call.error == ENOMEM || call.error == EIO));
      CHECK(world.open_files == 0);
      Call& again = world.open(*session, "a");
      world.settle();
      CHECK(again.finished == 1);
      CHECK(again.error == 0);
    }
  }
}

TEST_CASE("late open: an OPEN whose file hangs is refused for now, and opens nothing later") {
  LateWorld world;
  auto session = world.file_session();
  Call& call = world.open(*session, "a");
  CHECK(call.finished == 0);
  world.time_is_over();
  CHECK(call.finished == 1);
  CHECK(call.error == EAGAIN);
  CHECK(world.logged("refused to open 'a': opening its file hangs"));

  SUBCASE("while its session lives") {}
  SUBCASE("when its session is gone") { session.reset(); }
  world.run_all(world.offloaded);
  CHECK(call.finished == 1);
  CHECK(world.open_files == 0);
  if (session) CHECK(session->devices().size() == 0);

  // Nobody has the right to write to it.
  auto other = world.file_session();
  Call& next = world.open(*other, "a");
  world.run_all(world.offloaded);
  world.run_all(world.records);
  CHECK(next.error == 0);
}

TEST_CASE("late open: a copy that hangs is told what the first one has opened") {
  LateWorld world;
  auto session = world.file_session();
  Call& first = world.open(*session, "a");
  Call& copy = world.open(*session, "a");
  world.run(world.offloaded);
  world.run_all(world.records);
  REQUIRE(first.finished == 1);
  REQUIRE(first.error == 0);
  REQUIRE(copy.finished == 0);
  world.time_is_over();
  CHECK(copy.finished == 1);
  CHECK(copy.error == 0);
  world.run_all(world.offloaded);
  world.run_all(world.records);
  CHECK(session->devices().size() == 1);
  CHECK(world.open_files == 1);
}

TEST_CASE("late open: a file that was opened, but too late to be told, is closed") {
  LateWorld world;
  auto session = world.file_session();
  Call& call = world.open(*session, "a");
  const Job job = world.offloaded.front();
  world.offloaded.clear();
  job.work();
  CHECK(world.open_files == 1);
  world.time_is_over();
  CHECK(call.error == EAGAIN);
  session.reset();
  job.then();
  world.run_all(world.offloaded);
  CHECK(world.open_files == 0);
}

TEST_CASE("late open: a right that is withdrawn before the file is open opens nothing") {
  LateWorld world;
  SessionFacts facts;
  facts.name = "vm1";
  facts.identity = "host1";
  facts.queue_depth = 4;
  facts.max_io_size = 4096;
  world.files.set_search_rights({.rw = {"host1"}, .ro = {}});
  auto session =
      std::make_unique<BlockSession>(facts, world.files, world.file_queues, world.services);
  const auto open_while = [&](const Rights& next, wire::AccessMode mode) {
    Call& call = world.open(*session, "a", mode);
    REQUIRE(call.finished == 0);
    world.files.set_search_rights(next);
    world.run_all(world.offloaded);
    world.run_all(world.records);
    world.run_all(world.offloaded);
    REQUIRE(call.finished == 1);
    return call.error;
  };
  using Mode = wire::AccessMode;
  SUBCASE("all of it") {
    CHECK(open_while({.rw = {"host2"}, .ro = {}}, Mode::read_write) == ENOENT);
  }
  SUBCASE("to read") { CHECK(open_while({.rw = {"host2"}, .ro = {}}, Mode::read_only) == ENOENT); }
  SUBCASE("to write") { CHECK(open_while({.rw = {}, .ro = {"host1"}}, Mode::read_write) == EROFS); }
  SUBCASE("none that is needed") {
    CHECK(open_while({.rw = {}, .ro = {"host1"}}, Mode::read_only) == 0);
    CHECK(world.open_files == 1);
    return;
  }
  CHECK(world.open_files == 0);
}

TEST_CASE("late open: while a file hangs it is refused at once, and other files are opened") {
  LateWorld world;
  auto session = world.file_session();
  world.open(*session, "a");
  world.time_is_over();
  auto stranger = world.file_session();
  CHECK(world.open(*stranger, "a").error == EAGAIN);
  CHECK(world.offloaded.size() == 1);

  Call& healthy = world.open(*session, "b", wire::AccessMode::read_only);
  REQUIRE(world.offloaded.size() == 2);
  std::swap(world.offloaded[0], world.offloaded[1]);
  world.run(world.offloaded);
  CHECK(healthy.error == 0);

  world.run_all(world.offloaded);
  Call& again = world.open(*stranger, "a", wire::AccessMode::read_only);
  world.run_all(world.offloaded);
  CHECK(again.error == 0);
}

TEST_CASE("late open: those who want the same file take one thread, one after the other") {
  LateWorld world;
  auto first = world.file_session();
  auto second = world.file_session();
  auto third = world.file_session();
  Call& one = world.open(*first, "a", wire::AccessMode::read_only);
  Call& two = world.open(*second, "a", wire::AccessMode::read_only);
  CHECK(world.offloaded.size() == 1);

  SUBCASE("in time") {
    world.run_all(world.offloaded);
    CHECK(one.error == 0);
    CHECK(two.error == 0);
    CHECK(world.limited() == 0);
  }
  SUBCASE("late") {
    world.time_is_over();
    CHECK(one.error == EAGAIN);
    CHECK(two.error == EAGAIN);
    CHECK(world.open(*third, "a").error == EAGAIN);
    first.reset();
    second.reset();
    world.run_all(world.offloaded);
    CHECK(world.open_files == 0);
    Call& again = world.open(*third, "a", wire::AccessMode::read_only);
    world.run_all(world.offloaded);
    CHECK(again.error == 0);
  }
}

TEST_CASE("late open: who waits for the state directory is refused for now, the next ones go on") {
  LateWorld world;
  BlockSession& session = world.session();
  world.add("more", 4096);
  world.add("shared", 4096, /*read_only=*/true);
  Call& reader = world.open(session, "shared", wire::AccessMode::read_only);
  REQUIRE(reader.error == 0);
  Call& writer = world.open(session, "disk");
  Call& closing = world.close(session, reader.answer<wire::OpenResponse>().device_id);
  Call& another = world.open(session, "more");
  world.add("last", 4096);
  Call& last = world.open(session, "last");
  CHECK(closing.finished == 0);
  CHECK(another.finished == 0);

  world.time_is_over();
  CHECK(writer.error == EAGAIN);
  CHECK(world.logged("'disk': cannot record who writes to it: the state directory does not ans"));
  CHECK(closing.error == 0);
  // All reservations need that directory.
  CHECK(another.error == EAGAIN);
  CHECK(last.error == EAGAIN);
  CHECK(world.records.size() == 1);
  // Its own attempt has the right to write still: that is no reason to lose it.
  CHECK(world.open(session, "disk").error == EAGAIN);
  CHECK(world.open(session, "shared", wire::AccessMode::read_only).error == 0);

  world.run_all(world.records);
  CHECK(writer.finished == 1);
  CHECK(session.devices().size() == 1);
  Call& again = world.open(session, "disk");
  world.run_all(world.records);
  CHECK(again.error == 0);
}

TEST_CASE("late open: its session may be gone when the reservation has been recorded") {
  LateWorld world;
  auto session = world.make_session("bob");
  Call& writer = world.open(*session, "disk");
  world.time_is_over();
  CHECK(writer.error == EAGAIN);
  session.reset();
  world.run_all(world.records);
  CHECK(writer.finished == 1);
  Call& again = world.open(world.session(), "disk");
  world.run_all(world.records);
  CHECK(again.error == 0);
}

TEST_CASE("late open: a copy of what was refused is refused, too") {
  LateWorld world;
  auto session = world.file_session();
  const wire::NumberedOpen open{wire::encode_open("a", wire::AccessMode::read_only),
                                {.number = 7, .settled = 7}};
  Call& first = world.send(*session, open, true, room(sizeof(wire::OpenResponse)));
  world.time_is_over();
  CHECK(first.error == EAGAIN);
  world.run_all(world.offloaded);
  CHECK(world.send(*session, open, true, room(sizeof(wire::OpenResponse))).error == EAGAIN);
  CHECK(world.offloaded.empty());
}

TEST_CASE("late open: only so many files may hang, and each is told apart") {
  OpenLines lines;
  unsigned started = 0;
  const auto start = [&started] { ++started; };
  const int who = 0;
  const auto line = [](std::size_t n) { return "file" + std::to_string(n); };
  for (std::size_t n = 0; n < OpenLines::kMostHung; ++n) {
    CHECK(lines.begin(line(n), &who, start));
    lines.give_up(line(n), &who);
  }
  CHECK_FALSE(lines.begin("one more", &who, start));
  lines.end(line(3), &who);
  CHECK(lines.begin("one more", &who, start));
  CHECK(started == OpenLines::kMostHung + 1);

  // It was over before its time was.
  lines.end("one more", &who);
  lines.give_up("one more", &who);
  CHECK_FALSE(lines.hangs("one more"));
  // Two others have been waiting, and one of them does not any more.
  const int other = 0, third = 0;
  CHECK(lines.begin("one more", &who, start));
  CHECK(lines.begin("one more", &other, start));
  CHECK(lines.begin("one more", &third, start));
  CHECK(lines.give_up("one more", &other));
  CHECK_FALSE(lines.hangs("one more"));
  CHECK_FALSE(lines.give_up("one more", &other));
  lines.end("one more", &who);
  CHECK(started == OpenLines::kMostHung + 3);
  CHECK_FALSE(lines.give_up("one more", &who));
  CHECK_FALSE(lines.hangs("one more"));
  CHECK_FALSE(lines.give_up("one more", &third));
  CHECK(lines.hangs("one more"));
}

TEST_CASE("late open: those of a line that came meanwhile have their turn together") {
  OpenLines lines;
  unsigned started = 0;
  const auto start = [&started] { ++started; };
  const int first = 0, second = 0, third = 0, late = 0;
  const auto turn = OpenLines::Turn::all;
  CHECK(lines.begin("", &first, start, turn));
  CHECK(lines.begin("", &second, start, turn));
  CHECK(lines.begin("", &third, start, turn));
  CHECK(started == 1);
  lines.end("", &first);
  CHECK(started == 3);
  // Some work has ended since the third one came: the line is only slow.
  CHECK(lines.begin("", &first, start, turn));
  CHECK_FALSE(lines.give_up("", &third));
  CHECK_FALSE(lines.hangs(""));
  // None has since the first one came, which leaves.
  CHECK(lines.give_up("", &first));
  CHECK(lines.hangs(""));
  CHECK_FALSE(lines.begin("", &late, start, turn));
  lines.end("", &second);
  CHECK_FALSE(lines.hangs(""));
  CHECK(lines.begin("", &late, start, turn));
  CHECK(started == 3);
  lines.end("", &third);
  CHECK(started == 4);
  CHECK_FALSE(lines.give_up("", &late));
  CHECK_FALSE(lines.hangs(""));  // it came before the third one's end
  lines.end("", &late);
  CHECK(lines.begin("", &late, start, turn));
  CHECK_FALSE(lines.give_up("", &late));
  CHECK(lines.hangs(""));
}

TEST_CASE("late open: a slow state directory keeps nobody out who comes later") {
  LateWorld world;
  auto first = world.file_session();
  auto second = world.file_session();
  auto third = world.file_session();
  Call& one = world.open(*first, "a");
  Call& two = world.open(*second, "b");
  world.run_all(world.offloaded);
  world.run(world.records);
  REQUIRE(one.error == 0);
  REQUIRE(world.records.size() == 1);
  world.time_is_over();
  CHECK(two.error == EAGAIN);
  Call& next = world.open(*third, "c");
  world.run_all(world.offloaded);
  CHECK(next.finished == 0);
  // Its own attempt may still get the right to write.
  Call& own = world.open(*second, "b");
  world.run_all(world.offloaded);
  CHECK(own.error == EAGAIN);
  world.settle();
  REQUIRE(next.finished == 1);
  CHECK(next.error == 0);
  Call& again = world.open(*second, "b");
  world.settle();
  CHECK(again.error == 0);
}

TEST_CASE("late open: without memory to hand its work to a thread an OPEN is refused") {
  LateWorld world;
  const auto session = world.file_session();
  const auto lacks = [](rtrs::Reactor*, std::function<void()>, std::function<void()>) {
    throw std::bad_alloc{};
  };
  auto offload = world.services.on_offload;
  auto record = world.services.on_record;
  SUBCASE("for its file") {
    world.services.on_offload = lacks;
    Call& call = world.open(*session, "a");
    CHECK(call.finished == 1);
    CHECK(call.error == ENOMEM);
  }
  SUBCASE("for its reservation") {
    world.services.on_record = lacks;
    Call& call = world.open(*session, "a");
    world.run_all(world.offloaded);
    CHECK(call.finished == 1);
    CHECK(call.error == ENOMEM);
  }
  SUBCASE("for a reservation behind another one") {
    const auto other = world.file_session();
    Call& before = world.open(*other, "b");
    Call& call = world.open(*session, "a");
    world.run_all(world.offloaded);
    world.services.on_record = lacks;
    world.run_all(world.records);
    CHECK(before.error == 0);
    CHECK(call.finished == 1);
    CHECK(call.error == ENOMEM);
  }
  world.services.on_offload = std::move(offload);
  world.services.on_record = std::move(record);
  world.settle();
  CHECK(world.open_files <= 1);
  Call& again = world.open(*session, "a");
  world.settle();
  CHECK(again.error == 0);
}

TEST_CASE("late open: who was refused while he waited stands in nobody's way, and keeps no file") {
  LateWorld world;
  auto first = world.file_session();
  auto second = world.file_session();
  Call& one = world.open(*first, "a");
  world.run_all(world.offloaded);
  Call& two = world.open(*second, "b");
  world.run_all(world.offloaded);
  CHECK(world.records.size() == 1);  // the first one's reservation, for which the second one waits
  CHECK(world.open_files == 2);
  world.time_is_over();
  CHECK(one.error == EAGAIN);
  CHECK(two.error == EAGAIN);
  world.run_all(world.offloaded);
  CHECK(world.open_files == 1);
  const std::size_t reservations = world.records.size();
  world.run_all(world.records);
  CHECK(reservations == 1);
  CHECK(world.records.empty());
  world.run_all(world.offloaded);
  CHECK(world.open_files == 0);
}

TEST_CASE("late open: a file that hangs in open(2) keeps no thread from another file") {
  Directory directory;
  std::mutex mutex;
  std::condition_variable changed;
  bool inside = false, free = false;
  ExportCatalogue catalogue{
      {.open = [&](const std::string& storage,
                   const BackendOptions&) -> tl::expected<std::unique_ptr<Backend>, Failure> {
        if (fs::read_symlink(storage).filename() == "a") {
          std::unique_lock lock{mutex};
          inside = true;
          changed.notify_all();
          changed.wait(lock, [&] { return free; });
        }
        return std::make_unique<FakeBackend>(4096);
      }}};
  REQUIRE(catalogue.files().set(directory.path.string()).has_value());
  std::thread stuck{[&] { catalogue.files().open("alice", "a", wire::AccessMode::read_only); }};
  {
    std::unique_lock lock{mutex};
    changed.wait(lock, [&] { return inside; });
  }
  {
    auto lease = catalogue.files().open("alice", "b", wire::AccessMode::read_write);
    REQUIRE(lease.has_value());
    auto storage = lease->storage();
    { const Lease gone = std::move(*lease); }
    catalogue.storages().close(std::move(storage));
  }
  {
    const std::lock_guard lock{mutex};
    free = true;
  }
  changed.notify_all();
  stuck.join();
}

}  // namespace late_open_test
