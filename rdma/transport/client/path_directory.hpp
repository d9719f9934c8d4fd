// SPDX-License-Identifier: BSD-3-Clause
// The paths of a session by their addresses, and whether commands may change them.
#pragma once

#include <optional>
#include <tl/expected.hpp>

#include "rdma/client.hpp"
#include "rdma/core/client/session.hpp"
#include "rdma/path_list.hpp"

namespace rtrs {

/// Users name paths by their addresses, the session by numbers.
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
