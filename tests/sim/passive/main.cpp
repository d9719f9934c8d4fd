// SPDX-License-Identifier: BSD-3-Clause
// rnbd-sim-passive: runs seeds through the users of a brick that map its blocks.
#include "tests/plants/plants.hpp"
#include "tests/sim/passive/passive_world.hpp"
#include "tests/sim/run_seeds.hpp"

namespace {

std::uint64_t run(std::uint64_t seed, bool trace) {
  sim::PassiveWorld world{seed, trace};
  world.run();
  return world.operations();
}

}  // namespace

int main(int argc, char** argv) {
  return sim::run_seeds(
      {.program = "rnbd-sim-passive",
       .about = "Runs the users of mode=passive and their brick in a simulated world, from a seed.",
       .plants = PLANTS_OF_PROGRAM(plants::kPassive),
       .run = run},
      argc, argv);
}
