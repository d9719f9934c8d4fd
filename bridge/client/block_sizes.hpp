// SPDX-License-Identifier: BSD-3-Clause
// The sizes of requests that NBD clients should keep to.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bridge/client/geometry.hpp"

namespace rnbd {

/// Units: bytes.
struct BlockSizes {
  std::uint32_t minimum = 1;
  std::uint32_t preferred = 4096;
  std::uint32_t maximum = 32 * 1024 * 1024;  ///< the most that portable clients send
};

/// Single bytes work, so no more is demanded: clients themselves refuse requests below the minimum.
/// The preferred size is the fast one.
inline BlockSizes block_sizes(const DeviceGeometry& geometry) {
  BlockSizes sizes;
  sizes.preferred =
      std::min(sizes.maximum,
               std::max({sizes.preferred, geometry.physical_block, geometry.preferred_block}));
  return sizes;
}

}  // namespace rnbd
