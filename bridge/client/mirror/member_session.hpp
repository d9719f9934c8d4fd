// SPDX-License-Identifier: BSD-3-Clause
// The commands on their way to a member of a mirror.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bridge/client/mirror/member_link.hpp"
#include "bridge/client/mirror/member_order.hpp"
#include "bridge/client/transfer.hpp"

namespace rnbd::mirror {

/// A command on its way: block I/O, or a message.
struct Task {
  rtrs::LaneLoop::Job job;
  unsigned member = 0;
  std::uint64_t tag = 0;
  std::uint64_t operation = 0;
  Order order{};
  std::chrono::steady_clock::time_point began{};
  std::uint64_t epoch = 0;   ///< MemberSession's when it was sent
  std::size_t place = 0;     ///< among those of the member
  std::shared_ptr<void> of;  ///< keeps the memory of its owner
  Transfer transfer;
  Disk::Begun begun;
  std::optional<TransferOperation> io;
  std::optional<MemberOrder> message;
};
using TaskPtr = std::unique_ptr<Task>;

/// Keeps tasks for the next commands, so that a command allocates nothing.
///
/// Threads: one.
class TaskPool {
 public:
  TaskPtr take(const Command& command, std::chrono::steady_clock::time_point now);
  void give_back(TaskPtr task);

 private:
  std::vector<TaskPtr> spare_;
};

/// Carries commands over a session with a member. When that session ends, its commands are
/// forgotten, and the next one begins without any.
///
/// Threads: the mirror's.
class MemberSession {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_open() const { return open_ != nullptr; }
  const OpenMember& open() const { return *open_; }
  void begin(std::unique_ptr<OpenMember> open);
  /// Null: it was not open.
  std::unique_ptr<OpenMember> end();

  // While it is open.
  void start(TaskPtr task);
  void collect(std::vector<TaskPtr>& ended);
  /// The result of a task that has ended in this session.
  int outcome(Task& task);

  /// True if it was sent in this session, which is still open.
  bool is_current(const Task& task) const { return is_open() && task.epoch == epoch_; }
  /// True if a command of that operation is on its way.
  bool holds(std::uint64_t operation) const;
  /// True if it has ended, has lost its device, or has had no path for so long that the member
  /// counts as lost.
  bool is_lost(Clock::time_point now);
  /// The time for which its oldest command has had no answer.
  Clock::duration waits(Clock::time_point now) const;
  /// While it is open.
  bool has_lost_device() const { return open_->device->lost(); }
  /// The latency of its fastest path; Duration::max(): not known.
  rtrs::Duration latency() const;

  // For the loop.
  void flush();
  void watch(std::vector<pollfd>& polled);
  bool has_more() const { return more_; }
  void progress(const std::vector<pollfd>& polled);

 private:
  std::unique_ptr<OpenMember> open_;
  std::uint64_t epoch_ = 0;  ///< counts its ends
  std::vector<TaskPtr> tasks_;
  std::optional<Clock::time_point> without_path_;  ///< since then
  std::size_t first_ = 0;                          ///< of its descriptors
  std::size_t count_ = 0;
  bool started_ = false;  ///< since the last flush()
  bool more_ = false;     ///< it has something to do already
};

}  // namespace rnbd::mirror
