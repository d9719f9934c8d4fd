// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/member_session.hpp"

#include <algorithm>

namespace rnbd::mirror {
namespace {

/// A member counts as lost when it had no path for so long, or has none and a request has waited
/// for it for so long. A path that returns at once is no loss, even if the storage is slow.
constexpr std::chrono::seconds kWithoutPath{1};
constexpr std::chrono::milliseconds kBlip{100};

}  // namespace

TaskPtr TaskPool::take(const Command& command, std::chrono::steady_clock::time_point now) {
  TaskPtr task = spare_.empty() ? std::make_unique<Task>() : std::move(spare_.back());
  if (!spare_.empty()) spare_.pop_back();
  task->member = command.member;
  task->tag = command.tag;
  task->operation = command.operation;
  task->order = command.order;
  task->began = now;
  return task;
}

void TaskPool::give_back(TaskPtr task) {
  task->io.reset();
  task->message.reset();
  task->of.reset();
  task->call = nullptr;
  task->transfer = {};
  spare_.push_back(std::move(task));
}

void MemberSession::begin(std::shared_ptr<OpenMember> open) {
  open_ = std::move(open);
  ++epoch_;
  look_ = {};
  without_path_.reset();
}

std::shared_ptr<OpenMember> MemberSession::end() {
  ++epoch_;
  return std::exchange(open_, nullptr);
}

MemberSession::Look MemberSession::look_at(const OpenMember& open) {
  Look look{.alive = open.session->alive(),
            .has_path = open.session->has_path(),
            .lost_device = open.device->lost()};
  for (const auto& path : open.session->client().paths())
    if (path.in_use && path.latency > rtrs::Duration::zero())
      look.latency = std::min(look.latency, path.latency);
  return look;
}

bool MemberSession::is_lost(Clock::time_point oldest, Clock::time_point now) {
  if (!is_open()) return false;
  if (look_.lost_device) return true;
  if (look_.alive && look_.has_path) {
    without_path_.reset();
    return false;
  }
  if (!without_path_) without_path_ = now;
  const auto waits = std::min(*without_path_, oldest);
  const bool lasts = now - *without_path_ >= kBlip && now - waits >= kWithoutPath;
  return !look_.alive || lasts;
}

}  // namespace rnbd::mirror
