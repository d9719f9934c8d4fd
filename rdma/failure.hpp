// SPDX-License-Identifier: BSD-3-Clause
// Why something at set-up failed, for programs and for people.
#pragma once

#include <string>

namespace rtrs {

/// Why something failed: an errno for programs, a sentence for people that says what to do.
struct Failure {
  int error = 0;
  std::string text;
};

}  // namespace rtrs
