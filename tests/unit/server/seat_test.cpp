// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/seat.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <cerrno>
#include <cstring>
#include <map>

#include "bridge/server/mirror/member_device.hpp"
#include "bridge/server/mirror/votes.hpp"
#include "tests/unit/server/fixture.hpp"

namespace rnbd::seat_test {
namespace {

using mirror::MemberDevice;
using mirror::MemberFile;
using mirror::Save;
using mirror::Seat;

constexpr wire::Uuid kStorage{1};
constexpr std::uint64_t kEpoch = 77;

/// Records in memory, which fail when they are told to.
struct Store final : mirror::MemberStore {
  /// Its bytes are lost once another one has come in its place.
  struct File final : MemberFile {
    explicit File(Store& its) : store{its}, number{its.files} {}
    tl::expected<void, std::string> write(const Save& save) override {
      ++store.writes;
      if (store.fails) return tl::unexpected(std::string{"no space"});
      for (const auto& patch : save.first) lay(patch);
      if (save.head) lay(*save.head);
      for (const auto& patch : save.rest)
        if (!store.crashes) lay(patch);
      return {};
    }
    void lay(const mirror::Patch& patch) {
      if (number != store.files) return;
      if (patch.offset + patch.bytes.size() > store.image.size())
        store.image.resize(patch.offset + patch.bytes.size());
      std::ranges::copy(patch.bytes,
                        store.image.begin() + static_cast<std::ptrdiff_t>(patch.offset));
    }
    Store& store;
    const unsigned number;
  };

  tl::expected<std::optional<mirror::FoundMember>, rtrs::Failure> load(const wire::Uuid&) override {
    if (image.empty()) return std::nullopt;
    if (unreadable != 0) return tl::unexpected(rtrs::Failure{unreadable, "not now"});
    auto loaded = mirror::load_image(image);
    if (!loaded) return tl::unexpected(loaded.error());
    return mirror::FoundMember{*std::move(loaded), std::make_unique<File>(*this)};
  }
  mirror::Creation create(const wire::Uuid&, const std::vector<std::byte>& whole) override {
    ++writes;
    if (fails || full) return {.trouble = "no space"};
    ++files;
    image = whole;
    return {.file = std::make_unique<File>(*this), .trouble = lasts ? "" : "it may go back"};
  }

  mirror::Removal dissolve(const wire::Uuid& storage) override {
    const auto group = mirror::load_image(image)->state.group;
    const mirror::Removal removal = remove(storage);
    if (removal.gone) former = group;
    return removal;
  }
  wire::Uuid former_group(const wire::Uuid&) override { return former; }
  mirror::Removal remove(const wire::Uuid&) override {
    former = {};
    if (fails) return {.gone = false, .trouble = "no space"};
    image.clear();
    return {.gone = true, .trouble = lasts ? "" : "it may come back"};
  }

  std::vector<std::byte> image;
  wire::Uuid former{};
  unsigned files = 0;  ///< that have been made
  unsigned writes = 0;
  int unreadable = 0;  ///< errno
  bool fails = false;
  bool full = false;     ///< there is no room for another file
  bool lasts = true;     ///< a removal, or a new file, is durable
  bool crashes = false;  ///< before the rest of a save is written
};

wire::MirrorClaim claim_of(std::uint64_t term, std::uint8_t claimant = 1, std::uint8_t group = 9) {
  wire::MirrorClaim claim;
  claim.group = {group};
  claim.claimant = {claimant};
  claim.term = term;
  claim.members = 3;
  claim.region_shift = 20;
  claim.size = 8 << 20;
  return claim;
}

struct World {
  std::shared_ptr<Store> store = std::make_shared<Store>();
  test::FakeServices services;
  /// Saves that wait, when they do not run at once.
  std::vector<std::function<void()>> saves;
  std::shared_ptr<Seat> seat = start();

