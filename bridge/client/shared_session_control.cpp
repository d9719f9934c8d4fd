// SPDX-License-Identifier: BSD-3-Clause
// Reports and changes of the shared session, and of every one after it.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "bridge/client/shared_session.hpp"

namespace rnbd {

using rtrs::PathAddress;
using Done = tl::expected<void, Failure>;

/// One at a time: the wish, which holds for sessions to come, and then the session that there is.
Done SharedSession::change(const std::function<Done(Wanted&)>& wish,
                           const std::function<Done(rtrs::Client&)>& step) {
  const std::lock_guard one_at_a_time{control_mutex_};
  std::unique_lock lock{mutex_};
  const Wanted before = wanted_;
  if (auto possible = wish(wanted_); !possible) {
    wanted_ = before;
    return possible;
  }
  ++changes_;
  const std::shared_ptr<Session> session = session_;
  lock.unlock();
  if (session == nullptr) return {};
  auto done = step(session->client());
  if (done || !session->alive()) return {};
  lock.lock();
  wanted_ = before;
  return done;
}

Done SharedSession::add_path(const PathAddress& path) {
  if (auto fits = rtrs::can_carry(path, config_.tls); !fits) return fits;
  return change([&](Wanted& wanted) { return wanted.paths.add(path); },
                [&](rtrs::Client& client) { return client.add_path(path); });
}

Done SharedSession::remove_path(const PathAddress& path) {
  auto done = change(
      [&](Wanted& wanted) {
        std::erase(wanted.disconnected, path);
        return wanted.paths.remove(path);
      },
      [&](rtrs::Client& client) { return client.remove_path(path); });
  if (done) name_another();
  return done;
}

/// When the path is gone that named the server for sessions to come, one does that has led there.
void SharedSession::name_another() {
  std::unique_lock lock{mutex_};
  const std::shared_ptr<Session> session = session_;
  lock.unlock();
  const auto paths =
      session != nullptr ? session->client().paths() : std::vector<rtrs::PathStatus>{};
  const auto proved = std::ranges::find_if(paths, [](const rtrs::PathStatus& path) {
    return path.access.has_value() && !path.leaving && !path.foreign;
  });
  lock.lock();
  if (wanted_.paths.contains(wanted_.naming)) return;
  wanted_.naming = proved != paths.end() ? proved->address : wanted_.paths.all().front();
}

Done SharedSession::disconnect(const PathAddress& path) {
  return change(
      [&](Wanted& wanted) {
        std::erase(wanted.disconnected, path);
        wanted.disconnected.push_back(path);
        return wanted.paths.contains(path);
      },
      [&](rtrs::Client& client) { return client.disconnect(path); });
}

Done SharedSession::reconnect(const PathAddress& path) {
  return change(
      [&](Wanted& wanted) {
        std::erase(wanted.disconnected, path);
        return wanted.paths.contains(path);
      },
      [&](rtrs::Client& client) { return client.reconnect(path); });
}

void SharedSession::set_policy(rtrs::PathPolicy policy) {
  (void)change(
      [&](Wanted& wanted) {
        wanted.policy = policy;
        return Done{};
      },
      [&](rtrs::Client& client) {
        client.set_policy(policy);
        return Done{};
      });
}

/// A session that was being connected while the wanted state changed.
void SharedSession::bring_up_to_date(Session& session) {
  const std::lock_guard one_at_a_time{control_mutex_};
  Wanted wanted;
  {
    const std::lock_guard lock{mutex_};
    wanted = wanted_;
  }
  rtrs::Client& client = session.client();
  for (const PathAddress& path : wanted.paths.all()) (void)client.add_path(path);
  for (const rtrs::PathStatus& path : client.paths()) {
    if (!wanted.paths.contains(path.address)) (void)client.remove_path(path.address);
  }
  for (const PathAddress& path : wanted.disconnected) (void)client.disconnect(path);
  client.set_policy(wanted.policy);
}

namespace {

/// True both while requests wait and when they fail already.
std::string trouble_without_path(rtrs::Duration timeout) {
  const std::string what = "no path may carry I/O: requests wait until one is back";
  if (timeout == rtrs::Duration::zero()) return what;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  const std::string time =
      ms % 1000 == 0 ? std::to_string(ms / 1000) + "s" : std::to_string(ms) + "ms";
  return what + ", and fail when none was for " + time + " (no-path-timeout)";
}

}  // namespace

/// Its users get EIO until they open their devices anew.
void SharedSession::add_lost_devices(const Session& lost, std::vector<DeviceStatus>& devices) {
  for (DeviceStatus& device : lost.devices()) {
    if (device.trouble.empty()) device.trouble = lost.failure();
    devices.push_back(std::move(device));
  }
}

bool SharedSession::has_path() {
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock{mutex_};
    session = session_;
  }
  return session != nullptr && session->alive() && session->has_path();
}

SessionStatus SharedSession::status() {
  SessionStatus status;
  std::shared_ptr<Session> session;
  std::vector<std::shared_ptr<Session>> lost;
  {
    const std::lock_guard lock{mutex_};
    session = session_;
    for (const auto& earlier : lost_) {
      if (auto used = earlier.lock()) lost.push_back(std::move(used));
    }
    status.policy = wanted_.policy;
    status.server_id = wanted_.server_id;
    if (session != nullptr && session->alive()) {
      status.name = name_;
    } else {
      // That somebody left before it was there is no trouble; the paths say why it was not.
      const bool given_up = last_failure_.error == EINTR;
      status.trouble = session != nullptr ? session->failure() : given_up ? "" : last_failure_.text;
      if (session != nullptr) lost.push_back(std::exchange(session, nullptr));
      for (const PathAddress& path : wanted_.paths.all()) {
        rtrs::PathStatus& idle = status.paths.emplace_back();
        idle.address = path;
        idle.trouble = failed_attempts_->at(path);
        const bool off = std::ranges::count(wanted_.disconnected, path) != 0;
        idle.state = off           ? rtrs::PathState::disconnected
                     : connecting_ ? rtrs::PathState::connecting
                                   : rtrs::PathState::waiting;
      }
    }
  }
  for (const auto& earlier : lost) add_lost_devices(*earlier, status.devices);
  if (session == nullptr) return status;
  status.limits = session->client().limits();
  status.server_id = session->client().server_id();
  status.paths = session->client().paths();
  status.without_path = session->client().time_without_path();
  if (std::ranges::none_of(status.paths, &rtrs::PathStatus::in_use)) {
    status.trouble = trouble_without_path(config_.no_path_timeout);
    const auto lost_at = path_lost_at_->load();
    if (lost_at != decltype(lost_at){})
      status.without_path_now = std::chrono::steady_clock::now() - lost_at;
  }
  const auto open = session->devices();
  status.devices.insert(status.devices.begin(), open.begin(), open.end());
  return status;
}

}  // namespace rnbd
