// SPDX-License-Identifier: BSD-3-Clause
// The client's knowledge of an open device: sizes, limits, and the server's abilities.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <tl/expected.hpp>

#include "bridge/protocol/messages.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// The user's choice about an operation that the server offers.
///
/// Linux servers from 6.12 to 6.19 may report success for DISCARD and WRITE_ZEROES without doing
/// anything, which cannot be seen on the wire: `automatic` trusts only rnbdkit servers.
enum class Use : std::uint8_t { automatic, always, never };

/// Identifies the content of a device. At a second OPEN it shows whether others may have written
/// meanwhile, see wire::DeviceInfoResponse. 0 = unknown.
struct Witness {
  std::uint64_t writer_serial = 0;
  std::uint32_t server_life = 0;
  std::uint32_t storage_life = 0;
  std::uint64_t sight = 0;  ///< for the CLAIM of an unclaimed device
  /// Of the server's record of writers, and as it was when this session came.
  std::uint64_t generation = 0;
  std::uint64_t found_generation = 0;
};

/// The witness in a server's answer.
Witness witness_of(const wire::DeviceInfoResponse& info);

/// True if a user that saw the content at `seen` may write to a device that another user of the
/// session has claimed. It must have seen the same content as that user (`claimed_on`), or the
/// session had the reservation already (`held`).
bool knows_as_much(const Witness& seen, const Witness& claimed_on, const Witness& held);

/// Shape and abilities of an open device.
///
/// Units: all sizes are bytes; a limit of 0 means that the server cannot do it.
struct DeviceGeometry {
  std::uint32_t device_id = 0;    ///< from the answer to OPEN
  std::uint64_t size = 0;         ///< as users see it; any number
  std::uint64_t padded_size = 0;  ///< whole sectors; bytes past `size` read as zero
  std::uint32_t block = 512;      ///< requests are multiples of it, except at the padded end
  std::uint32_t physical_block = 512;
  std::uint32_t preferred_block = 0;   ///< 0 = the server did not say
  std::uint32_t max_io = 0;            ///< per read or write request; a multiple of `block`
  std::uint64_t max_discard = 0;       ///< per request
  std::uint64_t max_write_zeroes = 0;  ///< per request
  std::uint32_t discard_granularity = 0;
  std::uint32_t discard_alignment = 0;
  bool can_flush = true;
  bool can_fua = true;      ///< by the server, or by a flush behind the write
  bool native_fua = false;  ///< of writes
  bool volatile_cache = false;
  bool rotational = false;
  bool read_only = false;  ///< the export itself
  bool in_use = false;     ///< another session may write to it, the server said when it was asked
  bool evicted = false;    ///< the server's operator has ended this session's writing
  bool shrunk = false;     ///< the storage ends before `size`, the server said when it was asked
  bool own_peer = false;   ///< an rnbdkit server: FUA on every operation, NOUNMAP honoured
  bool fast_zero = false;
  bool extents = false;
  bool cache = false;
  bool flush_covers_all = true;  ///< a flush makes the writes of every connection durable
  Witness witness;
  wire::Uuid export_uuid{};  ///< all zero when the server did not say

  /// The sizes that users see are multiples of it. So are requests, if the user keeps to sectors.
  std::uint32_t user_block() const { return size % wire::kSectorSize == 0 ? wire::kSectorSize : 1; }

  std::uint64_t round_down(std::uint64_t offset) const { return offset - offset % block; }
  std::uint64_t round_up(std::uint64_t offset) const {
    std::uint64_t up = round_down(offset + block - 1);
    return up < padded_size ? up : padded_size;
  }
  /// Bytes at the end of a discard to `end` that are no whole granule; 0 if granules are blocks.
  std::uint64_t past_granule(std::uint64_t end) const {
    const std::uint64_t granule = discard_granularity;
    if (granule <= block || granule % block != 0) return 0;
    const std::uint64_t past = (end + granule - discard_alignment % granule) % granule;
    return past % block == 0 ? past : 0;
  }
  /// True for a range that the server accepts unchanged.
  bool is_aligned(std::uint64_t offset, std::uint64_t length) const {
    std::uint64_t end = offset + length;
    return offset % block == 0 && (end % block == 0 || end == padded_size);
  }
};

/// The sizes of requests that NBD clients should keep to.
///
/// Units: bytes.
struct BlockSizes {
  std::uint32_t minimum = 1;
  std::uint32_t preferred = 4096;
  std::uint32_t maximum = 32 * 1024 * 1024;  ///< the largest request of portable clients
};

/// The minimum is one byte, because single bytes work and clients refuse smaller requests
/// themselves. The preferred size is the fast one.
inline BlockSizes block_sizes(const DeviceGeometry& geometry) {
  BlockSizes sizes;
  sizes.preferred =
      std::min(sizes.maximum,
               std::max({sizes.preferred, geometry.physical_block, geometry.preferred_block}));
  return sizes;
}

/// Takes over the server's size. A size that is not larger, or is impossible, changes nothing. An
/// end inside a block stays, because requests may reach over it.
void grow(DeviceGeometry& geometry, std::uint64_t size);

/// The user's choices about a device.
struct GeometryOptions {
  Use discard = Use::automatic;
  Use write_zeroes = Use::automatic;
};

/// How to open a device.
struct OpenOptions {
  wire::AccessMode access = wire::AccessMode::read_write;
  /// The writer's reservation is claimed before the first write, not at the OPEN. Servers without
  /// CLAIM reserve at the OPEN.
  bool unclaimed = false;
  /// The server has refused to open it for writing. Only servers with the extension report that.
  bool export_read_only = false;
  GeometryOptions geometry{};
  wire::Uuid uuid{};  ///< the required one; zeros = any
};

/// Builds the geometry from the answers to OPEN and DEVICE_INFO. The latter is null without the
/// extension.
///
/// Errors: a sentence about a value that no device can have.
/// Source: docs/protocol.md, OPEN response.
tl::expected<DeviceGeometry, std::string> make_geometry(const wire::OpenResponse& open,
                                                        const wire::DeviceInfoResponse* info,
                                                        const rtrs::SessionLimits& limits,
                                                        const GeometryOptions& options);

}  // namespace rnbd
