// SPDX-License-Identifier: BSD-3-Clause
// The connections of a session's paths.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "rdma/core/path.hpp"
#include "rdma/transport/client/path_driver.hpp"

namespace rtrs {

/// The driver of each path, by the path's number. A path between its lives has none.
///
/// Threads: the session's background thread.
class PathDrivers {
 public:
  /// Null: the path has none.
  PathDriver* find(unsigned path) const { return paths_[path].driver.get(); }
  /// It must have one.
  PathDriver& at(unsigned path) const { return *paths_[path].driver; }

  /// Is kept from one generation of a path to the next, for what it remembers.
  std::shared_ptr<HostLookup> lookup(unsigned path, const std::string& host);
  void start(unsigned path, std::shared_ptr<PathDriver> driver);
  void close(unsigned path);
  void close_all();
  /// Another path has the number.
  void forget(unsigned path) { paths_[path].lookup.reset(); }

  /// Sends what is queued on the control connections.
  void flush();
  /// The first that arrives ends the session at the server, with all its paths.
  void say_goodbye();

 private:
  struct Path {
    std::shared_ptr<PathDriver> driver;
    std::shared_ptr<HostLookup> lookup;
  };

  std::array<Path, kMaxPaths> paths_;
};

}  // namespace rtrs
