// SPDX-License-Identifier: BSD-3-Clause
// rnbd-sim-mirror: runs seeds through mirror groups.
#include "tests/plants/plants.hpp"
#include "tests/sim/mirror/mirror_world.hpp"
#include "tests/sim/run_seeds.hpp"

namespace {

std::uint64_t run(std::uint64_t seed, bool trace) {
  sim::MirrorWorld world{seed, trace};
  world.run();
  return world.checker.operations();
}

}  // namespace

int main(int argc, char** argv) {
  return sim::run_seeds(
      {.program = "rnbd-sim-mirror",
       .about = "Runs a client and members of a mirror group in a simulated world, from a seed.",
       .plants = PLANTS_OF_PROGRAM(plants::kMirror),
       .run = run},
      argc, argv);
}
