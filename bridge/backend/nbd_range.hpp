// SPDX-License-Identifier: BSD-3-Clause
// Ranges of more than 4 GiB, where libnbd and the server have extended headers.
#pragma once

#include <libnbd.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace rnbd {

/// Bytes per zero, trim and block status command with compact headers, which count them in 32 bits.
inline constexpr std::uint64_t kMaxCompactRange = 1024 * 1024 * 1024;

// libnbd asks for extended headers by itself from 1.18 on.
#ifdef LIBNBD_HAVE_NBD_AIO_BLOCK_STATUS_64

using NbdExtent = nbd_extent;
using NbdExtentWord = nbd_extent;  ///< of a callback's array
inline constexpr auto nbd_aio_ask_extents = nbd_aio_block_status_64;

/// Bytes per zero, trim and block status command over this connection.
inline std::uint64_t max_range(nbd_handle* h) {
  return nbd_get_extended_headers_negotiated(h) == 1 ? INT64_MAX : kMaxCompactRange;
}

#else

struct NbdExtent {
  std::uint32_t length;
  std::uint32_t flags;
};
using NbdExtentWord = std::uint32_t;
inline constexpr auto nbd_aio_ask_extents = nbd_aio_block_status;

inline std::uint64_t max_range(nbd_handle* /*h*/) { return kMaxCompactRange; }

#endif

/// The array that libnbd hands to a callback.
inline std::span<const NbdExtent> extents_of(const NbdExtentWord* words, std::size_t count) {
  constexpr std::size_t kWords = sizeof(NbdExtent) / sizeof(NbdExtentWord);
  return {reinterpret_cast<const NbdExtent*>(words), count / kWords};
}

}  // namespace rnbd
