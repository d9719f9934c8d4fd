// SPDX-License-Identifier: BSD-3-Clause
// Calls that come again, late and in pieces: each call is carried out once. And each bug that is
// planted in what sees to that is found.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "tests/plants/plants.hpp"
#include "tests/unit/library/calls_world.hpp"

namespace rtrs::library::calls_once_test {
namespace {

constexpr int kSteps = 200;

struct Planted {
  explicit Planted(plants::Name plant) { plants::selected = plant; }
  ~Planted() { plants::selected = plants::Name::none; }
};

TEST_CASE("calls are carried out once, whatever comes again, late or in pieces") {
  const char* const one = std::getenv("SEED");
  const std::uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  for (std::uint64_t seed = first; seed < first + (one != nullptr ? 1 : 300); ++seed) {
    CAPTURE(seed);  // SEED=N repeats it
    CHECK(CallsWorld{seed}.run(kSteps) == "");
  }
}

/// The seed that finds it; 0 = none does.
std::uint64_t find(plants::Name plant) {
  constexpr std::uint64_t kSeeds = 200;
  const Planted planted{plant};
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    if (!CallsWorld{seed}.run(kSteps).empty()) return seed;
  }
  return 0;
}

TEST_CASE("... and a bug in what sees to that is found") {
#define FIND_PLANT(name, text)                               \
  SUBCASE(text) {                                            \
    const std::uint64_t found_by = find(plants::Name::name); \
    MESSAGE(#name " is found by seed " << found_by);         \
    CHECK(found_by != 0);                                    \
  }
  CALL_PLANTS(FIND_PLANT)
#undef FIND_PLANT
}

}  // namespace
}  // namespace rtrs::library::calls_once_test
