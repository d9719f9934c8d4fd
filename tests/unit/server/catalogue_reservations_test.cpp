// SPDX-License-Identifier: BSD-3-Clause
// The writers of a storage, and those that may come back to it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bridge/server/attempt.hpp"
#include "bridge/server/reservations_beside.hpp"
#include "bridge/server/session_facts.hpp"
#include "tests/unit/allocations.hpp"
#include "tests/unit/server/catalogue_fixture.hpp"

namespace catalogue_reservations_test {

using namespace rnbd;
using namespace rnbd::test;

namespace {

/// The records that outlive a catalogue.
struct Reservations final : WriterStore {
  tl::expected<WriterRecord, std::string> load(const wire::Uuid& storage) override {
    if (!unreadable.empty()) return tl::unexpected(unreadable);
    const auto known = kept.find(storage);
    return known == kept.end() ? WriterRecord{} : known->second;
  }
  tl::expected<void, std::string> save(const wire::Uuid& storage,
                                       const WriterRecord& record) override {
    if (!unwritable.empty()) return tl::unexpected(unwritable);
    if (storage == unwritable_key) return tl::unexpected(std::string{"full"});
    kept[storage] = record;
    return {};
  }
  std::vector<Saved> save_all(std::span<const Entry> entries) override {
    ++waits;
    most_at_once = std::max(most_at_once, entries.size());
    return WriterStore::save_all(entries);
  }
  bool knows_all() const override { return complete; }
  unsigned waits = 0;  ///< for the disk
  std::size_t most_at_once = 0;
  std::map<wire::Uuid, WriterRecord> kept;
  bool complete = false;
  std::string unreadable;
  std::string unwritable;
  wire::Uuid unwritable_key{};
};

constexpr auto kReadWrite = wire::AccessMode::read_write;
constexpr auto kMigration = wire::AccessMode::migration;

std::uint64_t reserve(ExportCatalogue& catalogue, Lease& lease, std::uint8_t session,
                      OpenKind open_kind = OpenKind::unknown) {
  if (!catalogue.reservations().rejoin(lease, wire::Uuid{session}, open_kind)) {
    CHECK(catalogue.reservations().reserve(lease, wire::Uuid{session}, open_kind).has_value());
  }
  return catalogue.reservations().writer_serial(lease);
}

/// Opens it, and leaves.
std::uint64_t serial(ExportCatalogue& catalogue, std::uint8_t session, const char* name = "rw",
                     wire::AccessMode mode = kReadWrite) {
  auto lease = catalogue.open_named(name, mode);
  REQUIRE(lease.has_value());
  return reserve(catalogue, *lease, session);
}

}  // namespace

TEST_CASE("catalogue: writers learn whether another one came between, under whatever name") {
  TempFile file;
  Fakes fakes;
  ExportCatalogue& catalogue = fakes.catalogue;
  CHECK(failure_of(catalogue, {"rw", file.path, "", false, false}).empty());
  CHECK(failure_of(catalogue, {"too", file.path, "", false, false}).empty());
  const std::uint64_t first = serial(catalogue, 1);
  CHECK((first >> 32) != 0);
  CHECK(serial(catalogue, 1, "too") == first);
  CHECK(serial(catalogue, 2, "rw", wire::AccessMode::read_only) == 0);
  CHECK(serial(catalogue, 1) == first);
  CHECK(serial(catalogue, 2, "too") != first);
  const std::uint64_t back = serial(catalogue, 1);
  CHECK(back != first);
  CHECK((back >> 32) == (first >> 32));
  CHECK(serial(catalogue, 2, "rw", kMigration) != back);
}

TEST_CASE("catalogue: the reservation outlives the server, as far as it can be told") {
  TempFile file;
  const auto reservations = std::make_shared<Reservations>();
  const auto serve = [&] {
    auto fakes = std::make_unique<Fakes>(reservations);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    return fakes;
  };
  auto server = serve();
  const std::uint64_t first = serial(server->catalogue, 1);
  server = serve();
  CHECK(serial(server->catalogue, 1) == first);
  const std::uint64_t second = serial(server->catalogue, 2);
  CHECK(second == first + 1);
  server = serve();
  CHECK(serial(server->catalogue, 1) == first + 2);

  const auto refused = [&] {
    auto lease = server->catalogue.open_named("rw", kReadWrite);
    REQUIRE(lease.has_value());
    const auto taken =
        server->catalogue.reservations().reserve(*lease, wire::Uuid{2}, OpenKind::unknown);
    return taken ? "" : taken.error().text;
  };
  reservations->unwritable = "full";
  CHECK(refused() == "cannot record who writes to it: full");
  reservations->unwritable = "";
  server = serve();
  reservations->unreadable = "damaged";
  CHECK(refused() == "cannot record who writes to it: damaged");
  reservations->unreadable = "";
  CHECK(serial(server->catalogue, 2) == first + 3);
}

TEST_CASE("catalogue: reservations that were announced are recorded together") {
  TempFile files[3];
  const auto store = std::make_shared<Reservations>();
  Fakes fakes{store};
  std::vector<std::shared_ptr<ReservationBook::Wish>> wishes;
  std::vector<Lease> leases;
  leases.reserve(5);
  ReservationBook& book = fakes.catalogue.reservations();
  bool gone = false;
  const auto wants = [&](const std::string& name, std::uint8_t session) {
    leases.push_back(fakes.catalogue.open_named(name, kMigration).value());
    wishes.push_back(
        std::make_shared<ReservationBook::Wish>(leases.back(), wire::Uuid{session}, OpenKind::anew,
                                                [&gone, session] { return gone && session == 9; }));
    book.announce(wishes.back());
  };
  for (std::uint8_t i = 0; i < 3; ++i) {
    fakes.ids[files[i].path] = static_cast<std::uint8_t>(10 + i);
    CHECK(failure_of(fakes.catalogue, {"disk" + std::to_string(i), files[i].path, "", false, false})
              .empty());
    wants("disk" + std::to_string(i), 1);
  }
  wants("disk0", 2);  // behind the first one, whose record it builds on
  wants("disk1", 9);
  gone = true;  // nobody waits for it
  book.reserve(*wishes[1]);
  CHECK(store->waits == 1);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(wishes[i]->done);
    CHECK(wishes[i]->result.has_value());
    CHECK(book.writer_serial(leases[i]) != 0);
    CHECK(store->kept.at(wire::Uuid{static_cast<std::uint8_t>(10 + i)}).parts.size() == 1);
  }
  CHECK_FALSE(wishes[3]->done);
  CHECK_FALSE(wishes[4]->done);
  book.reserve(*wishes[0]);
  CHECK(store->waits == 1);
  book.reserve(*wishes[3]);
  CHECK(store->waits == 2);
  CHECK(store->kept.at(wire::Uuid{10}).parts.size() == 2);
  CHECK_FALSE(wishes[4]->done);
  // All that leave are recorded together, too.
  leases.clear();
  CHECK(book.has_left());
  book.record_left();
  CHECK(store->waits == 3);
  CHECK_FALSE(book.has_left());
}

