// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_lane.hpp"

#include <utility>

#include "bridge/client/mirror/mirror.hpp"

namespace rnbd::mirror {

void MirrorLane::Jobs::add(const Jobs& others) {
  (last != nullptr ? last->next : first) = others.first;
  last = others.last;
}

void MirrorLane::start(Job& job) {
  job.next = nullptr;
  job.loop = this;
  started_.push_back(&job);
  ++under_way_;
}

void MirrorLane::flush() {
  if (started_.empty()) return;
  mirror_->take(*this, started_);
  started_.clear();
}

std::size_t MirrorLane::watch(std::vector<pollfd>& descriptors) {
  descriptors.push_back({.fd = wake_.descriptor(), .events = POLLIN, .revents = 0});
  return under_way_;
}

bool MirrorLane::progress(std::span<const pollfd> polled) {
  if (!polled.empty() && polled.front().revents != 0) wake_.clear();
  return false;
}

rtrs::LaneLoop::Job* MirrorLane::collect() {
  Jobs ended;
  {
    const std::lock_guard lock{mutex_};
    ended = std::exchange(ended_, {});
  }
  for (const Job* job = ended.first; job != nullptr; job = job->next) --under_way_;
  return ended.first;
}

/// The memory of a job that was handed over is the mirror's until it is collected.
bool MirrorLane::cancel(Job& job) {
  if (std::erase(started_, &job) == 0) {
    mirror_->give_up(job);
    return false;
  }
  --under_way_;
  return true;
}

void MirrorLane::end(Job& job, int error) {
  static_cast<TransferOperation&>(*job.operation).end(error);
  job.next = nullptr;
  fresh_.add({&job, &job});
}

/// Under the lock to the end: the lane may go as soon as its last job can be collected.
void MirrorLane::publish() {
  const std::lock_guard lock{mutex_};
  if (ended_.first == nullptr) wake_.wake();  // else it has been woken already
  ended_.add(std::exchange(fresh_, {}));
}

}  // namespace rnbd::mirror
