// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/member_session.hpp"

#include <algorithm>
#include <span>
#include <utility>

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
  task->transfer = {};
  spare_.push_back(std::move(task));
}

void MemberSession::begin(std::unique_ptr<OpenMember> open) {
  open_ = std::move(open);
  without_path_.reset();
}

std::unique_ptr<OpenMember> MemberSession::end() {
  ++epoch_;
  more_ = started_ = false;
  if (!is_open()) return nullptr;
  for (const TaskPtr& task : tasks_) open_->loop->cancel(task->job);
  open_->loop->collect();  // those that had ended
  tasks_.clear();
  open_->loop.reset();
  return std::move(open_);
}

void MemberSession::start(TaskPtr task) {
  RemoteDevice& device = *open_->device;
  if (!task->message) {
    if (task->order == Order::flush) device.begin(task->transfer, task->begun);
    task->io.emplace(device.geometry(), device.handle(), task->transfer);
  }
  task->job = {};
  task->job.context = task.get();
  task->job.operation = task->message ? static_cast<rtrs::Operation*>(&*task->message)
                                      : static_cast<rtrs::Operation*>(&*task->io);
  task->epoch = epoch_;
  task->place = tasks_.size();
  tasks_.push_back(std::move(task));
  open_->loop->start(tasks_.back()->job);
  started_ = true;
}

void MemberSession::collect(std::vector<TaskPtr>& ended) {
  if (!is_open()) return;
  for (auto* job = open_->loop->collect(); job != nullptr;) {
    const std::size_t place = static_cast<Task*>(job->context)->place;
    job = job->next;
    std::swap(tasks_[place], tasks_.back());
    tasks_[place]->place = place;
    ended.push_back(std::move(tasks_.back()));
    tasks_.pop_back();
  }
}

int MemberSession::outcome(Task& task) {
  const int error = task.job.operation->error();
  if (task.order != Order::flush) return error;
  return open_->device->end(task.transfer, task.begun, error);
}

bool MemberSession::holds(std::uint64_t operation) const {
  return std::ranges::any_of(tasks_,
                             [&](const TaskPtr& task) { return task->operation == operation; });
}

bool MemberSession::is_lost(Clock::time_point now) {
  if (!is_open()) return false;
  if (has_lost_device()) return true;
  const Session& session = *open_->session;
  if (session.alive() && session.has_path()) {
    without_path_.reset();
    return false;
  }
  if (!without_path_) without_path_ = now;
  auto waits = *without_path_;
  for (const TaskPtr& task : tasks_) waits = std::min(waits, task->began);
  const bool lasts = now - *without_path_ >= kBlip && now - waits >= kWithoutPath;
  return !session.alive() || lasts;
}

MemberSession::Clock::duration MemberSession::waits(Clock::time_point now) const {
  Clock::time_point oldest = now;
  for (const TaskPtr& task : tasks_) oldest = std::min(oldest, task->began);
  return now - oldest;
}

rtrs::Duration MemberSession::latency() const {
  rtrs::Duration latency = rtrs::Duration::max();
  for (const auto& path : open_->session->client().paths())
    if (path.in_use && path.latency > latency.zero()) latency = std::min(latency, path.latency);
  return latency;
}

void MemberSession::flush() {
  if (std::exchange(started_, false) && is_open()) open_->loop->flush();
}

void MemberSession::watch(std::vector<pollfd>& polled) {
  first_ = polled.size();
  if (is_open()) open_->loop->watch(polled);
  count_ = polled.size() - first_;
}

void MemberSession::progress(const std::vector<pollfd>& polled) {
  if (!is_open()) return;
  const std::span own{polled.data() + first_, count_};
  const bool ready = std::ranges::any_of(own, [](const pollfd& p) { return p.revents != 0; });
  if (ready || more_) more_ = open_->loop->progress(own);
}

}  // namespace rnbd::mirror