namespace {

/// Disks, and wishes for them that were announced.
struct Wishes {
  /// So many disks, each with a wish of the first session.
  Wishes(std::size_t count, std::shared_ptr<WriterStore> store) : fakes{std::move(store)} {
    for (std::size_t i = 0; i < count; ++i) add();
  }
  void add() {
    const std::size_t disk = files.size();
    files.push_back(std::make_unique<TempFile>());
    fakes.ids[files[disk]->path] = static_cast<std::uint8_t>(10 + disk);
    CHECK(
        failure_of(fakes.catalogue, {name_of(disk), files[disk]->path, "", false, false}).empty());
    want(disk, 1);
  }
  void want(std::size_t disk, std::uint8_t session) {
    auto opened = fakes.catalogue.open_named(name_of(disk), kMigration);
    leases.push_back(std::make_unique<Lease>(std::move(opened).value()));
    wishes.push_back(std::make_shared<ReservationBook::Wish>(*leases.back(), wire::Uuid{session},
                                                             OpenKind::anew));
    book().announce(wishes.back());
  }
  static std::string name_of(std::size_t disk) { return "disk" + std::to_string(disk); }
  ReservationBook& book() { return fakes.catalogue.reservations(); }
  std::size_t done() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(wishes, [](const auto& wish) { return wish->done; }));
  }

  std::vector<std::unique_ptr<TempFile>> files;
  Fakes fakes;
  std::vector<std::unique_ptr<Lease>> leases;
  std::vector<std::shared_ptr<ReservationBook::Wish>> wishes;
};

struct Notes final : BackendNotes {
  tl::expected<std::string, std::string> load(const std::string&) override { return ""; }
  tl::expected<void, std::string> save(const std::string&, const std::string&) override {
    return {};
  }
};

}  // namespace

TEST_CASE("catalogue: a few dozen reservations wait for each other, and the next ones go on") {
  const auto store = std::make_shared<Reservations>();
  Wishes many{100, store};
  many.book().reserve(*many.wishes[0]);
  CHECK(many.done() == store->most_at_once);
  for (const auto& wish : many.wishes) many.book().reserve(*wish);
  CHECK(many.done() == 100);
  CHECK(store->most_at_once >= 24);
  CHECK(store->most_at_once <= 48);
  CHECK(store->waits <= 5);
  // The end of a session that was told nothing is not recorded.
  many.leases.clear();
  CHECK_FALSE(many.book().has_left());
}

TEST_CASE("catalogue: a reservation whose record is a note waits for no others") {
  const auto elsewhere = std::make_shared<Reservations>();
  const auto store = std::make_shared<ReservationsBeside>(elsewhere);
  const auto notes = std::make_shared<Notes>();
  Wishes four{4, store};
  for (const std::uint8_t key : {11, 12}) store->opened(wire::Uuid{key}, notes);
  four.book().reserve(*four.wishes[1]);
  CHECK(four.done() == 1);
  four.book().reserve(*four.wishes[0]);
  CHECK(four.done() == 3);
  CHECK(elsewhere->most_at_once == 2);
  CHECK_FALSE(four.wishes[2]->done);
  four.book().reserve(*four.wishes[2]);
  CHECK(four.wishes[2]->result.has_value());
}

