// SPDX-License-Identifier: BSD-3-Clause
// rnbd-sim-brick: runs seeds through a brick.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "bridge/backend/brick/plant.hpp"
#include "tests/sim/brick/brick_world.hpp"

namespace {

struct Options {
  std::uint64_t first = 1;
  std::uint64_t seeds = 0;
  std::uint64_t seed = 0;
  bool trace = false;
  bool quiet = false;
  bool list_plants = false;
  std::string plant;
};

/// False: a rule is broken.
bool run(const Options& options, std::uint64_t seed, std::uint64_t& operations) {
  sim::BrickWorld world{seed, options.trace};
  try {
    world.run();
  } catch (const std::exception& violation) {  // also of a container: the code lost something
    std::printf("seed %llu breaks a rule:\n  %s\nreplay: rnbd-sim-brick --seed %llu --trace%s\n",
                static_cast<unsigned long long>(seed), violation.what(),
                static_cast<unsigned long long>(seed),
                options.plant.empty() ? "" : (" --plant " + options.plant).c_str());
    return false;
  }
  operations += world.operations();
  return true;
}

int run_all(const Options& options) {
  std::uint64_t operations = 0;
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    if (!run(options, options.first + i, operations)) return 1;
    if (options.quiet || (i + 1) % 10000 != 0) continue;
    std::printf("%llu seeds kept every rule so far\n", static_cast<unsigned long long>(i + 1));
    std::fflush(stdout);
  }
  std::printf("%llu seeds kept every rule: %llu operations\n",
              static_cast<unsigned long long>(options.seeds),
              static_cast<unsigned long long>(operations));
  return 0;
}

int list_plants() {
  for (const auto& plant : rnbd::brick::plants()) std::printf("%-20s %s\n", plant.name, plant.text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Runs a brick and its clients in a simulated world, from a seed."};
  auto* seed = app.add_option("--seed", options.seed, "run this seed");
  app.add_flag("--trace", options.trace, "print everything that happens")->needs(seed);
  app.add_option("--seeds", options.seeds, "run so many seeds")->excludes(seed);
  app.add_option("--first", options.first, "the first of them (default 1)");
  app.add_flag("--quiet", options.quiet, "no progress");
  app.add_option("--plant", options.plant, "with this bug (rnbd-sim-brick-planted)");
  app.add_flag("--list-plants", options.list_plants, "the bugs that can be planted");
  CLI11_PARSE(app, argc, argv);
  if (options.list_plants) return list_plants();
  if (!options.plant.empty() && !rnbd::brick::select_plant(options.plant)) {
    std::fprintf(stderr,
                 "no bug '%s' can be planted here; see --list-plants of "
                 "rnbd-sim-brick-planted\n",
                 options.plant.c_str());
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
  return run_all(options);
}