  /// The server is started again.
  std::shared_ptr<Seat> start(std::uint64_t epoch = kEpoch) {
    auto made = std::make_shared<Seat>(store, kStorage, epoch);
    made->load();
    return made;
  }
  void save_later() {
    services.on_record = [this](rtrs::Reactor*, std::function<void()> work,
                                std::function<void()> then) {
      saves.push_back([work, then] { work(), then(); });
    };
  }
  void save() {
    REQUIRE_FALSE(saves.empty());
    const auto one = saves.front();
    saves.erase(saves.begin());
    one();
  }
  int keep() {
    int result = -1;
    seat->keep(services, nullptr, [&](int error) { result = error; });
    return result;
  }
  /// As BlockSession does it. The session that is served, or 0.
  std::uint64_t claim(std::uint64_t term, std::uint8_t claimant = 1, std::uint8_t members = 3) {
    const std::uint64_t session = seat->next_session();
    auto message = claim_of(term, claimant);
    message.members = members;
    if (seat->misfit(message).error != 0 || seat->refuses(message, session)) return 0;
    seat->fence();
    seat->grant(message, session);
    if (keep() != 0) return 0;
    seat->serve(session);
    return session;
  }
  mirror::MemberState state() const { return seat->status()->state; }
  /// As the seat's client knows them: this is member 0.
  mirror::Pedigree pedigree() const { return {{state().record.disk, {}}, {2, {}}, {3, {}}}; }
  int view(std::uint64_t session, const mirror::View& view, const mirror::View& confirmed) {
    return seat->view(session, view, confirmed, {}, pedigree(), 0);
  }
  int cool(std::uint64_t session, std::uint64_t term, const mirror::RegionMap& regions) {
    return seat->cool(session, regions, {{term, 1}, 7}, 6);
  }
};

const mirror::View kAll{{5, 1}, 0b111};
const mirror::View kTwo{{5, 2}, 0b011};

TEST_CASE("seat: a promise outlives the server, and lower terms are refused by the next one") {
  World world;
  CHECK_FALSE(world.seat->taken());
  REQUIRE(world.view(world.claim(5), kAll, kAll) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  CHECK(world.seat->taken());
  CHECK_FALSE(world.seat->serves(1));
  CHECK(world.claim(4) == 0);
  CHECK(world.claim(5, 2) == 0);
  CHECK(world.claim(6, 2) != 0);
}

TEST_CASE("seat: a term that leaves no room for later ones is neither claimed nor seen") {
  World world;
  constexpr std::uint64_t kForced = std::uint64_t{1} << 32;
  CHECK(world.seat->misfit(claim_of(~std::uint64_t{0})).error == ERANGE);
  CHECK(world.seat->misfit(claim_of(std::uint64_t{1} << 62)).error == ERANGE);
  CHECK(world.seat->misfit(claim_of((std::uint64_t{1} << 62) - 1)).error == 0);
  const auto session = world.claim(5);
  CHECK(world.seat->misfit(claim_of(257 * kForced)).error == ERANGE);
  CHECK(world.seat->misfit(claim_of(256 * kForced + 1)).error == 0);
  const mirror::View last{{~std::uint64_t{0}, 1}, 0b111};
  CHECK(world.view(session, last, kAll) == ERANGE);
  CHECK(world.view(session, kAll, last) == ERANGE);
  // A record that says so would be believed by nobody.
  CHECK(world.view(session, kAll, {{kAll.id.term, kAll.id.seq + 1}, kAll.set}) == EINVAL);
  CHECK(world.view(session, kAll, kAll) == 0);
}

TEST_CASE("seat: a claim of another group, or shape, does not fit") {
  World world;
  REQUIRE(world.claim(5) != 0);
  CHECK(world.seat->misfit(claim_of(6, 1, 8)).error == EEXIST);
  auto other = claim_of(6);
  other.members = 2;
  CHECK(world.seat->misfit(other).error == EEXIST);
}

TEST_CASE("seat: a storage whose first record cannot be written becomes no member") {
  World world;
  world.store->fails = true;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  CHECK(world.keep() == EIO);
  CHECK(world.seat->taken());
  world.seat->leave(session);
  CHECK_FALSE(world.seat->status());
  CHECK_FALSE(world.seat->taken());
  world.store->fails = false;
  CHECK(world.claim(5) != 0);
}

TEST_CASE("seat: a client that leaves before the first view leaves nothing behind") {
  World world;
  const auto session = world.claim(5);
  CHECK(world.seat->taken());
  CHECK(world.seat->misfit(claim_of(6, 1, 8)).error == EEXIST);
  world.seat->leave(session);
  CHECK(world.store->image.empty());
  CHECK_FALSE(world.seat->taken());
  CHECK(world.seat->misfit(claim_of(6, 1, 8)).error == 0);
}

TEST_CASE("seat: a record that could not be read is taken away only if the operator is sure") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.keep() == 0);
  world.seat->leave(session);
  SUBCASE("by force") {
    world.store->unreadable = EMFILE;
    world.seat = world.start();
    const auto misfit = world.seat->misfit(claim_of(6));
    CHECK(misfit.error == EIO);
    CHECK(misfit.text.find("could not be read: not now") != std::string::npos);
    CHECK(world.seat->free(false).error().error == EPERM);
    CHECK_FALSE(world.store->image.empty());
    CHECK(world.seat->free(true));
  }
  SUBCASE("a damaged one is nothing to keep") {
    world.store->image.resize(100);
    world.seat = world.start();
    CHECK(world.seat->misfit(claim_of(6)).text == "its record as a member is damaged");
    CHECK(world.seat->free(false));
  }
  CHECK(world.store->image.empty());
}

TEST_CASE("seat: its record is taken away when nobody is served, and it is a new storage then") {
  World world;
  const auto free = [&](bool sure) {
    const auto freed = world.seat->free(sure);
    return freed ? 0 : freed.error().error;
  };
  CHECK(free(true) == ENOENT);
  const auto session = world.claim(5);
  const std::uint64_t disk = world.state().record.disk;
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.keep() == 0);
  CHECK(free(true) == EBUSY);
  world.seat->leave(session);
  CHECK(free(false) == EPERM);
  world.store->fails = true;
  CHECK(free(true) == EIO);
  CHECK(world.seat->taken());
  world.store->fails = false;
  SUBCASE("durably") { CHECK(free(true) == 0); }
  SUBCASE("perhaps not durably") {
    world.store->lasts = false;
    CHECK(free(true) == EIO);
  }
  CHECK(world.store->image.empty());
  CHECK_FALSE(world.seat->taken());
  CHECK(world.seat->misfit(claim_of(6, 1, 8)).error == 0);
  REQUIRE(world.claim(1) != 0);
  CHECK(world.state().record.disk != disk);
}

TEST_CASE("seat: clients are told the size of the mirror once there is one") {
  World world;
  CHECK(world.seat->told_size(16 << 20) == 16 << 20);
  const auto session = world.claim(5);
  CHECK(world.seat->told_size(16 << 20) == 16 << 20);  // it may be somebody else's disk
  REQUIRE(world.view(session, kAll, kAll) == 0);
  CHECK(world.seat->told_size(16 << 20) == 8 << 20);
  CHECK(world.seat->told_size(4 << 20) == 4 << 20);
}