TEST_CASE("catalogue: wherever memory is lacking in a group, no wish is lost") {
  bool lacked = true;
  for (unsigned n = 0; lacked; ++n) {
    CAPTURE(n);
    REQUIRE(n < 1000);
    const auto store = std::make_shared<Reservations>();
    Wishes wishes{1, store};
    wishes.want(0, 2);  // behind the first one, and before those that go with that
    wishes.add();
    wishes.add();
    rtrs::test::set_lack({n, 1});
    (void)attempt([&] { wishes.book().reserve(*wishes.wishes[0]); });
    lacked = rtrs::test::set_lack({}).refused == 0;
    for (std::size_t i = 0; i < 4; ++i) {
      wishes.book().reserve(*wishes.wishes[i]);
      REQUIRE(wishes.wishes[i]->done);
      CHECK(wishes.wishes[i]->result.has_value());
      CHECK(wishes.book().writer_serial(*wishes.leases[i]) != 0);
    }
  }
}

TEST_CASE("catalogue: one that cannot be recorded does not keep others from it") {
  TempFile files[2];
  const auto store = std::make_shared<Reservations>();
  Fakes fakes{store};
  std::vector<Lease> leases;
  ReservationBook& book = fakes.catalogue.reservations();
  for (std::uint8_t i = 0; i < 2; ++i) {
    fakes.ids[files[i].path] = static_cast<std::uint8_t>(10 + i);
    CHECK(failure_of(fakes.catalogue, {"disk" + std::to_string(i), files[i].path, "", false, false})
              .empty());
    leases.push_back(fakes.catalogue.open_named("disk" + std::to_string(i), kReadWrite).value());
  }
  const auto one =
      std::make_shared<ReservationBook::Wish>(leases[0], wire::Uuid{1}, OpenKind::anew);
  const auto two =
      std::make_shared<ReservationBook::Wish>(leases[1], wire::Uuid{1}, OpenKind::anew);
  book.announce(one);
  book.announce(two);
  store->unwritable_key = wire::Uuid{10};
  book.reserve(*two);
  CHECK(one->result.error().text == "cannot record who writes to it: full");
  CHECK(two->result.has_value());
  CHECK_FALSE(store->kept.contains(wire::Uuid{10}));
}

TEST_CASE(
    "catalogue: who was expelled finds another number, there or away, in the next life, too") {
  TempFile file;
  const auto reservations = std::make_shared<Reservations>();
  const auto serve = [&] {
    auto fakes = std::make_unique<Fakes>(reservations);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    return fakes;
  };
  auto server = serve();
  const auto comes_again = [&] {
    Lease lease = server->catalogue.open_named("rw", {kReadWrite, wire::Uuid{1}}).value();
    return reserve(server->catalogue, lease, 1, OpenKind::again);
  };
  std::uint64_t before = serial(server->catalogue, 1);
  CHECK(comes_again() == before);
  CHECK(server->catalogue.reservations().expel(wire::Uuid{2}).has_value());
  CHECK(comes_again() == before);

  CHECK(server->catalogue.reservations().expel(wire::Uuid{1}).has_value());  // away
  CHECK(comes_again() != before);
  before = comes_again();
  {
    Lease there = server->catalogue.open_named("rw", kReadWrite).value();
    reserve(server->catalogue, there, 1, OpenKind::again);
    CHECK(server->catalogue.reservations().expel(wire::Uuid{1}).has_value());
    CHECK(server->catalogue.reservations().writer_serial(there) != before);
  }
  server = serve();
  CHECK(comes_again() != before);

  reservations->unwritable = "full";
  CHECK(server->catalogue.reservations().expel(wire::Uuid{1}).error() == "full");
}

TEST_CASE("catalogue: a clone that lacks a reservation tells its session so") {
  TempFile file;
  const auto records = std::make_shared<Reservations>();
  const auto clone_of_records = std::make_shared<Reservations>();
  const auto serve = [&](const std::shared_ptr<Reservations>& store) {
    auto fakes = std::make_unique<Fakes>(store);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    return fakes;
  };
  struct Told {
    std::uint64_t serial, generation, found;
  };
  const auto come = [](Fakes& server, std::uint8_t session, OpenKind kind) {
    Lease lease = server.catalogue.open_named("rw", {kReadWrite, wire::Uuid{session}}).value();
    const ReservationBook& book = server.catalogue.reservations();
    const std::uint64_t serial = reserve(server.catalogue, lease, session, kind);
    return Told{serial, book.generation(lease), book.found_generation(lease)};
  };
  auto server = serve(records);
  come(*server, 1, OpenKind::anew);
  clone_of_records->kept = records->kept;
  const Told known = come(*server, 2, OpenKind::anew);
  CHECK(known.generation == known.serial);
  CHECK(known.found == known.serial - 1);

  auto clone = serve(clone_of_records);
  for (int i = 0; i < 2; ++i) {  // also when it tries again
    const Told there = come(*clone, 2, OpenKind::again);
    CHECK(there.serial != known.serial);
    CHECK(there.found == known.generation - 1);
  }
  server = serve(records);
  const Told again = come(*server, 2, OpenKind::again);
  CHECK(again.serial == known.serial);
  CHECK(again.found >= known.generation);
}

