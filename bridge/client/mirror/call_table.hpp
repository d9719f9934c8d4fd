// SPDX-License-Identifier: BSD-3-Clause
// The requests of a mirror's users, and the way of their answers.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bridge/client/mirror/group.hpp"
#include "bridge/client/mirror/member_session.hpp"
#include "bridge/client/mirror/mirror_lane.hpp"
#include "bridge/client/transfer.hpp"
#include "rdma/mailbox.hpp"

namespace rnbd::mirror {

/// A call that waits, or a job of a lane.
struct Call {
  Transfer transfer;           ///< the piece of it that is under way
  std::uint64_t rest_end = 0;  ///< bytes: the end of further pieces; 0: there are none
  bool trims = false;          ///< it is a hint: where zeroing is slow, it has no effect
  bool asks = false;           ///< for extents, not for content
  std::vector<wire::Extent> extents;
  MirrorLane* lane = nullptr;
  rtrs::LaneLoop::Job* job = nullptr;
  std::vector<std::byte> own;  ///< the data, once its user has left
  std::optional<std::chrono::steady_clock::time_point> left;
  int failure = 0;     ///< a member's answer
  bool ended = false;  ///< guarded by the mutex of CallAnswers, as the next
  int error = 0;
  std::condition_variable answered;

  /// From here on the data are the mirror's own.
  void take_over();
};
using CallPtr = std::shared_ptr<Call>;

/// The extents of `length` bytes, behind the first `skipped` ones of an answer. Questions are about
/// whole sectors, and their answers may have more than was asked at both ends.
std::vector<wire::Extent> asked_part(const std::vector<wire::Extent>& told, std::uint64_t skipped,
                                     std::uint64_t length);

/// A letter to the mirror's thread: a request to begin, or else a function to run.
struct Letter {
  CallPtr call;
  std::function<void()> function;
};
using Mailbox = rtrs::Mailbox<Letter>;

/// Brings answers to the users: those of a lane together, with one wake-up.
///
/// Threads: wait(): any; the others: the mirror's.
class CallAnswers {
 public:
  void end(Call& call, int error);
  /// All answers to lanes since the last time.
  void publish();
  /// Waits for the answer and returns it. Calls `leave` once, if `interrupt` wants it to.
  template <class Leave>
  int wait(Call& call, const rtrs::Interrupt& interrupt, const Leave& leave) {
    constexpr std::chrono::milliseconds kAsk{250};
    bool left = false;
    std::unique_lock lock{mutex_};
    while (!call.answered.wait_for(lock, kAsk, [&] { return call.ended; })) {
      if (left || !interrupt()) continue;
      left = true;
      leave();
    }
    return call.error;
  }

 private:
  std::mutex mutex_;
  std::vector<MirrorLane*> lanes_;  ///< with jobs that have ended
};

/// The rules of zeroing that the present members make.
///
/// Units: bytes.
struct Zeroing {
  bool fast = false;           ///< all of them can, without writing zeroes
  std::uint64_t granule = 1;   ///< a power of two, or a multiple of all blocks; trims are cut to it
  std::uint64_t size = 0;      ///< of the disk, with its padding
  std::uint64_t piece = 0;     ///< the most for one operation; pieces end at multiples; 0: any
  std::uint64_t question = 0;  ///< likewise, the most for one question for extents
};

/// The most that is zeroed at once, and one region at least. Others wait for all of a piece. A
/// member that zeroes by writing must answer before it counts as one that hangs.
constexpr std::uint64_t zeroing_piece(unsigned region_shift) {
  constexpr std::uint64_t kMost = std::uint64_t{64} << 20;
  return std::max(kMost, std::uint64_t{1} << region_shift);
}

/// Numbers the requests as operations of the group, and ends each once: with its answer, or because
/// its user leaves. Requests stay here from one group to the next. A large one to zero becomes
/// several operations, one after the other. A trim becomes zeroing of the blocks that are within
/// it, which must be fast.
///
/// Threads: the mirror's.
class CallTable {
 public:
  using Clock = std::chrono::steady_clock;
  /// Has the members part with the memory of an operation, and loses those that do not if
  /// `by_force`. False: a member still uses it.
  using Withdraw = std::function<bool(std::uint64_t operation, bool by_force)>;

  CallTable(CallAnswers& answers, Withdraw withdraw);

  bool empty() const { return calls_.empty(); }
  /// `live`: the group, if it takes requests now, or null.
  void add(const CallPtr& call, Group* live);
  /// All go to a group that has just become live.
  void submit_all(Group& group);
  /// Begins the next pieces of requests whose last ones have ended. Not inside calls of the group.
  void submit_due(Group* live);
  /// Has a task use the memory of a call, which it keeps.
  void lend(std::uint64_t operation, Order order, Task& task) const;

  void set_zeroing(const Zeroing& zeroing) { zeroing_ = zeroing; }
  /// A member could not zero as it was told. If that was to trim, trims have no effect from now on.
  void zeroed_slowly(std::uint64_t operation);
  /// The answer to a question for extents.
  void told(std::uint64_t operation, const std::vector<wire::Extent>& extents);

  bool is_flush(std::uint64_t operation) const;
  void end(std::uint64_t operation, int error);
  /// A member has refused it. It ends so, if that ends the group.
  void note_failure(std::uint64_t operation, int error);
  void end_failed();

  // Its user leaves: EINTR. A live group finishes its orders without the user's memory.
  void cancel(const CallPtr& call, const Group* live);
  void cancel(const rtrs::LaneLoop::Job& job, const Group* live);
  /// All: with `error`, where no group is live.
  void cancel_all(int error, const Group* live);
  /// From time to time: lets users go that had to wait for a member.
  void let_go(Clock::time_point now);

 private:
  using Calls = std::map<std::uint64_t, CallPtr>;

  void submit(std::uint64_t number, const CallPtr& call, Group& group);
  void shrink(Transfer& trim) const;
  void cut(Call& call) const;
  void cancel(Calls::const_iterator call, const Group* live);
  void let_go(std::uint64_t operation, const CallPtr& call, Clock::time_point now);

  CallAnswers& answers_;
  const Withdraw withdraw_;
  Calls calls_;
  std::uint64_t next_ = 1;
  std::vector<std::uint64_t> due_;  ///< pieces that have not begun
  Zeroing zeroing_;
  bool trims_ = true;
};

}  // namespace rnbd::mirror
