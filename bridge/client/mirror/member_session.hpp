// SPDX-License-Identifier: BSD-3-Clause
// A session with a member of a mirror, and the commands that go over it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bridge/client/mirror/member_link.hpp"
#include "bridge/client/mirror/member_order.hpp"
#include "bridge/client/transfer.hpp"

namespace rnbd::mirror {

struct Call;

/// A command on its way: block I/O, or a message.
struct Task {
  rtrs::LaneLoop::Job job;
  unsigned member = 0;
  std::uint64_t tag = 0;
  std::uint64_t operation = 0;
  Order order{};
  std::chrono::steady_clock::time_point began{};
  std::uint64_t epoch = 0;   ///< MemberSession's, for which it is
  std::size_t place = 0;     ///< among those of its MemberLane
  bool started = false;      ///< for the thread of that one
  Call* call = nullptr;      ///< the request whose memory it uses
  std::shared_ptr<void> of;  ///< keeps the memory of a copy
  Transfer transfer;
  Disk::Begun begun;
  std::optional<TransferOperation> io;
  std::optional<MemberOrder> message;
};
using TaskPtr = std::unique_ptr<Task>;

/// Keeps tasks for the next commands, so that a command allocates nothing.
///
/// Threads: with the mirror's mutex.
class TaskPool {
 public:
  TaskPtr take(const Command& command, std::chrono::steady_clock::time_point now);
  void give_back(TaskPtr task);

 private:
  std::vector<TaskPtr> spare_;
};

/// The present session with a member, which all threads of the mirror share. Commands are for one
/// session: when that ends, they count no more.
///
/// Threads: with the mirror's mutex.
class MemberSession {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_open() const { return open_ != nullptr; }
  const OpenMember& open() const { return *open_; }
  /// One who shares it gives it back to its link.
  const std::shared_ptr<OpenMember>& share() const { return open_; }
  void begin(std::shared_ptr<OpenMember> open);
  /// Null: it was not open.
  std::shared_ptr<OpenMember> end();

  /// Counts the sessions, and their ends.
  std::uint64_t epoch() const { return epoch_; }
  bool is_current(const Task& task) const { return is_open() && task.epoch == epoch_; }

  /// The visible state of a session.
  struct Look {
    bool alive = true;
    bool has_path = true;
    bool lost_device = false;
    rtrs::Duration latency = rtrs::Duration::max();  ///< of its fastest path; max(): not known
  };
  /// Waits for the session's own thread, so nobody holds the mutex.
  static Look look_at(const OpenMember& open);
  void note(const Look& look) { look_ = look; }
  const Look& look() const { return look_; }
  /// By the newest look: it has ended, has lost its device, or has had no path for so long that the
  /// member counts as lost. `oldest`: the beginning of its oldest command without an answer.
  bool is_lost(Clock::time_point oldest, Clock::time_point now);

 private:
  std::shared_ptr<OpenMember> open_;
  std::uint64_t epoch_ = 1;
  Look look_;
  std::optional<Clock::time_point> without_path_;  ///< since then
};

}  // namespace rnbd::mirror