TEST_CASE("catalogue: a clone that never had a writer tells so to each, and as often as asked") {
  TempFile file;
  const auto records = std::make_shared<Reservations>();
  records->complete = true;
  auto clone = std::make_unique<Fakes>(records);
  CHECK(failure_of(clone->catalogue, {"rw", file.path, "", false, false}).empty());
  const auto come = [&](std::uint8_t session) {
    Lease lease = clone->catalogue.open_named("rw", {kMigration, wire::Uuid{session}}).value();
    const std::uint64_t serial = reserve(clone->catalogue, lease, session, OpenKind::again);
    CHECK(static_cast<std::uint32_t>(serial) > 1);  // and so an older client loses the device
    CHECK(clone->catalogue.reservations().found_generation(lease) == wire::kNoWriterYet);
    return lease;
  };
  for (int i = 0; i < 2; ++i) {
    come(1);
    come(2);
  }
  {
    auto first = std::make_unique<Lease>(come(1));
    const Lease second = come(2);
    first.reset();
    come(1);
  }
  SUBCASE("in its next life, too") {
    clone = std::make_unique<Fakes>(records);
    CHECK(failure_of(clone->catalogue, {"rw", file.path, "", false, false}).empty());
    come(2);
  }
  SUBCASE("and to one that is there, when another one migrates and writes") {
    Lease waits = come(1);
    Lease writes = clone->catalogue.open_named("rw", kMigration).value();
    CHECK(static_cast<std::uint32_t>(reserve(clone->catalogue, writes, 3, OpenKind::anew)) == 1);
    ReservationBook& book = clone->catalogue.reservations();
    CHECK(static_cast<std::uint32_t>(book.writer_serial(waits)) > 1);
    book.come_again(waits);
    CHECK(static_cast<std::uint32_t>(book.writer_serial(waits)) > 1);
    CHECK(book.found_generation(waits) == wire::kNoWriterYet);
  }
  SUBCASE("until it has one") {
    CHECK(static_cast<std::uint32_t>(serial(clone->catalogue, 3)) == 1);
    Lease lease = clone->catalogue.open_named("rw", {kReadWrite, wire::Uuid{1}}).value();
    reserve(clone->catalogue, lease, 1, OpenKind::again);
    CHECK((clone->catalogue.reservations().found_generation(lease) >> 32) != 0);
  }
}

TEST_CASE("catalogue: a session with a late number finds what it was told before") {
  TempFile file;
  const auto records = std::make_shared<Reservations>();
  const auto serve = [&] {
    auto fakes = std::make_unique<Fakes>(records);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    CHECK(failure_of(fakes->catalogue, {"too", file.path, "", false, false}).empty());
    return fakes;
  };
  auto server = serve();
  const auto come = [&](std::uint8_t session, const char* name, OpenKind kind) {
    Lease lease = server->catalogue.open_named(name, {kMigration, wire::Uuid{session}}).value();
    reserve(server->catalogue, lease, session, kind);
    return lease;
  };
  come(1, "rw", OpenKind::anew);
  come(2, "rw", OpenKind::anew);
  std::uint64_t told = 0;
  {
    const Lease old = come(1, "too", OpenKind::again);  // loses it, and has not closed it yet
    const Lease present = come(1, "rw", OpenKind::anew);
    told = server->catalogue.reservations().generation(present);
  }
  server = serve();
  const Lease again = come(1, "rw", OpenKind::again);
  CHECK(server->catalogue.reservations().found_generation(again) >= told);
}

TEST_CASE("catalogue: who opens storage read-only is told of its writers, too") {
  TempFile file;
  const auto records = std::make_shared<Reservations>();
  records->complete = true;
  {
    Fakes server{records};
    CHECK(failure_of(server.catalogue, {"rw", file.path, "", false, false}).empty());
    serial(server.catalogue, 1);
  }
  Fakes server{records};
  ExportCatalogue& catalogue = server.catalogue;
  const auto told = [&](const Lease& lease) { return catalogue.reservations().generation(lease); };
  SUBCASE("as an export") {
    CHECK(failure_of(catalogue, {"ro", file.path, "", true, false}).empty());
    CHECK((told(catalogue.open_named("ro", wire::AccessMode::read_only).value()) >> 32) != 0);
  }
  SUBCASE("as a file of the search path") {
    const fs::path path{file.path};
    REQUIRE(catalogue.files().set(path.parent_path().string()));
    const auto lease =
        catalogue.files().open("", path.filename().string(), wire::AccessMode::read_only);
    REQUIRE(lease);
    CHECK((told(*lease) >> 32) != 0);
  }
}

