// SPDX-License-Identifier: BSD-3-Clause
// rnbd-sim-brick: runs seeds through a brick.
#include "bridge/backend/brick/plant.hpp"
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
                         .plants = sim::bugs_of(rnbd::brick::plants()),
                         .select_plant = rnbd::brick::select_plant,
                         .run = run},
                        argc, argv);
}
