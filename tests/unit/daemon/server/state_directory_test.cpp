// SPDX-License-Identifier: BSD-3-Clause
// Records of many storages that are saved together, and system calls that fail meanwhile.
#include "bridge/daemon/server/state_directory.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace {

/// The system calls of the program, in order: file or directory made durable, file renamed.
struct Calls {
  enum class What : std::uint8_t { file, directory, rename, begun };
  struct Call {
    What what;
    std::string name;
  };
  /// Calls for files whose name has this part fail so often.
  struct Fault {
    What what = What::file;
    std::string part;
    int error = 0;
    unsigned times = 0;
  };

  /// 0 or the errno that the call is to fail with.
  int note(What what, const std::string& path) {
    const std::lock_guard lock{mutex};
    const std::string name = std::filesystem::path{path}.filename();
    all.push_back({what, name});
    if (fault.times == 0 || fault.what != what || !name.ends_with(fault.part)) return 0;
    --fault.times;
    return fault.error;
  }
  std::size_t count(What what) const {
    return static_cast<std::size_t>(std::ranges::count(all, what, &Call::what));
  }

  std::mutex mutex;
  std::vector<Call> all;
  Fault fault;
};
Calls calls;

int noted(Calls::What what, const std::string& path) {
  const int error = calls.note(what, path);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

std::string path_of(int fd) {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int fsync(int fd) {
  struct stat status {};
  const bool directory = ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
  const auto what = directory ? Calls::What::directory : Calls::What::file;
  return noted(what, path_of(fd)) < 0 ? -1 : real<int(int)>("fsync")(fd);
}

extern "C" int sync_file_range(int fd, off64_t from, off64_t bytes, unsigned flags) {
  if (noted(Calls::What::begun, path_of(fd)) < 0) return -1;
  return real<int(int, off64_t, off64_t, unsigned)>("sync_file_range")(fd, from, bytes, flags);
}

extern "C" int renameat2(int from, const char* old, int to, const char* name,
                         unsigned flags) noexcept {
  if (std::string_view{old}.starts_with(".spare"))
    return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(from, old, to, name,
                                                                                flags);
  if (noted(Calls::What::rename, name) < 0) return -1;
  return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(from, old, to, name,
                                                                              flags);
}

extern "C" int renameat(int from, const char* old, int to, const char* name) noexcept {
  const bool spare = std::string_view{old}.starts_with(".spare");
  if (!spare && noted(Calls::What::rename, name) < 0) return -1;
  return real<int(int, const char*, int, const char*)>("renameat")(from, old, to, name);
}

namespace rnbd::test::state_directory_test {
namespace {

namespace fs = std::filesystem;
using What = Calls::What;

wire::Uuid storage(std::size_t n) { return {static_cast<std::uint8_t>(n), 1}; }

WriterRecord record(std::uint32_t last) {
  return {.origin = 7, .last = last, .parts = {{{1, 2, 3}, last}}};
}

struct Directory {
  Directory() {
    std::string name = (fs::temp_directory_path() / "rnbd-state-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
    auto opened = ReservationFiles::open(path);
    REQUIRE(opened.has_value());
    files = *std::move(opened);
  }
  ~Directory() {
    calls.fault = {};
    fs::remove_all(path);
  }
  /// Returns the number of records that were saved.
  std::size_t save(std::size_t count, std::uint32_t last, Calls::Fault fault = {}) {
    entries.clear();
    for (std::size_t n = 0; n < count; ++n) entries.push_back({storage(n), record(last)});
    calls.all.clear();
    calls.fault = std::move(fault);
    saved = files->save_all(entries);
    REQUIRE(saved.size() == count);
    return static_cast<std::size_t>(
        std::ranges::count_if(saved, [](const auto& each) { return each.has_value(); }));
  }
  /// The number of records that say so.
  std::size_t kept(std::uint32_t last) {
    std::size_t count = 0;
    for (const auto& each : entries) {
      const auto known = files->load(each.storage);
      REQUIRE(known.has_value());
      count += *known == record(last) ? 1 : 0;
    }
    return count;
  }
  std::size_t spares() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(fs::directory_iterator{path}, [](const fs::directory_entry& each) {
          return each.path().filename().string().starts_with(".spare");
        }));
  }

  std::string path;
  std::unique_ptr<ReservationFiles> files;
  std::vector<WriterStore::Entry> entries;
  std::vector<WriterStore::Saved> saved;
};

/// So many descriptors may be opened.
struct FewDescriptors {
  explicit FewDescriptors(rlim_t free) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const int next = ::dup(0);
    REQUIRE(next >= 0);
    ::close(next);
    const rlimit few{static_cast<rlim_t>(next) + free, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before{};
};

constexpr const char* kFifth = "05010000000000000000000000000000";

}  // namespace

TEST_CASE("state directory: records that are saved together are durable before one is told") {
  Directory directory;
  for (const std::uint32_t last : {1U, 2U}) {
    CHECK(directory.save(100, last) == 100);
    CHECK(directory.kept(last) == 100);
    CHECK(calls.count(What::file) == 100);
    CHECK(calls.count(What::directory) == 1);
    CHECK(calls.all.back().what == What::directory);
    // Each draft is durable before it takes the place of its record.
    std::vector<std::string> durable;
    for (const Calls::Call& each : calls.all) {
      if (each.what == What::file) durable.push_back(each.name);
      if (each.what == What::rename)
        CHECK(std::ranges::find(durable, each.name + ".new") != durable.end());
    }
  }
}

TEST_CASE("state directory: a draft without room gets that of a spare file") {
  Directory directory;
  const std::size_t spares = directory.spares();
  CHECK(directory.save(40, 1, {What::file, std::string{kFifth} + ".new", ENOSPC, 1}) == 40);
  CHECK(directory.kept(1) == 40);
  CHECK(directory.spares() == spares - 1);
  CHECK(directory.save(40, 2, {What::begun, std::string{kFifth} + ".new", ENOSPC, 1}) == 40);
  CHECK(directory.kept(2) == 40);
  CHECK(directory.spares() == spares - 2);
}

TEST_CASE("state directory: a record that cannot be saved stays, and the others are saved") {
  Directory directory;
  REQUIRE(directory.save(40, 1) == 40);
  const std::string draft = std::string{kFifth} + ".new";
  std::size_t kept = 39;
  SUBCASE("its draft is not durable") {
    CHECK(directory.save(40, 2, {What::file, draft, EIO, 1}) == 39);
  }
  SUBCASE("its draft cannot be written") {
    CHECK(directory.save(40, 2, {What::begun, draft, EIO, 1}) == 39);
  }
  SUBCASE("it does not take its place") {
    CHECK(directory.save(40, 2, {What::rename, kFifth, EIO, 2}) == 39);
  }
  SUBCASE("the file system cannot begin to write") {
    CHECK(directory.save(40, 2, {What::begun, draft, EINVAL, 1}) == 40);
    kept = 40;
  }
  CHECK(directory.kept(2) == kept);
  CHECK(directory.saved[5].has_value() == (kept == 40));
  if (kept == 39) {
    CHECK(directory.kept(1) == 1);
    CHECK(directory.saved[5].error().find(kFifth) != std::string::npos);
  }
}

TEST_CASE("state directory: nothing is saved if the directory is not durable") {
  Directory directory;
  const std::string name = fs::path{directory.path}.filename();
  CHECK(directory.save(40, 1, {What::directory, name, EIO, 1}) == 0);
  CHECK(directory.save(40, 2) == 40);
}

TEST_CASE("state directory: records take the descriptors that there are, one suffices") {
  Directory directory;
  rlim_t free = 1;
  std::string part;
  SUBCASE("one") {}
  SUBCASE("three") { free = 3; }
  SUBCASE("one, and no room") { part = std::string{kFifth} + ".new"; }
  SUBCASE("three, and no room") {
    free = 3;
    part = std::string{kFifth} + ".new";
  }
  {
    const FewDescriptors few{free};
    CHECK(directory.save(40, 1, {What::file, part, ENOSPC, part.empty() ? 0U : 1U}) == 40);
  }
  CHECK(directory.kept(1) == 40);
  {
    const FewDescriptors none{0};
    CHECK(directory.save(3, 2) == 0);
    CHECK(directory.saved[0].error().ends_with("Too many open files"));
  }
}

}  // namespace rnbd::test::state_directory_test
