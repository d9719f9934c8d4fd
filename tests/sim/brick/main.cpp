// SPDX-License-Identifier: BSD-3-Clause
// rnbd-sim-brick: runs seeds through a brick.
#include "tests/plants/plants.hpp"
#include "tests/sim/brick/brick_world.hpp"
#include "tests/sim/run_seeds.hpp"

namespace {

std::uint64_t run(std::uint64_t seed, bool trace) {
  sim::BrickWorld world{seed, trace};
  world.run();
  return world.operations();
}

}  // namespace

int main(int argc, char** argv) {
  return sim::run_seeds({.program = "rnbd-sim-brick",
                         .about = "Runs a brick and its clients in a simulated world, from a seed.",
                         .plants = PLANTS_OF_PROGRAM(plants::kBrick),
                         .run = run},
                        argc, argv);
}