TEST_CASE("catalogue: a session that comes again unnoticed is told of its own reservation") {
  TempFile file;
  const auto records = std::make_shared<Reservations>();
  records->complete = true;
  Fakes server{records};
  CHECK(failure_of(server.catalogue, {"rw", file.path, "", false, false}).empty());
  World world;  // sends the messages
  world.services.on_offload = world.services.on_record =
      [](rtrs::Reactor*, const std::function<void()>& work, const std::function<void()>& then) {
        work();
        then();
      };
  QueueTable queues{nullptr, server.catalogue, world.services};
  SessionFacts facts;
  facts.uuid = {1};
  facts.extensions = facts.claims = true;
  facts.queue_depth = 4;
  facts.max_io_size = 65536;
  BlockSession session{facts, server.catalogue, queues, world.services};
  const auto open = [&](std::uint32_t number, std::uint8_t flags) {
    wire::NumberedOpen message{wire::encode_open("rw", kReadWrite), {number, 0}};
    message.open.flags = flags;
    const Call& call = world.send(session, message, true, room(sizeof(wire::OpenResponse)));
    REQUIRE(call.error == 0);
    wire::DeviceInfo question;
    question.header = wire::header_of(wire::MessageType::device_info);
    question.device_id = call.answer<wire::OpenResponse>().device_id;
    return world.send(session, question, true, room(sizeof(wire::DeviceInfoResponse)))
        .answer<wire::DeviceInfoResponse>();
  };
  const auto first = open(1, 0);
  CHECK(first.found_generation == wire::kNoWriterYet);
  CHECK((first.generation >> 32) != 0);
  CHECK(open(1, 0).found_generation == wire::kNoWriterYet);  // a copy
  const auto again = open(2, wire::kOpenAgain);
  CHECK(again.found_generation == first.generation);
  CHECK(again.generation == first.generation);
}

TEST_CASE("catalogue: a server says that there was no writer only if it would know of one") {
  TempFile file;
  const auto records = std::make_shared<Reservations>();
  const auto generation = [&](const Access& access) {
    Fakes fakes{records};
    CHECK(failure_of(fakes.catalogue, {"rw", file.path, "", false, false}).empty());
    Lease lease = fakes.catalogue.open_named("rw", access).value();
    return fakes.catalogue.reservations().generation(lease);
  };
  const Access reads{wire::AccessMode::read_only};
  CHECK(generation(reads) == 0);
  records->complete = true;
  CHECK(generation(reads) == wire::kNoWriterYet);
  {
    Fakes fakes{records};
    CHECK(failure_of(fakes.catalogue, {"rw", file.path, "", false, false}).empty());
    serial(fakes.catalogue, 1);
  }
  CHECK((generation(reads) >> 32) != 0);
  records->complete = false;  // another server may have changed the record since
  CHECK(generation(reads) == 0);
}

TEST_CASE("catalogue: who was expelled is told so, until somebody else has written") {
  TempFile file;
  Fakes fakes{std::make_shared<Reservations>()};
  ExportCatalogue& catalogue = fakes.catalogue;
  CHECK(failure_of(catalogue, {"rw", file.path, "", false, false}).empty());
  const auto told = [&](std::uint8_t session, OpenKind kind) {
    Lease lease = catalogue.open_named("rw", {kReadWrite, wire::Uuid{session}}).value();
    reserve(catalogue, lease, session, kind);
    return catalogue.reservations().was_expelled(lease);
  };
  CHECK_FALSE(told(1, OpenKind::anew));
  CHECK(catalogue.reservations().expel(wire::Uuid{1}).has_value());
  CHECK(told(1, OpenKind::again));
  CHECK(told(1, OpenKind::again));  // a repetition
  CHECK_FALSE(told(2, OpenKind::anew));
  CHECK_FALSE(told(1, OpenKind::again));
  CHECK(catalogue.reservations().expel(wire::Uuid{1}).has_value());
  CHECK_FALSE(told(2, OpenKind::again));
}

TEST_CASE("catalogue: who was expelled is told so by the next life of the server, too") {
  TempFile file;
  const auto reservations = std::make_shared<Reservations>();
  const auto serve = [&] {
    auto fakes = std::make_unique<Fakes>(reservations);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    return fakes;
  };
  auto server = serve();
  const auto told = [&](std::uint8_t session, OpenKind kind) {
    Lease lease = server->catalogue.open_named("rw", {kReadWrite, wire::Uuid{session}}).value();
    reserve(server->catalogue, lease, session, kind);
    return server->catalogue.reservations().was_expelled(lease);
  };
  CHECK_FALSE(told(1, OpenKind::anew));
  CHECK(server->catalogue.reservations().expel(wire::Uuid{1}).has_value());
  server = serve();
  CHECK(told(1, OpenKind::again));
  CHECK(server->catalogue.reservations().expel(wire::Uuid{1}).has_value());
  server = serve();
  CHECK_FALSE(told(2, OpenKind::anew));
  server = serve();
  CHECK_FALSE(told(1, OpenKind::again));
  CHECK(server->catalogue.reservations().expel(wire::Uuid{1}).has_value());
  CHECK(reservations->kept.begin()->second.expelled.size() == 1);
  // An operator who throws out one after the other does not fill the file.
  for (std::uint8_t session = 2; session < 100; ++session) {
    told(session, OpenKind::again);
    CHECK(server->catalogue.reservations().expel(wire::Uuid{session}).has_value());
  }
  CHECK(reservations->kept.begin()->second.expelled.size() <= 32);
  server = serve();
  CHECK(told(99, OpenKind::again));
}

