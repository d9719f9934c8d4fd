// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/server/path_loan.hpp"

namespace rtrs {

PathLoan::PathLoan(Owner& owner, MemoryAccount* account, std::uint64_t floor, std::uint16_t chunks)
    : owner_{owner}, account_{account} {
  if (account_ == nullptr) return;
  floor_ = floor - std::min(floor, std::uint64_t{chunks} * kOwnPages * kPage);
  pages_.resize(chunks);
}

/// The fewest pages that hold what is real now, and these bytes.
PathLoan::Pages PathLoan::with(const Pages& now, std::uint64_t begin, std::uint64_t end) {
  const auto from = static_cast<std::int32_t>(begin / kPage);
  const auto to = static_cast<std::int32_t>((end - 1) / kPage);
  Pages all{now.first, std::max(now.last, to)};
  if (from < to) all.first = std::max(all.first, to);
  const std::int32_t other = std::min(now.last, to);
  if (other != all.last) all.first = std::max(all.first, other + 1);
  return all;
}

bool PathLoan::extend(std::uint32_t chunk, std::uint64_t begin, std::uint64_t end) {
  Pages& now = pages_[chunk];
  const Pages wanted = with(now, begin, end);
  const std::uint64_t all = all_used_ + lendable(wanted) - lendable(now);
  const std::uint64_t covered = floor_ + lent();
  if (all > covered && all > all_used_) {
    if (!account_->lend(*this, all - covered)) return false;
    if (asked()) owner_.on_memory_news();  // some of what it has may be idle
  }
  all_used_ = all;
  now = wanted;
  return true;
}

void PathLoan::forget(std::uint32_t chunk) {
  all_used_ -= used(chunk);
  pages_[chunk] = {};
}

void PathLoan::await(std::uint64_t bytes) {
  const std::uint64_t all = all_used_ + bytes;
  const std::uint64_t covered = floor_ + lent();
  if (all > covered) return account_->await(*this, all - covered);
  owner_.on_memory_news();  // it has just come
}

/// A part of what is awaited does not stay: two that wait would keep it from each other.
void PathLoan::settle(std::uint64_t awaited) {
  const auto beyond_floor = [&](std::uint64_t all) { return all - std::min(all, floor_); };
  const std::uint64_t has = lent();
  std::uint64_t needed = beyond_floor(all_used_ + awaited);
  if (needed > has) needed = beyond_floor(all_used_);
  if (needed < has) account_->give_back(*this, has - needed);
}

}  // namespace rtrs
