// SPDX-License-Identifier: BSD-3-Clause
// One run: from a seed to a verdict.
#pragma once

#include <cstdint>
#include <string>

namespace sim {

struct Verdict {
  std::string violation;  ///< empty: every rule was kept
  std::uint64_t trace_hash = 0;
  std::uint64_t events = 0;
  std::uint64_t operations = 0;
};

/// Runs one seed: a phase with faults, in which nothing wrong may happen, then one without, in
/// which everything must come to its end.
/// `long_run`: with many more operations.
Verdict run_seed(std::uint64_t seed, bool trace, bool long_run = false);

}  // namespace sim
