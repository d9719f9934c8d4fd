// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_state.hpp"

#include <algorithm>
#include <utility>

namespace rnbd::mirror {

MirrorState::Wait MirrorState::wait(Clock::time_point until, const rtrs::Interrupt& interrupt) {
  constexpr std::chrono::milliseconds kAsk{200};
  std::unique_lock lock{mutex_};
  const auto settled = [&] { return live_ || !dead_.empty() || Clock::now() >= until; };
  while (!settled()) {
    changed_.wait_until(lock, std::min(until, Clock::now() + kAsk), settled);
    if (!settled() && interrupt()) return Wait::interrupted;
  }
  if (!dead_.empty()) return Wait::dead;
  return live_ ? Wait::live : Wait::late;
}

DeviceGeometry MirrorState::geometry() const {
  const std::lock_guard lock{mutex_};
  return geometry_;
}

std::string MirrorState::dead() const {
  const std::lock_guard lock{mutex_};
  return dead_;
}

MirrorStatus MirrorState::status() const {
  const std::lock_guard lock{mutex_};
  MirrorStatus status = status_;
  status.trouble = dead_;
  return status;
}

void MirrorState::set_geometry(const DeviceGeometry& geometry) {
  const std::lock_guard lock{mutex_};
  if (geometry_.size == 0) geometry_ = geometry;
}

void MirrorState::set_live(bool live) {
  const std::lock_guard lock{mutex_};
  live_ = live;
  if (live) changed_.notify_all();
}

bool MirrorState::die(const std::string& reason) {
  const std::lock_guard lock{mutex_};
  live_ = false;
  if (!dead_.empty()) return false;
  dead_ = reason;
  changed_.notify_all();
  return true;
}

void MirrorState::publish(MirrorStatus status) {
  const std::lock_guard lock{mutex_};
  status_ = std::move(status);
}

}  // namespace rnbd::mirror
