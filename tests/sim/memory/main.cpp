// SPDX-License-Identifier: BSD-3-Clause
// rnbd-sim-memory: runs seeds through sessions whose memory paths have keys of a brick.
#include <memory>

#include "tests/plants/plants.hpp"
#include "tests/sim/memory/memory_world.hpp"
#include "tests/sim/run_seeds.hpp"

namespace {

std::uint64_t run(std::uint64_t seed, bool trace) {
  auto world = std::make_unique<sim::MemoryWorld>(seed, trace);
  try {
    world->run();
  } catch (...) {
    // It stopped in the middle of something: its objects cannot be taken apart any more.
    static std::vector<sim::MemoryWorld*> broken;
    broken.push_back(world.release());
    throw;
  }
  return world->operations();
}

}  // namespace

int main(int argc, char** argv) {
  return sim::run_seeds(
      {.program = "rnbd-sim-memory",
       .about =
           "Runs sessions with memory paths and their brick in a simulated world, from a seed.",
       .plants = PLANTS_OF_PROGRAM(plants::kMemory),
       .run = run},
      argc, argv);
}