TEST_CASE("seat: a mirror ends where its client is served and no other member is in the view") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  CHECK(world.seat->may_dissolve(session, 5) == EPERM);
  const mirror::View alone{{5, 3}, 0b001};
  REQUIRE(world.view(session, alone, kTwo) == 0);
  CHECK(world.seat->may_dissolve(session, 5) == EPERM);  // it may not be in force
  REQUIRE(world.seat->confirm(session, alone) == 0);
  CHECK(world.seat->may_dissolve(session, 4) == ESTALE);
  CHECK(world.seat->may_dissolve(session + 1, 5) == ESTALE);
  CHECK(world.seat->may_dissolve(session, 5) == 0);
  world.seat->fence();
  REQUIRE(world.keep() == 0);
  world.store->fails = true;
  CHECK_FALSE(world.seat->dissolve());
  CHECK(world.seat->taken());
  world.store->fails = false;
  SUBCASE("its record may come back after a loss of power") {
    world.store->lasts = false;
    CHECK_FALSE(world.seat->dissolve());
    CHECK(world.seat->taken());
    CHECK(world.seat->status()->trouble == "it may come back");
    CHECK(world.seat->misfit(claim_of(6, 1, 8)).error == EIO);
    CHECK_FALSE(world.start()->taken());
  }
  SUBCASE("no client of the mirror comes back") {
    REQUIRE(world.seat->dissolve());
    CHECK(world.store->image.empty());
    for (int life = 0; life < 2; ++life) {
      CHECK_FALSE(world.seat->taken());
      CHECK_FALSE(world.seat->status());
      CHECK(world.seat->misfit(claim_of(6)).error == EIDRM);
      CHECK(world.seat->misfit(claim_of(6, 1, 8)).error == 0);
      world.seat = world.start();
    }
    SUBCASE("before an operator lets it") {
      REQUIRE(world.seat->free(false));
      CHECK(world.seat->misfit(claim_of(6)).error == 0);
      CHECK(world.seat->free(true).error().error == ENOENT);
    }
  }
}

TEST_CASE("seat: only the newest session is served, and its orders are carried out") {
  World world;
  const auto older = world.claim(5);
  const auto newer = world.claim(6, 2);
  REQUIRE(newer != 0);
  CHECK_FALSE(world.seat->serves(older));
  CHECK(world.view(older, kAll, kAll) == ESTALE);
  CHECK(world.seat->write(older, 0, 0) == ESTALE);
  mirror::RegionMap all{8};
  all.add_all();
  CHECK(world.cool(newer, 5, all) == ESTALE);
  CHECK(world.state().record.maps.active.count() == 8);
  world.seat->leave(older);  // late
  CHECK(world.seat->serves(newer));
  world.seat->leave(newer);
  CHECK_FALSE(world.seat->serves(newer));
}

TEST_CASE(
    "seat: a member that pulls is the guest of the client that is served, and means its disk") {
  World world;
  const auto session = world.claim(5, 3);
  const std::uint64_t disk = world.state().record.disk;
  CHECK(world.seat->host_of({9}, {3}, disk) == session);
  CHECK(world.seat->host_of({9}, {4}, disk) == 0);
  CHECK(world.seat->host_of({8}, {3}, disk) == 0);
  CHECK(world.seat->host_of({9}, {3}, disk + 1) == 0);
  world.seat->fence();
  CHECK(world.seat->host_of({9}, {3}, disk) == 0);
  CHECK(world.start()->host_of({}, {}, 0) == 0);
}

TEST_CASE("seat: its disk keeps its identity, and no view counts on another one") {
  World world;
  const auto session = world.claim(5);
  const std::uint64_t disk = world.state().record.disk;
  CHECK(disk != 0);
  CHECK(world.seat->view(session, kAll, kAll, {}, {{disk + 1, {}}, {2, {}}, {3, {}}}, 0) == EINVAL);
  CHECK(world.seat->view(session, kAll, kAll, {}, {}, 0) == EINVAL);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  CHECK(world.state().record.disk == disk);
  CHECK(world.state().record.pedigree[2].disk == 3);
}

TEST_CASE("seat: a COOL is counted in its view, and so is how far all members have come") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.cool(session, 5, mirror::RegionMap{8}) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  const mirror::MemberRecord record = world.state().record;
  CHECK(record.beat == 7);
  CHECK(record.pedigree[1].age == mirror::Age{kAll.id, 6});
  const auto next = world.claim(6);
  REQUIRE(world.view(next, {{6, 1}, 0b011}, kAll) == 0);
  CHECK(world.state().record.beat == 0);
  REQUIRE(world.seat->cool(next, mirror::RegionMap{8}, {{6, 9}, 3}, 2) == 0);
  CHECK(world.state().record.beat == 0);  // another view is meant
  const auto last = world.claim(7);
  REQUIRE(world.seat->cool(last, mirror::RegionMap{8}, {{6, 1}, 4}, 0) == 0);
  CHECK(world.state().record.beat == 4);  // in its view of an older client
}

/// The head of a record of version 1, with sequence 8: its bytes up to 248 are those of now.
void make_version_1(std::vector<std::byte>& image) {
  constexpr std::size_t kHead = 4096, kCrc = 8, kVersion = 12, kEnd = 248;
  std::fill_n(image.begin() + kCrc, 4, std::byte{});
  image[kVersion] = std::byte{1};
  std::fill(image.begin() + kEnd, image.begin() + kHead, std::byte{});
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(image.data(), kHead);
  const rtrs::wire::le32 sum = crc.checksum();
  std::memcpy(image.data() + kCrc, &sum, sizeof(sum));
}

TEST_CASE(
    "seat: a record of version 1 is read, and its disk gets an identity with the next claim") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.seat->write(session, 3, 3) == 0);
  mirror::MemberState old = world.state();
  world.store->image = mirror::whole_image(old, 8);
  make_version_1(world.store->image);
  world.seat = world.start();
  const mirror::MemberRecord record = world.state().record;
  CHECK(record.view.id == kAll.id);
  CHECK(record.view.set == kAll.set);
  CHECK(record.promised == 5);
  CHECK(record.maps.active.contains(3));
  CHECK(record.disk != 0);
  CHECK(record.disk != old.record.disk);
  CHECK(record.beat == 0);
  CHECK(std::ranges::all_of(record.pedigree, [](const mirror::Holder& holder) {
    return holder.disk == 0 && holder.age == mirror::Age{};
  }));
  REQUIRE(world.claim(6) != 0);
  world.seat = world.start();
  CHECK(world.state().record.disk == record.disk);
}

