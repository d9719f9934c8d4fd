// SPDX-License-Identifier: BSD-3-Clause
// The memory that a path's requests use, and what it borrows for them.
#include "rdma/core/server/path_loan.hpp"

#include <doctest/doctest.h>

namespace rtrs {
namespace {

constexpr std::uint64_t kPage = PathLoan::kPage;
constexpr std::uint64_t kData = 8 * kPage;  ///< the data of a large request
constexpr std::uint64_t kWithMessage = kData + 100;
constexpr std::uint64_t kLent = kData - PathLoan::kFirstPages * kPage;  ///< what it must borrow
constexpr std::uint64_t kOwn = 4 * PathLoan::kOwnPages * kPage;

struct Loan final : PathLoan::Owner {
  explicit Loan(std::uint64_t limit, std::uint64_t own = 0)
      : account{limit}, loan{*this, &account, kOwn + own, 4} {}
  void on_memory_news() override { ++news; }

  MemoryAccount account;
  PathLoan loan;
  unsigned news = 0;
};

TEST_CASE("loans: a path uses its floor, then what is lent to it, and settles") {
  Loan path{100 * kData, 2 * kLent};
  PathLoan& loan = path.loan;
  CHECK(loan.extend(0, 0, kWithMessage));
  CHECK(loan.extend(1, 0, kWithMessage));
  CHECK(loan.lent() == 0);
  CHECK(loan.lacks(2, 0, kWithMessage) == kLent);
  CHECK(loan.extend(2, 0, kWithMessage));
  CHECK(loan.lent() == kLent);
  CHECK(path.account.lent() == kLent);
  CHECK(loan.covers(2, 0, kWithMessage));
  CHECK(loan.extend(2, 0, kWithMessage));  // again
  CHECK(path.account.lent() == kLent);
  loan.forget(0);
  loan.settle();
  CHECK(loan.used() == 2 * kLent);
  CHECK(path.account.lent() == 0);
  CHECK(loan.extend(0, 0, kWithMessage));
  CHECK(path.account.lent() == kLent);
  loan.end();
  CHECK(path.account.lent() == 0);
}

TEST_CASE("loans: a message needs none, wherever it is, nor do data of a page") {
  Loan path{0};
  PathLoan& loan = path.loan;
  CHECK(loan.extend(0, kData, kData + 100));
  CHECK(loan.covers(0, kData, kData + 100));
  CHECK_FALSE(loan.covers(0, 0, 100));
  CHECK(loan.extend(1, 0, kPage + 100));
  CHECK(loan.covers(1, 0, kPage + 100));
  CHECK_FALSE(loan.covers(1, 0, 2 * kPage + 1));
  CHECK(loan.extend(2, 100, 200));
  CHECK(loan.extend(0, kData + 50, kData + 100));
  CHECK(loan.used() == 0);
  CHECK(loan.span(0) == kData + kPage);
  // The page of the former message would be one too many.
  CHECK(loan.lacks(0, 2 * kPage, 2 * kPage + 100) == kPage);
  CHECK_FALSE(loan.extend(0, 2 * kPage, 2 * kPage + 100));
  loan.forget(0);
  CHECK(loan.extend(0, 2 * kPage, 2 * kPage + 100));
}

TEST_CASE("loans: data with their message behind them need the pages of the data") {
  Loan path{100 * kData};
  PathLoan& loan = path.loan;
  CHECK(loan.extend(0, 0, kData + 100));
  CHECK(loan.used(0) == kLent);
  CHECK(loan.lent() == kLent);
  CHECK(loan.extend(0, 0, 2 * kPage));
  CHECK(loan.covers(0, 0, 2 * kPage));
  CHECK(loan.lent() == kLent);
}

TEST_CASE("loans: a path is told when what it waits for is there") {
  Loan path{kLent * 8 / 7 + 1};
  CHECK(path.loan.extend(0, 0, kData));
  CHECK_FALSE(path.loan.extend(1, 0, kData));
  path.loan.await(path.loan.lacks(1, 0, kData));
  CHECK(path.loan.is_wanted());
  path.news = 0;
  path.loan.forget(0);
  path.loan.settle();
  CHECK(path.news == 1);
  CHECK(path.loan.extend(1, 0, kData));
  path.loan.await(0);
  CHECK(path.news == 2);
  CHECK(path.account.waiting() == 0);
}

}  // namespace
}  // namespace rtrs
