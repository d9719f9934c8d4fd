// SPDX-License-Identifier: BSD-3-Clause
// The members of a lane, each without the others.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <vector>

#include "rdma/core/client/delivery_wait.hpp"
#include "rdma/core/client/lane_slots.hpp"
#include "rdma/core/client/path_choice.hpp"
#include "rdma/core/client/permit_shares.hpp"
#include "rdma/core/client/waiting_requests.hpp"

namespace rtrs::lane_parts_test {
namespace {

using namespace std::chrono_literals;
std::vector<const Request*> all_of(const WaitingRequests& waiting) {
  std::vector<const Request*> all;
  for (const Request& request : waiting) all.push_back(&request);
  return all;
}

TEST_CASE("waiting requests keep their order, whichever of them leaves") {
  std::array<Request, 4> r;
  for (std::size_t leaver = 0; leaver < r.size(); ++leaver) {
    PermitShares shares{8};
    WaitingRequests waiting{shares};
    for (std::size_t i = 1; i < r.size(); ++i) waiting.push_back(r[i]);
    waiting.push_front(r[0]);
    waiting.remove(r[leaver]);
    Request last;
    waiting.push_back(last);
    std::vector<const Request*> expected;
    for (std::size_t i = 0; i < r.size(); ++i) {
      if (i != leaver) expected.push_back(&r[i]);
    }
    expected.push_back(&last);
    CHECK(all_of(waiting) == expected);
  }
}

TEST_CASE("a queue that became empty takes requests again") {
  PermitShares shares{8};
  WaitingRequests waiting{shares};
  Request a;
  Request b;
  waiting.push_back(a);
  waiting.remove(a);
  CHECK(waiting.empty());
  waiting.push_front(b);
  waiting.push_back(a);
  CHECK(all_of(waiting) == std::vector<const Request*>{&b, &a});
}

TEST_CASE("paths take turns, and a forbidden one is left out") {
  PathChoice choice;
  for (unsigned path = 0; path < 3; ++path) choice.attach(path, /*accessible=*/path != 1);
  choice.use(0xFF, PathPolicy::round_robin);
  const unsigned first = choice.choose(choice.open(/*keeps_order=*/false), /*stay=*/false);
  const unsigned second = choice.choose(choice.open(false), false);
  CHECK(first + second == 2);  // 0 and 2
  CHECK(first != second);
  CHECK(choice.choose(choice.open(false), false) == first);
  CHECK(choice.choose(choice.open(false), /*stay=*/true) == first);
}

TEST_CASE("the path with the fewest requests in flight takes the next one") {
  PathChoice choice;
  choice.attach(2, true);
  choice.attach(5, true);
  choice.sent(2);
  CHECK(choice.choose(choice.open(false), false) == 5);
  choice.sent(5);
  choice.sent(5);
  CHECK(choice.choose(choice.open(false), false) == 2);
  choice.detach(5);
  choice.attach(5, true);
  CHECK(choice.in_flight(5) == 0);
}

TEST_CASE("only requests whose order counts take a forbidden path") {
  PathChoice choice;
  choice.attach(3, /*accessible=*/false);
  CHECK(choice.open(/*keeps_order=*/false) == 0);
  CHECK(choice.open(/*keeps_order=*/true) == 1U << 3);
}

TEST_CASE("answers at three intervals end a wait, and those to earlier questions do not count") {
  DeliveryWait wait;
  wait.begin(Instant{1s});
  wait.on_sent(/*asked=*/5);
  CHECK_FALSE(wait.on_answered(4));
  CHECK_FALSE(wait.on_answered(5));
  CHECK_FALSE(wait.on_answered(6));
  CHECK_FALSE(wait.on_answered(6));  // nothing new
  CHECK_FALSE(wait.on_answered(9));
  wait.on_sent(9);  // over another path
  for (std::uint64_t answered : {10, 11}) CHECK_FALSE(wait.on_answered(answered));
  CHECK(wait.on_answered(12));
  CHECK_FALSE(wait.active());
  CHECK_FALSE(wait.on_answered(13));  // it does not wait
}

void arrive(DeliveryWait& wait) {
  for (std::uint64_t answered : {1, 2, 3}) wait.on_answered(answered);
}

TEST_CASE("a request's time runs from its first loss on, whatever path comes between") {
  DeliveryWait wait;
  wait.begin(DeliveryWait::kNever);
  wait.on_sent(0);
  CHECK_FALSE(wait.active());
  wait.on_lost(Instant{10s});
  wait.on_sent(0);
  wait.on_mute(Instant{15s});
  wait.on_lost(Instant{20s});
  CHECK(wait.since() == Instant{10s});
  wait.put_off(3s);
  CHECK(wait.since() == Instant{13s});
  arrive(wait);
  CHECK_FALSE(wait.active());
}

TEST_CASE("eight lost paths without an answer are in vain") {
  DeliveryWait wait;
  wait.begin(DeliveryWait::kNever);
  for (int i = 0; i < 7; ++i) wait.on_lost(Instant{1s});
  CHECK_FALSE(wait.in_vain());
  wait.on_lost(Instant{1s});
  CHECK(wait.in_vain());
}

TEST_CASE("answers on many paths in turn do not let a request wait for ever") {
  DeliveryWait wait;
  wait.begin(DeliveryWait::kNever);
  for (int path = 0; path < 8; ++path) {
    wait.on_sent(0);
    wait.on_lost(Instant{1s});
    arrive(wait);
    CHECK_FALSE(wait.active());
  }
  wait.on_sent(0);
  wait.on_lost(Instant{2s});
  arrive(wait);
  CHECK(wait.since() == Instant{2s});
}

TEST_CASE("an owner of many permits leaves the last eighth to others") {
  PermitShares shares{16};
  const auto mine = std::make_shared<Unresolved>();
  const auto other = std::make_shared<Unresolved>();
  Request more;
  more.scope = &mine;
  Request from_other;
  from_other.scope = &other;
  for (unsigned free = 16; free > 2; --free) {
    CHECK(shares.within_share(more, free));
    shares.take(mine.get());
  }
  CHECK_FALSE(shares.within_share(more, 2));
  CHECK(shares.within_share(from_other, 2));
}

const auto kAnyone = [](const Request&) { return true; };

TEST_CASE("the owner with the fewest permits is next, and its oldest request") {
  PermitShares shares{16};
  WaitingRequests waiting{shares};
  const auto busy = std::make_shared<Unresolved>();
  const auto idle = std::make_shared<Unresolved>();
  std::array<Request, 4> r;
  for (std::size_t i = 0; i < r.size(); ++i) {
    r[i].scope = i < 2 ? &busy : &idle;
    waiting.push_back(r[i]);
  }
  CHECK(shares.next(16, kAnyone) == r.data());
  shares.take(busy.get());
  CHECK(shares.next(15, kAnyone) == &r[2]);
  const auto not_2 = [&](const Request& request) { return &request != &r[2]; };
  CHECK(shares.next(15, not_2) == &r[3]);
  waiting.remove(r[2]);
  waiting.remove(r[3]);
  CHECK(shares.next(15, kAnyone) == r.data());
  CHECK(shares.next(1, kAnyone) == nullptr);  // it has one, and that one is for others
  shares.give_back(busy.get());
  CHECK(shares.next(1, kAnyone) == r.data());
}

TEST_CASE("no request is looked at whose turn has not come, however many wait") {
  constexpr std::size_t kOwners = 256;
  constexpr std::size_t kEach = 256;
  PermitShares shares{256};
  WaitingRequests waiting{shares};
  std::vector<std::shared_ptr<Unresolved>> owners(kOwners);
  for (auto& owner : owners) owner = std::make_shared<Unresolved>();
  std::vector<Request> requests(kOwners * kEach);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].scope = &owners[i % kOwners];
    waiting.push_back(requests[i]);
  }
  std::size_t looked_at = 0;
  const auto counted = [&](const Request&) { return ++looked_at, true; };
  std::size_t free = 256;
  std::size_t sent = 0;
  while (Request* request = shares.next(free, counted)) {
    waiting.remove(*request);
    shares.take(request->owner());
    --free;
    ++sent;
  }
  CHECK(sent == 256);
  for (std::size_t i = 0; i < 1000; ++i) {  // each answer lets one more go
    shares.give_back(owners[i % kOwners].get());
    Request* request = shares.next(1, counted);
    REQUIRE(request != nullptr);
    CHECK(request->owner() == owners[i % kOwners].get());
    waiting.remove(*request);
    shares.take(request->owner());
  }
  CHECK(looked_at == 256 + 1000);
}

TEST_CASE("a permit that comes back keeps its generation and nothing else") {
  LaneSlots slots{2};
  const auto index = slots.take(1);
  LaneSlot& slot = slots[index];
  slot.state = SlotState::in_flight;
  slot.path = 3;
  slot.generation = 7;
  CHECK(slots.bound_to(3));
  CHECK(slots.in_use() == 1);
  slots.give_back(index);
  CHECK_FALSE(slots.bound_to(3));
  CHECK(slots.in_use() == 0);
  CHECK(slots[index].generation == 7);
  CHECK(slots.take(1) == index);  // the warm one first
}

}  // namespace
}  // namespace rtrs::lane_parts_test