TEST_CASE("seat: a write to a cold region is recorded once, for absent members too") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  mirror::RegionMap all{8};
  all.add_all();
  REQUIRE(world.cool(session, 5, all) == 0);
  REQUIRE(world.view(session, kTwo, kAll) == 0);
  REQUIRE(world.keep() == 0);
  world.seat->serve(session);
  CHECK_FALSE(world.seat->warm(3, 4));
  REQUIRE(world.seat->write(session, 3, 4) == 0);
  const unsigned writes = world.store->writes;
  REQUIRE(world.keep() == 0);
  CHECK(world.store->writes == writes + 1);
  world.seat->warm_up(3, 4);
  CHECK(world.seat->warm(3, 4));
  world.seat = world.start();
  CHECK(world.state().record.maps.active.count() == 2);
  CHECK(world.state().record.maps.dirty[2].count() == 2);
  CHECK(world.state().record.view.id == kTwo.id);
}

TEST_CASE("seat: a record that could not be written is written with the next one") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  world.store->fails = true;
  CHECK(world.keep() == EIO);
  world.store->fails = false;
  REQUIRE(world.seat->confirm(session, kAll) == 0);
  CHECK(world.keep() == 0);
  world.seat = world.start();
  CHECK(world.state().record.view.id == kAll.id);
  CHECK(world.state().record.confirmed.id == kAll.id);
}

TEST_CASE("seat: changes during a save wait for the next one, together") {
  World world;
  const auto session = world.claim(5);
  world.save_later();
  std::vector<int> ended;
  const auto keep = [&](int number) {
    world.seat->keep(world.services, nullptr, [&ended, number](int error) {
      CHECK(error == 0);
      ended.push_back(number);
    });
  };
  REQUIRE(world.view(session, kAll, kAll) == 0);
  keep(1);
  keep(2);  // has changed nothing since
  REQUIRE(world.seat->confirm(session, kAll) == 0);
  keep(3);
  REQUIRE(world.view(session, kTwo, kAll) == 0);
  keep(4);
  CHECK(world.saves.size() == 1);
  world.save();
  CHECK(ended == std::vector<int>{1, 2});
  world.save();
  CHECK(ended == std::vector<int>{1, 2, 3, 4});
  CHECK(world.saves.empty());
}

TEST_CASE("seat: of a server that lost its power, the content at the view may be gone") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.keep() == 0);
  CHECK_FALSE(world.seat->status()->lost_power);
  world.seat = world.start();
  CHECK_FALSE(world.seat->status()->lost_power);
  world.seat = world.start(kEpoch + 1);
  CHECK(world.seat->status()->lost_power);
}

TEST_CASE("seat: claims come one after the other") {
  World world;
  std::vector<int> reservations;
  world.seat->begin_claim(world.services, nullptr, [&] { reservations.push_back(1); });
  world.seat->begin_claim(world.services, nullptr, [&] { reservations.push_back(2); });
  CHECK(reservations == std::vector<int>{1});
  world.seat->end_claim();
  CHECK(reservations == std::vector<int>{1, 2});
}

// ---- A device of the storage --------------------------------------------------------------------

/// A mirror's session, which opens without a reservation.
struct DeviceWorld : World {
  DeviceWorld() { part().begin_session(); }

  static Lease unclaimed(test::World& server) {
    Access access{wire::AccessMode::read_write};
    access.unclaimed = true;
    auto lease = server.catalogue.open_named("disk", access);
    REQUIRE(lease.has_value());
    return std::move(*lease);
  }
  MemberDevice& part() { return MemberDevice::of(device, *seat, services, nullptr); }
  /// Claims the member for the device's session.
  void claim_it(std::uint64_t term = 5) {
    seat->fence();
    seat->grant(claim_of(term), part().session());
    REQUIRE(keep() == 0);
    seat->serve(part().session());
  }
  /// The errno, or -1 while it waits.
  int submit(BackendOperation operation, std::uint64_t offset = 0, bool copy = false) {
    request = {};
    request.operation = operation;
    request.offset = offset;
    request.length = memory.size();
    request.data = memory.data();
    request.copy = copy;
    request.context = &error;
    request.done = [](BackendRequest& done, int result) {
      *static_cast<int*>(done.context) = result;
    };
    error = -1;
    device.queue->submit(request);
    return error;
  }
  bool refused(BackendOperation operation, int with, std::uint64_t offset = 0, bool copy = false) {
    const std::size_t before = server.disk().records.size();
    return submit(operation, offset, copy) == with && request.refused &&
           server.disk().records.size() == before;
  }

  test::World server{{.size = 16 << 20}};
  std::unique_ptr<BackendQueue> queue = server.disk().open_queue(nullptr);
  Device device{"disk", unclaimed(server), *queue, std::make_shared<Meter>(),
                ThrottleFlow{nullptr}};
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  BackendRequest request{};
  int error = -1;
};

using enum BackendOperation;

TEST_CASE("member: before the first claim reads pass, and only a reservation lets write") {
  DeviceWorld world;
  CHECK(world.submit(BackendOperation::read) == 0);
  CHECK(world.refused(write, EROFS));
  CHECK(world.refused(discard, EROFS));
  CHECK(world.refused(write, EOPNOTSUPP, 0, true));
  CHECK(world.submit(flush) == 0);
  CHECK_FALSE(world.device.writes());
  CHECK(world.device.refusal(EINVAL) == EINVAL);
}

TEST_CASE("member: a session that is not served is refused whatever it asks, wrong or right") {
  DeviceWorld world;
  world.claim(5, 2);
  for (const auto operation : {BackendOperation::read, write, flush, discard, extents, cache})
    CHECK(world.refused(operation, ESTALE));
  CHECK(world.refused(write, ESTALE, 0, true));
  CHECK(world.device.refusal(EINVAL) == ESTALE);
}

