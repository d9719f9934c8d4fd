// SPDX-License-Identifier: BSD-3-Clause
// Somebody adds paths to a simulated client's session and removes others while it works, as
// rdma/transport/client/driver_control.cpp does.
#include <algorithm>

#include "tests/sim/client_driver.hpp"

namespace sim {
namespace {

/// With those that are leaving: the server has memory for so many.
constexpr std::size_t kMostPaths = 3;

}  // namespace

void ClientDriver::change_paths() {
  if (failing_ || !setup_.client.survives) return;
  std::vector<unsigned> staying;
  std::vector<unsigned> leaving;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.at(i).exists()) (session_.at(i).leaving() ? leaving : staying).push_back(i);
  }
  Rng& rng = world_.rng();
  if (staying.size() > 1 && rng.chance(500)) {
    const unsigned path = staying[rng.below(staying.size())];
    // One has to stay that has led to the server.
    const bool others = std::ranges::any_of(
        staying, [&](unsigned i) { return i != path && session_.at(i).last_access().has_value(); });
    if (others) {
      world_.note("client", serial_, "is to leave path", path);
      path_watch_.set_leaving(path, true);
      feed({.kind = rtrs::ClientEvent::Kind::remove, .path = path});
    }
  } else if (!leaving.empty() && rng.chance(200)) {
    const unsigned path = leaving[rng.below(leaving.size())];
    path_watch_.set_leaving(path, false);
    session_.stay(path);
  } else if (staying.size() + leaving.size() < kMostPaths) {
    const auto options = path_options(setup_, rng);
    if (const auto added = session_.add(options, world_.now())) {
      path_watch_.added(*added, options.rank);
      paths_[*added].elsewhere = draw_elsewhere();
      paths_[*added].refused = false;
      latency_watch_.added(*added);
      world_.note("client", serial_, "gets another path", *added);
    }
  }
  look();
}

bool ClientDriver::is_bound(unsigned index) const {
  return std::ranges::any_of(lanes_, [&](const auto& lane) { return lane->bound(index); });
}

}  // namespace sim
