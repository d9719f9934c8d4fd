// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/task_sender.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rnbd::mirror {

void MemberLane::add(TaskPtr task) {
  task->started = false;
  task->place = tasks_.size();
  unsent_.push_back(task.get());
  tasks_.push_back(std::move(task));
}

bool MemberLane::holds(std::uint64_t operation, const MemberSession& session) const {
  return std::ranges::any_of(tasks_, [&](const TaskPtr& task) {
    return task->operation == operation && session.is_current(*task);
  });
}

MemberLane::Clock::time_point MemberLane::oldest(const MemberSession& session,
                                                 Clock::time_point now) const {
  for (const TaskPtr& task : tasks_)
    if (session.is_current(*task)) now = std::min(now, task->began);
  return now;
}

TaskPtr MemberLane::take(Task& task) {
  const std::size_t place = task.place;
  std::swap(tasks_[place], tasks_.back());
  tasks_[place]->place = place;
  TaskPtr taken = std::move(tasks_.back());
  tasks_.pop_back();
  return taken;
}

void MemberLane::part(const MemberSession& session, std::vector<TaskPtr>& gone) {
  if (!is_used() || epoch_ == session.epoch()) return;
  std::erase_if(unsent_, [&](const Task* task) { return task->epoch != session.epoch(); });
  for (std::size_t i = tasks_.size(); i-- > 0;) {
    Task& task = *tasks_[i];
    if (task.epoch == session.epoch()) continue;
    if (task.started) loop_->cancel(task.job);
    gone.push_back(take(task));
  }
  let_go();
  epoch_ = session.epoch();
}

void MemberLane::give_up_unsent(std::vector<TaskPtr>& unsent) {
  for (Task* task : unsent_) unsent.push_back(take(*task));
  unsent_.clear();
  let_go_if_idle();
}

void MemberLane::let_go_if_idle() {
  if (tasks_.empty()) let_go();
}

/// With nothing under way.
void MemberLane::let_go() {
  ended_.clear();
  count_ = 0;
  more_ = false;
  if (loop_ != nullptr) loop_->collect();  // those that could not be cancelled any more
  loop_.reset();
  if (open_ == nullptr) return;
  MemberLink& link = *open_->link;
  link.give_back(std::move(open_));
}

void MemberLane::prepare(const MemberSession& session) {
  if (unsent_.empty()) return;
  sending_.swap(unsent_);
  if (open_ == nullptr) open_ = session.share();
  epoch_ = session.epoch();
}

void MemberLane::send(unsigned lane) {
  if (sending_.empty()) return;
  if (loop_ == nullptr) {
    const unsigned last = open_->session->lanes() - 1;
    loop_ = open_->session->take_lane(std::min(lane, last));
  }
  for (Task* task : sending_) start(*task);
  sending_.clear();
  loop_->flush();
}

void MemberLane::start(Task& task) {
  RemoteDevice& device = *open_->device;
  if (!task.message) {
    if (task.order == Order::flush) device.begin(task.transfer, task.begun);
    task.io.emplace(device.geometry(), device.handle(), task.transfer);
  }
  task.started = true;
  task.job = {};
  task.job.context = &task;
  task.job.operation = task.message ? static_cast<rtrs::Operation*>(&*task.message)
                                    : static_cast<rtrs::Operation*>(&*task.io);
  loop_->start(task.job);
}

bool MemberLane::collect() {
  if (loop_ == nullptr) return false;
  for (auto* job = loop_->collect(); job != nullptr; job = job->next)
    ended_.push_back(static_cast<Task*>(job->context));
  return !ended_.empty();
}

int MemberLane::outcome(Task& task) const {
  const int error = task.job.operation->error();
  if (task.order != Order::flush) return error;
  return open_->device->end(task.transfer, task.begun, error);
}

void MemberLane::watch(std::vector<pollfd>& polled, std::size_t base) {
  first_ = polled.size() - base;
  if (loop_ != nullptr) loop_->watch(polled);
  count_ = polled.size() - base - first_;
}

void MemberLane::progress(std::span<const pollfd> polled) {
  if (count_ == 0 || loop_ == nullptr) return;
  const auto own = polled.subspan(first_, count_);
  const bool ready = std::ranges::any_of(own, [](const pollfd& p) { return p.revents != 0; });
  if (ready || more_) more_ = loop_->progress(own);
}

// ---- All of a thread ----------------------------------------------------------------------------

void TaskSender::call_up() {
  if (!busy_ && !std::exchange(called_, true)) wake_.wake();
}

void TaskSender::send() {
  for (MemberLane& lane : lanes_) lane.send(lane_);
}

bool TaskSender::collect() {
  bool any = false;
  for (MemberLane& lane : lanes_) any = lane.collect() || any;
  return any;
}

void TaskSender::watch(std::vector<pollfd>& polled) {
  const std::size_t base = polled.size();
  polled.push_back({.fd = wake_.descriptor(), .events = POLLIN, .revents = 0});
  for (MemberLane& lane : lanes_) lane.watch(polled, base);
}

bool TaskSender::progress(std::span<const pollfd> polled) {
  if (polled.empty()) return false;
  const bool called = polled.front().revents != 0;
  if (called) wake_.clear();
  for (MemberLane& lane : lanes_) lane.progress(polled);
  return collect() || called;
}

bool TaskSender::is_used() const {
  return std::ranges::any_of(lanes_, [](const MemberLane& lane) { return lane.is_used(); });
}

bool TaskSender::has_more() const {
  return std::ranges::any_of(lanes_, [](const MemberLane& lane) { return lane.has_more(); });
}

}  // namespace rnbd::mirror
