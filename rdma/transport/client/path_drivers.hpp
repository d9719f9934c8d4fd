// SPDX-License-Identifier: BSD-3-Clause
// The paths of a session by their numbers: their connections, and their addresses.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "rdma/client.hpp"
#include "rdma/core/client/session.hpp"
#include "rdma/core/path.hpp"
#include "rdma/path_list.hpp"
#include "rdma/transport/client/path_driver.hpp"

namespace rtrs {

/// The driver of each path, by the path's number. A path between its lives has none.
///
/// Threads: the session's background thread.
class PathDrivers {
 public:
  /// Null: the path has none.
  PathDriver* find(unsigned path) const { return paths_[path].driver.get(); }
  /// The path must have a driver.
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

/// Finds paths by their addresses, and judges commands that change them. Users name paths by their
/// addresses, the session by numbers.
///
/// Errors:  the sentence of each says the remedy.
/// Threads: the client's background thread.
class PathDirectory {
 public:
  /// `options.paths` has the addresses by number, those that are free as well. Both must outlive
  /// this object.
  PathDirectory(ClientOptions& options, ClientSession& session)
      : options_{options}, session_{session} {}

  /// The number of a path that is not leaving. Errors: ENOENT.
  tl::expected<unsigned, Failure> number_of(const PathAddress& address) const;
  /// Adds a path, or keeps one that was leaving. The result: the number, if the path is a new one.
  /// Errors: EEXIST, EPROTONOSUPPORT; ENOSPC.
  tl::expected<std::optional<unsigned>, Failure> add(const PathAddress& address, Instant now);
  /// The number of a path that may be removed. Errors: ENOENT; EBUSY (the others cannot do without
  /// it).
  tl::expected<unsigned, Failure> removable(const PathAddress& address) const;

 private:
  PathList staying() const;
  std::optional<unsigned> find(const PathAddress& address) const;
  bool others_have_led_there(unsigned path) const;

  ClientOptions& options_;
  ClientSession& session_;
};

}  // namespace rtrs
