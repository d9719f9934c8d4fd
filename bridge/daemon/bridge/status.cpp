// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/status.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "bridge/daemon/notify.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kEvery{1};

bool is_up(const rtrs::PathStatus& path) { return path.state == rtrs::PathState::connected; }

bool is_without_path(const SessionStatus& status) {
  return !status.name.empty() && std::ranges::none_of(status.paths, is_up);
}

/// Of the paths, the first that has one, or of the session.
std::string reason(const SessionStatus& status) {
  for (const rtrs::PathStatus& path : status.paths) {
    if (!path.trouble.empty()) return path.trouble;
  }
  return status.trouble;
}

}  // namespace

std::string paths_in_words(const SessionStatus& status, std::chrono::seconds alone) {
  const std::string why = reason(status);
  const std::string behind = why.empty() ? "" : " (" + readable_text(why) + ")";
  if (is_without_path(status)) {
    return "no path for " + std::to_string(alone.count()) + " s" + behind;
  }
  const auto up = std::ranges::count_if(status.paths, is_up);
  if (status.name.empty()) return why.empty() ? "not connected yet" : "not connected" + behind;
  return std::to_string(up) + " of " + std::to_string(status.paths.size()) +
         (status.paths.size() == 1 ? " path" : " paths") + behind;
}

BridgeStatus::BridgeStatus(Look look, std::function<std::string()> about)
    : look_{std::move(look)}, about_{std::move(about)} {
  if (std::getenv("NOTIFY_SOCKET") == nullptr) return;
  thread_ = std::jthread{[this](const std::stop_token& end) { run(end); }};
}

void BridgeStatus::run(const std::stop_token& end) {
  pthread_setname_np(pthread_self(), "status");
  auto alone_since = steady_clock::now();
  std::string told;
  std::unique_lock lock{mutex_};
  while (!end.stop_requested()) {
    const SessionStatus status = look_();
    const auto now = steady_clock::now();
    if (!is_without_path(status)) alone_since = now;
    const auto alone = std::chrono::floor<std::chrono::seconds>(now - alone_since);
    std::string line = about_() + ": " + paths_in_words(status, alone);
    if (line != told) notify_manager("STATUS=" + line + "\n");
    told = std::move(line);
    woken_.wait_for(lock, end, kEvery, [] { return false; });
  }
}

}  // namespace rnbd
