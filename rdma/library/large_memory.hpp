// SPDX-License-Identifier: BSD-3-Clause
// Memory of large data and answers, which is used again: to have the system make it anew, page by
// page and zeroed, takes about as long as to fill it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rtrs::library {

/// Memory for large_free() or free(), with whatever is in it; in large pages where the system has
/// them. Null: there is none.
///
/// Units:   bytes
/// Threads: any
std::byte* large_allocate(std::uint64_t length);

/// Keeps a large block for the next large_allocate() of about its size: a few of them, and no more
/// than kMostKept or an eighth of the machine's memory. The system may take their pages back at any
/// time. Everything else goes to free(). `memory` may be null, and anything from malloc().
///
/// Threads: any
void large_free(void* memory);

inline constexpr std::uint64_t kLargePage = 2U << 20;   ///< bytes; smaller blocks are not kept
inline constexpr std::uint64_t kMostKept = 4ULL << 30;  ///< bytes in all

}  // namespace rtrs::library
