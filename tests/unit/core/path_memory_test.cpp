// SPDX-License-Identifier: BSD-3-Clause
// A path that borrows memory: who may write where, what waits, what goes on, what comes back.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <span>
#include <string>

#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test {
namespace {

constexpr std::uint32_t kPage = PathLoan::kPage;
constexpr std::uint32_t kLarge = 4 * kPage;
constexpr std::uint32_t kRoom = kLarge + kPage;  ///< of a chunk
constexpr std::uint32_t kDepth = 4;
constexpr std::uint32_t kFirst = QueuePairHandler::kAlwaysRoom;
constexpr std::uint64_t kLent = kLarge - kFirst;  ///< what a large request must borrow
constexpr std::uint64_t kOwn = kDepth * PathLoan::kOwnPages * kPage;

/// A path with two connections.
struct LoanPath final : PathOwner {
  LoanPath(ServerSession& s, MemoryAccount& account, std::uint64_t floor)
      : PathOwner{s, {.cid_count = 2, .account = &account, .floor = floor}} {
    memory.resize(std::size_t{kDepth} * kRoom);
    for (std::uint16_t cid = 0; cid < 2; ++cid) handlers[cid] = &path.add(cid, pairs[cid]);
    REQUIRE(handlers[0]->on_message(wire::bytes_of(wire::encode_info_request("host")), {}) ==
            nullptr);
  }
  ~LoanPath() override {
    path.close();
    session.on_path_closed(path);
  }
  void on_spare(std::span<const MutableBytes> parts) override {
    for (const MutableBytes part : parts) spare += part.size();
  }
  void on_starved() override { ++starved; }
  void on_memory_news() override { ++news; }

  QueuePairHandler::Room room(std::uint16_t cid, std::uint32_t permit, std::uint32_t data,
                              std::uint32_t begin = 0) {
    return handlers[cid]->room_for(permit * kRoom + begin, data - begin + 100);
  }
  bool there(std::uint16_t cid, std::uint32_t permit, std::uint32_t data) {
    const auto result = room(cid, permit, data);
    CHECK(result.wrong == nullptr);
    return result.there;
  }
  Complaint write(std::uint16_t cid, std::uint32_t permit, std::uint32_t data) {
    std::byte* at = memory.data() + permit * kRoom + data;
    const wire::WriteTrailer trailer{.generation = ++generation, .flags = 0};
    std::memcpy(at, &trailer, sizeof(trailer));
    const wire::WriteHeader header{.type = 2, .user_length = sizeof(trailer)};
    std::memcpy(at + sizeof(trailer), &header, sizeof(header));
    const auto offset = static_cast<std::uint32_t>(data + sizeof(trailer));
    return handlers[cid]->on_write_with_immediate(
        encode(wire::RequestImmediate{permit, offset}, kDepth), 0);
  }

  std::array<FakeQueuePair, 2> pairs;
  std::array<QueuePairHandler*, 2> handlers{};
  std::uint32_t generation = 0;
  std::uint64_t spare = 0;
  unsigned starved = 0;
  unsigned news = 0;
};

/// Memory for one large request of its own, and for one that is lent.
struct Lender {
  Handler handler;
  SessionOwner owner;
  ServerSession session{[] {
                          ServerSessionOptions large = options(true);
                          large.max_io_size = kLarge;
                          return large;
                        }(),
                        handler, owner};
  MemoryAccount account{(kOwn + 2 * kLent) * 8 / 7 + 1};
  LoanPath path = [this]() -> LoanPath {
    REQUIRE(account.claim_floor("", kOwn + kLent, 0) == MemoryAccount::Claim::granted);
    return {session, account, kOwn + kLent};
  }();

