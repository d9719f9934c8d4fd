// SPDX-License-Identifier: BSD-3-Clause
// What a client does when its server has forgotten the session.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "rdma/transport/client_driver.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;

}  // namespace

void ClientDriver::renew_on_io(unsigned index) {
  if (options_.keeper == nullptr) {
    return fail_on_io({EIO, name_of_path(index) + " has forgotten the session"});
  }
  Path& path = paths_[index];
  std::optional<std::uint16_t> permit;
  for_each_lane([&](ClientLane& lane) {
    if (!permit) permit = lane.lend_permit(index);
  });
  if (!permit) {
    return lose_on_io(
        index, path.life,
        {EAGAIN,
         name_of_path(index) + ": the server may still have all that came over the lost paths"});
  }
  ClientPath& core = path.driver->core();
  const auto& accepted = core.accepted();
  // Other paths may have less room than this one.
  const std::uint32_t max_io_size = std::min(accepted.max_io_size, session_.accepted().max_io_size);
  const SessionLimits limits{max_io_size, core.permits(), accepted.extension.features,
                             accepted.extension.volatile_epoch};
  renewal_ = std::make_unique<Renewal>();
  renewal_->path = index;
  renewal_->lane = std::make_unique<ClientLane>(*permit, std::uint16_t{1});
  renewal_->operation = options_.keeper->reopen(limits);
  core.set_control_handler(&renewal_->lane->handler(index));
  core.attach_reopening(*renewal_->lane, index, *permit, path.driver->control());
  renewal_->operation->on_finish(
      [](void* context) {
        auto& self = *static_cast<ClientDriver*>(context);
        asio::post(self.io_, [&self] { self.renewed_on_io(); });
      },
      this);
  renewal_->operation->start(*renewal_->lane);
  path.driver->flush();
}

void ClientDriver::renewed_on_io() {
  if (closed_ || !renewal_) return;
  const auto renewal = std::move(renewal_);
  const unsigned index = renewal->path;
  if (renewal->broken) {
    options_.keeper->reopening_failed(*renewal->operation);
    return retry_held_on_io();
  }
  const int error = options_.keeper->reopened(*renewal->operation);
  if (error == ESTALE) {
    return fail_on_io({ESTALE, name_of_path(index) + " shows something else than before"});
  }
  if (error == 0) {
    renewal->lane->shut_down(EIO);  // nothing is in flight
    for_each_lane([](ClientLane& lane) { lane.renew(); });
    join_on_io(index);
    log(LogLevel::info, "session '" + options_.session_name + "': " + name_of_path(index) +
                            " had forgotten it; a new one has taken its place");
  } else {
    paths_[index].driver->core().set_control_handler(nullptr);
    lose_on_io(index, paths_[index].life,
               {error, name_of_path(index) + ": what was open there cannot be opened again now: " +
                           std::generic_category().message(error)});
  }
  retry_held_on_io();
}

/// Paths that became ready meanwhile.
void ClientDriver::retry_held_on_io() {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (!closed_ && std::exchange(paths_[i].held, false)) ready_on_io(i);
  }
}

}  // namespace rtrs
