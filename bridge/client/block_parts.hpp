// SPDX-License-Identifier: BSD-3-Clause
// Ranges of bytes, cut where blocks begin.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bridge/client/geometry.hpp"

namespace rnbd {

/// A range that was cut. Any part may be empty.
struct BlockParts {
  std::uint64_t head_end;    ///< [offset, head_end) is a partial block
  std::uint64_t middle_end;  ///< [head_end, middle_end) is whole blocks
};                           ///< [middle_end, end) is a partial block

inline BlockParts cut_at_blocks(const DeviceGeometry& geometry, std::uint64_t offset,
                                std::uint64_t end) {
  const std::uint64_t head_end = std::min(geometry.round_up(offset), end);
  const std::uint64_t middle_end = end == geometry.padded_size ? end : geometry.round_down(end);
  return {head_end, std::max(head_end, middle_end)};
}

/// The same for a range that may include the padding behind the end of the device.
inline BlockParts whole_blocks_at_end(const DeviceGeometry& geometry, std::uint64_t offset,
                                      std::uint64_t length) {
  const std::uint64_t end = offset + length;
  return cut_at_blocks(geometry, offset, end == geometry.size ? geometry.padded_size : end);
}

}  // namespace rnbd
