// SPDX-License-Identifier: BSD-3-Clause
// Judges one I/O message before anything happens: the result is the backend's operation, or an
// errno.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bridge/backend/backend.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/server/geometry.hpp"

namespace rnbd {

/// Up to three steps: a flush, the operation, a flush. Nothing runs when `error` is set.
struct IoPlan {
  int error = 0;  ///< positive errno
  BackendOperation operation = BackendOperation::flush;
  bool flush_before = false;
  bool flush_after = false;  ///< stands in for FUA where the backend has none
  bool fua = false;
  bool no_unmap = false;
  bool fast = false;
  bool copy = false;                ///< BackendRequest::copy
  std::uint32_t unknown_flags = 0;  ///< those of a client without the extension; for the log
  std::uint64_t offset = 0;         ///< bytes
  std::uint64_t length = 0;         ///< bytes

  bool changes() const {
    return operation == BackendOperation::write || operation == BackendOperation::discard ||
           operation == BackendOperation::write_zeroes;
  }
};

/// The rights of the sender on the device.
struct IoRights {
  bool writable = false;    ///< access mode of the mapping
  bool extensions = false;  ///< the session negotiated the RNBD extension
  bool guarded = false;     ///< Device::guarded
};

/// Checks every field of an I/O message against the request that carried it and the device.
///
/// Units:  data_size is the size of the RTRS request's data in bytes.
/// Unknown flags of a client without the extension are ignored, except those of WRITE ZEROES.
///
/// Errors: EOPNOTSUPP (operation, flag or ability that is not there), EROFS (a write on a read-only
///         mapping), EINVAL (fields that contradict each other), EIO (outside the device, as
///         kernel servers answer).
/// Source: docs/protocol.md, RNBD I/O.
IoPlan plan_io(wire::Io io, bool is_read, std::size_t data_size, const Geometry& geometry,
               IoRights rights);

}  // namespace rnbd
