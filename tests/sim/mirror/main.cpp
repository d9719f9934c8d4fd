// SPDX-License-Identifier: BSD-3-Clause
// rnbd-sim-mirror: runs seeds through mirror groups.
#include "bridge/protocol/mirror_plant.hpp"
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
       .plants = sim::bugs_of(rnbd::mirror::plants()),
       .select_plant = rnbd::mirror::select_plant,
       .run = run},
      argc, argv);
}
