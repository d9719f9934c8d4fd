#include "bridge/server/catalogue.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "tests/unit/server/fixture.hpp"

using namespace rnbd;
using namespace rnbd::test;
namespace fs = std::filesystem;

namespace {

std::string failure_of(ExportCatalogue& catalogue, const ExportSpecification& specification) {
  const auto added = catalogue.add(specification);
  return added ? std::string{} : added.error().text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A catalogue over fakes that remembers what it opened.
struct Fakes {
  explicit Fakes(std::shared_ptr<WriterStore> kept = nullptr) : turns{std::move(kept)} {}
  std::shared_ptr<WriterStore> turns;
  std::vector<std::pair<std::string, BackendOptions>> opened;
  std::uint64_t size = 4096;
  ExportCatalogue catalogue{
      {.open = [this](const std::string& storage, const BackendOptions& options)
           -> tl::expected<std::unique_ptr<Backend>, Failure> {
         opened.emplace_back(storage, options);
         auto backend = std::make_unique<FakeBackend>(size);
         backend->info_.read_only = options.read_only;
         backend->info_.uuid = {1};
         backend->info_.outlives_server = turns != nullptr;
         return backend;
       },
       .turns = turns}};
};

struct TempFile {
  TempFile() {
    std::string name = (fs::temp_directory_path() / "rnbd-catalogue-XXXXXX").string();
    const int fd = mkstemp(name.data());
    REQUIRE(fd >= 0);
    ::close(fd);
    path = name;
    std::ofstream{path} << std::string(4096, 'x');
  }
  ~TempFile() { fs::remove(path); }
  std::string path;
};

}  // namespace

TEST_CASE("catalogue: what is in use at the start is waited for, but not for ever") {
  unsigned tries = 0, lines = 0, busy_for = 0;
  const auto opener =
      [&](const std::string&,
          const BackendOptions&) -> tl::expected<std::unique_ptr<Backend>, Failure> {
    if (++tries <= busy_for) return tl::unexpected(Failure{EBUSY, "in use"});
    return std::make_unique<FakeBackend>(4096);
  };
  CatalogueOptions options;
  options.open = opener;
  options.log = [&](rtrs::LogLevel, const std::string&) { ++lines; };
  SUBCASE("it becomes free") {
    options.patience = std::chrono::seconds{60};
    busy_for = 3;
    ExportCatalogue catalogue{options};
    CHECK(failure_of(catalogue, {"a", "fake:a", "", false, false}).empty());
    CHECK(tries == 4);
    CHECK(lines == 1);
  }
  SUBCASE("it does not") {
    options.patience = std::chrono::milliseconds{120};
    busy_for = 1'000'000;
    ExportCatalogue catalogue{options};
    CHECK(has(failure_of(catalogue, {"a", "fake:a", "", false, false}), "in use"));
    CHECK(tries > 1);
    CHECK(lines == 1);
    tries = 0;
    CHECK(has(failure_of(catalogue, {"b", "fake:b", "", false, false}), "in use"));
    CHECK(tries == 1);
  }
  SUBCASE("nobody asked to wait") {
    busy_for = 1;
    ExportCatalogue catalogue{options};
    CHECK(has(failure_of(catalogue, {"a", "fake:a", "", false, false}), "in use"));
    CHECK(tries == 1);
  }
}

TEST_CASE("catalogue: bad names are refused with the reason") {
  Fakes fakes;
  const auto text = [&](const std::string& name) {
    return failure_of(fakes.catalogue, {name, "memory:1M", "", false, false});
  };
  CHECK(has(text(""), "is empty"));
  CHECK(has(text(std::string(255, 'x')), "255 bytes"));
  CHECK(text(std::string(254, 'x')).empty());
  CHECK(has(text("new\nline"), "control character"));
  CHECK(has(text("a/../b"), "component"));
  CHECK(has(text("/"), "component"));
  CHECK(text("dev/sdb").empty());
  CHECK(has(text("dev/sdb"), "twice"));
  CHECK(fakes.opened.size() == 2);
}

TEST_CASE("catalogue: a description that could not be listed is refused") {
  Fakes fakes;
  const auto text = [&](const std::string& name, const std::string& description) {
    return failure_of(fakes.catalogue, {name, "memory:1M", description, false, false});
  };
  CHECK(has(text("a", std::string(1025, 'x')), "at most 1024"));
  CHECK(has(text("a", "bell\a"), "control character"));
  CHECK(text("a", std::string(1024, 'x')).empty());
  CHECK(text("b", "two\nlines,\tübung").empty());
}

TEST_CASE("catalogue: an empty backend is refused and the sentence names the export") {
  Fakes fakes;
  fakes.size = 0;
  const auto text = failure_of(fakes.catalogue, {"disk0", "null:0", "", false, false});
  CHECK(has(text, "disk0"));
  CHECK(has(text, "empty"));
}

TEST_CASE("catalogue: options of the export reach the backend") {
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"a", "x:", "", true, true}).empty());
  CHECK(fakes.opened[0].second.read_only);
  CHECK(fakes.opened[0].second.direct);
  CHECK(fakes.opened[0].second.lock);
  CHECK(failure_of(fakes.catalogue, {"b", "x:", "", false, false}).empty());
  CHECK_FALSE(fakes.opened[1].second.read_only);
  CHECK_FALSE(fakes.opened[1].second.direct);
}

