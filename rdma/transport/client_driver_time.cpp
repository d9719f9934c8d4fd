// SPDX-License-Identifier: BSD-3-Clause
// What time brings to a session: attempts that are due, waits that end, paths that have settled.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/transport/client_driver.hpp"
#include "rdma/transport/clock.hpp"

namespace rtrs {
void ClientDriver::look_on_io() {
  if (closed_) return;
  note_pause_on_io();
  while (const auto path = session_.connect_due(now())) connect_on_io(*path);
  if (session_.give_up_waiting(now())) {
    log(LogLevel::error, "session '" + options_.session_name + "': no " +
                             (session_.has_path() ? "accessible " : "") +
                             "path for too long (no-path-timeout): requests fail until one is "
                             "back");
    for_each_lane([this](ClientLane& lane) { lane.fail_pending(error_without_path(lane)); });
  }
  while (const auto path = session_.overdue(now())) give_up_changes_on_io(*path);
  fail_overdue_on_io();
  apply_use_on_io();
  schedule_look_on_io();
}

/// What this process did not look for in time it cannot have missed.
void ClientDriver::note_pause_on_io() {
  const auto pause = session_.own_pause(now());
  if (!pause) return;
  for (auto& lane : lanes_) lane->with_lane([&](ClientLane& l) { l.note_pause(*pause); });
}

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
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if ((mute >> i & 1) != 0) give_up_path_on_io(i);
  }
  constexpr Duration kPause = std::chrono::minutes{1};
  if (!failed || now() - overdue_at_ < kPause) return;
  overdue_at_ = now();
  log(LogLevel::error, "session '" + options_.session_name +
                           "': paths have carried some requests in vain for too long "
                           "(no-path-timeout): these fail; does the server hang, or is an MTU on "
                           "the way too small for large ones?");
}

/// What is opened and closed goes by EIO for a path that failed.
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
  barrier_.refuse(options_.no_path_error);
  control_barrier_.refuse(EIO);
  for_each_lane([&](ClientLane& lane) { lane.fail_stranded(path, error_without_path(lane)); });
  for (ChangeBarrier* barrier : {&barrier_, &control_barrier_}) {
    if (!barrier->closed()) barrier->refuse(0);
  }
  for_each_lane([](ClientLane& lane) { lane.resume(); });
  const auto tell = [&](const char* what, const char* consequence) {
    log(LogLevel::error, "session '" + options_.session_name +
                             "': the server may still carry out " + what + " that it got from " +
                             name_of_path(path) + " (no-path-timeout): " + consequence +
                             " until that path is back");
  };
  if (barrier_.closed()) tell("changes", "changes fail");
  if (control_barrier_.closed())
    tell("a CLOSE, or a change that was given up,", "no device can be opened");
}

/// Storage that hangs at a server without the extension delays whoever opens another device.
void ClientDriver::tell_of_held_opens_on_io() {
  const std::string session = "session '" + options_.session_name + "': ";
  if (!control_barrier_.closed() && std::exchange(held_told_, false)) {
    log(LogLevel::warning, session + "devices can be opened again");
  }
  if (!control_lane_->holds_back()) {
    held_since_ = {};
    return;
  }
  if (held_since_ == Instant{}) held_since_ = now();
  const Duration limit = options_.heartbeat_interval * options_.heartbeat_misses;
  if (now() - held_since_ < limit || std::exchange(held_told_, true)) return;
  log(LogLevel::warning,
      session +
          "who opens or closes a device waits until the server has ended changes that it has not "
          "answered: their callers have left, or their path is lost; look at its storage and "
          "paths");
}

/// Likewise whoever changes a device of which an older change has not ended.
void ClientDriver::tell_of_held_changes_on_io() {
  const bool held =
      std::ranges::any_of(lanes_, [](auto& lane) { return lane->holds_back_owner(); });
  if (!held) {
    changes_held_since_ = {};
    changes_held_told_ = false;
    return;
  }
  if (changes_held_since_ == Instant{}) changes_held_since_ = now();
  constexpr Duration kPatience = std::chrono::seconds{5};
  if (now() - changes_held_since_ < kPatience || std::exchange(changes_held_told_, true)) return;
  log(LogLevel::warning,
      "session '" + options_.session_name +
          "': changes of a device wait until the server has ended an older one of it, whose caller "
          "has left or was told that it failed; look at the server's storage");
}

void ClientDriver::schedule_look_on_io() {
  if (closed_) return;
  const Instant next = session_.next_event();
  if (next == Instant::max()) {
    look_timer_.cancel();
    return;
  }
  look_timer_.expires_after(std::max(Duration::zero(), next - now()));
  look_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled) look_on_io();
  });
}

/// What waits for nothing that this side is told of, such as a permit, or the end of what callers
/// have given up.
void ClientDriver::ask_for_errands_on_io() {
  if (options_.keeper == nullptr) return;
  errand_timer_.expires_after(kErrandPause);
  errand_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (cancelled || closed_) return;
    give_up_slow_errand_on_io();
    if (control_lane_->attached()) run_errand_on_io();
    ask_for_errands_on_io();
  });
}

/// Its permit is in use until the server answers, and one is left for those who open things. A
/// server without the extension would let these wait, too: there it is waited for.
void ClientDriver::give_up_slow_errand_on_io() {
  if (!errand_ || errand_->finished() || now() - errand_since_ < kErrandPause) return;
  const bool spare = control_lane_->permits_in_use() + 1 < control_lane_->slot_count();
  if (!spare || (limits_.features & wire::kFeatureExactlyOnce) == 0) return;
  errand_->cancel(*control_lane_);
  const auto errand = std::move(errand_);
  options_.keeper->errand_ended(*errand);
}

void ClientDriver::apply_use_on_io() {
  const PathMask mask = session_.in_use(now());
  if (mask == std::exchange(in_use_, mask)) return;
  for_each_lane([&](ClientLane& lane) { lane.use(mask, options_.policy); });
  if (mask == 0 && session_.has_path() && !session_.usable()) {
    log(LogLevel::warning, "session '" + options_.session_name +
                               "': the server lets no path carry I/O: requests wait for one");
  }
  if (session_.path_count() == 1 || mask == 0) return;
  std::string names;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if ((mask >> i & 1) != 0) names += (names.empty() ? "" : ", ") + name_of_path(i);
  }
  log(news_level(), "session '" + options_.session_name + "': I/O goes over " + names);
}

}  // namespace rtrs
