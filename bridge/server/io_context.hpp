// SPDX-License-Identifier: BSD-3-Clause
// A request while it is at the backend.
#pragma once

#include <cstdint>
#include <vector>

#include "bridge/server/io_requests.hpp"
#include "bridge/server/throttle.hpp"

namespace rnbd {

/// `next` is also of the free ones.
struct IoRequests::IoContext : ThrottledRequest {
  enum class Step : std::uint8_t {
    limit_of_session,
    limit_of_export,
    flush_before,
    operation,
    flush_after
  };

  BackendRequest backend;
  IoRequests* owner = nullptr;
  rtrs::ServerRequest* request = nullptr;
  Device* device = nullptr;
  IoPlan plan;
  Step step = Step::operation;
  bool timed = false;
  /// By Services::clock: the start of a timed request; otherwise the time when it was first
  /// seen.
  std::uint64_t began = 0;
  std::vector<BackendExtent> extents;  ///< block_status only
  PacedHandler again = nullptr;        ///< after the limits
};

/// Writes the answer to block_status over `room`; the caller has checked that one extent fits.
void encode_extents(const std::vector<BackendExtent>& extents, std::uint64_t length,
                    rtrs::wire::MutableBytes room);

}  // namespace rnbd