namespace {

/// What outlives a catalogue.
struct Turns final : WriterStore {
  tl::expected<WriterRecord, std::string> load(const wire::Uuid& storage) override {
    if (!unreadable.empty()) return tl::unexpected(unreadable);
    return kept[storage];
  }
  tl::expected<void, std::string> save(const wire::Uuid& storage,
                                       const WriterRecord& record) override {
    if (!unwritable.empty()) return tl::unexpected(unwritable);
    kept[storage] = record;
    return {};
  }
  std::map<wire::Uuid, WriterRecord> kept;
  std::string unreadable;
  std::string unwritable;
};

constexpr auto kReadWrite = wire::AccessMode::read_write;
constexpr auto kMigration = wire::AccessMode::migration;

std::uint64_t take_turn(ExportCatalogue& catalogue, Lease& lease, std::uint8_t session,
                        Coming coming = Coming::unknown) {
  if (!catalogue.rejoin(lease, wire::Uuid{session})) {
    CHECK(catalogue.take_turn(lease, wire::Uuid{session}, coming).has_value());
  }
  return catalogue.writer_serial(lease);
}

/// Opens it, and leaves.
std::uint64_t turn(ExportCatalogue& catalogue, std::uint8_t session, const char* name = "rw",
                   wire::AccessMode mode = kReadWrite) {
  auto lease = catalogue.open_named(name, mode);
  REQUIRE(lease.has_value());
  return take_turn(catalogue, *lease, session);
}

}  // namespace

TEST_CASE("catalogue: writers learn whether another one came between, under whatever name") {
  TempFile file;
  Fakes fakes;
  ExportCatalogue& catalogue = fakes.catalogue;
  CHECK(failure_of(catalogue, {"rw", file.path, "", false, false}).empty());
  CHECK(failure_of(catalogue, {"too", file.path, "", false, false}).empty());
  const std::uint64_t first = turn(catalogue, 1);
  CHECK((first >> 32) != 0);
  CHECK(turn(catalogue, 1, "too") == first);
  CHECK(turn(catalogue, 2, "rw", wire::AccessMode::read_only) == 0);
  CHECK(turn(catalogue, 1) == first);
  CHECK(turn(catalogue, 2, "too") != first);
  const std::uint64_t back = turn(catalogue, 1);
  CHECK(back != first);
  CHECK((back >> 32) == (first >> 32));
  CHECK(turn(catalogue, 2, "rw", kMigration) != back);
}

TEST_CASE("catalogue: whose turn it is outlives the server, as far as it can be told") {
  TempFile file;
  const auto turns = std::make_shared<Turns>();
  const auto serve = [&] {
    auto fakes = std::make_unique<Fakes>(turns);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    return fakes;
  };
  auto server = serve();
  const std::uint64_t first = turn(server->catalogue, 1);
  server = serve();
  CHECK(turn(server->catalogue, 1) == first);
  const std::uint64_t second = turn(server->catalogue, 2);
  CHECK(second == first + 1);
  server = serve();
  CHECK(turn(server->catalogue, 1) == first + 2);

  const auto refused = [&] {
    auto lease = server->catalogue.open_named("rw", kReadWrite);
    REQUIRE(lease.has_value());
    const auto taken = server->catalogue.take_turn(*lease, wire::Uuid{2}, Coming::unknown);
    return taken ? "" : taken.error();
  };
  turns->unwritable = "full";
  CHECK(refused() == "full");
  turns->unwritable = "";
  server = serve();
  turns->unreadable = "damaged";
  CHECK(refused() == "damaged");
  turns->unreadable = "";
  CHECK(turn(server->catalogue, 2) == first + 3);
}

