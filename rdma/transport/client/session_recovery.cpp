// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/session_recovery.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace rtrs {

SessionRecovery::SessionRecovery(RecoveryHandler& handler, PathDriver& driver, std::uint16_t permit,
                                 std::function<void()> over)
    : handler_{handler},
      driver_{driver},
      permit_{permit},
      over_{std::move(over)},
      lane_{permit, std::uint16_t{1}} {}

void SessionRecovery::start(unsigned path, std::uint32_t room, bool any_server) {
  path_ = path;
  ClientPath& core = driver_.core();
  const auto& accepted = core.accepted();
  operation_ =
      handler_.reopen({std::min(accepted.max_io_size, room), core.permits(),
                       accepted.extension.features, accepted.extension.volatile_epoch, any_server});
  core.set_control_handler(&lane_.connection(path));
  core.attach_reopening(lane_, path, permit_, driver_.control());
  operation_->on_finish([](void* context) { static_cast<SessionRecovery*>(context)->over_(); },
                        this);
  operation_->start(lane_);
  driver_.flush();
}

void SessionRecovery::break_off() {
  broken_ = true;
  lane_.shut_down(EIO);
}

int SessionRecovery::end() {
  if (broken_) {
    handler_.reopening_failed(*operation_);
    return EIO;
  }
  const int error = handler_.reopened(*operation_);
  if (error != 0) {
    driver_.core().set_control_handler(nullptr);
  } else {
    lane_.shut_down(EIO);  // nothing is in flight
  }
  return error;
}

}  // namespace rtrs
