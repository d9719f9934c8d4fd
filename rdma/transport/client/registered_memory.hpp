// SPDX-License-Identifier: BSD-3-Clause
// Memory of callers that the devices of all paths know.
#pragma once

#include <tl/expected.hpp>
#include <vector>

#include "rdma/failure.hpp"
#include "rdma/transport/client/lanes.hpp"
#include "rdma/transport/connection.hpp"

namespace rtrs {

/// Registers memory with every connection that carries I/O, those that will come included.
///
/// Threads: the client's background thread.
class RegisteredMemory {
 public:
  /// `lanes` must outlive this object.
  explicit RegisteredMemory(ClientLanes& lanes) : lanes_{lanes} {}

  /// Errors: EEXIST; those of the devices: then none knows it.
  tl::expected<void, Failure> add(MutableBytes memory);
  /// Errors: ENOENT.
  tl::expected<void, Failure> remove(MutableBytes memory);
  /// A connection has come. The result: why its device did not take some of it; that is copied.
  std::vector<Failure> introduce_to(Connection& connection) const;

 private:
  void forget(MutableBytes memory);

  ClientLanes& lanes_;
  std::vector<MutableBytes> memories_;
};

}  // namespace rtrs
