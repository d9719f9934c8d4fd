// SPDX-License-Identifier: BSD-3-Clause
// The limits of a sanitizer that a test has to know.
#pragma once

#include "tests/unit/sanitizer.hpp"

namespace rtrs::library {

/// The Address Sanitizer's allocator takes no part in fork(): in a child of a process with threads
/// one of its locks may be held for ever. So such a child must not allocate.
inline constexpr bool kChildrenMayHang = test::kAddressSanitizer;

}  // namespace rtrs::library
