// SPDX-License-Identifier: BSD-3-Clause
// A program that counts what it takes from the heap, and is refused it as a test wishes.
#pragma once

#include <cstddef>

namespace rtrs::test {

/// Allocations of all threads since the program began.
std::size_t allocations();

/// Of the allocations of a thread `left` succeed, and then `refused` others fail.
struct Lack {
  unsigned left = 0;
  unsigned refused = 0;
};

/// Sets it for this thread, and returns what was left of the one before.
Lack set_lack(Lack wanted);

}  // namespace rtrs::test