TEST_CASE("catalogue: who takes part while a machine migrates, and who does not any more") {
  TempFile file;
  const auto turns = std::make_shared<Turns>();
  auto server = std::make_unique<Fakes>(turns);
  const auto serve = [&] {
    if (server) server->catalogue.end();
    auto fakes = std::make_unique<Fakes>(turns);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    return fakes;
  };
  std::map<std::uint8_t, std::uint64_t> number;
  std::multimap<std::uint8_t, Lease> there;
  std::map<std::uint8_t, wire::AccessMode> modes;
  const auto comes = [&](std::uint8_t session, wire::AccessMode mode = kMigration,
                         Coming coming = Coming::anew) {
    modes[session] = mode;
    const auto again = coming == Coming::again ? wire::Uuid{session} : wire::Uuid{};
    auto lease = server->catalogue.open_named("rw", mode, again);
    if (!lease) return;  // it asks again until the others have left
    number[session] = take_turn(server->catalogue, *lease, session, coming);
    there.emplace(session, *std::move(lease));
  };
  const auto is_cut_off = [&](std::uint8_t session) {
    there.erase(session);
    server->catalogue.record_left();
  };
  const auto closes = [&](std::uint8_t session) {
    there.find(session)->second.close();
    is_cut_off(session);
  };
  const auto comes_back = [&](std::uint8_t session) {
    const std::uint64_t before = number[session];
    number[session] = 0;
    comes(session, modes[session], Coming::again);
    return number[session] == before;
  };
  const auto crashes = [&] {
    server->catalogue.end();
    there.clear();
    server = serve();
  };
  server = serve();
  comes(1, kReadWrite);
  comes(2);

  SUBCASE("both may come back after a crash, in any order") {
    crashes();
    CHECK(comes_back(2));
    CHECK(comes_back(1));
  }
  SUBCASE("who is cut off while the other one is there takes no part") {
    is_cut_off(1);
    CHECK_FALSE(comes_back(1));
    SUBCASE("and the other one has not lost anything by it") {
      crashes();
      CHECK(comes_back(2));
    }
  }
  SUBCASE("nor after a crash") {
    is_cut_off(1);
    crashes();
    CHECK(comes_back(2));
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("who stays keeps its part, whoever comes and goes") {
    closes(2);
    comes(3);
    closes(3);
    comes(4);
    crashes();
    CHECK(comes_back(1));
    CHECK(comes_back(4));
  }
  SUBCASE("who was cut off by a crash does not take part with those who come anew") {
    crashes();
    comes(3);
    comes(4);
    closes(3);
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("who comes back after a crash, closes and opens anew, is somebody else") {
    crashes();
    CHECK(comes_back(2));
    closes(2);
    comes(2);
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("and so is who opens it without having come back") {
    crashes();
    Lease lease = server->catalogue.open_named("rw", kMigration).value();
    CHECK(take_turn(server->catalogue, lease, 2, Coming::anew) != number[2]);
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("who comes back too late does not throw out who had it last") {
    is_cut_off(1);
    crashes();
    CHECK_FALSE(comes_back(1));
    CHECK(comes_back(2));
  }
  SUBCASE("who left is not forgotten when that cannot be recorded") {
    turns->unwritable = "full";
    is_cut_off(1);
    CHECK(server->catalogue.has_left());
    turns->unwritable = "";
    closes(2);
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("what is recorded late does not undo what another server has recorded") {
    crashes();
    CHECK(comes_back(2));
    there.find(2)->second.close();
    there.clear();
    CHECK(server->catalogue.has_left());
    Fakes other{turns};
    CHECK(failure_of(other.catalogue, {"rw", file.path, "", false, false}).empty());
    {
      Lease lease = other.catalogue.open_named("rw", kReadWrite).value();
      take_turn(other.catalogue, lease, 3, Coming::anew);
    }
    SUBCASE("by itself") { server->catalogue.record_left(); }
    SUBCASE("when somebody comes") {}
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("who comes while the server ends finds nobody there") {
    server->catalogue.end();
    there.clear();
    comes(3);
    crashes();
    CHECK(comes_back(3));
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("two names of one storage are one part") {
    closes(2);
    CHECK(comes_back(1));
    there.erase(there.find(1));
    CHECK(server->catalogue.has_left() == false);
    comes(3);
    crashes();
    CHECK(comes_back(1));
  }
}

TEST_CASE("catalogue: another server may have had the storage meanwhile") {
  TempFile file;
  const auto turns = std::make_shared<Turns>();
  Fakes one{turns};
  Fakes other{turns};
  for (Fakes* server : {&one, &other}) {
    CHECK(failure_of(server->catalogue, {"rw", file.path, "", false, false}).empty());
  }
  const std::uint64_t first = turn(one.catalogue, 1);
  CHECK(turn(one.catalogue, 1) == first);
  turn(other.catalogue, 2);
  CHECK(turn(one.catalogue, 1) != first);
}

TEST_CASE("catalogue: a session without a UUID is never known again") {
  TempFile file;
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"rw", file.path, "", false, false}).empty());
  const std::uint64_t first = turn(fakes.catalogue, 0);
  CHECK(turn(fakes.catalogue, 0) != first);
}

TEST_CASE("catalogue: two exports of one file share it, and its one writer") {
  TempFile file;
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"rw", file.path, "", false, false}).empty());
  CHECK(failure_of(fakes.catalogue, {"too", file.path, "", false, false}).empty());
  CHECK(failure_of(fakes.catalogue, {"ro", file.path, "", true, false}).empty());
  CHECK(fakes.opened.size() == 1);
  const auto writer = fakes.catalogue.open_named("rw", wire::AccessMode::read_write);
  REQUIRE(writer.has_value());
  CHECK(fakes.catalogue.open_named("too", wire::AccessMode::read_write).error() == EPERM);
  CHECK(fakes.catalogue.open_named("ro", wire::AccessMode::read_write).error() == EROFS);
  const auto reader = fakes.catalogue.open_named("ro", wire::AccessMode::read_only);
  REQUIRE(reader.has_value());
  CHECK(reader->geometry().read_only);
  CHECK_FALSE(writer->geometry().read_only);
}

TEST_CASE("catalogue: what begins like a kind of storage is a file only with file:") {
  Fakes fakes;
  const TempFile file;
  REQUIRE(fakes.catalogue.add({"one", "file:" + file.path, "", false, false}));
  REQUIRE(fakes.catalogue.add({"two", file.path, "", false, false}));
  CHECK(fakes.opened.size() == 1);

  const fs::path before = fs::current_path();
  fs::current_path(fs::temp_directory_path());
  const std::string odd = "null:" + std::to_string(::getpid());
  std::ofstream{odd} << 'x';
  CHECK(fakes.catalogue.add({"three", odd, "", false, false}));
  CHECK(fakes.catalogue.add({"four", odd, "", false, false}));
  fs::remove(odd);
  fs::current_path(before);
  CHECK(fakes.opened.size() == 3);
}

TEST_CASE("catalogue: a writable export behind a read-only one of the same file says what to do") {
  TempFile file;
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"ro", file.path, "", true, false}).empty());
  CHECK(has(failure_of(fakes.catalogue, {"rw", file.path, "", false, false}), "before"));
  CHECK(failure_of(fakes.catalogue, {"ro2", file.path, "", true, false}).empty());
}

