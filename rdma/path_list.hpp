// SPDX-License-Identifier: BSD-3-Clause
// The paths that a session is to have, as people name them.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "rdma/client.hpp"

namespace rtrs {

/// `tcp:127.0.0.1:1234`, `rdma:10.0.0.2@10.0.0.1:1234`, IPv6 addresses in brackets.
std::string to_string(const PathAddress& path);

/// Whether a path can keep what is asked of all paths of its session.
///
/// Errors: EPROTONOSUPPORT (RDMA does not encrypt).
tl::expected<void, Failure> can_carry(const PathAddress& path, TlsMode tls);

/// Decides whether one may be added or taken away.
class PathList {
 public:
  explicit PathList(std::vector<PathAddress> paths) : paths_{std::move(paths)} {}

  const std::vector<PathAddress>& all() const { return paths_; }
  /// Errors: EEXIST; ENOSPC (kMaxPaths).
  tl::expected<void, Failure> add(const PathAddress& path);
  /// Errors: ENOENT; EBUSY (it is the last one).
  tl::expected<void, Failure> remove(const PathAddress& path);
  /// Errors: ENOENT.
  tl::expected<void, Failure> contains(const PathAddress& path) const;

 private:
  std::vector<PathAddress> paths_;
};

}  // namespace rtrs
