// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/path_drivers.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "rdma/transport/client/options.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/resolve.hpp"

namespace rtrs {

std::shared_ptr<HostLookup> PathDrivers::lookup(unsigned path, const std::string& host) {
  auto& lookup = paths_[path].lookup;
  if (!lookup) lookup = std::make_shared<HostLookup>(host);
  return lookup;
}

void PathDrivers::start(unsigned path, std::shared_ptr<PathDriver> driver) {
  paths_[path].driver = std::move(driver);
  paths_[path].driver->start();
}

void PathDrivers::close(unsigned path) {
  paths_[path].driver->close();
  paths_[path].driver.reset();
}

void PathDrivers::close_all() {
  for (unsigned i = 0; i < kMaxPaths; ++i) {
    if (paths_[i].driver) close(i);
  }
}

void PathDrivers::flush() {
  for (Path& path : paths_) {
    if (path.driver) path.driver->flush();
  }
}

void PathDrivers::say_goodbye() {
  std::vector<PathDriver*> told;
  for (Path& path : paths_) {
    if (path.driver && path.driver->core().say_goodbye()) told.push_back(path.driver.get());
  }
  const Instant until = now() + std::chrono::milliseconds{100};
  for (PathDriver* path : told) {
    if (path->finish(until)) return;
  }
}

/// The paths of the session, without those that are leaving.
PathList PathDirectory::staying() const {
  std::vector<PathAddress> paths;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.at(i).exists() && !session_.at(i).leaving()) paths.push_back(options_.paths[i]);
  }
  return PathList{std::move(paths)};
}

std::optional<unsigned> PathDirectory::find(const PathAddress& address) const {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.at(i).exists() && options_.paths[i] == address) return i;
  }
  return std::nullopt;
}

/// So that one of them could begin the session anew.
bool PathDirectory::others_have_led_there(unsigned path) const {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    const bool stays = i != path && session_.at(i).exists() && !session_.at(i).leaving();
    if (stays && session_.at(i).last_access() && !session_.is_elsewhere(i)) return true;
  }
  return false;
}

tl::expected<unsigned, Failure> PathDirectory::number_of(const PathAddress& address) const {
  if (auto there = staying().contains(address); !there) return tl::unexpected(there.error());
  return *find(address);
}

tl::expected<std::optional<unsigned>, Failure> PathDirectory::add(const PathAddress& address,
                                                                  Instant now) {
  if (auto fits = can_carry(address, options_.tls); !fits) return tl::unexpected(fits.error());
  PathList list = staying();
  if (auto added = list.add(address); !added) return tl::unexpected(added.error());
  const auto path = session_path(options_, address);
  if (const auto index = find(address)) {
    session_.stay(*index);
    session_.set_rank(*index, path.rank);
    options_.paths[*index].preference = address.preference;
    return std::nullopt;
  }
  const auto index = session_.add(path, now);
  if (!index) {
    return tl::unexpected(
        Failure{ENOSPC,
                "paths that were removed are still leaving (the server may be at what came over "
                "them); try again later"});
  }
  options_.paths.resize(std::max<std::size_t>(options_.paths.size(), *index + 1));
  options_.paths[*index] = address;
  return index;
}

tl::expected<unsigned, Failure> PathDirectory::removable(const PathAddress& address) const {
  PathList list = staying();
  if (auto removed = list.remove(address); !removed) return tl::unexpected(removed.error());
  const unsigned index = *find(address);
  if (others_have_led_there(index)) return index;
  return tl::unexpected(
      Failure{EBUSY, "no other path has led to the server yet, so none could take the place of " +
                         to_string(address) + "; wait until another one is connected"});
}

}  // namespace rtrs
