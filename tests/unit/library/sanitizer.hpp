// SPDX-License-Identifier: BSD-3-Clause
// The limits of a sanitizer that a test has to know.
#pragma once

namespace rtrs::library {

/// The Address Sanitizer's allocator takes no part in fork(): in a child of a process with threads
/// one of its locks may be held for ever. So such a child must not allocate.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kChildrenMayHang = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kChildrenMayHang = true;
#else
inline constexpr bool kChildrenMayHang = false;
#endif
#else
inline constexpr bool kChildrenMayHang = false;
#endif

}  // namespace rtrs::library
