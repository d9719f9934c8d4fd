// SPDX-License-Identifier: BSD-3-Clause
// The identity of storage, which outlives its names and numbers.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace rnbd {

/// A text that identifies a regular file or a block device. It stays the same after a restart of
/// the server or the machine if the system has a lasting name for the storage. A block device
/// without such a name gets a new text after a restart of the machine, or when it was removed and
/// plugged in again. Clients then see a different disk, which is safer than a confusion of two.
///
/// `stat` is of the open file, with STATX_BASIC_STATS and STATX_BTIME. `root` is where /sys and
/// /proc are, for tests.
///
/// Threads: any; may block.
std::string identity_of(const struct statx& stat, const std::string& root = "");

/// Sixteen bytes that are derived from the text.
std::array<std::uint8_t, 16> uuid_of(std::string_view identity);

}  // namespace rnbd
