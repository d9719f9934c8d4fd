// SPDX-License-Identifier: BSD-3-Clause
// The identity of storage, which outlives its names and numbers.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace rnbd {

/// Words that tell a regular file or a block device from every other one, and are the same after a
/// restart of the server or its machine as far as the system knows a name that lasts. A block
/// device without one is never the same after a restart of the machine, or once it was taken away
/// and something is there again: better refused than confused.
///
/// `stat` is of the open file, with STATX_BASIC_STATS and STATX_BTIME. `root` is where /sys and
/// /proc are, for tests.
///
/// Threads: any; may block.
std::string identity_of(const struct statx& stat, const std::string& root = "");

/// Sixteen bytes that follow from the words.
std::array<std::uint8_t, 16> uuid_of(std::string_view identity);

}  // namespace rnbd
