// SPDX-License-Identifier: BSD-3-Clause
// A session's recovery after its server has forgotten it.
#include <algorithm>
#include <cerrno>
#include <chrono>

#include "bridge/client/reopen.hpp"
#include "bridge/client/session.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {

void Session::say(rtrs::LogLevel level, const std::string& line) const {
  if (log_) log_(level, line);
}

void Session::say(const std::vector<std::string>& complaints) const {
  for (const std::string& complaint : complaints) say(rtrs::LogLevel::error, complaint);
}

Era Session::era() const {
  std::lock_guard lock{mutex_};
  return table_.era();
}

std::string Session::failure() const {
  {
    std::lock_guard lock{mutex_};
    if (!stale_.empty()) return stale_;
  }
  return client_->failure();
}

std::unique_ptr<rtrs::Operation> Session::reopen(const rtrs::SessionLimits& limits) {
  std::lock_guard lock{mutex_};
  return std::make_unique<ReopenOperation>(
      table_.begin_recovery(limits, OpenOrders::forgets(limits), std::chrono::steady_clock::now()),
      limits);
}

int Session::reopened(rtrs::Operation& operation) {
  auto& reopen = static_cast<ReopenOperation&>(operation);
  if (reopen.error() != 0) return reject(reopen);
  const std::vector<std::string> complaints = adopt(reopen);
  const auto open = std::ranges::count_if(reopen.reopened(), [](const ReopenedDevice& device) {
    return device.id != kNoDevice && device.loss.empty();
  });
  say(rtrs::LogLevel::info, "the server had forgotten the session; it is renewed, with " +
                                std::to_string(open) + " open devices");
  say(complaints);
  return 0;
}

void Session::reopening_failed(rtrs::Operation& operation) {
  std::vector<std::string> complaints;
  {
    std::lock_guard lock{mutex_};
    complaints = lost_.note(table_.cut_short(static_cast<ReopenOperation&>(operation).reopened()));
  }
  say(complaints);
}

/// Returns the complaints for the users.
std::vector<std::string> Session::adopt(const ReopenOperation& reopen) {
  std::lock_guard lock{mutex_};
  const DeviceTable::Recovered recovered = table_.recovered(reopen.reopened());
  std::vector<std::string> complaints = lost_.note(recovered.lost);
  for (const auto& [device, restarted] : recovered.unflushed) {
    complaints.push_back(
        (restarted ? "the server's machine was restarted: writes to "
                   : "the server has lost its own connection to the storage: writes to ") +
        in_quotes(device->name) + " that were not flushed may be lost, and its next flush fails");
  }
  last_refusal_.clear();
  return complaints;
}

/// Says why the renewal failed, but not again and again.
int Session::reject(const ReopenOperation& reopen) {
  const bool final = reopen.error() == ESTALE;
  bool news = false;
  std::vector<std::string> complaints;
  {
    std::lock_guard lock{mutex_};
    complaints = lost_.note(table_.refused(reopen.reopened(), reopen.could_go_on_with_some(),
                                           std::chrono::steady_clock::now()));
    news = reopen.complaint() != last_refusal_;
    last_refusal_ = reopen.complaint();
    if (final) stale_ = reopen.complaint();
  }
  say(complaints);
  if (final) {
    say(rtrs::LogLevel::error,
        reopen.complaint() + "; those who have it open get EIO until they open it anew");
  } else if (news) {
    say(rtrs::LogLevel::warning, reopen.complaint() + "; it is tried again");
  }
  return reopen.error();
}

}  // namespace rnbd