TEST_CASE("member: a guest of the served client reads, and does nothing else") {
  DeviceWorld world;
  world.claim(5, 2);
  const std::uint64_t disk = world.state().record.disk;
  CHECK_FALSE(world.part().be_guest_of({9}, {3}, disk));
  CHECK_FALSE(world.part().be_guest_of({9}, {2}, disk + 1));
  REQUIRE(world.part().be_guest_of({9}, {2}, disk));
  CHECK(world.submit(BackendOperation::read) == 0);
  for (const auto operation : {write, flush, discard, extents})
    CHECK(world.refused(operation, ESTALE));
  world.claim(6, 3);
  CHECK(world.refused(BackendOperation::read, ESTALE));
}

TEST_CASE("member: a write to a cold region waits for its record, the next one for nothing") {
  DeviceWorld world;
  world.claim_it();
  REQUIRE(world.view(world.part().session(), kTwo, kTwo) == 0);
  REQUIRE(world.keep() == 0);
  mirror::RegionMap all{world.seat->shape().regions()};
  all.add_all();
  REQUIRE(world.cool(world.part().session(), 5, all) == 0);
  REQUIRE(world.keep() == 0);
  CHECK(world.device.writes());
  world.save_later();
  CHECK(world.submit(write) == -1);
  CHECK(world.server.disk().records.empty());
  SUBCASE("it is recorded") {
    world.save();
    CHECK(world.error == 0);
    CHECK(world.server.disk().records.size() == 1);
    CHECK(world.submit(write) == 0);
    CHECK(world.saves.empty());
    CHECK(world.submit(write, 4 << 20, true) == 0);  // a copy warms nothing
    CHECK(world.saves.empty());
  }
  SUBCASE("it cannot be recorded") {
    world.store->fails = true;
    world.save();
    CHECK(world.error == EIO);
    CHECK_FALSE(world.request.refused);
    CHECK(world.server.disk().records.empty());
  }
  SUBCASE("another client is served meanwhile") {
    world.seat->fence();
    world.save();
    CHECK(world.error == ESTALE);
    CHECK(world.request.refused);
    CHECK(world.server.disk().records.empty());
  }
}

TEST_CASE("member: nothing is written behind the group's disk") {
  DeviceWorld world;
  CHECK(world.device.reach().size == 16 << 20);
  world.claim_it();
  CHECK(world.device.reach().size == 8 << 20);
  CHECK(world.refused(write, EIO, 8 << 20));
  CHECK(world.submit(BackendOperation::read, 8 << 20) == 0);
}

wire::MirrorClaim growth_of(std::uint64_t term, std::uint64_t base, std::uint64_t size) {
  wire::MirrorClaim claim = claim_of(term);
  claim.base = base;
  claim.size = size;
  return claim;
}

TEST_CASE(
    "seat: a claim of the served session makes the disk larger, and nothing is known of that") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kTwo, kTwo) == 0);
  REQUIRE(world.keep() == 0);
  REQUIRE(world.cool(session, 5, world.state().record.maps.active) == 0);
  REQUIRE(world.keep() == 0);
  const auto claim = growth_of(5, 8 << 20, 20 << 20);
  REQUIRE(world.seat->misfit(claim).error == 0);
  REQUIRE_FALSE(world.seat->refuses(claim, session));
  world.seat->grant(claim, session);
  CHECK(world.seat->size() == 8 << 20);  // until that is durable
  REQUIRE(world.keep() == 0);
  world.seat->serve(session);
  CHECK(world.seat->size() == 20 << 20);
  CHECK(world.seat->warm(8, 19));
  world.seat = world.start();
  const auto& record = world.state().record;
  CHECK(world.state().shape.size == 20 << 20);
  CHECK(record.maps.active.count() == 12);
  CHECK(record.maps.active.next(0) == 8);
  CHECK(record.maps.dirty[2].contains(19));
  CHECK(record.maps.dirty[1].empty());
  CHECK(world.seat->told_size(30 << 20) == 20 << 20);
}

TEST_CASE("seat: a record that has grown has its pages where they belong") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kTwo, kTwo) == 0);
  REQUIRE(world.keep() == 0);
  REQUIRE(world.cool(session, 5, world.state().record.maps.active) == 0);
  REQUIRE(world.keep() == 0);
  const std::uint64_t size = std::uint64_t{5000} << 20;  // regions for two pages of a map
  world.seat->grant(growth_of(5, size, size), session);
  REQUIRE(world.keep() == 0);
  world.seat->serve(session);
  REQUIRE(world.seat->write(session, 3, 3) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  const auto& record = world.state().record;
  CHECK(record.maps.active.count() == 4992 + 1);
  CHECK(record.maps.dirty[2].count() == 4992 + 8 + 0);
  CHECK(record.maps.dirty[0].empty());
}

TEST_CASE("seat: a client that knows of a smaller disk leaves the record as large as it is") {
  World world;
  auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  world.seat->grant(growth_of(5, 8 << 20, 10 << 20), session);
  REQUIRE(world.keep() == 0);
  REQUIRE(world.cool(session, 5, world.state().record.maps.active) == 0);
  REQUIRE(world.keep() == 0);
  CHECK(world.seat->misfit(claim_of(6)).error == EEXIST);  // and knows no growth
  session = world.seat->next_session();
  const auto claim = growth_of(6, 8 << 20, 8 << 20);
  REQUIRE(world.seat->misfit(claim).error == 0);
  world.seat->fence();
  world.seat->grant(claim, session);
  REQUIRE(world.keep() == 0);
  world.seat->serve(session);
  CHECK(world.state().shape.size == 10 << 20);
  CHECK(world.state().record.maps.active.empty());
  // The room that it adds to its disk is not known, although the record has it.
  world.seat->grant(growth_of(6, 8 << 20, 9 << 20), session);
  REQUIRE(world.keep() == 0);
  world.seat->serve(session);
  world.seat = world.start();
  CHECK(world.state().shape.size == 10 << 20);
  CHECK(world.state().record.maps.active.count() == 1);
  CHECK(world.state().record.maps.active.contains(8));
}

