// SPDX-License-Identifier: BSD-3-Clause
// The command line of a simulator whose worlds need a seed and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

struct PlantedBug {
  std::string name;
  std::string text;
};

struct Simulator {
  std::string program;
  std::string about;  ///< a sentence for --help
  std::vector<PlantedBug> plants;
  bool (*select_plant)(std::string_view name) = nullptr;
  /// Returns the operations of the clients. Throws std::exception when a rule is broken.
  std::uint64_t (*run)(std::uint64_t seed, bool trace) = nullptr;
};

/// A vector of what a part's plants() has.
template <class Entries>
std::vector<PlantedBug> bugs_of(const Entries& entries) {
  std::vector<PlantedBug> result;
  for (const auto& entry : entries) result.push_back({entry.name, entry.text});
  return result;
}

/// Returns the exit status: 0, 1 when a seed breaks a rule, 2 for a wrong command line.
int run_seeds(const Simulator& simulator, int argc, char** argv);

}  // namespace sim
