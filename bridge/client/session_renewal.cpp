// What a session does when its server has forgotten it.
#include <cerrno>
#include <utility>

#include "bridge/client/reopen.hpp"
#include "bridge/client/session.hpp"

namespace rnbd {

void Session::say(rtrs::LogLevel level, const std::string& line) const {
  if (log_) log_(level, line);
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

std::unique_ptr<rtrs::Operation> Session::reopen(const rtrs::SessionLimits& limits) {
  std::vector<ReopenDevice> devices;
  std::lock_guard lock{mutex_};
  // From here on nobody believes an id of the session before.
  ++era_.number;
  era_.limits = limits;
  end_reopening();
  // Without the extension the server may in truth have the session still, with all that is open;
  // after an attempt that failed the new session has what that one opened.
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
    // Who opens a device sees the new era and asks again.
    if (leaving || fate == Renewal::open) {
      devices.push_back({mapping->device, mapping->options, mapping->geometry, leaving});
      devices.back().expected.witness = mapping->witness;
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
  if (reopen.error() != 0) return reject(reopen.error(), reopen.complaint());
  std::vector<std::string> lost;
  adopt(reopen, lost);
  say(rtrs::LogLevel::info, "the server had forgotten the session; it is renewed, with " +
                                std::to_string(reopen.ids().size()) + " open devices");
  for (const std::string& device : lost) {
    say(rtrs::LogLevel::error, "the server's machine was restarted: writes to '" + device +
                                   "' that were not flushed may be lost, and its next flush fails");
  }
  return 0;
}

void Session::reopening_failed(rtrs::Operation&) {
  std::lock_guard lock{mutex_};
  end_reopening();
}

/// What of it is still under way opens nothing any more once the server hears of the next OPEN or
/// CLOSE.
void Session::end_reopening() {
  for (const std::uint32_t number : reopening_numbers_) orders_.end(number);
  reopening_numbers_.clear();
  reopening_.clear();
}

void Session::adopt(const ReopenOperation& reopen, std::vector<std::string>& lost) {
  std::lock_guard lock{mutex_};
  // Those that are being opened or closed are not open now.
  for (auto& [name, mapping] : mappings_) mapping->handle.id = kNoDevice;
  for (std::size_t i = 0; i < reopening_.size(); ++i) {
    reopening_[i]->handle.id = reopen.ids()[i];
    reopening_[i]->witness = reopen.witnesses()[i];
  }

  const bool restarted = volatile_epoch_.enter(era_.limits.volatile_epoch);
  for (const std::shared_ptr<Mapping>& mapping : reopening_) {
    if (restarted && mapping->handle.unflushed.lose()) lost.push_back(mapping->device);
  }
  end_reopening();
  half_reopened_ = false;
  last_refusal_.clear();
}

/// Says why the renewal failed, but not again and again.
int Session::reject(int error, const std::string& complaint) {
  const bool final = error == ESTALE;
  bool news = false;
  {
    std::lock_guard lock{mutex_};
    end_reopening();
    news = complaint != last_refusal_;
    last_refusal_ = complaint;
    if (final) stale_ = complaint;
  }
  if (final) {
    say(rtrs::LogLevel::error,
        complaint + "; those who have it open get EIO until they open it anew");
  } else if (news) {
    say(rtrs::LogLevel::warning, complaint + "; it is tried again");
  }
  return error;
}

}  // namespace rnbd
