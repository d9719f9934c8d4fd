// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/reservations_beside.hpp"

#include <doctest/doctest.h>

namespace rnbd {
namespace {

struct NotesInMemory final : BackendNotes {
  std::map<std::string, std::string> all;
  std::string trouble;

  tl::expected<std::string, std::string> load(const std::string& name) override {
    if (!trouble.empty()) return tl::unexpected(trouble);
    return all[name];
  }
  tl::expected<void, std::string> save(const std::string& name, const std::string& text) override {
    if (!trouble.empty()) return tl::unexpected(trouble);
    all[name] = text;
    return {};
  }
};

struct StoreInMemory final : WriterStore {
  std::map<wire::Uuid, WriterRecord> all;

  tl::expected<WriterRecord, std::string> load(const wire::Uuid& storage) override {
    return all[storage];
  }
  tl::expected<void, std::string> save(const wire::Uuid& storage,
                                       const WriterRecord& record) override {
    all[storage] = record;
    return {};
  }
};

WriterRecord two_writers() {
  return {.origin = 0xFFFFFFFF, .last = 7, .parts = {{{1, 2, 3}, 6}, {{4, 5, 6}, 7}}};
}

}  // namespace

TEST_CASE("reservations beside: a record is what it was when it is read again") {
  const WriterRecord nobody{.origin = 5, .last = 2, .parts = {}};
  CHECK(*parse_writer_record(text_of(two_writers())) == two_writers());
  CHECK(*parse_writer_record(text_of(nobody)) == nobody);
  CHECK(*parse_writer_record("") == WriterRecord{});
  WriterRecord expelled = two_writers();
  expelled.expelled = {{{7, 8, 9}, 5}, {{1, 1, 1}, 6}};
  CHECK(*parse_writer_record(text_of(expelled)) == expelled);
  CHECK(text_of(nobody) == "1 5 2");  // which older servers read
  WriterRecord claimed{.origin = 5, .last = 7, .parts = {{{1, 2, 3}, 7}}, .claim = {4, 5, 6}};
  CHECK(*parse_writer_record(text_of(claimed)) == claimed);
  CHECK(text_of(claimed) ==
        "1 5 7 01020300-0000-0000-0000-000000000000 7 04050600-0000-0000-0000-000000000000 7");
  claimed.expelled = {{{7, 8, 9}, 5}};
  CHECK(*parse_writer_record(text_of(claimed)) == claimed);
  // An older server took it for a session, and has ended another one since.
  const auto rewritten = parse_writer_record(
      "1 5 8 01020300-0000-0000-0000-000000000000 7 04050600-0000-0000-0000-000000000000 7");
  CHECK(rewritten->parts == std::vector<WriterRecord::Part>{{{1, 2, 3}, 7}});
  CHECK(rewritten->claim == wire::Uuid{});
}

TEST_CASE("reservations beside: a record that is damaged is none that was never written") {
  const std::string good = text_of(two_writers());
  for (const std::string& bad :
       {std::string{"3 1 1"}, std::string{"2 1 1 evicted"}, std::string{"1 1 1 evicted"},
        std::string{"1"}, std::string{"1 1"}, std::string{"1 0 0"}, std::string{"1 x 1"},
        std::string{"1 1 1 no-uuid 1"}, good.substr(0, good.size() - 2), good + " ", good + " 7",
        std::string{"1 4294967296 1"}}) {
    CAPTURE(bad);
    const bool same = parse_writer_record(bad) && *parse_writer_record(bad) == two_writers();
    CHECK((!parse_writer_record(bad) || same));
  }
  CHECK(!parse_writer_record("1 1 1 no-uuid 1"));
  CHECK(!parse_writer_record("1 0 0"));
  CHECK(!parse_writer_record(good + " 7"));
}

TEST_CASE("reservations beside: a storage with notes has its record there, another one elsewhere") {
  const auto elsewhere = std::make_shared<StoreInMemory>();
  const auto notes = std::make_shared<NotesInMemory>();
  const wire::Uuid with{1}, without{2};
  ReservationsBeside reservations{elsewhere};
  reservations.opened(with, notes);
  reservations.opened(without, nullptr);
  REQUIRE(reservations.save(with, two_writers()));
  REQUIRE(reservations.save(without, two_writers()));
  CHECK(elsewhere->all.size() == 1);
  CHECK(*reservations.load(with) == two_writers());
  CHECK(*reservations.load(without) == two_writers());

  ReservationsBeside of_another_server{std::make_shared<StoreInMemory>()};
  of_another_server.opened(with, notes);
  CHECK(*of_another_server.load(with) == two_writers());
}

TEST_CASE("reservations beside: what cannot be read or written is told, not forgotten") {
  auto notes = std::make_shared<NotesInMemory>();
  const wire::Uuid with{1};
  ReservationsBeside reservations{std::make_shared<StoreInMemory>()};
  reservations.opened(with, notes);
  notes->trouble = "fenced off";
  CHECK(reservations.load(with).error() == "fenced off");
  CHECK(reservations.save(with, two_writers()).error() == "fenced off");
  notes.reset();
  CHECK(!reservations.save(with, two_writers()));
}

}  // namespace rnbd
