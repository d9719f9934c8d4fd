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

Session::Era Session::era() const {
  std::lock_guard lock{mutex_};
  return era_;
}

/// Unless the client has been through a renewal already.
void Session::enter_first_era() {
  const rtrs::SessionLimits limits = client_->limits();
  std::lock_guard lock{mutex_};
  if (era_.number != 0) return;
  era_.limits = limits;
  volatile_epoch_.enter(limits.volatile_epoch);
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
  // From here on nobody believes an id of the session before.
  ++era_.number;
  era_.limits = limits;
  end_reopening();
  // Without the extension the server may in truth still have the session, with all open devices.
  // After a failed attempt the new session has the devices which that one opened.
  const bool can_tell = (limits.features & rtrs::wire::kFeatureExactlyOnce) != 0;
  const bool certain = can_tell && !std::exchange(half_reopened_, true);
  for (auto at = mappings_.begin(); at != mappings_.end();) {
    const std::shared_ptr<Mapping>& mapping = at->second;
    const bool open = mapping->state == Mapping::State::open;
    const bool closing = mapping->state == Mapping::State::closing;
    const Renewal fate = OpenOrders::renewal(open, closing, mapping->users > 0, certain, limits);
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
      if (OpenOrders::numbered(limits)) {
        devices.back().order = orders_.begin();
        reopening_numbers_.push_back(devices.back().order.number);
      }
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
    complaints = lose_devices(static_cast<ReopenOperation&>(operation), /*also_refused=*/false);
    end_reopening();
  }
  say(complaints);
}

/// Its OPENs that are still in flight open nothing any more once the server hears of the next OPEN
/// or CLOSE.
void Session::end_reopening() {
  for (const std::uint32_t number : reopening_numbers_) orders_.end(number);
  reopening_numbers_.clear();
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

/// With the session's lock held, and also if the recovery fails: the next server process may not
/// know any more which clients have written. Returns sentences for the users.
std::vector<std::string> Session::lose_devices(const ReopenOperation& reopen, bool also_refused) {
  std::vector<std::string> complaints;
  for (std::size_t i = 0; i < reopen.reopened().size(); ++i) {
    const ReopenedDevice& reopened = reopen.reopened()[i];
    if (reopened.loss.empty() || reopening_[i]->users == 0) continue;
    if (reopened.refusal != 0 && !also_refused) continue;
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
  std::vector<std::string> complaints = lose_devices(reopen, /*also_refused=*/true);
  const bool restarted = volatile_epoch_.enter(era_.limits.volatile_epoch);
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
  end_reopening();
  half_reopened_ = false;
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
    complaints = lose_devices(reopen, /*also_refused=*/false);
    const auto now = std::chrono::steady_clock::now();
    const bool others_wait = reopen.could_go_on_with_some();
    for (std::size_t i = 0; i < reopen.reopened().size(); ++i) {
      reopening_[i]->patience.note(reopen.reopened()[i].refusal != 0 && others_wait, now);
    }
    end_reopening();
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
