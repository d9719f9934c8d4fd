// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/search_path.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "rdma/owned_fd.hpp"
#include "tests/unit/server/fixture.hpp"

namespace search_path_test {

using namespace rnbd;
using namespace rnbd::test;
namespace fs = std::filesystem;

namespace {

/// A directory to export with traps around and in it.
class Tree {
 public:
  Tree() {
    std::string name = (fs::temp_directory_path() / "rnbd-search-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    top = name;
    exported = top / "exported";
    file("secret");
    file("exported/disk");
    file("exported/sub/deep");
    file("exported/alice/mine");
    file("exported/bob/his");
    fs::create_symlink("disk", exported / "link");
    fs::create_symlink(top / "secret", exported / "out");
    fs::create_directory_symlink("sub", exported / "sublink");
    fs::create_directory_symlink("bob", exported / "mallory");
    fs::create_hard_link(exported / "disk", exported / "twin");
    fs::create_symlink("/proc/self/fd", exported / "magic");
    fs::create_symlink("../disk", exported / "sub/up");
    fs::create_symlink("sub/up", exported / "chain");
    fs::create_symlink("../sublink//../sub/./up", exported / "sub/winding");
    fs::create_symlink("../secret", exported / "away");
    fs::create_symlink("../exported/disk", exported / "away-and-back");
    fs::create_symlink(exported / "disk", exported / "absolute");
    fs::create_symlink("..", exported / "parent");
    fs::create_symlink("loop", exported / "loop");
    fs::create_symlink("nothing", exported / "dangling");
    fs::create_symlink("disk/", exported / "no-directory");
    fs::create_symlink("../bob/his", exported / "alice/his");
    fs::create_symlink("mine", exported / "alice/own");
    REQUIRE(mkfifo((exported / "fifo").c_str(), 0600) == 0);
  }
  ~Tree() { fs::remove_all(top); }

  fs::path top, exported;

 private:
  void file(const char* name) {
    fs::create_directories((top / name).parent_path());
    std::ofstream{top / name} << std::string(4096, 'x');
  }
};

int error_of(const SearchPath& path, const char* name, const char* session = "alice") {
  const auto found = path.find(session, name);
  return found ? 0 : found.error().error;
}

/// The kernel's way, and the one for sandboxes that hide it.
void for_both_ways(void (*test)(bool use_openat2)) {
  for (const bool use_openat2 : {true, false}) {
    CAPTURE(use_openat2);
    test(use_openat2);
  }
}

/// A world whose search path is the tree and whose backends are fakes over what was found.
struct FileWorld {
  FileWorld()
      : catalogue{{.open = [this](const std::string& storage, const BackendOptions& options)
                       -> tl::expected<std::unique_ptr<Backend>, Failure> {
          if (next_error != 0)
            return tl::unexpected(Failure{std::exchange(next_error, 0), storage + ": refused"});
          ++opened;
          ++now_open;
          locked = options.lock;
          auto backend = std::make_unique<FakeBackend>(fs::file_size(storage));
          backend->info_.read_only = options.read_only;
          backend->on_close = [this] { --now_open; };
          last = backend.get();
          return backend;
        }}},
        queues{nullptr, catalogue, services} {
    REQUIRE(catalogue.files().set(tree.exported.string()).has_value());
  }
  tl::expected<Lease, Refusal> open(const char* name,
                                    wire::AccessMode mode = wire::AccessMode::read_write) {
    return catalogue.files().open("alice", name, mode);
  }

