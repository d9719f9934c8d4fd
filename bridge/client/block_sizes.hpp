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

}  // namespace rnbd
