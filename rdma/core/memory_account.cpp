// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/memory_account.hpp"

#include <algorithm>
#include <utility>

namespace rtrs {

// ---- Floors -------------------------------------------------------------------------------------

void MemoryAccount::Purse::refuse(std::uint64_t bytes) {
  if (bytes < refused) return;
  refused = bytes;
  refused_since.reset();
}

void MemoryAccount::Purse::grant(std::uint64_t bytes) {
  if (bytes >= refused) refused = 0;
}

MemoryAccount::Claim MemoryAccount::claim_floor(std::string_view user, std::uint64_t bytes,
                                                std::uint64_t of_user) {
  const Guard guard{*this};
  Purse* const own = purse_of(std::string{user});
  const bool user_lacks = own != nullptr && !own->has(of_user);
  if (user_lacks || !whole_.has(bytes)) {
    user_lacks ? own->refuse(of_user) : whole_.refuse(bytes);
    reserves_.store(true, std::memory_order_relaxed);
    ask();
    return user_lacks ? Claim::user_lacks : Claim::lacks;
  }
  whole_.grant(bytes);
  whole_.floors += bytes;
  if (own != nullptr) {
    own->grant(of_user);
    own->floors += of_user;
  }
  publish();
  return Claim::granted;
}

/// Clients that did not come again leave to others what was kept for them.
void MemoryAccount::forget_refused(Instant now) {
  bool kept = false;
  bool forgotten = false;
  const auto look_at = [&](Purse& purse) {
    if (purse.refused == 0) return;
    if (!purse.refused_since) purse.refused_since = now;
    const bool is_old = now - *purse.refused_since >= kComesAgain;
    if (is_old) purse.refused = 0;
    (is_old ? forgotten : kept) = true;
  };
  look_at(whole_);
  for (auto& [user, purse] : users_) look_at(purse);
  reserves_.store(kept, std::memory_order_relaxed);
  if (forgotten) serve();
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
MemoryAccount::Purse* MemoryAccount::purse_of(const std::string& user) {
  return is_limited(user) ? &users_.try_emplace(user, user_limit_).first->second : nullptr;
}

MemoryAccount::Purse& MemoryAccount::home_of(const Borrower& borrower) {
  Purse* const own = purse_of(borrower.user_);
  return own != nullptr ? *own : whole_;
}

bool MemoryAccount::is_short_for(const Borrower& borrower) {
  const Purse* const own = purse_of(borrower.user_);
  return whole_.is_short() || (own != nullptr && own->is_short());
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
  if (Purse* const own = purse_of(borrower.user_)) own->lent += bytes;
  borrower.lent_ = borrower.lent() + bytes;
  if (is_short_for(borrower)) borrower.asked_ = true;
  set_calm(borrower, !borrower.asked());
}

void MemoryAccount::take(Borrower& borrower, std::uint64_t bytes) {
  whole_.lent -= bytes;
  if (Purse* const own = purse_of(borrower.user_)) own->lent -= bytes;
  borrower.lent_ = borrower.lent() - bytes;
  if (borrower.lent() == 0) set_calm(borrower, false);
}

bool MemoryAccount::lend(Borrower& borrower, std::uint64_t bytes) {
  const Guard guard{*this};
  const Purse* const own = purse_of(borrower.user_);
  const bool fits = whole_.can_lend(bytes) && (own == nullptr || own->can_lend(bytes));
  const bool overtakes = whole_.waits || (own != nullptr && own->waits);
  if (!fits || overtakes) return false;
  add(borrower, bytes);
  publish();
  return true;
}

void MemoryAccount::await(Borrower& borrower, std::uint64_t bytes) {
  const Guard guard{*this};
  const std::uint64_t before = std::exchange(borrower.awaits_, bytes);
  if (before == bytes) return;
  if (before == 0) {
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

void MemoryAccount::relax(Borrower& borrower, Instant now) {
  const Guard guard{*this};
  if (reserves()) forget_refused(now);
  if (is_short_for(borrower)) return;
  borrower.asked_ = false;
  if (borrower.lent() != 0) set_calm(borrower, true);
}

std::size_t MemoryAccount::waiting() const {
  const Guard guard{*this};
  return waiting_.size();
}

// ---- Those who wait -----------------------------------------------------------------------------

/// Lends what there is to those who wait, oldest first, and asks for more if some remain. One whose
/// user keeps it waiting is in nobody's way but that user's.
void MemoryAccount::serve() {
  publish();
  if (waiting_.empty() && !short_) return;
  whole_.waits = false;
  for (auto& [user, purse] : users_) purse.waits = false;
  for (auto at = waiting_.begin(); at != waiting_.end() && !whole_.waits;) {
    Borrower& next = **at++;
    Purse* const own = purse_of(next.user_);
    if (own != nullptr && (own->waits || !own->can_lend(next.awaits_))) {
      own->waits = true;
    } else if (!whole_.can_lend(next.awaits_)) {
      whole_.waits = true;
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