TEST_CASE("catalogue: two memory exports of the same size are two disks") {
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"a", "memory:1M", "", false, false}).empty());
  CHECK(failure_of(fakes.catalogue, {"b", "memory:1M", "", false, false}).empty());
  const auto a = fakes.catalogue.open_named("a", wire::AccessMode::read_write);
  CHECK(fakes.catalogue.open_named("b", wire::AccessMode::read_write).has_value());
}

TEST_CASE("catalogue: a file with a name of its own is shared with the search path") {
  TempFile file;
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"disk", file.path, "", false, false}).empty());
  const fs::path path{file.path};
  REQUIRE(fakes.catalogue.set_search_path(path.parent_path().string()).has_value());
  const auto writer = fakes.catalogue.open_named("disk", wire::AccessMode::read_write);
  const auto other =
      fakes.catalogue.open_file("client", path.filename().string(), wire::AccessMode::read_write);
  CHECK(other.error().error == EPERM);
  CHECK(fakes.opened.size() == 1);
}

TEST_CASE("catalogue: real storage is opened by its specification") {
  TempFile file;
  ExportCatalogue catalogue{{}};
  CHECK(failure_of(catalogue, {"file", file.path, "", false, false}).empty());
  CHECK(failure_of(catalogue, {"memory", "memory:64M", "", false, false}).empty());
  CHECK(catalogue.geometry("file").size == 4096);
  CHECK(catalogue.geometry("memory").size == 64 << 20);
  const auto missing = failure_of(catalogue, {"missing", file.path + ".not", "", false, false});
  CHECK(has(missing, "'missing'"));
  CHECK(has(missing, file.path + ".not"));
  CHECK_FALSE(failure_of(catalogue, {"directory", "/tmp", "", false, false}).empty());
}
