// SPDX-License-Identifier: BSD-3-Clause
// Extents with borders that clients can use.
#pragma once

#include <cstdint>
#include <vector>

#include "bridge/protocol/messages.hpp"

namespace rnbd {

/// Extents for at most `asked` bytes from `offset` on. All borders inside are multiples of `unit`,
/// because clients may ask for nothing smaller. A unit of different parts is a hole, or zeroes,
/// only if every part is. Adjacent extents of one kind become one.
///
/// Units:   bytes; `unit` is a power of two.
/// Threads: any; pure.
/// Source:  NBD protocol, NBD_REPLY_TYPE_BLOCK_STATUS (lengths are multiples of the minimum block
///          size, except at the end).
std::vector<wire::Extent> whole_extents(const std::vector<wire::Extent>& extents,
                                        std::uint64_t offset, std::uint64_t asked,
                                        std::uint32_t unit);

}  // namespace rnbd
