// SPDX-License-Identifier: BSD-3-Clause
// The account of memory that is lent: who gets some, who waits, who is asked.
#include "rdma/core/memory_account.hpp"

#include <doctest/doctest.h>

#include <chrono>

namespace rtrs {
namespace {

using Claim = MemoryAccount::Claim;

struct TestBorrower final : MemoryAccount::Borrower {
  explicit TestBorrower(MemoryAccount& a, std::string_view user = "") : account{a} {
    MemoryAccount::join(*this, user);
  }
  ~TestBorrower() { account.leave(*this); }
  void wake() override { ++woken; }
  bool lend(std::uint64_t bytes) { return account.lend(*this, bytes); }
  void await(std::uint64_t bytes) { account.await(*this, bytes); }
  void give_back(std::uint64_t bytes) { account.give_back(*this, bytes); }

  MemoryAccount& account;
  unsigned woken = 0;
};

void set_floors(MemoryAccount& account, std::string_view user, std::uint64_t bytes) {
  account.count_floors([&](const auto& count) { count(user, bytes); });
}

TEST_CASE("lending: an eighth of the memory is kept for the floors of paths that come") {
  MemoryAccount account{80};
  TestBorrower one{account};
  REQUIRE(account.claim_floor("", 30, 30) == Claim::granted);
  CHECK_FALSE(one.lend(41));
  CHECK(one.lend(40));
  CHECK_FALSE(one.lend(1));
  CHECK(account.claim_floor("", 10, 10) == Claim::granted);
  CHECK_FALSE(one.asked());
  SUBCASE("a path that cannot come is a reason to give back") {
    CHECK(account.claim_floor("", 1, 1) == Claim::lacks);
    CHECK(one.asked());
    CHECK(one.woken == 1);
    CHECK(account.floors() == 40);
    account.relax(one, Instant{});
    CHECK(one.asked());
    one.give_back(10);
    account.relax(one, Instant{});
    CHECK_FALSE(one.asked());
    CHECK(account.claim_floor("", 1, 1) == Claim::granted);
  }
  SUBCASE("floors that go can be lent") {
    set_floors(account, "", 0);
    CHECK(one.lend(30));
    CHECK(account.lent() == 70);
  }
  SUBCASE("and go to who waits, at once") {
    TestBorrower other{account};
    other.await(10);
    CHECK(other.woken == 0);
    set_floors(account, "", 20);
    CHECK(other.woken == 1);
    CHECK(other.lent() == 10);
  }
}

TEST_CASE("lending: a path that needs more than is always kept finds room when it comes again") {
  MemoryAccount account{80};
  TestBorrower one{account};
  TestBorrower two{account};
  REQUIRE(one.lend(40));
  REQUIRE(two.lend(30));
  REQUIRE(account.claim_floor("", 20, 20) == Claim::lacks);
  Instant now{};
  const auto tick = [&] {
    now += std::chrono::seconds{4};
    for (TestBorrower* each : {&one, &two}) account.relax(*each, now);
  };
  SUBCASE("although others are busy") {
    for (TestBorrower* each : {&one, &two}) {
      each->give_back(10);
      if (!each->lend(10)) each->await(10);
      tick();
    }
    CHECK(account.waiting() == 1);
    SUBCASE("all the time") {}
    SUBCASE("and a smaller one comes before") {
      CHECK(account.claim_floor("", 5, 5) == Claim::granted);
      for (TestBorrower* each : {&one, &two}) each->give_back(5);
    }
    CHECK(account.claim_floor("", 20, 20) == Claim::granted);
  }
  SUBCASE("but if it does not, others have that") {
    for (int i = 0; i < 6; ++i) tick();
    CHECK(account.claim_floor("", 20, 20) == Claim::lacks);
    one.give_back(10);
    one.await(10);
    for (int i = 0; i < 6; ++i) tick();
    CHECK(one.asked());
    for (int i = 0; i < 6; ++i) tick();
    CHECK(account.waiting() == 0);
    CHECK(one.lent() == 40);
    tick();
    CHECK_FALSE(one.asked());
    CHECK_FALSE(two.asked());
  }
}

TEST_CASE("lending: those who wait are served in their order, and nobody overtakes them") {
  MemoryAccount account{80};
  TestBorrower idle{account};
  TestBorrower first{account};
  TestBorrower second{account};
  TestBorrower late{account};
  REQUIRE(idle.lend(60));
  first.await(30);
  CHECK(idle.asked());
  CHECK(idle.woken == 1);
  second.await(10);
  CHECK(idle.woken == 1);  // it knows
  CHECK_FALSE(late.lend(1));
  CHECK(account.waiting() == 2);
  idle.give_back(10);
  CHECK(first.lent() == 0);
  CHECK(second.lent() == 0);
  idle.give_back(15);
  CHECK(first.lent() == 30);
  CHECK(first.woken == 1);
  CHECK(second.woken == 0);
  SUBCASE("the next is served when the first gives back") {
    first.give_back(30);
    CHECK(second.lent() == 10);
    CHECK(account.waiting() == 0);
    CHECK(late.lend(1));
    CHECK_FALSE(late.asked());
  }
  SUBCASE("who leaves gives everything back, and waits no more") {
    second.await(40);  // still in its place
    late.await(35);
    account.leave(second);
    CHECK(late.lent() == 0);
    account.leave(first);
    CHECK(late.lent() == 35);
    CHECK(account.lent() == 70);
  }
  SUBCASE("what is lent while others wait is asked for") {
    CHECK(first.asked());
    account.relax(idle, Instant{});
    CHECK(idle.asked());
    account.stop_waiting(second);
    account.relax(idle, Instant{});
    CHECK_FALSE(idle.asked());
    late.await(100);
    CHECK(idle.asked());
    CHECK(idle.woken == 2);
  }
}

TEST_CASE("lending: a user has a limit of his own, for floors and loans together") {
  MemoryAccount account{800, 80};
  TestBorrower one{account, "one"};
  TestBorrower two{account, "one"};
  TestBorrower other{account, "other"};
  TestBorrower nobody{account};
  REQUIRE(account.claim_floor("one", 30, 30) == Claim::granted);
  CHECK_FALSE(one.lend(41));
  CHECK(one.lend(40));
  CHECK_FALSE(two.lend(1));
  CHECK(other.lend(70));
  CHECK(nobody.lend(200));
  SUBCASE("his other paths wait for him alone") {
    two.await(10);
    CHECK(one.woken == 1);
    CHECK_FALSE(other.asked());
    CHECK_FALSE(nobody.asked());
    CHECK(nobody.lend(100));
    nobody.give_back(300);
    CHECK(two.lent() == 0);
    one.give_back(10);
    CHECK(two.lent() == 10);
  }
  SUBCASE("his small ones do not overtake his large one") {
    two.await(20);
    TestBorrower three{account, "one"};
    three.await(10);
    one.give_back(10);
    CHECK(account.waiting() == 2);
    CHECK_FALSE(three.lend(1));
    CHECK(nobody.lend(10));  // they are not in its way
    one.give_back(10);
    CHECK(two.lent() == 20);
    CHECK(account.waiting() == 1);
  }
  SUBCASE("a path of his for which he lacks memory lets his others give back") {
    CHECK(account.claim_floor("one", 20, 20) == Claim::user_lacks);
    CHECK(one.asked());
    CHECK_FALSE(other.asked());
    one.give_back(20);
    CHECK(account.claim_floor("one", 20, 20) == Claim::granted);
  }
  SUBCASE("he is forgotten with his last path") {
    account.leave(one);
    account.count_floors([](const auto& count) { count("other", std::uint64_t{10}); });
    CHECK(account.floors() == 10);
    CHECK(two.lend(70));
  }
}

}  // namespace
}  // namespace rtrs
