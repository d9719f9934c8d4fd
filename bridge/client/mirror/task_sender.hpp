// SPDX-License-Identifier: BSD-3-Clause
// The commands that one thread of a mirror carries, over lanes of its own.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bridge/client/mirror/member_session.hpp"
#include "rdma/mailbox.hpp"

namespace rnbd::mirror {

/// The thread's lane of the session with one member, and the commands on it.
///
/// When the session ends, the thread learns of it in its next turn. Until then a command may still
/// be sent: a member refuses those of an ended session, as those that come late in a network.
///
/// Threads: see below.
class MemberLane {
 public:
  using Clock = std::chrono::steady_clock;

  // With the mirror's mutex, any thread.
  void add(TaskPtr task);
  /// True if a command of that operation is on its way in this session.
  bool holds(std::uint64_t operation, const MemberSession& session) const;
  /// The beginning of the oldest one in this session; `now`: there is none.
  Clock::time_point oldest(const MemberSession& session, Clock::time_point now) const;
  bool is_used() const { return open_ != nullptr || !tasks_.empty(); }

  // With the mirror's mutex, its own thread.
  TaskPtr take(Task& task);
  /// Those that have ended since the last time.
  void take_ended(std::vector<Task*>& ended) { ended.swap(ended_); }
  /// Cancels the commands of earlier sessions, and appends them to `gone`. No memory is used by
  /// them from now on. It comes before send(): an answer in an earlier session must not overwrite
  /// what is read in another one.
  void part(const MemberSession& session, std::vector<TaskPtr>& gone);
  /// Appends those that were not sent to `unsent`, for another lane.
  void give_up_unsent(std::vector<TaskPtr>& unsent);
  /// Gives the session back when no command is left.
  void let_go_if_idle();
  /// Takes up the commands that send() sends.
  void prepare(const MemberSession& session);

  // Its own thread.
  void send(unsigned lane);
  /// True: some have ended.
  bool collect();
  /// `base`: the place from which progress() counts.
  void watch(std::vector<pollfd>& polled, std::size_t base);
  void progress(std::span<const pollfd> polled);
  bool has_more() const { return more_; }
  /// The result of one that has ended.
  int outcome(Task& task) const;

 private:
  void start(Task& task);
  void let_go();

  std::shared_ptr<OpenMember> open_;  ///< while it uses the session
  std::unique_ptr<rtrs::LaneLoop> loop_;
  std::uint64_t epoch_ = 0;     ///< of that session
  std::vector<TaskPtr> tasks_;  ///< changed with the mutex only
  std::vector<Task*> unsent_;   ///< likewise
  std::vector<Task*> sending_;
  std::vector<Task*> ended_;
  std::size_t first_ = 0;  ///< of its descriptors
  std::size_t count_ = 0;  ///< 0: the lane was taken after watch()
  bool more_ = false;      ///< it has something to do already
};

/// All lanes of one thread.
///
/// Threads: as MemberLane. Another thread may take it over, with the mirror's mutex.
class TaskSender {
 public:
  /// `lane`: its number in each session. The last lane is the steward's, if the number is larger.
  TaskSender(unsigned lane, std::size_t members) : lane_{lane}, lanes_(members) {}

  unsigned lane() const { return lane_; }
  MemberLane& operator[](unsigned member) { return lanes_[member]; }

  // With the mirror's mutex, any thread.
  bool is_used() const;
  /// Has the thread take a turn, unless it is in one.
  void call_up();
  void begin_turn() {
    busy_ = true;
    called_ = false;
  }
  void end_turn() { busy_ = false; }

  // Its own thread.
  void send();
  bool collect();
  void watch(std::vector<pollfd>& polled);
  /// `polled`: what watch() has appended. True: a turn is due.
  bool progress(std::span<const pollfd> polled);
  bool has_more() const;

 private:
  const unsigned lane_;
  std::vector<MemberLane> lanes_;
  rtrs::WakeUp wake_;
  bool busy_ = false;    ///< guarded by the mirror's mutex
  bool called_ = false;  ///< likewise
};

}  // namespace rnbd::mirror
