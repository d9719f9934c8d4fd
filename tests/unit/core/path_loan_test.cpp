// SPDX-License-Identifier: BSD-3-Clause
// The account of memory that is lent to paths, and what a path makes of it.
#include "rdma/core/server/path_loan.hpp"

#include <doctest/doctest.h>

namespace rtrs {
namespace {

constexpr std::uint64_t kPage = PathLoan::kPage;
constexpr std::uint64_t kData = 8 * kPage;  ///< the data of a large request
constexpr std::uint64_t kWithMessage = kData + 100;

TEST_CASE("loans: an eighth of the memory is kept for the floors of paths that come") {
  MemoryAccount account{80};
  REQUIRE(account.claim_floor(30));
  CHECK_FALSE(account.lend(41));
  CHECK(account.lend(40));
  CHECK_FALSE(account.lend(1));
  CHECK(account.claim_floor(10));
  CHECK_FALSE(account.is_short());
  SUBCASE("a path that cannot come is a reason to give back") {
    CHECK_FALSE(account.claim_floor(1));
    CHECK(account.is_short());
    CHECK(account.floors() == 40);
    account.give_back(10);
    CHECK_FALSE(account.is_short());
    CHECK(account.claim_floor(10));
  }
  SUBCASE("so is a request that waits") {
    account.begin_wait();
    CHECK(account.is_short());
    account.end_wait();
    CHECK_FALSE(account.is_short());
  }
  SUBCASE("floors that go can be lent") {
    account.set_floors(0);
    CHECK(account.lend(30));
    CHECK(account.lent() == 70);
  }
}

TEST_CASE("loans: a path uses its floor, then what is lent to it, and settles") {
  MemoryAccount account{100 * kData};
  PathLoan loan{&account, 4 * kPage + 2 * kData, 4};
  CHECK(loan.extend(0, 0, kWithMessage));
  CHECK(loan.extend(1, 0, kWithMessage));
  CHECK(loan.lent() == 0);
  CHECK(loan.lacks(2, 0, kWithMessage) == kData);
  CHECK(loan.extend(2, 0, kWithMessage));
  CHECK(loan.lent() == kData);
  CHECK(account.lent() == kData);
  CHECK(loan.extend(2, 0, kWithMessage));  // again
  CHECK(account.lent() == kData);
  loan.forget(0);
  loan.settle();
  CHECK(loan.used() == 2 * kData);
  CHECK(account.lent() == 0);
  CHECK(loan.extend(0, 0, kWithMessage));
  CHECK(account.lent() == kData);
  loan.end();
  CHECK(account.lent() == 0);
}

TEST_CASE("loans: a message needs none, wherever it is") {
  MemoryAccount account{0};
  PathLoan loan{&account, 4 * kPage, 4};
  CHECK(loan.extend(0, kData, kData + 100));
  CHECK(loan.extend(1, 0, 100));
  CHECK(loan.extend(0, kData + 50, kData + 100));
  CHECK(loan.used() == 0);
  CHECK(loan.span(0) == kData + kPage);
  // The page of the former one would not be counted.
  CHECK(loan.lacks(0, 0, 100) == kPage);
  CHECK_FALSE(loan.extend(0, 0, 100));
  loan.forget(0);
  CHECK(loan.extend(0, 0, 100));
}

TEST_CASE("loans: data with their message behind them need the pages of the data") {
  MemoryAccount account{100 * kData};
  PathLoan loan{&account, 4 * kPage, 4};
  CHECK(loan.extend(0, 0, kData + 100));
  CHECK(loan.used(0) == kData);
  CHECK(loan.lent() == kData);
  CHECK(loan.extend(0, 0, 2 * kPage));
  CHECK(loan.lent() == kData);
}

}  // namespace
}  // namespace rtrs
