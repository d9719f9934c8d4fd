// SPDX-License-Identifier: BSD-3-Clause
// Assertions that stay on: a broken invariant of our own stops the program before it damages data.
#pragma once

#include <cstdio>
#include <cstdlib>

/// Aborts with the place and the condition when it does not hold, in every build.
#define RTRS_ENSURE(condition)                                                               \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
