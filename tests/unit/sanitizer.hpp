// SPDX-License-Identifier: BSD-3-Clause
// Facts of the sanitizer that a test is built with.
#pragma once

namespace rtrs::test {

/// GCC says it with a macro, and Clang with a feature.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace rtrs::test
