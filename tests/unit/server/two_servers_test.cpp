// SPDX-License-Identifier: BSD-3-Clause
// Storage that is open for writing at one server at a time, as images of a cluster are. Two servers
// take reservations, and their records lie beside it.
#include <doctest/doctest.h>

#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/server/reservations_beside.hpp"
#include "tests/unit/server/catalogue_fixture.hpp"

namespace two_servers_test {

using namespace rnbd;
using namespace rnbd::test;
using enum wire::AccessMode;

namespace {

struct Notes final : BackendNotes {
  explicit Notes(std::map<std::string, std::string>& texts) : all{texts} {}
  tl::expected<std::string, std::string> load(const std::string& name) override {
    return all[name];
  }
  tl::expected<void, std::string> save(const std::string& name, const std::string& text) override {
    all[name] = text;
    return {};
  }
  std::map<std::string, std::string>& all;
};

struct Nowhere final : WriterStore {
  tl::expected<WriterRecord, std::string> load(const wire::Uuid&) override {
    return WriterRecord{};
  }
  tl::expected<void, std::string> save(const wire::Uuid&, const WriterRecord&) override {
    return tl::unexpected(std::string{"nothing is kept here"});
  }
};

/// The storage, and who has its lock.
struct Image {
  std::map<std::string, std::string> notes;
  unsigned instances = 0;  ///< the newest is not fenced off
};

class OpenImage final : public Backend {
 public:
  explicit OpenImage(Image& image)
      : image_{image}, number_{++image.instances}, notes_{std::make_shared<Notes>(image.notes)} {
    info_.size = 4096;
    info_.uuid = {7};
  }
  const BackendInfo& info() const override { return info_; }
  Whereabouts whereabouts() const override {
    return number_ == image_.instances ? Whereabouts::named : Whereabouts::gone;
  }
  std::shared_ptr<BackendNotes> notes() override { return notes_; }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor*) override { return nullptr; }

 private:
  Image& image_;
  unsigned number_;
  BackendInfo info_;
  std::shared_ptr<Notes> notes_;
};

struct Server {
  explicit Server(Image& image)
      : catalogue{
            {.open = [&image](const std::string&, const BackendOptions&)
                 -> tl::expected<std::unique_ptr<Backend>, Failure> {
               return std::make_unique<OpenImage>(image);
             },
             .reservations = std::make_shared<ReservationsBeside>(std::make_shared<Nowhere>())}} {
    REQUIRE(catalogue.add({"disk", "image", "", false, false}));
  }
  tl::expected<Lease, int> open(const Access& access) {
    catalogue.renew("disk");
    return catalogue.open_named("disk", access);
  }
  std::uint64_t reserve(Lease& lease, std::uint8_t session, OpenKind open_kind) {
    const wire::Uuid uuid{session};
    if (!catalogue.reservations().rejoin(lease, uuid, open_kind)) {
      REQUIRE(catalogue.reservations().reserve(lease, uuid, open_kind));
    }
    return catalogue.reservations().writer_serial(lease);
  }
  wire::Claim seen_through(const Lease& lease) const {
    wire::Claim claim;
    claim.sight = catalogue.reservations().look(lease);
    claim.writer_serial = catalogue.reservations().writer_serial(lease);
    return claim;
  }
  ExportCatalogue catalogue;
};

Access again(wire::AccessMode mode, std::uint8_t session) { return {mode, wire::Uuid{session}}; }

}  // namespace

TEST_CASE("two servers: users of an image that was fenced off keep nobody away from it") {
  Image image;
  Server first{image};
  auto old = first.open({read_write});
  REQUIRE(old);
  first.reserve(*old, 1, OpenKind::anew);
  Server{image};  // takes the lock, and ends
  auto next = first.open({read_write});
  REQUIRE(next);
  CHECK(next->storage() != old->storage());
  first.reserve(*next, 2, OpenKind::anew);
  CHECK_FALSE(first.open({read_write}));
}

TEST_CASE("two servers: a reservation of then is none at the first one now") {
  Image image;
  Server first{image};
  auto old = first.open({migration});
  REQUIRE(old);
  const auto early = first.reserve(*old, 1, OpenKind::anew);
  std::uint64_t there = 0;
  {
    Server second{image};
    auto lease = second.open({read_write});
    REQUIRE(lease);
    there = second.reserve(*lease, 2, OpenKind::anew);
    CHECK(there != early);
    second.catalogue.reservations().end();  // as if it were killed
  }
  SUBCASE("the one from there goes on") {
    auto back = first.open(again(read_write, 2));
    REQUIRE(back);
    CHECK(first.reserve(*back, 2, OpenKind::again) == there);
  }
  SUBCASE("the one from before learns of it") {
    auto back = first.open(again(migration, 1));
    REQUIRE(back);
    CHECK(first.reserve(*back, 1, OpenKind::again) != early);
  }
  SUBCASE("a new one gets a number that nobody has had") {
    auto other = first.open({read_write});
    REQUIRE(other);
    const auto number = first.reserve(*other, 3, OpenKind::anew);
    CHECK(number != early);
    CHECK(number != there);
  }
}

TEST_CASE("two servers: nobody claims what the other server's clients may have changed") {
  Image image;
  Server first{image};
  Access unclaimed{read_write};
  unclaimed.unclaimed = true;
  auto looker = first.open(unclaimed);
  REQUIRE(looker);
  const auto seen = first.seen_through(*looker);
  Server{image};
  auto later = first.open(unclaimed);
  REQUIRE(later);
  CHECK(first.catalogue.reservations().claim(*later, seen, wire::Uuid{1}, "rw").error() == ESTALE);
  CHECK(first.catalogue.reservations().claim(*later, first.seen_through(*later), wire::Uuid{1},
                                             "rw"));
}

TEST_CASE("two servers: one that comes late to storage as it was before is refused") {
  Image image;
  Server first{image};
  auto late = first.open({read_write});
  REQUIRE(late);
  Server{image};
  auto next = first.open({read_write});
  REQUIRE(next);
  first.reserve(*next, 2, OpenKind::anew);
  const auto record = image.notes;
  CHECK_FALSE(first.catalogue.reservations().reserve(*late, wire::Uuid{1}, OpenKind::anew));
  CHECK(image.notes == record);
}

}  // namespace two_servers_test
