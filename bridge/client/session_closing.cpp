// SPDX-License-Identifier: BSD-3-Clause
// How the devices of a session are closed, also when there is no path to do it on.
#include <cerrno>
#include <memory>

#include "bridge/client/session.hpp"

namespace rnbd {
namespace {

/// Asks `left` times (about four a second) before it lets a farewell go unanswered.
struct Patience {
  int left = 8;
  static bool ended(void* context) { return static_cast<Patience*>(context)->left-- <= 0; }
  Interrupt interrupt() { return {&Patience::ended, this}; }
};

}  // namespace

/// Nobody waits any more for the answer; the server may have opened it, or be about to.
void Session::leave_half_open(Mapping& mapping) {
  {
    std::lock_guard lock{mutex_};
    mapping.users = 0;
    mapping.state = Mapping::State::closing;
  }
  close_for_good(mapping);
}

/// With the session's lock held. The mapping must outlive it.
std::unique_ptr<rtrs::Operation> Session::make_close(Mapping& mapping) const {
  const OpenedDevice device{mapping.device, mapping.options.access, mapping.open_number,
                            mapping.half_closed};
  return orders_.close(device, mapping.handle);
}

int Session::close_at_server(Mapping& mapping, const Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  for (;;) {
    const std::uint64_t asked_in = orders_.era().number;
    const std::unique_ptr<rtrs::Operation> operation = make_close(mapping);
    lock.unlock();
    const int error = client_->run_control(*operation, interrupt);
    lock.lock();
    if (orders_.believed(asked_in) || !OpenOrders::closed(error)) return error;
    mapping.half_closed = true;  // and closed again, by its name
  }
}

/// For callers that do not want to wait for long: the end of the session closes everything anyway.
int Session::close_in_passing(Mapping& mapping) {
  if (leaving_ || !alive()) return 0;
  if (!has_path()) return EIO;
  Patience patience;
  const int error = close_at_server(mapping, patience.interrupt());
  return alive() ? error : 0;
}

void Session::release(const std::shared_ptr<Mapping>& mapping) {
  // Without a path nothing can be stuck at the server. After a change the next one would have to
  // wait anyway.
  const bool has_reads = mapping->handle.given_up->any() && alive() && has_path();
  {
    std::lock_guard lock{mutex_};
    if (--mapping->users > 0 || !mapping->loss.empty() || (has_reads && mapping->fit_for_next()))
      return;
    mapping->state = Mapping::State::closing;
  }
  close_for_good(*mapping);
}

/// A device that cannot be closed now, for want of a path, a permit or an answer, is closed later
/// by errand().
void Session::close_for_good(Mapping& mapping) { end_closing(mapping, close_in_passing(mapping)); }

/// Closes an unused device, once no request to it is in flight: until then a CLOSE would only take
/// a permit from OPENs.
std::unique_ptr<rtrs::Operation> Session::errand() {
  std::lock_guard lock{mutex_};
  for (const auto& [name, mapping] : mappings_) {
    const bool left = mapping->state == Mapping::State::open && mapping->users == 0;
    if (!left || mapping->handle.given_up->any()) continue;
    mapping->state = Mapping::State::closing;
    errand_ = mapping;
    errand_era_ = orders_.era().number;
    return make_close(*mapping);
  }
  return nullptr;
}

void Session::errand_ended(rtrs::Operation& operation) {
  std::shared_ptr<Mapping> mapping;
  bool believed = false;
  {
    std::lock_guard lock{mutex_};
    mapping = std::move(errand_);
    believed = orders_.believed(errand_era_);
  }
  const int error = operation.finished() ? operation.error() : EINTR;
  end_closing(*mapping, believed ? error : EIO);
}

void Session::end_closing(Mapping& mapping, int error) {
  if (OpenOrders::closed(error)) return forget(mapping);
  std::lock_guard lock{mutex_};
  mapping.state = Mapping::State::open;
  mapping.half_closed = true;
  changed_.notify_all();
}

void Session::forget(const Mapping& mapping) {
  std::lock_guard lock{mutex_};
  mappings_.erase(mapping.device);
  changed_.notify_all();
}

}  // namespace rnbd
