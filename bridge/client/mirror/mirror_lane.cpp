// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_lane.hpp"

#include <algorithm>
#include <utility>

#include "bridge/client/mirror/mirror.hpp"

namespace rnbd::mirror {

void MirrorLane::Jobs::add(const Jobs& others) {
  if (others.first == nullptr) return;
  (last != nullptr ? last->next : first) = others.first;
  last = others.last;
}

MirrorLane::MirrorLane(std::shared_ptr<Mirror> mirror, GroupDriver& driver, unsigned lane)
    : mirror_{std::move(mirror)},
      driver_{driver},
      sender_{std::make_unique<TaskSender>(lane, driver.members())} {
  driver_.add(*sender_);
}

MirrorLane::~MirrorLane() { driver_.remove(std::move(sender_)); }

void MirrorLane::start(Job& job) {
  job.next = nullptr;
  job.loop = this;
  started_.push_back(&job);
  ++under_way_;
}

void MirrorLane::flush() {
  if (!started_.empty()) turn();
}

std::size_t MirrorLane::watch(std::vector<pollfd>& descriptors) {
  // Jobs that the rules answer at once, in a flush that comes right before the sleep.
  if (ended_.first != nullptr) sender_->call_up();
  sender_->watch(descriptors);
  return under_way_;
}

bool MirrorLane::progress(std::span<const pollfd> polled) {
  if (sender_->progress(polled)) turn();
  return sender_->has_more();
}

/// Commands that end while they are sent make another turn.
void MirrorLane::turn() {
  const auto begin = [this](Job* job) {
    Call& call = driver_.make_call(*this, *sender_);
    call.job = job;
    call.transfer = static_cast<const TransferOperation&>(*job->operation).transfer();
    driver_.accept(call);
  };
  do {
    driver_.turn(
        *sender_, [&] { std::ranges::for_each(started_, begin); },
        [this] { ended_.add(std::exchange(answered_, {})); });
    started_.clear();
    sender_->send();
  } while (sender_->collect());
}

rtrs::LaneLoop::Job* MirrorLane::collect() {
  for (const Job* job = ended_.first; job != nullptr; job = job->next) --under_way_;
  return std::exchange(ended_, {}).first;
}

/// The memory of a job that was handed over is the mirror's until it is collected.
bool MirrorLane::cancel(Job& job) {
  if (std::erase(started_, &job) == 0) {
    driver_.locked([&] { driver_.cancel(job); });
    return false;
  }
  --under_way_;
  return true;
}

void MirrorLane::answered(Call& call, int error) {
  Job& job = *call.job;
  static_cast<TransferOperation&>(*job.operation).end(error);
  if (job.on_finish != nullptr) job.on_finish(job);
  job.next = nullptr;
  answered_.add({&job, &job});
  sender_->call_up();
}

}  // namespace rnbd::mirror