TEST_CASE("catalogue: who comes back is not let in beside one who takes no part yet") {
  TempFile file;
  Fakes fakes{std::make_shared<Reservations>()};
  ExportCatalogue& catalogue = fakes.catalogue;
  CHECK(failure_of(catalogue, {"rw", file.path, "", false, false}).empty());
  const std::uint64_t first = serial(catalogue, 1);
  const auto comes_back = [&] { return catalogue.open_named("rw", {kReadWrite, wire::Uuid{1}}); };
  {
    Lease other = catalogue.open_named("rw", kReadWrite).value();
    CHECK(comes_back().error() == EPERM);
    reserve(catalogue, other, 2, OpenKind::anew);
    CHECK(comes_back().error() == EPERM);
  }
  Lease lease = comes_back().value();
  CHECK(reserve(catalogue, lease, 1, OpenKind::again) != first);
}

TEST_CASE("catalogue: who opens a clone anew ends the part of who was cut off from it") {
  TempFile one;
  TempFile two;
  const auto reservations = std::make_shared<Reservations>();
  const auto serve = [&] {
    auto fakes = std::make_unique<Fakes>(reservations);
    CHECK(failure_of(fakes->catalogue, {"one", one.path, "", false, false}).empty());
    CHECK(failure_of(fakes->catalogue, {"two", two.path, "", false, false}).empty());
    return fakes;
  };
  auto server = serve();
  std::uint64_t before = 0;
  {
    Lease here = server->catalogue.open_named("one", kReadWrite).value();
    Lease there = server->catalogue.open_named("two", kReadWrite).value();
    reserve(server->catalogue, here, 1, OpenKind::anew);
    before = reserve(server->catalogue, there, 2, OpenKind::anew);
    server->catalogue.reservations().end();
  }
  server = serve();
  Lease here = server->catalogue.open_named("one", {kReadWrite, wire::Uuid{1}}).value();
  const std::uint64_t mine = reserve(server->catalogue, here, 1, OpenKind::again);
  {
    Lease there = server->catalogue.open_named("two", kReadWrite).value();
    CHECK(reserve(server->catalogue, there, 1, OpenKind::anew) == mine);
    there.close();
  }
  server->catalogue.reservations().record_left();
  Lease late = server->catalogue.open_named("two", {kReadWrite, wire::Uuid{2}}).value();
  CHECK(reserve(server->catalogue, late, 2, OpenKind::again) != before);
}

