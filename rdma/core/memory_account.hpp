// SPDX-License-Identifier: BSD-3-Clause
// The account of the memory that a server lends to its paths.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Memory of requests, of which only the used part is real, as over TCP. Each path has a floor of
/// its own. Memory beyond that is lent to it from the rest of the limit, and of its user's limit.
///
/// Where too little is left, borrowers wait in the order in which they came. Returned memory is
/// lent to the first of them, at once, so nobody overtakes it. Those who have borrowed are asked
/// for what they do not use. One whose user has no more does not keep others waiting.
///
/// An eighth of each limit is never lent, so that paths can come while all others are busy. If that
/// is too little for one, what it needs is kept for it until it comes again, or for 40 s.
///
/// Invariant: floors and loans are never more than the limit together. Only when a path is lost
/// whose requests execute on, it may count twice for a moment.
/// Invariant: while memory is short, all who have borrowed some of it are asked.
///
/// Units:   bytes.
/// Threads: any, if there is a lock; otherwise one at a time.
class MemoryAccount {
 public:
  /// A mutex, which this layer has not.
  class Lock {
   public:
    virtual void lock() = 0;
    virtual void unlock() = 0;

   protected:
    ~Lock() = default;
  };

  class Borrower;
  using Borrowers = std::list<Borrower*>;
  /// Somebody who borrows. It leaves the account before it dies.
  class Borrower {
   public:
    Borrower(const Borrower&) = delete;
    Borrower& operator=(const Borrower&) = delete;
    /// Bytes that it has. They may become more on any thread, while it waits.
    std::uint64_t lent() const { return lent_.load(std::memory_order_relaxed); }
    /// Somebody waits, perhaps itself: unused memory goes back now, and whenever its use ends.
    bool asked() const { return asked_.load(std::memory_order_relaxed); }

   protected:
    Borrower() = default;
    virtual ~Borrower() = default;
    /// News: the account asks, or has lent what it waits for. Any thread; the account is locked.
    virtual void wake() = 0;

   private:
    friend class MemoryAccount;
    std::string user_;
    std::atomic<std::uint64_t> lent_{0};
    std::atomic<bool> asked_{false};
    std::uint64_t awaits_ = 0;  ///< 0: it does not wait
    Borrowers calm_{this};      ///< its entry among those who are not asked, or here
    Borrowers waiting_{this};   ///< likewise among those who wait
    Borrowers::iterator calm_entry_ = calm_.begin();
    Borrowers::iterator waiting_entry_ = waiting_.begin();
  };

  /// `user_limit`: for each user with a name; 0 = none but the whole.
  explicit MemoryAccount(std::uint64_t limit, std::uint64_t user_limit = 0, Lock* lock = nullptr)
      : user_limit_{user_limit}, lock_{lock}, whole_{limit} {}
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  // For admission, which counts the floors.
  enum class Claim : std::uint8_t { granted, lacks, user_lacks };
  /// A path comes with more than those that go for it leave: `bytes` in all, `of_user` of its
  /// user's. If it lacks that, what is lent comes back.
  Claim claim_floor(std::string_view user, std::uint64_t bytes, std::uint64_t of_user);
  /// Counts the floors anew, also those of users. `for_each_floor` calls what it gets with the user
  /// and the bytes of each path.
  template <class ForEach>
  void count_floors(ForEach for_each_floor);

  /// Before it borrows anything; "" = no user.
  static void join(Borrower& borrower, std::string_view user) { borrower.user_ = user; }
  /// False: too little is left, or others have waited for it before.
  bool lend(Borrower& borrower, std::uint64_t bytes);
  /// The borrower waits for so much, in the place that it has if it waits already. It is woken when
  /// it has that.
  void await(Borrower& borrower, std::uint64_t bytes);
  void stop_waiting(Borrower& borrower);
  void give_back(Borrower& borrower, std::uint64_t bytes);
  /// The borrower waits no more, and gives everything back.
  void leave(Borrower& borrower);
  /// The borrower is no longer asked, if nothing is short. Forgets paths that did not come again.
  void relax(Borrower& borrower, Instant now);
  /// Something is kept for a path that was refused.
  bool reserves() const { return reserves_.load(std::memory_order_relaxed); }

  std::uint64_t limit() const { return whole_.limit; }
  std::uint64_t floors() const { return floors_.load(std::memory_order_relaxed); }
  std::uint64_t lent() const { return lent_.load(std::memory_order_relaxed); }
  /// Borrowers that wait.
  std::size_t waiting() const;

 private:
  /// The memory in all, or for a user.
  struct Purse {
    explicit Purse(std::uint64_t most) : limit{most} {}

    const std::uint64_t limit;
    std::uint64_t floors = 0;
    std::uint64_t lent = 0;
    std::uint64_t refused = 0;               ///< the largest floor that lately found no room
    std::optional<Instant> refused_since{};  ///< when a borrower first looked after that
    bool waits = false;                      ///< some borrower
    Borrowers calm{};  ///< of this user, or of those without a limit: have a loan, not asked

    std::uint64_t used() const { return floors + lent; }
    bool has(std::uint64_t bytes) const { return used() + bytes <= limit; }
    bool can_lend(std::uint64_t bytes) const { return has(bytes + std::max(limit / 8, refused)); }
    bool is_short() const { return waits || (refused != 0 && !has(refused)); }
    void refuse(std::uint64_t bytes);
    void grant(std::uint64_t bytes);
    bool is_idle() const { return used() == 0 && !is_short() && calm.empty(); }
  };
  class Guard {
   public:
    explicit Guard(const MemoryAccount& account) : lock_{account.lock_} {
      if (lock_ != nullptr) lock_->lock();
    }
    ~Guard() {
      if (lock_ != nullptr) lock_->unlock();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Lock* lock_;
  };

  /// Linux's client tries again after 30 to 38 s, others sooner.
  static constexpr Duration kComesAgain = std::chrono::seconds{40};

  void forget_refused(Instant now);
  bool is_limited(std::string_view user) const { return user_limit_ != 0 && !user.empty(); }
  Purse* purse_of(const std::string& user);
  Purse& home_of(const Borrower& borrower);
  bool is_short_for(const Borrower& borrower);
  void add(Borrower& borrower, std::uint64_t bytes);
  void take(Borrower& borrower, std::uint64_t bytes);
  void set_calm(Borrower& borrower, bool calm);
  bool remove_waiting(Borrower& borrower);
  void count_floor(std::string_view user, std::uint64_t bytes);
  void reset_floors();
  void serve();
  void ask();
  static void ask(Purse& purse);
  void publish();

  const std::uint64_t user_limit_;
  Lock* const lock_;
  Purse whole_;
  std::map<std::string, Purse, std::less<>> users_;  ///< that are limited
  Borrowers waiting_;                                ///< oldest first
  bool short_ = false;                               ///< for somebody
  std::atomic<bool> reserves_{false};                ///< some purse may have refused a floor
  std::atomic<std::uint64_t> floors_{0};             ///< of whole_, for everybody
  std::atomic<std::uint64_t> lent_{0};               ///< likewise
};

template <class ForEach>
void MemoryAccount::count_floors(ForEach for_each_floor) {
  const Guard guard{*this};
  reset_floors();
  for_each_floor([this](std::string_view user, std::uint64_t bytes) { count_floor(user, bytes); });
  std::erase_if(users_, [](const auto& user) { return user.second.is_idle(); });
  serve();
}

}  // namespace rtrs
