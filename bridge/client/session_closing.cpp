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

int Session::close_at_server(Mapping& mapping, const Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  for (;;) {
    const std::unique_ptr<rtrs::Operation> operation = table_.close(mapping);
    lock.unlock();
    const int error = client_->run_control(*operation, interrupt);
    lock.lock();
    if (table_.believes_close(mapping, error)) return error;
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
  // Without a path nothing can be stuck at the server.
  const bool stuck = mapping->handle.unresolved->any() && alive() && has_path();
  {
    std::lock_guard lock{mutex_};
    if (!table_.release(*mapping, stuck)) return;
  }
  close_for_good(*mapping);
}

/// A device that cannot be closed now, for want of a path, a permit or an answer, is closed later
/// by background_job().
void Session::close_for_good(Mapping& mapping) { end_closing(mapping, close_in_passing(mapping)); }

/// Closes an unused device.
std::unique_ptr<rtrs::Operation> Session::background_job() {
  std::lock_guard lock{mutex_};
  background_job_ = table_.next_left();
  return background_job_ ? table_.close(*background_job_) : nullptr;
}

void Session::background_job_ended(rtrs::Operation& operation) {
  const int error = operation.finished() ? operation.error() : EINTR;
  DeviceTable::Device device;
  bool believed = false;
  {
    std::lock_guard lock{mutex_};
    device = std::move(background_job_);
    believed = table_.believes_close(*device, error);
  }
  end_closing(*device, believed ? error : EIO);
}

void Session::end_closing(ClientDevice& device, int error) {
  std::lock_guard lock{mutex_};
  table_.close_ended(device, error);
  changed_.notify_all();
}

}  // namespace rnbd
