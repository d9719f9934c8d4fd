// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/memory_account.hpp"

#include <algorithm>
#include <utility>

namespace rtrs {

// ---- Floors -------------------------------------------------------------------------------------

bool MemoryAccount::claim(Purse& purse, std::uint64_t bytes, std::uint64_t limit) {
  if (purse.used() + bytes <= limit) {
    purse.refused = 0;
    return true;
  }
  purse.refused = purse.refused == 0 ? bytes : std::min(purse.refused, bytes);
  return false;
}

MemoryAccount::Claim MemoryAccount::claim_floor(std::string_view user, std::uint64_t bytes,
                                                std::uint64_t of_user) {
  const Guard guard{*this};
  Purse* const own = is_limited(user) ? &users_[std::string{user}] : nullptr;
  Claim result = Claim::granted;
  if (own != nullptr && !claim(*own, of_user, user_limit_)) result = Claim::user_lacks;
  if (result == Claim::granted && !claim(whole_, bytes, limit_)) result = Claim::lacks;
  if (result != Claim::granted) {
    ask();
    return result;
  }
  whole_.floors += bytes;
  if (own != nullptr) own->floors += of_user;
  publish();
  return result;
}

void MemoryAccount::reset_floors() {
  whole_.floors = 0;
  for (auto& [user, purse] : users_) purse.floors = 0;
}

void MemoryAccount::count_floor(std::string_view user, std::uint64_t bytes) {
  whole_.floors += bytes;
  if (!is_limited(user)) return;
  if (const auto own = users_.find(user); own != users_.end()) own->second.floors += bytes;
}

// ---- Loans --------------------------------------------------------------------------------------

/// Null: its user is not limited.
MemoryAccount::Purse* MemoryAccount::purse_of(const Borrower& borrower) {
  return is_limited(borrower.user_) ? &users_[borrower.user_] : nullptr;
}

MemoryAccount::Purse& MemoryAccount::home_of(const Borrower& borrower) {
  Purse* const own = purse_of(borrower);
  return own != nullptr ? *own : whole_;
}

bool MemoryAccount::user_can_lend(const Borrower& borrower, std::uint64_t bytes) {
  const Purse* const own = purse_of(borrower);
  return own == nullptr || can_lend(*own, bytes, user_limit_);
}

bool MemoryAccount::is_short_for(const Borrower& borrower) {
  const Purse* const own = purse_of(borrower);
  return whole_.is_short() || (own != nullptr && own->is_short());
}

/// A borrower whose user keeps it waiting is in nobody's way but that user's.
bool MemoryAccount::is_overtaken(const Borrower& other, const Borrower& by) {
  return &other != &by && (other.user_ == by.user_ || user_can_lend(other, other.awaits_));
}

void MemoryAccount::set_calm(Borrower& borrower, bool calm) {
  const bool was = borrower.calm_.empty();
  if (was == calm) return;
  Borrowers& others = home_of(borrower).calm;
  Borrowers& from = calm ? borrower.calm_ : others;
  Borrowers& to = calm ? others : borrower.calm_;
  to.splice(to.end(), from, borrower.calm_entry_);
}

void MemoryAccount::add(Borrower& borrower, std::uint64_t bytes) {
  whole_.lent += bytes;
  if (Purse* const own = purse_of(borrower)) own->lent += bytes;
  borrower.lent_ = borrower.lent() + bytes;
  if (is_short_for(borrower)) borrower.asked_ = true;
  set_calm(borrower, !borrower.asked());
}

void MemoryAccount::take(Borrower& borrower, std::uint64_t bytes) {
  whole_.lent -= bytes;
  if (Purse* const own = purse_of(borrower)) own->lent -= bytes;
  borrower.lent_ = borrower.lent() - bytes;
  if (borrower.lent() == 0) set_calm(borrower, false);
}

bool MemoryAccount::lend(Borrower& borrower, std::uint64_t bytes) {
  const Guard guard{*this};
  const bool fits = can_lend(whole_, bytes, limit_) && user_can_lend(borrower, bytes);
  const auto waits_longer = [&](const Borrower* other) { return is_overtaken(*other, borrower); };
  if (!fits || std::ranges::any_of(waiting_, waits_longer)) return false;
  add(borrower, bytes);
  publish();
  return true;
}

void MemoryAccount::await(Borrower& borrower, std::uint64_t bytes) {
  const Guard guard{*this};
  if (std::exchange(borrower.awaits_, bytes) == 0) {
    waiting_.splice(waiting_.end(), borrower.waiting_, borrower.waiting_entry_);
    borrower.asked_ = true;
    set_calm(borrower, false);
  }
  serve();
}

/// False: it did not wait.
bool MemoryAccount::remove_waiting(Borrower& borrower) {
  if (std::exchange(borrower.awaits_, 0) == 0) return false;
  borrower.waiting_.splice(borrower.waiting_.end(), waiting_, borrower.waiting_entry_);
  return true;
}

void MemoryAccount::stop_waiting(Borrower& borrower) {
  const Guard guard{*this};
  if (remove_waiting(borrower)) serve();
}

void MemoryAccount::give_back(Borrower& borrower, std::uint64_t bytes) {
  const Guard guard{*this};
  take(borrower, bytes);
  serve();
}

void MemoryAccount::leave(Borrower& borrower) {
  const Guard guard{*this};
  const bool waited = remove_waiting(borrower);
  const std::uint64_t lent = borrower.lent();
  if (lent != 0) take(borrower, lent);
  borrower.asked_ = false;
  if (waited || lent != 0) serve();
}

void MemoryAccount::relax(Borrower& borrower) {
  const Guard guard{*this};
  if (is_short_for(borrower)) return;
  borrower.asked_ = false;
  if (borrower.lent() != 0) set_calm(borrower, true);
}

std::size_t MemoryAccount::waiting() const {
  const Guard guard{*this};
  return waiting_.size();
}

// ---- Those who wait -----------------------------------------------------------------------------

/// Lends what there is to those who wait, oldest first, and asks for more if some remain.
void MemoryAccount::serve() {
  publish();
  if (waiting_.empty() && !short_) return;
  const auto begin = [](Purse& purse, std::uint64_t limit) {
    purse.waiting = 0;
    if (purse.used() + purse.refused <= limit) purse.refused = 0;
  };
  begin(whole_, limit_);
  for (auto& [user, purse] : users_) begin(purse, user_limit_);
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    Borrower& next = **at++;
    if (!user_can_lend(next, next.awaits_)) {
      ++home_of(next).waiting;
    } else if (whole_.waiting != 0 || !can_lend(whole_, next.awaits_, limit_)) {
      ++whole_.waiting;
    } else {
      const std::uint64_t bytes = next.awaits_;
      remove_waiting(next);
      next.asked_ = true;  // probably others wait on
      add(next, bytes);
      next.wake();
    }
  }
  ask();
  publish();
}

void MemoryAccount::ask(Purse& purse) {
  while (!purse.calm.empty()) {
    Borrower& borrower = *purse.calm.front();
    borrower.calm_.splice(borrower.calm_.end(), purse.calm, purse.calm.begin());
    borrower.asked_ = true;
    borrower.wake();
  }
}

/// Everybody who can give back what is short.
void MemoryAccount::ask() {
  const bool all = whole_.is_short();
  short_ = all;
  if (all) ask(whole_);
  for (auto& [user, purse] : users_) {
    short_ = short_ || purse.is_short();
    if (all || purse.is_short()) ask(purse);
  }
}

void MemoryAccount::publish() {
  floors_.store(whole_.floors, std::memory_order_relaxed);
  lent_.store(whole_.lent, std::memory_order_relaxed);
}

}  // namespace rtrs
