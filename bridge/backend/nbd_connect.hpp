// SPDX-License-Identifier: BSD-3-Clause
// libnbd's handle, how to get a connected one, and what its versions differ in.
#pragma once

#include <libnbd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>

#include "rdma/failure.hpp"

namespace rnbd {

using rtrs::Failure;

struct CloseNbdHandle {
  void operator()(nbd_handle* handle) const { nbd_close(handle); }
};
using NbdHandle = std::unique_ptr<nbd_handle, CloseNbdHandle>;

/// Connects and negotiates until the export can be used. Blocks for up to `patience`, and longer
/// while a name is looked up.
///
/// Errors: a sentence without the URI; ETIMEDOUT, ...
tl::expected<NbdHandle, Failure> connect_nbd(const std::string& uri, std::chrono::seconds patience);

/// True if nothing from the server is unread, not even the end of the connection.
bool is_silent(nbd_handle* h);

// ---- Ranges of more than 4 GiB: where libnbd and the server have extended headers ---------------

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