  Tree tree;
  FakeBackend* last = nullptr;
  int opened = 0, now_open = 0, next_error = 0;
  bool locked = false;
  FakeServices services;
  ExportCatalogue catalogue;
  QueueTable queues;
};

/// Leaves this process so few descriptors that they are scarce.
class FewDescriptors {
 public:
  FewDescriptors() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    for (rtrs::OwnedFd& each : used_) each = rtrs::OwnedFd{::open("/dev/null", O_RDONLY)};
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(used_.back().get()) + 8;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::array<rtrs::OwnedFd, 32> used_;
};

}  // namespace

TEST_CASE("search path: finds files below it, with slashes in front and in between") {
  for_both_ways([](bool use_openat2) {
    Tree tree;
    const auto path = SearchPath::open(tree.exported.string(), use_openat2);
    REQUIRE(path.has_value());
    for (const char* name : {"disk", "/disk", "///disk", "sub/deep", "sub//deep", "/sub/deep"}) {
      CAPTURE(name);
      CHECK(error_of(*path, name) == 0);
    }
  });
}

TEST_CASE("search path: two spellings of one path are the same name") {
  CHECK(is_same_file_name("a/b", "/a//b"));
  CHECK(is_same_file_name("a", "///a/"));
  for (const char* other : {"", "a", "a/b/c", "b/a", "a/bb", "ab"}) {
    CHECK_FALSE(is_same_file_name("a/b", other));
    CHECK_FALSE(is_same_file_name(other, "a/b"));
  }
}

TEST_CASE("search path: links that stay below it lead to what they name") {
  for_both_ways([](bool use_openat2) {
    Tree tree;
    const auto path = SearchPath::open(tree.exported.string(), use_openat2);
    REQUIRE(path.has_value());
    const auto disk = path->find("alice", "disk");
    REQUIRE(disk.has_value());
    for (const char* name : {"link", "sub/up", "chain", "sublink/up", "sub/winding"}) {
      CAPTURE(name);
      const auto found = path->find("alice", name);
      REQUIRE(found.has_value());
      CHECK(found->identity == disk->identity);
    }
    CHECK(error_of(*path, "sublink/deep") == 0);
  });
}

TEST_CASE("search path: forty links in a row are followed, and not forty-one") {
  for_both_ways([](bool use_openat2) {
    Tree tree;
    fs::create_symlink("disk", tree.exported / "1");
    for (int n = 2; n <= 41; ++n) {
      fs::create_symlink(std::to_string(n - 1), tree.exported / std::to_string(n));
    }
    const auto path = SearchPath::open(tree.exported.string(), use_openat2);
    REQUIRE(path.has_value());
    CHECK(error_of(*path, "40") == 0);
    CHECK(error_of(*path, "41") == ENOENT);
  });
}

TEST_CASE("search path: a way that others turn around while it is walked does not lead out") {
  for_both_ways([](bool use_openat2) {
    Tree tree;
    const fs::path outside = tree.top / "outside";
    fs::create_directories(outside);
    std::ofstream{outside / "deep"} << "secret";
    struct stat secret {};
    REQUIRE(::stat((outside / "deep").c_str(), &secret) == 0);
    const auto path = SearchPath::open(tree.exported.string(), use_openat2);
    REQUIRE(path.has_value());
    std::atomic<bool> over{false};
    std::thread turns{[&] {
      const fs::path sub = tree.exported / "sub", away = tree.exported / "sub.away";
      while (!over) {
        fs::rename(sub, away);
        fs::create_directory_symlink("../outside", sub);
        fs::remove(sub);
        fs::rename(away, sub);
      }
    }};
    for (int n = 0; n < 5000; ++n) {
      for (const char* name : {"sub/deep", "sublink/deep", "chain"}) {
        const auto found = path->find("alice", name);
        if (found && found->identity.inode == secret.st_ino) FAIL("it led out");
      }
    }
    over = true;
    turns.join();
  });
}

TEST_CASE("search path: every way out and everything that is no disk looks like a missing file") {
  for_both_ways([](bool use_openat2) {
    Tree tree;
    const auto path = SearchPath::open(tree.exported.string(), use_openat2);
    REQUIRE(path.has_value());
    for (const char* name : {"missing",
                             "../secret",
                             "sub/../disk",
                             "sub/../../secret",
                             "./disk",
                             "sub/./deep",
                             "..",
                             ".",
                             "/",
                             "",
                             "//",
                             "out",
                             "away",
                             "away-and-back",
                             "absolute",
                             "parent",
                             "parent/secret",
                             "loop",
                             "dangling",
                             "no-directory",
                             "link/",
                             "sublink",
                             "sublink/",
                             "magic",
                             "magic/0",
                             "fifo",
                             "sub",
                             "disk/",
                             "disk/more",
                             "/../secret",
                             "/etc/passwd",
                             "/proc/self/exe"}) {
      CAPTURE(name);
      CHECK(error_of(*path, name) == ENOENT);
    }
  });
}

TEST_CASE("search path: character devices are not exported") {
  for_both_ways([](bool use_openat2) {
    const auto path = SearchPath::open("/dev", use_openat2);
    REQUIRE(path.has_value());
    CHECK(error_of(*path, "null") == ENOENT);
    CHECK(error_of(*path, "zero") == ENOENT);
  });
}

TEST_CASE("search path: with %SESSNAME% each client sees its own directory only") {
  for_both_ways([](bool use_openat2) {
    Tree tree;
    const auto path = SearchPath::open(tree.exported.string() + "/%SESSNAME%", use_openat2);
    REQUIRE(path.has_value());
    CHECK(error_of(*path, "mine", "alice") == 0);
    CHECK(error_of(*path, "his", "bob") == 0);
    CHECK(error_of(*path, "his", "alice") == ENOENT);
    CHECK(error_of(*path, "../bob/his", "alice") == ENOENT);
    CHECK(error_of(*path, "bob/his", "alice") == ENOENT);
    CHECK(error_of(*path, "own", "alice") == 0);
    CHECK(error_of(*path, "his", "mallory") == ENOENT);
    CHECK(error_of(*path, "secret", "..") == ENOENT);
    CHECK(error_of(*path, "disk", ".") == ENOENT);
    CHECK(error_of(*path, "disk", "") == ENOENT);
    CHECK(error_of(*path, "deep", "sub/../sub") == ENOENT);
    CHECK(error_of(*path, "mine", "nobody") == ENOENT);
  });
}
TEST_CASE("search path: a directory that cannot be one is said at the start") {
  Tree tree;
  const auto text = [](const std::string& directory) {
    const auto path = SearchPath::open(directory);
    return path ? std::string{} : path.error().text;
  };
  CHECK(text("/nonexistent/srv").find("No such file") != std::string::npos);
  CHECK(text((tree.exported / "disk").string()).find("Not a directory") != std::string::npos);
  CHECK(text("/srv/%SESSNAME%/disks").find("last component") != std::string::npos);
  CHECK(text("/srv/x%SESSNAME%").find("last component") != std::string::npos);
}

TEST_CASE("search path: two spellings of one file are one storage with one writer") {
  FileWorld world;
  auto first = world.open("disk");
  REQUIRE(first.has_value());
  CHECK(world.open("/disk").error().error == EPERM);
  CHECK(world.open("twin").error().error == EPERM);
  CHECK(world.open("link").error().error == EPERM);
  CHECK(world.open("sublink/up").error().error == EPERM);
  CHECK(world.opened == 1);
  const auto reader = world.open("twin", wire::AccessMode::read_only);
  REQUIRE(reader.has_value());
  CHECK(reader->storage() == first->storage());
  CHECK(world.open("sub/deep").has_value());
}

TEST_CASE("search path: a reader alone neither locks the file nor keeps a writer away") {
  FileWorld world;
  const auto reader = world.open("disk", wire::AccessMode::read_only);
  REQUIRE(reader.has_value());
  CHECK_FALSE(world.locked);
  CHECK(reader->geometry().read_only);
  const auto writer = world.open("disk", wire::AccessMode::read_write);
  REQUIRE(writer.has_value());
  CHECK(world.locked);
  CHECK_FALSE(writer->geometry().read_only);
  CHECK(world.open("disk", wire::AccessMode::read_write).error().error == EPERM);
}

TEST_CASE("search path: the file is closed with its last user, and can be opened again") {
  FileWorld world;
  SessionFacts facts;
  facts.name = "alice";
  facts.max_io_size = 4096;
  const auto open = [&](BlockSession& session, const char* name) {
    Call call;
    const wire::Open message = wire::encode_open(name, wire::AccessMode::migration);
    const auto bytes = rtrs::wire::bytes_of(message);
    call.message.assign(bytes.begin(), bytes.end());
    call.data = room(56);
    call.request.message = call.message;
    call.request.data = call.data;
    call.request.is_read = true;
    session.on_request(call.request);
    return call.error;
  };
  {
    BlockSession one{facts, world.catalogue, world.queues, world.services};
    {
      BlockSession two{facts, world.catalogue, world.queues, world.services};
      CHECK(open(one, "disk") == 0);
      CHECK(open(two, "twin") == 0);
      CHECK(world.opened == 1);
    }
    const FakeBackend* disk = world.last;
    CHECK(open(one, "alice/mine") == 0);
    CHECK(world.now_open == 2);
    CHECK(disk->queues == 1);
  }
  // Without an event loop the burial waits for the next opening.
  BlockSession three{facts, world.catalogue, world.queues, world.services};
  CHECK(open(three, "sub/deep") == 0);
  CHECK(world.now_open == 1);
  CHECK(open(three, "disk") == 0);
  CHECK(world.opened == 4);
}

TEST_CASE("search path: who mistypes a name is told where it was looked for") {
  FileWorld world;
  const auto refused = world.open("dsik");
  CHECK(refused.error().error == ENOENT);
  CHECK(refused.error().text == "'dsik': no export has this name, and below the search path " +
                                    world.tree.exported.string() + ": No such file or directory");
}

TEST_CASE("search path: a file that the server may read but not write is EROFS to a writer") {
  FileWorld world;
  world.next_error = EACCES;
  CHECK(world.open("disk").error().error == EROFS);
}

TEST_CASE("search path: a file that the server may not read is not there, the log knows why") {
  FileWorld world;
  world.next_error = EACCES;
  const auto refused = world.open("disk", wire::AccessMode::read_only);
  CHECK(refused.error().error == ENOENT);
  CHECK(refused.error().text == "'disk': refused");
}

TEST_CASE("search path: another error of the backend arrives as it is") {
  FileWorld world;
  world.next_error = EBUSY;
  CHECK(world.open("disk").error().error == EBUSY);
  CHECK(world.open("disk").has_value());
}

TEST_CASE("search path: what is in use right after the start is waited for, but not for ever") {
  const Tree tree;
  unsigned tries = 0, lines = 0, busy_for = 0;
  CatalogueOptions options;
  options.open = [&](const std::string&,
                     const BackendOptions&) -> tl::expected<std::unique_ptr<Backend>, Failure> {
    if (++tries <= busy_for) return tl::unexpected(Failure{EBUSY, "in use"});
    return std::make_unique<FakeBackend>(4096);
  };
  options.log = [&](rtrs::LogLevel, const std::string&) { ++lines; };
  const auto open = [&](ExportCatalogue& catalogue) {
    REQUIRE(catalogue.files().set(tree.exported.string()).has_value());
    const auto lease = catalogue.files().open("alice", "disk", wire::AccessMode::read_write);
    return lease ? 0 : lease.error().error;
  };
  SUBCASE("it becomes free") {
    options.patience = std::chrono::seconds{60};
    busy_for = 3;
    ExportCatalogue catalogue{options};
    CHECK(open(catalogue) == 0);
    CHECK(tries == 4);
    CHECK(lines == 1);
  }
  SUBCASE("it does not") {
    options.patience = std::chrono::milliseconds{120};
    busy_for = 1'000'000;
    ExportCatalogue catalogue{options};
    CHECK(open(catalogue) == EBUSY);
    CHECK(tries > 1);
    CHECK(lines == 1);
    tries = 0;
    CHECK(open(catalogue) == EBUSY);
    CHECK(tries == 1);
  }
  SUBCASE("nobody asked to wait") {
    busy_for = 1;
    ExportCatalogue catalogue{options};
    CHECK(open(catalogue) == EBUSY);
    CHECK(tries == 1);
  }
}

TEST_CASE("search path: work that may block is given away, and the answer comes after it") {
  FileWorld world;
  std::vector<std::function<void()>> work, then, later;
  world.services.on_offload = [&](rtrs::Reactor*, std::function<void()> w,
                                  std::function<void()> t) {
    work.push_back(std::move(w));
    then.push_back(std::move(t));
  };
  world.services.on_later = [&](rtrs::Reactor*, std::function<void()> l) {
    later.push_back(std::move(l));
  };
  SessionFacts facts;
  facts.name = "alice";
  facts.max_io_size = 4096;
  auto session =
      std::make_unique<BlockSession>(facts, world.catalogue, world.queues, world.services);
  const auto start = [&](Call& call, const char* name) {
    const wire::Open message = wire::encode_open(name, wire::AccessMode::read_write);
    const auto bytes = rtrs::wire::bytes_of(message);
    call.message.assign(bytes.begin(), bytes.end());
    call.data = room(56);
    call.request.message = call.message;
    call.request.data = call.data;
    call.request.is_read = true;
    session->on_request(call.request);
  };
  Call first, second;
  start(first, "disk");
  start(second, "disk");
  CHECK(world.opened == 0);
  // One after the other: the second one's turn comes when the first one's work is done.
  CHECK(work.size() == 1);
  for (std::size_t i = 0; i < work.size(); ++i) {
    const auto next = work[i];
    next();
  }
  CHECK(work.size() == 2);
  CHECK(first.finished == 0);
  // The second one was refused as a second writer, but by now the name is open in this session.
  for (auto& t : then) t();
  CHECK(first.error == 0);
  CHECK(second.error == 0);
  CHECK(session->devices().size() == 1);
  work.clear();

  session.reset();
  CHECK(world.now_open == 1);
  REQUIRE(later.size() == 1);
  later[0]();
  CHECK(world.now_open == 1);
  REQUIRE(work.size() == 1);
  work[0]();
  CHECK(world.now_open == 0);
}

TEST_CASE("search path: the last descriptors are for new files of others, and for all old ones") {
  World world;
  const Tree tree;
  REQUIRE(world.catalogue.files().set(tree.exported.string()).has_value());
  for (const char* name : {"a", "b", "c"}) world.add(name, 4096);
  for (const char* name : {"disk", "a", "b", "c"}) {
    REQUIRE(world.open(world.session(), name).error == 0);
  }
  const auto open_numbered = [&](std::uint32_t number, std::uint8_t flags) {
    auto backend = std::make_unique<FakeBackend>(4096);
    world.next_backend = backend.get();
    wire::NumberedOpen message{wire::encode_open("sub/deep", wire::AccessMode::read_write),
                               {number, 0}};
    message.open.flags = flags;
    const int error =
        world.send(world.session(), message, true, room(sizeof(wire::OpenResponse))).error;
    if (world.next_backend == nullptr) (void)backend.release();  // the catalogue has it
    return error;
  };
  const FewDescriptors few;
  CHECK(open_numbered(1, 0) == EMFILE);
  CHECK(open_numbered(2, wire::kOpenAgain) == 0);
}

}  // namespace search_path_test
