// SPDX-License-Identifier: BSD-3-Clause
// The command line of a simulator whose worlds need a seed and nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tests/plants/plants.hpp"

namespace sim {

struct Simulator {
  std::string program;
  std::string about;  ///< a sentence for --help
  std::span<const plants::Plant> plants;
  /// Returns the operations of the clients. Throws std::exception when a rule is broken.
  std::uint64_t (*run)(std::uint64_t seed, bool trace) = nullptr;
};

/// Returns the exit status: 0, 1 when a seed breaks a rule, 2 for a wrong command line.
int run_seeds(const Simulator& simulator, int argc, char** argv);

}  // namespace sim