  ~Lender() {
    while (!handler.running.empty()) handler.finish_oldest();
  }
  void use_up() {
    for (const std::uint32_t permit : {0U, 1U}) {
      REQUIRE(path.there(0, permit, kLarge));
      REQUIRE(path.write(0, permit, kLarge) == nullptr);
    }
    REQUIRE(account.lent() == kLent);
  }
};

TEST_CASE_FIXTURE(Lender, "memory: one connection at a time writes to a chunk") {
  CHECK(path.there(0, 1, kLarge));
  SUBCASE("another one's write") {
    CHECK(std::string{path.room(1, 1, kPage).wrong} == "two connections write to one chunk");
  }
  SUBCASE("another one's request") {
    const Complaint wrong = path.write(1, 1, kPage);
    REQUIRE(wrong != nullptr);
    CHECK(std::string{wrong} == "a request for a chunk that another connection writes to");
    CHECK(handler.messages.empty());
  }
  SUBCASE("it is in use until its own request has ended") {
    CHECK(path.path.loan_in_use() == kLent);
    REQUIRE(path.write(0, 1, kLarge) == nullptr);
    CHECK(path.path.loan_in_use() == kLent);
    for (const std::uint16_t cid : {0, 1}) {
      CHECK(std::string{path.room(cid, 1, kPage).wrong} ==
            "a write to a chunk whose request still executes");
    }
    handler.finish_oldest();
    CHECK(path.path.loan_in_use() == 0);
    CHECK(path.there(1, 1, kPage));
  }
}

TEST_CASE_FIXTURE(Lender, "memory: a write lies in one chunk") {
  CHECK(path.handlers[0]->room_for(kRoom - 10, 20).wrong != nullptr);
  CHECK(path.handlers[0]->room_for(std::uint64_t{kDepth} * kRoom, 20).wrong == nullptr);
  CHECK(path.handlers[0]->room_for(~std::uint64_t{0}, 20).wrong == nullptr);
  CHECK(path.handlers[0]->room_for(0, ~std::uint32_t{0}).wrong != nullptr);
  CHECK(path.path.loan().used() == 0);
}

TEST_CASE_FIXTURE(Lender,
                  "memory: where none is left, a large request waits, a small one goes on") {
  use_up();
  CHECK_FALSE(path.there(0, 2, kLarge));
  CHECK_FALSE(path.there(0, 2, kLarge));
  CHECK(path.starved == 1);
  CHECK(path.path.starves(0));
  REQUIRE(path.there(1, 3, kPage));
  REQUIRE(path.write(1, 3, kPage) == nullptr);
  CHECK(handler.running.size() == 3);
  handler.finish_oldest();
  CHECK(path.path.minds_memory());
  path.path.on_memory();
  CHECK_FALSE(path.path.starves());
  CHECK(path.spare == kRoom - kFirst);
  CHECK(path.there(0, 2, kLarge));
  CHECK(account.waiting() == 0);
}

TEST_CASE_FIXTURE(Lender, "memory: a small request always has its place, and asks nobody") {
  const QueuePairHandler& handler_of_path = *path.handlers[1];
  CHECK_FALSE(handler_of_path.asks_for_room(2 * kRoom, kPage + 100));
  CHECK_FALSE(handler_of_path.asks_for_room(2 * kRoom + kPage, kPage));
  CHECK(handler_of_path.asks_for_room(2 * kRoom + kPage, kPage + 1));
  CHECK(handler_of_path.asks_for_room(2 * kRoom + kLarge, 100));
  CHECK(handler_of_path.asks_for_room(3 * kRoom - 50, 100));
  CHECK_FALSE(handler_of_path.asks_for_room(0, 0));  // a heartbeat
}

TEST_CASE_FIXTURE(Lender, "memory: all goes back after a second, but not what arrives there") {
  use_up();
  handler.finish_oldest();
  handler.finish_oldest();
  Instant now{};
  const auto tick = [&] { path.path.on_tick(now += std::chrono::milliseconds{500}); };
  path.path.start_heartbeat(now);
  for (int i = 0; i < 3; ++i) tick();
  path.pairs[1].in_arrival = true;
  for (int i = 0; i < 3; ++i) tick();
  CHECK(account.lent() == 0);
  CHECK(path.spare == 2 * (kRoom - kFirst));
  path.pairs[1].in_arrival = false;
  tick();
  CHECK(path.spare > path.memory.size());
}

TEST_CASE_FIXTURE(Lender, "memory: what comes for a request that waits stays until it goes on") {
  struct Other final : MemoryAccount::Borrower {
    void wake() override {}
  } other;
  use_up();
  REQUIRE_FALSE(path.there(0, 2, kLarge));
  account.await(other, kLent);
  account.count_floors([](const auto& count) { count("", kOwn); });
  CHECK(path.path.loan().lent() == 2 * kLent);
  path.path.start_heartbeat(Instant{});
  path.path.on_tick(Instant{} + std::chrono::milliseconds{500});
  CHECK(other.lent() == 0);
  path.path.on_memory();
  CHECK_FALSE(path.path.starves());
  account.leave(other);
}

TEST_CASE_FIXTURE(Lender, "memory: what is not used goes back when others ask") {
  use_up();
  handler.finish_oldest();
  CHECK(account.lent() == kLent);
  CHECK_FALSE(path.path.minds_memory());
  CHECK(account.claim_floor("", kOwn * 9, 0) == MemoryAccount::Claim::lacks);
  CHECK(path.news == 1);
  CHECK(path.path.minds_memory());
  path.pairs[0].sent_up_to = 0;
  path.path.on_memory();
  CHECK(account.lent() == kLent);  // the answer is not sent
  path.pairs[0].sent_up_to = ~Ticket{0};
  path.path.on_memory();
  CHECK(account.lent() == 0);
  CHECK_FALSE(path.path.loan().is_wanted());
}

TEST_CASE_FIXTURE(Lender, "memory: a path that is asked uses what is idle instead of a loan") {
  struct Other final : MemoryAccount::Borrower {
    void wake() override {}
  } other;
  use_up();
  handler.finish_oldest();
  handler.finish_oldest();
  account.await(other, 3 * kLent);
  path.path.on_memory();
  CHECK(account.lent() == 0);
  account.leave(other);
  CHECK(path.path.minds_memory());  // until the next tick
  const unsigned before = path.news;
  REQUIRE(path.there(0, 2, kLarge));
  CHECK(path.news == before + 1);
  path.path.on_memory();
  CHECK(account.lent() == 0);
}

}  // namespace
}  // namespace rtrs::test
