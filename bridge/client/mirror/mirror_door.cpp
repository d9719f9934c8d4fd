// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_door.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace rnbd::mirror {

MirrorDoor::MirrorDoor() : wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  if (wake_ < 0) throw std::system_error{errno, std::generic_category(), "eventfd"};
}

MirrorDoor::~MirrorDoor() { ::close(wake_); }

void MirrorDoor::post(std::function<void()> function) {
  const std::lock_guard lock{mutex_};
  posted_.push_back(std::move(function));
  wake_up();
}

void MirrorDoor::arrive(MirrorLane& lane, const std::vector<rtrs::LaneLoop::Job*>& jobs) {
  const std::lock_guard lock{mutex_};
  for (rtrs::LaneLoop::Job* const job : jobs) {
    const CallPtr& call = arrived_.emplace_back(std::make_shared<Call>());
    call->transfer = static_cast<const TransferOperation&>(*job->operation).transfer();
    call->lane = &lane;
    call->job = job;
    call->number = ++arrivals_;
  }
  wake_up();
}

std::uint64_t MirrorDoor::newest() const {
  const std::lock_guard lock{mutex_};
  return arrivals_;
}

void MirrorDoor::wake_up() {
  if (!std::exchange(woken_, true)) eventfd_write(wake_, 1);
}

void MirrorDoor::take(std::vector<CallPtr>& calls, std::vector<std::function<void()>>& functions) {
  eventfd_t ignored;
  eventfd_read(wake_, &ignored);
  const std::lock_guard lock{mutex_};
  functions.swap(posted_);
  calls.swap(arrived_);
  woken_ = false;
}

}  // namespace rnbd::mirror