TEST_CASE("catalogue: who takes part while a machine migrates, and who does not any more") {
  TempFile file;
  const auto reservations = std::make_shared<Reservations>();
  auto server = std::make_unique<Fakes>(reservations);
  const auto serve = [&] {
    if (server) server->catalogue.reservations().end();
    auto fakes = std::make_unique<Fakes>(reservations);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    return fakes;
  };
  std::map<std::uint8_t, std::uint64_t> number;
  std::multimap<std::uint8_t, Lease> there;
  std::map<std::uint8_t, wire::AccessMode> modes;
  const auto comes = [&](std::uint8_t session, wire::AccessMode mode = kMigration,
                         OpenKind open_kind = OpenKind::anew) {
    modes[session] = mode;
    const auto again = open_kind == OpenKind::again ? wire::Uuid{session} : wire::Uuid{};
    auto lease = server->catalogue.open_named("rw", {mode, again});
    if (!lease) return;  // it asks again until the others have left
    number[session] = reserve(server->catalogue, *lease, session, open_kind);
    there.emplace(session, *std::move(lease));
  };
  const auto is_cut_off = [&](std::uint8_t session) {
    there.erase(session);
    server->catalogue.reservations().record_left();
  };
  const auto closes = [&](std::uint8_t session) {
    there.find(session)->second.close();
    is_cut_off(session);
  };
  const auto comes_back = [&](std::uint8_t session) {
    const std::uint64_t before = number[session];
    number[session] = 0;
    comes(session, modes[session], OpenKind::again);
    return number[session] == before;
  };
  const auto crashes = [&] {
    server->catalogue.reservations().end();
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
    CHECK(reserve(server->catalogue, lease, 2, OpenKind::anew) != number[2]);
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("who comes back too late does not throw out who had it last") {
    is_cut_off(1);
    crashes();
    CHECK_FALSE(comes_back(1));
    CHECK(comes_back(2));
  }
  SUBCASE("who left is not forgotten when that cannot be recorded") {
    reservations->unwritable = "full";
    is_cut_off(1);
    CHECK(server->catalogue.reservations().has_left());
    reservations->unwritable = "";
    closes(2);
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("what is recorded late does not undo what another server has recorded") {
    crashes();
    CHECK(comes_back(2));
    there.find(2)->second.close();
    there.clear();
    CHECK(server->catalogue.reservations().has_left());
    Fakes other{reservations};
    CHECK(failure_of(other.catalogue, {"rw", file.path, "", false, false}).empty());
    {
      Lease lease = other.catalogue.open_named("rw", kReadWrite).value();
      reserve(other.catalogue, lease, 3, OpenKind::anew);
    }
    SUBCASE("by itself") { server->catalogue.reservations().record_left(); }
    SUBCASE("when somebody comes") {}
    CHECK_FALSE(comes_back(1));
  }
  SUBCASE("who comes while the server ends finds nobody there") {
    server->catalogue.reservations().end();
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
    CHECK(server->catalogue.reservations().has_left() == false);
    comes(3);
    crashes();
    CHECK(comes_back(1));
  }
}

TEST_CASE("catalogue: a claim that a server has recorded and not answered is asked for again") {
  TempFile file;
  TempFile clone;
  const auto reservations = std::make_shared<Reservations>();
  const auto serve = [&] {
    auto fakes = std::make_unique<Fakes>(reservations);
    CHECK(failure_of(fakes->catalogue, {"rw", file.path, "", false, false}).empty());
    CHECK(failure_of(fakes->catalogue, {"too", file.path, "", false, false}).empty());
    CHECK(failure_of(fakes->catalogue, {"clone", clone.path, "", false, false}).empty());
    return fakes;
  };
  auto server = serve();
  const auto dies = [&] {
    server->catalogue.reservations().end();
    server = serve();
  };
  Access unclaimed{kReadWrite};
  unclaimed.unclaimed = true;
  const auto look = [&](const char* name = "rw") {
    const Lease lease = server->catalogue.open_named(name, unclaimed).value();
    ReservationBook& book = server->catalogue.reservations();
    wire::Claim seen;
    seen.sight = book.look(lease);
    seen.writer_serial = book.writer_serial(lease);
    return seen;
  };
  /// 0, or why not. It is not answered.
  const auto claim = [&](std::uint8_t session, const wire::Claim& seen, const char* name = "rw") {
    const Lease lease = server->catalogue.open_named(name, unclaimed).value();
    ReservationBook& book = server->catalogue.reservations();
    auto granted = book.claim(lease, seen, wire::Uuid{session}, name);
    if (!granted) return granted.error();
    const bool recorded = book.reserve(*granted, wire::Uuid{session}, OpenKind::anew).has_value();
    book.end();  // it dies
    return recorded ? 0 : EIO;
  };
  SUBCASE("of a storage that nobody has written to before") {}
  SUBCASE("of another one") {
    serial(server->catalogue, 9);
    dies();
  }
  const wire::Claim seen = look();
  REQUIRE(claim(1, seen) == 0);
  SUBCASE("and is granted, again and again") {
    for (unsigned i = 0; i < 3; ++i) {
      dies();
      CHECK(claim(1, seen) == 0);
    }
  }
  SUBCASE("but not when the session took part, left, and somebody else came") {
    dies();
    CHECK(claim(2, look()) == 0);
    dies();
    CHECK(claim(1, seen) == ESTALE);
    CHECK(claim(2, seen) == ESTALE);
  }
  SUBCASE("but not when somebody else opened it, before the end of the server") {
    serial(server->catalogue, 2, "rw", kMigration);
    dies();
    CHECK(claim(1, seen) == ESTALE);
  }
  SUBCASE("but not when somebody else opened it, in the next life") {
    dies();
    serial(server->catalogue, 2);
    CHECK(claim(1, seen) == ESTALE);
    dies();
    CHECK(claim(1, seen) == ESTALE);
  }
  SUBCASE("but not when a former writer came back who had been ended by it") {
    dies();
    {
      Lease late = server->catalogue.open_named("rw", {kReadWrite, wire::Uuid{9}}).value();
      reserve(server->catalogue, late, 9, OpenKind::again);
    }
    CHECK(claim(1, seen) == ESTALE);
  }
  SUBCASE("but not by another session") {
    dies();
    CHECK(claim(2, seen) == ESTALE);
  }
  SUBCASE("but not for another device of the session, whose user has not seen what it wrote") {
    dies();
    CHECK(claim(1, seen, "too") == ESTALE);
  }
  SUBCASE("but not when the session had another device, through which it wrote") {
    dies();
    {
      const Lease looks = server->catalogue.open_named("rw", unclaimed).value();
      auto granted = server->catalogue.reservations().claim(looks, seen, wire::Uuid{1}, "rw");
      reserve(server->catalogue, *granted, 1, OpenKind::anew);
      serial(server->catalogue, 1, "too", kMigration);
      server->catalogue.reservations().end();
    }
    dies();
    CHECK(claim(1, seen) == ESTALE);
  }
  SUBCASE("but not for a user of the session who had looked at another time") {
    dies();
    wire::Claim before = seen;
    before.sight = seen.sight - 1;
    CHECK(claim(1, before) == ESTALE);
    before.sight = 0;  // without one
    CHECK(claim(1, before) == ESTALE);
  }
  SUBCASE("but not by a session that the operator has expelled") {
    dies();
    CHECK(server->catalogue.reservations().expel(wire::Uuid{1}).has_value());
    CHECK(claim(1, seen) == ESTALE);
    dies();
    CHECK(claim(1, seen) == ESTALE);
  }
  SUBCASE("but not after a change in this life") {
    dies();
    {
      const Lease lease = server->catalogue.open_named("rw", unclaimed).value();
      server->catalogue.reservations().look(lease);
      lease.storage()->changed();
    }
    CHECK(claim(1, seen) == ESTALE);
  }
  SUBCASE("but not when another server had the storage since this one read the record") {
    dies();
    Fakes other{reservations};
    CHECK(failure_of(other.catalogue, {"rw", file.path, "", false, false}).empty());
    serial(other.catalogue, 2);
    CHECK(claim(1, seen) == EIO);
    CHECK(claim(1, seen) == ESTALE);
  }
}

TEST_CASE("catalogue: a claim beside others who take part is not known again") {
  TempFile one;
  TempFile two;
  const auto reservations = std::make_shared<Reservations>();
  const auto serve = [&] {
    auto fakes = std::make_unique<Fakes>(reservations);
    CHECK(failure_of(fakes->catalogue, {"one", one.path, "", false, false}).empty());
    CHECK(failure_of(fakes->catalogue, {"two", two.path, "", false, false}).empty());
    return fakes;
  };
  auto server = serve();
  Access unclaimed{kReadWrite};
  unclaimed.unclaimed = true;
  wire::Claim seen;
  {
    const Lease looks = server->catalogue.open_named("one", unclaimed).value();
    seen.sight = server->catalogue.reservations().look(looks);
    Lease there = server->catalogue.open_named("two", kReadWrite).value();
    reserve(server->catalogue, there, 2, OpenKind::anew);
    Lease claimed =
        server->catalogue.reservations().claim(looks, seen, wire::Uuid{1}, "one").value();
    reserve(server->catalogue, claimed, 1, OpenKind::anew);
    server->catalogue.reservations().end();
  }
  server = serve();
  const Lease again = server->catalogue.open_named("one", unclaimed).value();
  CHECK(server->catalogue.reservations().claim(again, seen, wire::Uuid{1}, "one").error() ==
        ESTALE);
}

TEST_CASE("catalogue: where nothing is known, the first number is for who comes first") {
  TempFile file;
  Fakes fakes;  // keeps nothing
  ExportCatalogue& catalogue = fakes.catalogue;
  CHECK(failure_of(catalogue, {"rw", file.path, "", false, false}).empty());
  auto mode = kReadWrite;
  SUBCASE("for itself") {}
  SUBCASE("for migration") { mode = kMigration; }
  const auto comes = [&](std::uint8_t session, OpenKind open_kind) {
    auto lease = catalogue.open_named("rw", {mode, wire::Uuid{session}});
    REQUIRE(lease.has_value());
    return reserve(catalogue, *lease, session, open_kind);  // and is cut off
  };
  const auto number_of = [](std::uint64_t serial) { return static_cast<std::uint32_t>(serial); };
  SUBCASE("and stays its own when others come back behind it") {
    const std::uint64_t first = comes(1, OpenKind::again);
    CHECK(number_of(first) == 1);
    CHECK(number_of(comes(2, OpenKind::again)) > 1);  // and so 2 does not write
    CHECK(comes(1, OpenKind::again) == first);
    CHECK(number_of(comes(2, OpenKind::again)) > 1);
  }
  SUBCASE("who opened it anew keeps it when another one comes back") {
    const std::uint64_t first = comes(1, OpenKind::anew);
    CHECK(number_of(first) == 1);
    CHECK(number_of(comes(2, OpenKind::again)) > 1);
    CHECK(comes(1, OpenKind::again) == first);
  }
  SUBCASE("so does a client that does not say") {
    CHECK(number_of(comes(1, OpenKind::unknown)) == 1);
    CHECK(number_of(comes(2, OpenKind::again)) > 1);
  }
  SUBCASE("it is lost when somebody opens it anew, or does not say") {
    const std::uint64_t first = comes(1, OpenKind::again);
    auto other = OpenKind::anew;
    SUBCASE("anew") {}
    SUBCASE("unknown") { other = OpenKind::unknown; }
    const std::uint64_t second = comes(2, other);
    CHECK(comes(1, OpenKind::again) != first);
    CHECK(comes(2, OpenKind::again) == second);
  }
}

TEST_CASE("catalogue: another server may have had the storage meanwhile") {
  TempFile file;
  const auto reservations = std::make_shared<Reservations>();
  Fakes one{reservations};
  Fakes other{reservations};
  for (Fakes* server : {&one, &other}) {
    CHECK(failure_of(server->catalogue, {"rw", file.path, "", false, false}).empty());
  }
  const std::uint64_t first = serial(one.catalogue, 1);
  CHECK(serial(one.catalogue, 1) == first);
  serial(other.catalogue, 2);
  CHECK(serial(one.catalogue, 1) != first);
}

TEST_CASE("catalogue: a session without a UUID is never known again") {
  TempFile file;
  Fakes fakes;
  CHECK(failure_of(fakes.catalogue, {"rw", file.path, "", false, false}).empty());
  const std::uint64_t first = serial(fakes.catalogue, 0);
  CHECK(serial(fakes.catalogue, 0) != first);
}

}  // namespace catalogue_reservations_test