TEST_CASE("seat: a growth that could not be recorded is recorded with the next change") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.keep() == 0);
  world.store->fails = true;
  world.seat->grant(growth_of(5, 8 << 20, 10 << 20), session);
  CHECK(world.keep() == EIO);
  world.store->fails = false;
  REQUIRE(world.seat->confirm(session, kAll) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  CHECK(world.state().shape.size == 10 << 20);
}

TEST_CASE("seat: a view takes back a growth that was given up, and a late one does nothing") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  auto claim = growth_of(5, 8 << 20, std::uint64_t{5000} << 20);
  claim.seq = kAll.id.seq;
  world.seat->grant(claim, session);
  REQUIRE(world.keep() == 0);
  world.seat->serve(session);
  REQUIRE(world.state().shape.size == claim.size);
  REQUIRE(world.seat->view(session, kTwo, kAll, {}, world.pedigree(), 8 << 20) == 0);
  REQUIRE(world.keep() == 0);
  CHECK(world.seat->size() == 8 << 20);
  world.seat->grant(claim, session);
  REQUIRE(world.keep() == 0);
  CHECK(world.seat->view(session, {{5, 3}, 0b011}, kTwo, {}, world.pedigree(), 9 << 20) == EINVAL);
  world.seat = world.start();
  CHECK(world.state().shape.size == 8 << 20);
  CHECK(world.state().record.view.id == kTwo.id);
  CHECK(world.state().record.maps.active.count() == 8);
  CHECK(world.state().record.maps.dirty[2].count() == 8);
}

/// A mirror of three, one of which is away, with an empty activity log. Its record grows to more
/// than one page of regions for each map.
struct GrowingWorld : World {
  GrowingWorld() {
    session = claim(5);
    REQUIRE(view(session, kTwo, kTwo) == 0);
    REQUIRE(keep() == 0);
    cool_all();
  }
  void cool_all() {
    REQUIRE(cool(session, 5, state().record.maps.active) == 0);
    REQUIRE(keep() == 0);
  }
  /// The errno with which it is kept.
  int grow(std::uint64_t size = kLarge) {
    auto claim = growth_of(5, 8 << 20, size);
    claim.seq = state().record.view.id.seq;
    seat->grant(claim, session);
    return keep();
  }
  static constexpr std::uint64_t kLarge = std::uint64_t{5000} << 20;
  static constexpr mirror::View kNext{{5, 3}, 0b011};
  std::uint64_t session = 0;
};

TEST_CASE("seat: a claim with a larger size makes no record") {
  World world;
  const auto session = world.claim(5);
  world.seat->grant(growth_of(5, 8 << 20, 12 << 20), session);
  REQUIRE(world.keep() == 0);
  CHECK(world.store->image.empty());
  world.seat->leave(session);
  CHECK_FALSE(world.seat->taken());
}

TEST_CASE("seat: a growth for which there is no room is taken back, and the record goes on") {
  GrowingWorld world;
  world.store->full = true;
  REQUIRE(world.grow() == EIO);
  CHECK(world.seat->take_back_growth(world.session));
  CHECK(world.state().shape.size == 8 << 20);
  CHECK(world.seat->size() == 8 << 20);
  REQUIRE(world.seat->view(world.session, GrowingWorld::kNext, kTwo, {}, world.pedigree(),
                           8 << 20) == 0);
  CHECK(world.keep() == 0);
  REQUIRE(world.seat->write(world.session, 3, 3) == 0);
  CHECK(world.keep() == 0);
  const auto again = world.start();
  CHECK(again->status()->state.shape.size == 8 << 20);
  CHECK(again->status()->state.record.view.id == GrowingWorld::kNext.id);
  CHECK(again->status()->state.record.maps.active.contains(3));
  CHECK(again->status()->state.record.maps.dirty[2].contains(3));
  // There is room again.
  world.store->full = false;
  REQUIRE(world.grow() == 0);
  world.seat->serve(world.session);
  CHECK(world.seat->size() == GrowingWorld::kLarge);
  world.seat = world.start();
  CHECK(world.state().shape.size == GrowingWorld::kLarge);
  CHECK(world.state().record.maps.active.count() == 4992 + 1);
}

TEST_CASE("seat: a claim for which there is no room leaves the record to others as it was") {
  GrowingWorld world;
  world.store->full = true;
  const auto session = world.seat->next_session();
  world.seat->fence();
  auto claim = growth_of(6, GrowingWorld::kLarge, GrowingWorld::kLarge);
  world.seat->grant(claim, session);
  REQUIRE(world.keep() == EIO);
  CHECK_FALSE(world.seat->take_back_growth(session));
  CHECK(world.claim(7, 2) != 0);
  CHECK(world.state().shape.size == 8 << 20);
}

