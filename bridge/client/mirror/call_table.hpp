// SPDX-License-Identifier: BSD-3-Clause
// The requests of a mirror's users, and the way of their answers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "bridge/client/mirror/group.hpp"
#include "bridge/client/mirror/memory_use.hpp"
#include "bridge/client/mirror/pooled_map.hpp"
#include "bridge/client/mirror/task_sender.hpp"
#include "bridge/client/transfer.hpp"

namespace rnbd::mirror {

struct Call;

/// The one who has made a request.
class CallUser {
 public:
  /// Once; its memory is not used any more.
  ///
  /// Threads: with the mirror's mutex.
  virtual void answered(Call& call, int error) = 0;

 protected:
  ~CallUser() = default;
};

/// A request, from its beginning until the group has ended it and no command uses its memory.
struct Call {
  CallUser* user = nullptr;            ///< null: it has its answer
  rtrs::LaneLoop::Job* job = nullptr;  ///< the user's
  TaskSender* sender = nullptr;        ///< carries its commands
  Transfer transfer;                   ///< the piece of it that is under way
  std::uint64_t rest_end = 0;          ///< bytes: the end of further pieces; 0: there are none
  bool trims = false;                  ///< it is a hint: where zeroing is slow, it has no effect
  bool asks = false;                   ///< for extents, not for content
  bool held = false;                   ///< until CallTable::release()
  std::vector<wire::Extent> extents;
  std::vector<std::byte> own;  ///< the data, once its user has left
  std::optional<std::chrono::steady_clock::time_point> left;
  std::uint64_t number = 0;  ///< of its operation; 0: that has ended, with `error`
  MemoryUse use;
  int error = 0;
  int failure = 0;  ///< a member's answer

  bool moves_data() const { return transfer.into != nullptr || transfer.from != nullptr; }
  /// From here on the data are the mirror's own.
  void take_over();
};

/// A caller that waits for the answer.
///
/// Threads: with the mirror's mutex.
struct WaitingUser final : CallUser {
  void answered(Call& call, int its_error) override {
    extents.swap(call.extents);
    error = its_error;
    ended = true;
    changed.notify_all();
  }
  std::condition_variable changed;
  std::vector<wire::Extent> extents;
  bool ended = false;
  int error = 0;
};

/// The extents of `length` bytes, behind the first `skipped` ones of an answer. Questions are about
/// whole sectors, and their answers may have more than was asked at both ends.
std::vector<wire::Extent> asked_part(const std::vector<wire::Extent>& told, std::uint64_t skipped,
                                     std::uint64_t length);

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
/// Invariant: when a user has its answer, no command uses its memory.
/// Threads:   with the mirror's mutex.
class CallTable {
 public:
  using Clock = std::chrono::steady_clock;
  /// Loses the members that have a command of the operation.
  using LoseHolders = std::function<void(std::uint64_t operation)>;

  /// `steward`: carries the commands of requests without a user.
  CallTable(TaskSender& steward, LoseHolders lose_holders);

  bool empty() const { return calls_.empty(); }
  /// None is under way, beside those that are held.
  bool all_held() const { return calls_.size() == held_; }
  /// A new request, to be filled and added.
  Call& make(CallUser& user, TaskSender& sender);
  /// It ends at once.
  void refuse(Call& call, int error);
  /// `live`: the group, if it takes requests now, or null.
  void add(Call& call, Group* live);
  /// A new request, which waits for release().
  void hold(Call& call);
  /// Those that are held go to the group, if it takes requests now.
  void release(Group* live);
  /// Those that are held end at once.
  void refuse_held(int error);
  /// All others go to a group that has just become live.
  void submit_all(Group& group);
  /// Begins the next pieces of requests whose last ones have ended. Not inside calls of the group.
  void submit_due(Group* live);

  /// Null: the operation has ended, or is the group's own.
  Call* find(std::uint64_t operation);
  /// Has a task use the memory of a call, until collected().
  static void lend(Call& call, Order order, Task& task);
  /// The task is not on its way any more, with or without an answer.
  void collected(Task& task);

  void set_zeroing(const Zeroing& zeroing) { zeroing_ = zeroing; }
  /// A member could not zero as it was told. If that was to trim, trims have no effect from now on.
  void zeroed_slowly(std::uint64_t operation);
  /// The answer to a question for extents.
  void told(std::uint64_t operation, const std::vector<wire::Extent>& extents);

  bool is_flush(std::uint64_t operation);
  void end(std::uint64_t operation, int error);
  /// A member has refused it. It ends so, if that ends the group.
  void note_failure(std::uint64_t operation, int error);
  void end_failed();

  // Its user leaves: EINTR. A live group finishes its orders without the user's memory.
  void cancel(Call& call, const Group* live);
  /// The job may have ended meanwhile. Its lane has not collected it, so no later one has its
  /// memory.
  void cancel(const rtrs::LaneLoop::Job& job, const Group* live);
  /// All: with `error`, where no group is live.
  void cancel_all(int error, const Group* live);
  /// From time to time: members that keep users waiting who want to leave are lost.
  void let_go(Clock::time_point now);

 private:
  void number(Call& call);
  void submit(Call& call, Group& group);
  void shrink(Transfer& trim) const;
  void cut(Call& call) const;
  std::vector<Call*> all() const;
  void settle(Call& call);
  void leave(Call& call);
  static void answer(Call& call, int error);

  TaskSender& steward_;
  const LoseHolders lose_holders_;
  std::deque<Call> memory_;
  std::vector<Call*> spare_;
  PooledMap<Call*> calls_;  ///< by the numbers of their operations
  std::size_t held_ = 0;    ///< of these
  std::uint64_t next_ = 1;
  std::vector<std::uint64_t> due_;  ///< pieces that have not begun
  Zeroing zeroing_;
  bool trims_ = true;
};

}  // namespace rnbd::mirror
