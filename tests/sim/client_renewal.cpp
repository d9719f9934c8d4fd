// SPDX-License-Identifier: BSD-3-Clause
// The driver of a simulated client when the server has forgotten the session.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/sim/client_driver.hpp"

namespace sim {

void ClientDriver::recover(unsigned index) {
  renews_elsewhere_ = paths_[index].elsewhere;
  // Its devices may have been closed meanwhile.
  if (renews_elsewhere_ && !may_be_welcome()) {
    return feed({.kind = rtrs::ClientEvent::Kind::no_permit, .path = index});
  }
  std::optional<std::uint16_t> permit;
  for (const auto& lane : lanes_) {
    if (!permit) permit = lane->lend_permit(index);
  }
  if (!permit) return feed({.kind = rtrs::ClientEvent::Kind::no_permit, .path = index});
  world_.note("client", serial_, "renews its session", index);
  rtrs::ClientPath& core = session_.path(index);
  const auto& accepted = core.accepted();
  const std::uint32_t max_io_size = std::min(accepted.max_io_size, session_.accepted().max_io_size);
  const rtrs::SessionLimits limits{max_io_size, core.permits(), accepted.extension.features,
                                   accepted.extension.volatile_epoch, session_.at(index).by_order};
  SimQueuePair& control = *paths_[index].links[0].queue_pair;
  renewal_ = std::make_unique<Renewal>();
  renewal_->path = index;
  renewal_->lane = std::make_unique<rtrs::ClientLane>(*permit, std::uint16_t{1});
  renewal_->operation = setup_.recovery->reopen(limits);
  core.set_control_handler(&renewal_->lane->connection(index));
  core.attach_reopening(*renewal_->lane, index, *permit, control);
  renewal_->operation->on_finish(
      [](void* context) {
        auto& self = *static_cast<ClientDriver*>(context);
        self.scope_.soon([&self] { self.recovered(); });
      },
      this);
  renewal_->operation->start(*renewal_->lane);
  control.flush();
}

void ClientDriver::recovered() {
  if (closed_ || failing_ || !renewal_) return;
  const auto renewal = std::move(renewal_);
  const unsigned index = renewal->path;
  int error = EIO;
  if (renewal->broken) {
    setup_.recovery->reopening_failed(*renewal->operation);
  } else {
    error = setup_.recovery->reopened(*renewal->operation);
    world_.note("client", serial_, "has renewed its session", static_cast<std::uint64_t>(error));
    if (error != 0) {
      session_.path(index).set_control_handler(nullptr);
    } else {
      renewal->lane->shut_down(EIO);  // nothing is in flight
    }
  }
  feed({.kind = rtrs::ClientEvent::Kind::recovered,
        .path = index,
        .cause = rtrs::Cause{rtrs::Cause::Kind::none, index, error}});
}

}  // namespace sim