TEST_CASE("seat: a growth whose file may go back after a loss of power is written once more") {
  GrowingWorld world;
  world.store->lasts = false;
  REQUIRE(world.grow() == EIO);
  CHECK(world.seat->take_back_growth(world.session));
  world.store->lasts = true;
  const unsigned files = world.store->files;
  REQUIRE(world.seat->confirm(world.session, kTwo) == 0);
  REQUIRE(world.keep() == 0);
  CHECK(world.store->files == files + 1);
  REQUIRE(world.seat->write(world.session, 3, 3) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  CHECK(world.state().record.maps.active.contains(3));
}

TEST_CASE(
    "seat: a growth while the first record is being written has its pages where they belong") {
  World world;
  const auto session = world.claim(5);
  world.save_later();
  const auto keep = [&](int& result) {
    world.seat->keep(world.services, nullptr, [&result](int error) { result = error; });
  };
  int first = -1, second = -1;
  REQUIRE(world.view(session, kTwo, kTwo) == 0);
  keep(first);
  world.seat->grant(growth_of(5, 8 << 20, GrowingWorld::kLarge), session);
  keep(second);
  world.save();
  CHECK(first == 0);
  world.save();
  CHECK(second == 0);
  world.seat = world.start();
  CHECK(world.state().shape.size == GrowingWorld::kLarge);
  CHECK(world.state().record.maps.active.count() == 5000);
  CHECK(world.state().record.maps.dirty[2].count() == 5000);
  CHECK(world.state().record.maps.dirty[0].empty());
}

TEST_CASE("seat: what a growth adds to a record that has the size already is as durable") {
  GrowingWorld world;
  REQUIRE(world.grow() == 0);
  world.seat->serve(world.session);
  world.cool_all();
  world.store->crashes = true;
  REQUIRE(world.grow() == 0);
  world.seat = world.start();
  CHECK(world.state().record.maps.active.count() == 4992);
  CHECK(world.state().record.maps.active.contains(4999));
}

TEST_CASE("seat: a growth of another client's view with the same number does nothing") {
  GrowingWorld world;
  world.session = world.claim(6);
  auto claim = growth_of(6, 8 << 20, GrowingWorld::kLarge);
  claim.seq = world.state().record.view.id.seq;  // of term 5
  world.seat->grant(claim, world.session);
  CHECK(world.state().shape.size == 8 << 20);
}

TEST_CASE("seat: behind a head that could not be written the one before stays whole") {
  World world;
  const auto session = world.claim(5);
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.keep() == 0);
  REQUIRE(world.seat->confirm(session, kAll) == 0);
  REQUIRE(world.keep() == 0);
  const std::uint64_t before = mirror::load_image(world.store->image)->sequence;
  world.store->fails = true;
  REQUIRE(world.view(session, kTwo, kAll) == 0);
  REQUIRE(world.keep() == EIO);
  world.store->fails = false;
  REQUIRE(world.seat->confirm(session, kTwo) == 0);
  REQUIRE(world.keep() == 0);
  const std::uint64_t newest = mirror::load_image(world.store->image)->sequence;
  world.store->image[newest % 2 * 4096] = {};  // it was torn
  CHECK(mirror::load_image(world.store->image)->sequence == before);
}

TEST_CASE("member: a write behind a disk that becomes smaller meanwhile is refused") {
  DeviceWorld world;
  world.claim_it();
  const auto session = world.part().session();
  REQUIRE(world.view(session, kAll, kAll) == 0);
  REQUIRE(world.keep() == 0);
  world.seat->grant(growth_of(5, 8 << 20, 12 << 20), session);
  REQUIRE(world.keep() == 0);
  world.seat->serve(session);
  REQUIRE(world.cool(session, 5, world.state().record.maps.active) == 0);
  REQUIRE(world.keep() == 0);
  world.save_later();
  REQUIRE(world.submit(write, 10 << 20) == -1);
  REQUIRE(world.seat->view(session, kTwo, kAll, {}, world.pedigree(), 8 << 20) == 0);
  world.save();
  CHECK(world.error == EIO);
  CHECK(world.server.disk().records.empty());
  CHECK_FALSE(world.seat->warm(10, 10));
}

// ---- One more copy ------------------------------------------------------------------------------

