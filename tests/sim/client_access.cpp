// SPDX-License-Identifier: BSD-3-Clause
// A simulated client's reaction to a changed access of a path, and the check of it.
#include <utility>

#include "tests/sim/client_driver.hpp"

namespace sim {
/// Reads the server's answer as it is on the wire, not as the code under test has it.
void ClientDriver::note_accept(unsigned index, rtrs::ConstBytes record) {
  const auto response = rtrs::wire::copy_of<rtrs::wire::ConnectResponse>(record);
  const bool tells =
      setup_.client.access_notices && (response.features & rtrs::wire::kFeatureAccessNotice) != 0;
  paths_[index].access = response.access;
  paths_[index].tells_access = tells;
  paths_[index].forbidden = tells && response.access == kInaccessible;
}

void ClientDriver::look_for_notice(unsigned index) {
  const auto notice = paths_[index].links[0].queue_pair->notice();
  if (!notice || std::exchange(paths_[index].noticed, true)) return;
  world_.note("client", serial_, "is told of access", index, *notice);
  paths_[index].access = *notice;
  path_watch_.access_changed(index, *notice, *notice != kInaccessible);
  if (!session_.path(index).access_noticed()) {
    world_.violate(who() + " was told of access and did not notice");
  }
  feed({.kind = rtrs::ClientEvent::Kind::access, .path = index});
}

/// No request goes over an inaccessible path from here on.
void ClientDriver::acknowledge(unsigned index) {
  Path& path = paths_[index];
  if (!path.open || !path.noticed) return;
  SimQueuePair& control = *path.links[0].queue_pair;
  if (session_.at(index).state == rtrs::PathState::connected) forbid_requests(index);
  path.forbidden = control.notice() == kInaccessible;
  path.noticed = false;
  control.forget_notice();
  session_.path(index).acknowledge_access();
}

void ClientDriver::allow(unsigned index) {
  const auto notice = paths_[index].links[0].queue_pair->notice();
  end_giving_up();
  if (notice != kInaccessible) forbid_requests(index);
  for (auto& lane : lanes_) {
    lane->allow(index, session_.path(index).accessible());
    lane->flush();
  }
}

/// The control lane may need the path all the same.
void ClientDriver::forbid_requests(unsigned index) {
  Path& path = paths_[index];
  const auto notice = path.links[0].queue_pair->notice();
  if (notice) path.forbidden = *notice == kInaccessible;
  for (std::size_t cid = 1; cid < path.links.size(); ++cid) {
    path.links[cid].queue_pair->forbid_requests(path.forbidden);
  }
}

/// Requests go on, or wait again.
void ClientDriver::end_giving_up() {
  if (session_.in_use(world_.now()) != 0) gave_up_ = false;
}

}  // namespace sim
