// SPDX-License-Identifier: BSD-3-Clause
// A session's recovery after its server has forgotten it.
#include <algorithm>
#include <cerrno>
#include <utility>

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
  return orders_.era();
}

/// Unless the client has been through a renewal already.
void Session::enter_first_era() {
  const rtrs::SessionLimits limits = client_->limits();
  std::lock_guard lock{mutex_};
  if (orders_.enter(limits)) volatile_epoch_.enter(limits.volatile_epoch);
}

std::string Session::failure() const {
  {
    std::lock_guard lock{mutex_};
    if (!stale_.empty()) return stale_;
  }
  return client_->failure();
}

bool Session::is_lost(const Mapping& mapping) const {
  std::lock_guard lock{mutex_};
  return !mapping.loss.empty();
}

std::unique_ptr<rtrs::Operation> Session::reopen(const rtrs::SessionLimits& limits) {
  std::vector<ReopenDevice> devices;
  std::lock_guard lock{mutex_};
  orders_.begin_recovery(limits, OpenOrders::forgets(limits));
  reopening_.clear();
  for (auto at = mappings_.begin(); at != mappings_.end();) {
    const std::shared_ptr<Mapping>& mapping = at->second;
    const bool open = mapping->state == Mapping::State::open;
    const bool closing = mapping->state == Mapping::State::closing;
    const Renewal fate = orders_.renewal(open, closing, mapping->users > 0);
    if (fate == Renewal::forget) {
      at = mappings_.erase(at);
      continue;
    }
    const bool leaving = fate == Renewal::open_to_close;
    if (leaving || fate == Renewal::close_by_name) mapping->half_closed = true;
    // A caller that opens a device sees the new epoch and asks again.
    if (leaving || fate == Renewal::open) {
      devices.push_back({mapping->device, mapping->options, mapping->geometry, leaving});
      devices.back().options.unclaimed = !mapping->claimed;
      devices.back().expected.witness = mapping->witness;
      devices.back().patient = mapping->patience.lasts(std::chrono::steady_clock::now());
      devices.back().order = orders_.begin_again();
      reopening_.push_back(mapping);
    }
    ++at;
  }
  return std::make_unique<ReopenOperation>(std::move(devices), limits);
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
    complaints = lose_devices(static_cast<ReopenOperation&>(operation), /*goes_on=*/false);
    end_reopening(/*success=*/false);
  }
  say(complaints);
}

void Session::end_reopening(bool success) {
  orders_.end_recovery(success);
  reopening_.clear();
}

/// With the session's lock held. A device that the server has open now is closed before the next
/// OPEN of it, like all unused ones.
void Session::lose(const std::shared_ptr<Mapping>& lost, const ReopenedDevice& reopened) {
  Mapping& mapping = *lost;
  mapping.loss = reopened.loss;
  mapping.handle.id = kNoDevice;
  std::erase_if(lost_, [](const auto& earlier) { return earlier.expired(); });
  lost_.push_back(lost);
  auto at = mappings_.find(mapping.device);
  if (reopened.id == kNoDevice) {
    mappings_.erase(at);
    return;
  }
  auto left = std::make_shared<Mapping>();
  left->state = Mapping::State::open;
  left->users = 0;
  left->half_closed = true;
  left->open_number = mapping.open_number;
  left->device = mapping.device;
  left->options = mapping.options;
  left->geometry = mapping.geometry;
  left->handle.id = reopened.id;
  at->second = std::move(left);
}

/// With the session's lock held, and also if the recovery fails. Returns sentences for the users.
std::vector<std::string> Session::lose_devices(const ReopenOperation& reopen, bool goes_on) {
  std::vector<std::string> complaints;
  for (std::size_t i = 0; i < reopen.reopened().size(); ++i) {
    const ReopenedDevice& reopened = reopen.reopened()[i];
    if (!reopened.is_lost(reopening_[i]->users > 0, goes_on)) continue;
    lose(reopening_[i], reopened);
    complaints.push_back(reopened.loss +
                         "; those who have it open get EIO until they open it anew");
  }
  return complaints;
}

/// Returns the complaints for the users.
std::vector<std::string> Session::adopt(const ReopenOperation& reopen) {
  std::lock_guard lock{mutex_};
  // Those that are being opened or closed are not open now. The others have their ids at once,
  // because requests look at them.
  for (auto& [name, mapping] : mappings_) {
    if (std::ranges::find(reopening_, mapping) == reopening_.end()) mapping->handle.id = kNoDevice;
  }
  std::vector<std::string> complaints = lose_devices(reopen, /*goes_on=*/true);
  const bool restarted = volatile_epoch_.enter(orders_.era().limits.volatile_epoch);
  for (std::size_t i = 0; i < reopening_.size(); ++i) {
    const ReopenedDevice& reopened = reopen.reopened()[i];
    Mapping& mapping = *reopening_[i];
    mapping.patience = {};
    if (!mapping.loss.empty()) continue;
    mapping.handle.id = reopened.id;
    const bool storage_was_lost = mapping.witness.storage_life != reopened.witness.storage_life;
    mapping.witness = reopened.witness;
    // Its users have left meanwhile, and nobody else may have it.
    if (!reopened.loss.empty()) mapping.half_closed = true;
    if ((restarted || storage_was_lost) && mapping.handle.unflushed.lose()) {
      complaints.push_back(
          (restarted ? "the server's machine was restarted: writes to "
                     : "the server has lost its own connection to the storage: writes to ") +
          in_quotes(mapping.device) +
          " that were not flushed may be lost, and its next flush fails");
    }
  }
  end_reopening(/*success=*/true);
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
    complaints = lose_devices(reopen, /*goes_on=*/false);
    const auto now = std::chrono::steady_clock::now();
    const bool others_wait = reopen.could_go_on_with_some();
    for (std::size_t i = 0; i < reopen.reopened().size(); ++i) {
      reopening_[i]->patience.note(reopen.reopened()[i].refusal != 0 && others_wait, now);
    }
    end_reopening(/*success=*/false);
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
