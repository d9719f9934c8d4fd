// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/run_seeds.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

namespace sim {
namespace {

using Number = unsigned long long;

struct SeedOptions {
  std::uint64_t first = 1;
  std::uint64_t seeds = 0;
  std::uint64_t seed = 0;
  bool trace = false;
  bool quiet = false;
  bool list_plants = false;
  std::string plant;
};

/// False: a rule is broken.
bool run_one(const Simulator& simulator, const SeedOptions& options, std::uint64_t seed,
             std::uint64_t& operations) {
  try {
    operations += simulator.run(seed, options.trace);
    return true;
  } catch (const std::exception& violation) {  // also of a container: the code lost something
    std::printf("seed %llu breaks a rule:\n  %s\nreplay: %s --seed %llu --trace%s\n", Number{seed},
                violation.what(), simulator.program.c_str(), Number{seed},
                options.plant.empty() ? "" : (" --plant " + options.plant).c_str());
    return false;
  }
}

int run_all(const Simulator& simulator, const SeedOptions& options) {
  std::uint64_t operations = 0;
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    if (!run_one(simulator, options, options.first + i, operations)) return 1;
    if (options.quiet || (i + 1) % 10000 != 0) continue;
    std::printf("%llu seeds kept every rule so far\n", Number{i + 1});
    std::fflush(stdout);
  }
  std::printf("%llu seeds kept every rule: %llu operations\n", Number{options.seeds},
              Number{operations});
  return 0;
}

int list_plants(const Simulator& simulator) {
  for (const plants::Plant& plant : simulator.plants)
    std::printf("%-20s %s\n", plant.name, plant.text);
  return 0;
}

}  // namespace

int run_seeds(const Simulator& simulator, int argc, char** argv) {
  const std::string planted = simulator.program + "-planted";
  SeedOptions options;
  CLI::App app{simulator.about};
  auto* seed = app.add_option("--seed", options.seed, "run this seed");
  app.add_flag("--trace", options.trace, "print everything that happens")->needs(seed);
  app.add_option("--seeds", options.seeds, "run so many seeds")->excludes(seed);
  app.add_option("--first", options.first, "the first of them (default 1)");
  app.add_flag("--quiet", options.quiet, "no progress");
  app.add_option("--plant", options.plant, "with this bug (" + planted + ")");
  app.add_flag("--list-plants", options.list_plants, "the bugs that can be planted");
  CLI11_PARSE(app, argc, argv);
  if (options.list_plants) return list_plants(simulator);
  if (!options.plant.empty() && !plants::select(simulator.plants, options.plant)) {
    std::fprintf(stderr, "no bug '%s' can be planted here; see --list-plants of %s\n",
                 options.plant.c_str(), planted.c_str());
    return 2;
  }
  if (*seed) {
    options.first = options.seed;
    options.seeds = 1;
  }
  if (options.seeds == 0) {
    std::fprintf(stderr, "nothing to do: give --seed N or --seeds N (--help tells more)\n");
    return 2;
  }
  return run_all(simulator, options);
}

}  // namespace sim
