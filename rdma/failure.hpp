// SPDX-License-Identifier: BSD-3-Clause
// The error of a function that sets something up: a connection, a listener, a file.
#pragma once

#include <string>

namespace rtrs {

/// An errno for programs, and a sentence for people that says what failed and what to do.
struct Failure {
  int error = 0;
  std::string text;
};

}  // namespace rtrs
