// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/path_drivers.hpp"

#include <chrono>
#include <utility>
#include <vector>

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

}  // namespace rtrs