TEST_CASE("seat: a group gets one more disk, which lacks all that the others have") {
  World world;
  auto session = world.claim(5, 1, 2);
  const mirror::View both{{5, 1}, 0b011};
  REQUIRE(world.view(session, both, both) == 0);
  REQUIRE(world.keep() == 0);
  REQUIRE(world.cool(session, 5, world.state().record.maps.active) == 0);
  REQUIRE(world.keep() == 0);
  session = world.claim(6, 2, 3);
  REQUIRE(session != 0);
  REQUIRE(world.seat->write(session, 3, 3) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  CHECK(world.state().shape.members == 3);
  CHECK(world.state().record.view.set == both.set);
  CHECK(world.state().record.maps.active.count() == 1);
  CHECK(world.state().record.maps.dirty.at(1).empty());
  CHECK(world.state().record.maps.dirty.at(2).count() == 8);
}

TEST_CASE("seat: a record without room for one more disk serves the ones that it has") {
  World world;
  auto session = world.claim(5, 1, 2);
  const mirror::View both{{5, 1}, 0b011};
  const mirror::Pedigree two{{world.state().record.disk, {}}, {2, {}}};
  REQUIRE(world.seat->view(session, both, both, {}, two, 0) == 0);
  REQUIRE(world.keep() == 0);
  world.store->fails = true;
  CHECK(world.claim(6, 2, 3) == 0);
  world.store->fails = false;
  session = world.claim(7, 1, 2);
  REQUIRE(session != 0);
  REQUIRE(world.seat->write(session, 3, 3) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  CHECK(world.state().shape.members == 2);
  CHECK(world.state().record.maps.active.contains(3));
}

TEST_CASE("seat: only a disk that was in no view is left out again") {
  World world;
  auto session = world.claim(5, 1, 2);
  const mirror::View both{{5, 1}, 0b011};
  const auto two = [&] { return mirror::Pedigree{{world.state().record.disk, {}}, {2, {}}, {}}; };
  REQUIRE(world.seat->view(session, both, both, {}, two(), 0) == 0);
  REQUIRE(world.keep() == 0);
  session = world.claim(6, 2, 4);
  REQUIRE(world.seat->view(session, {{6, 1}, 0b011}, both, {}, two(), 0) == EINVAL);
  auto pedigree = two();
  pedigree.resize(mirror::kMaxMembers);
  REQUIRE(world.seat->view(session, {{6, 1}, 0b011}, both, {}, pedigree, 0) == 0);
  REQUIRE(world.keep() == 0);
  REQUIRE(world.claim(7, 3, 3) != 0);
  REQUIRE(world.claim(8, 4, 2) != 0);
  session = world.claim(9, 5, 3);
  REQUIRE(world.view(session, {{9, 1}, 0b111}, both) == 0);
  REQUIRE(world.view(session, {{9, 2}, 0b011}, both) == 0);
  REQUIRE(world.keep() == 0);
  world.seat = world.start();
  auto fewer = claim_of(10);
  fewer.members = 2;
  CHECK(world.seat->misfit(fewer).error == EEXIST);
  CHECK(world.claim(11, 6, 3) != 0);
}

// ---- Votes --------------------------------------------------------------------------------------

wire::MirrorClaim claim_of_vote(std::uint64_t term, std::uint8_t group) {
  wire::MirrorClaim claim = claim_of(term, 1, group);
  claim.member = mirror::kVote;
  claim.members = 2;
  claim.kind = wire::MemberKind::vote;
  claim.size = 0;
  return claim;
}

TEST_CASE("votes: each group has a seat, which a view records") {
  const auto store = std::make_shared<Store>();
  test::FakeServices services;
  mirror::Votes votes{store, kEpoch, {}};
  const auto seat = votes.of({9});
  CHECK(votes.of({9}) == seat);
  CHECK(votes.of({8}) != seat);
  CHECK(votes.recorded().empty());
  const std::uint64_t session = seat->next_session();
  REQUIRE(seat->misfit(claim_of_vote(3, 9)).error == 0);
  seat->grant(claim_of_vote(3, 9), session);
  seat->serve(session);
  const std::uint64_t disk = seat->status()->state.record.disk;
  mirror::Pedigree pedigree(mirror::kMaxMembers);
  const mirror::View view{{3, 1}, static_cast<mirror::MemberSet>(mirror::bit(mirror::kVote) | 1)};
  CHECK(seat->view(session, view, view, {}, pedigree, 8 << 20) ==
        EINVAL);  // it counts on another vote
  pedigree[mirror::kVote].disk = disk;
  pedigree[0].disk = 20;
  pedigree[1].disk = 21;
  CHECK(seat->view(session, view, view, {}, pedigree, 8 << 20) == 0);
  CHECK(seat->status()->state.shape.size == 0);
  int kept = -1;
  seat->keep(services, nullptr, [&](int error) { kept = error; });
  CHECK(kept == 0);
  CHECK(seat->knows_vote());
  CHECK(store->image.size() == 8192);
  REQUIRE(votes.recorded().size() == 1);
  // The server is started again.
  const mirror::Votes again{store, kEpoch, {{9}}};
  REQUIRE(again.recorded().size() == 1);
  CHECK(again.recorded().front().second->status()->state.record.view.id == view.id);
  const auto& recorded = *again.recorded().front().second;
  CHECK(recorded.misfit(claim_of_vote(4, 8), {20}).error == EEXIST);
  // A client that knows none of the disks is of another mirror, or of none.
  CHECK(recorded.misfit(claim_of_vote(4, 9)).error == EEXIST);
  CHECK(recorded.misfit(claim_of_vote(4, 9), {22, disk}).error == EEXIST);
  CHECK(recorded.misfit(claim_of_vote(4, 9), {22, 21}).error == 0);
}

TEST_CASE("votes: one without a record holds to no claim, and one with a record does") {
  const auto store = std::make_shared<Store>();
  mirror::Votes votes{store, kEpoch, {}};
  const auto seat = votes.of({9});
  const std::uint64_t stranger = seat->next_session(), session = seat->next_session();
  seat->grant(claim_of_vote(std::uint64_t{200} << 32, 9), stranger);
  CHECK_FALSE(seat->refuses(claim_of_vote(3, 9), session));
  CHECK(seat->misfit(claim_of_vote(3, 9)).error == 0);
  seat->grant(claim_of_vote(3, 9), session);
  seat->serve(session);
  CHECK(seat->status()->state.record.promised == 3);
  mirror::Pedigree pedigree(mirror::kMaxMembers);
  pedigree[0].disk = 20;
  pedigree[mirror::kVote].disk = seat->status()->state.record.disk;
  const mirror::View view{{3, 1}, static_cast<mirror::MemberSet>(mirror::bit(mirror::kVote) | 1)};
  REQUIRE(seat->view(session, view, view, {}, pedigree, 0) == 0);
  CHECK(seat->refuses(claim_of_vote(2, 9), stranger));
  CHECK(seat->refuses(claim_of_vote(3, 9), stranger));
  CHECK_FALSE(seat->refuses(claim_of_vote(4, 9), stranger));
  // It is told how far the disks have come in its view.
  REQUIRE(seat->cool(session, mirror::RegionMap{0}, {view.id, 5}, 5) == 0);
  CHECK(seat->status()->state.record.pedigree[0].age == mirror::Age{view.id, 5});
}

TEST_CASE("votes: strangers get no more than there is room for, and leave it") {
  mirror::Votes votes{std::make_shared<Store>(), kEpoch, {}};
  const auto group = [](unsigned number) {
    return wire::Uuid{1, static_cast<std::uint8_t>(number), static_cast<std::uint8_t>(number >> 8)};
  };
  std::vector<std::shared_ptr<Seat>> held;
  for (unsigned i = 0; i < 4096; ++i) held.push_back(votes.of(group(i)));
  CHECK(votes.of(group(4096)) == nullptr);
  CHECK(votes.of(group(5)) == held[5]);
  held.clear();
  CHECK(votes.of(group(4096)) != nullptr);
}

TEST_CASE("votes: they are no disk") {
  const mirror::Votes votes{std::make_shared<Store>(), kEpoch, {}};
  CHECK(votes.closed_to(0, ".vote").find("no disk") != std::string::npos);
  CHECK(votes.closed_to(wire::kMirrorFeatures, ".vote").empty());
}

}  // namespace
}  // namespace rnbd::seat_test
