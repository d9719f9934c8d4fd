// SPDX-License-Identifier: BSD-3-Clause
// An export's properties as RNBD describes them to clients.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>

#include "bridge/backend/backend.hpp"
#include "bridge/protocol/messages.hpp"

namespace rnbd {

/// The properties of a backend that matter to a client and to the checks of each I/O. Only the size
/// changes while it is open.
struct Geometry {
  std::uint64_t size = 0;     ///< bytes; may end inside the last sector; see grow()
  std::uint64_t sectors = 0;  ///< of 512 bytes, rounded up
  std::uint32_t logical_block = 0;
  std::uint32_t physical_block = 0;
  std::uint32_t discard_granularity = 0;  ///< bytes; 0 = no discard
  bool read_only = false;
  bool rotational = false;
  bool can_discard = false;
  bool can_write_zeroes = false;
  bool can_fast_zero = false;
  bool can_extents = false;
  bool can_cache = false;
  bool can_flush = true;
  bool queues_share = true;
  bool can_fua = false;  ///< by itself
  bool volatile_cache = true;
  wire::Uuid uuid{};

  /// A write can be made durable before it is answered.
  bool honours_fua() const { return can_fua || can_flush; }
  /// The first byte behind the reach of requests.
  std::uint64_t end() const { return sectors * wire::kSectorSize; }
};

/// Translates the description of a backend.
///
/// Errors: a sentence when clients could not use it (empty, block sizes that RNBD cannot carry).
tl::expected<Geometry, std::string> geometry_of(const BackendInfo& info, bool read_only);

/// Takes over a new size of the storage, which never shrinks.
void grow(Geometry& geometry, std::uint64_t size);

/// The same with this smaller size.
Geometry cut(Geometry geometry, std::uint64_t size);

/// Cuts a byte range at the end of the storage. False when it is not a range of the device.
bool fit_range(const Geometry& geometry, std::uint64_t offset, std::uint64_t& length);

/// The answer to OPEN.
///
/// Units: max_io_size in bytes.
wire::OpenResponse open_response(const Geometry& geometry, std::uint32_t device_id, bool writable,
                                 std::uint32_t max_io_size);

/// The answer to the extension's device_info.
wire::DeviceInfoResponse device_info_response(const Geometry& geometry, std::uint32_t device_id);

}  // namespace rnbd
