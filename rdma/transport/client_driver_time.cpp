// SPDX-License-Identifier: BSD-3-Clause
// Waits that end: of requests, of opens and writes that are held back, of background work.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/transport/client_driver.hpp"
#include "rdma/transport/clock.hpp"

namespace rtrs {
/// Paths come, but none carries certain requests.
void ClientDriver::fail_overdue_on_io() {
  if (options_.no_path_timeout == Duration::zero()) return;
  const Instant limit = now() - options_.no_path_timeout;
  bool failed = false;
  unsigned mute = 0;
  for (auto& lane : lanes_) {
    const auto paths = lane->fail_overdue(limit, error_without_path());
    failed = failed || paths;
    mute |= paths.value_or(0);
  }
  if (!failed) return;
  report({.kind = Notice::Kind::requests_overdue});
  feed_on_io({.kind = ClientEvent::Kind::overdue, .paths = static_cast<PathMask>(mute)});
}

/// OPEN and CLOSE take EIO for a path that failed.
int ClientDriver::error_without_path(const ClientLane& lane) const {
  return &lane == control_lane_.get() ? EIO : error_without_path();
}

/// Of I/O, in whose lane devices are opened as well if there is one permit only.
int ClientDriver::error_without_path() const {
  return control_lane_->slot_count() == 0 ? EIO : options_.no_path_error;
}

/// A server without the extension may still carry out what came over a path that it has not let
/// back: nothing newer may be written meanwhile, and nobody waits for that for ever.
void ClientDriver::give_up_changes_on_io(unsigned path) {
  unresolved_.refuse(options_.no_path_error);
  control_unresolved_.refuse(EIO);
  for_each_lane([&](ClientLane& lane) { lane.fail_stranded(path, error_without_path(lane)); });
  for (Unresolved* scope : {&unresolved_, &control_unresolved_}) {
    if (!scope->writes()) scope->refuse(0);
  }
  for_each_lane([](ClientLane& lane) { lane.resume(); });
  if (unresolved_.writes()) report({.kind = Notice::Kind::writes_fail, .path = path});
  if (control_unresolved_.writes()) report({.kind = Notice::Kind::opens_fail, .path = path});
}

/// Storage that hangs at a server without the extension delays whoever opens another device.
void ClientDriver::report_held_opens_on_io() {
  if (!control_unresolved_.writes() && opens_wait_.rearm()) {
    report({.kind = Notice::Kind::opens_go_on});
  }
  const Duration patience = options_.heartbeat_interval * options_.heartbeat_misses;
  if (opens_wait_.is_due(control_lane_->holds_back(), now(), patience)) {
    report({.kind = Notice::Kind::opens_wait});
  }
}

/// Likewise writes to a device of which an older write has not ended.
void ClientDriver::report_held_writes_on_io() {
  constexpr Duration kPatience = std::chrono::seconds{5};
  const bool held =
      std::ranges::any_of(lanes_, [](auto& lane) { return lane->holds_back_owner(); });
  if (!held) writes_wait_.rearm();
  if (writes_wait_.is_due(held, now(), kPatience)) report({.kind = Notice::Kind::writes_wait});
}

/// BackgroundJobs wait for events that nobody reports to this side, such as a permit, or the end of
/// cancelled calls.
void ClientDriver::ask_for_background_jobs_on_io() {
  if (options_.recovery == nullptr) return;
  background_timer_.expires_after(kBackgroundPause);
  background_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (cancelled || closed_) return;
    cancel_slow_background_job_on_io();
    if (control_lane_->attached()) run_background_job_on_io();
    ask_for_background_jobs_on_io();
  });
}

/// Its permit is in use until the server answers, and one is left for those who open things. A
/// server without the extension would let these wait, too: there it is waited for.
void ClientDriver::cancel_slow_background_job_on_io() {
  if (!background_job_ || background_job_->finished() ||
      now() - background_since_ < kBackgroundPause)
    return;
  const bool spare = control_lane_->permits_in_use() + 1 < control_lane_->slot_count();
  if (!spare || (limits_.features & wire::kFeatureExactlyOnce) == 0) return;
  background_job_->cancel(*control_lane_);
  const auto background_job = std::move(background_job_);
  options_.recovery->background_job_ended(*background_job);
}

}  // namespace rtrs
