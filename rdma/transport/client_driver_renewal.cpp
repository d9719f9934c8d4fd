// SPDX-License-Identifier: BSD-3-Clause
// Recovery of a session that the server has forgotten.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <optional>
#include <utility>

#include "rdma/transport/client_driver.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;

}  // namespace

void ClientDriver::recover_on_io(unsigned index) {
  Path& path = paths_[index];
  std::optional<std::uint16_t> permit;
  for_each_lane([&](ClientLane& lane) {
    if (!permit) permit = lane.lend_permit(index);
  });
  if (!permit) return feed_on_io({.kind = ClientEvent::Kind::no_permit, .path = index});
  ClientPath& core = path.driver->core();
  const auto& accepted = core.accepted();
  // Other paths may have less room than this one.
  const std::uint32_t max_io_size = std::min(accepted.max_io_size, session_.accepted().max_io_size);
  const SessionLimits limits{max_io_size, core.permits(), accepted.extension.features,
                             accepted.extension.volatile_epoch};
  renewal_ = std::make_unique<Renewal>();
  renewal_->path = index;
  renewal_->lane = std::make_unique<ClientLane>(*permit, std::uint16_t{1});
  renewal_->operation = options_.recovery->reopen(limits);
  core.set_control_handler(&renewal_->lane->handler(index));
  core.attach_reopening(*renewal_->lane, index, *permit, path.driver->control());
  renewal_->operation->on_finish(
      [](void* context) {
        auto& self = *static_cast<ClientDriver*>(context);
        asio::post(self.io_, [&self] { self.recovered_on_io(); });
      },
      this);
  renewal_->operation->start(*renewal_->lane);
  path.driver->flush();
}

void ClientDriver::recovered_on_io() {
  if (closed_ || !renewal_) return;
  const auto renewal = std::move(renewal_);
  const unsigned index = renewal->path;
  int error = EIO;
  if (renewal->broken) {
    options_.recovery->reopening_failed(*renewal->operation);
  } else {
    error = options_.recovery->reopened(*renewal->operation);
    if (error != 0) {
      paths_[index].driver->core().set_control_handler(nullptr);
    } else {
      renewal->lane->shut_down(EIO);  // nothing is in flight
    }
  }
  feed_on_io({.kind = ClientEvent::Kind::recovered,
              .path = index,
              .cause = Cause{Cause::Kind::none, index, error}});
}

}  // namespace rtrs
