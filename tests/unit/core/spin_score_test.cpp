// SPDX-License-Identifier: BSD-3-Clause
// When to spin before sleeping.
#include "rdma/core/spin_score.hpp"

#include <doctest/doctest.h>

namespace rtrs::spin_score_test {
namespace {

using namespace std::chrono_literals;

/// How many of so many waits begin with a spin, when all of them end like this.
unsigned spins(SpinScore& score, unsigned waits, bool something_comes) {
  unsigned count = 0;
  for (unsigned i = 0; i < waits; ++i) {
    if (score.next() == 0s) continue;
    ++count;
    score.ended(something_comes);
  }
  return count;
}

TEST_CASE("spinning that is off stays off") {
  SpinScore score{0s};
  CHECK(spins(score, 1000, true) == 0);
}

TEST_CASE("as long as answers come in time every wait begins with a spin") {
  SpinScore score{50us};
  CHECK(score.next() == 50us);
  CHECK(spins(score, 1000, true) == 1000);
}

TEST_CASE("a few spins in vain end it, and then it is only tried now and then") {
  SpinScore score{50us};
  CHECK(spins(score, 4, false) == 4);
  CHECK(spins(score, SpinScore::kRetry, false) == 0);
  CHECK(spins(score, 1, false) == 1);
  CHECK(spins(score, 10 * (SpinScore::kRetry + 1), false) == 10);
}

TEST_CASE("one try that finds an answer brings it back") {
  SpinScore score{50us};
  spins(score, 4 + SpinScore::kRetry, false);
  CHECK(spins(score, 100, true) == 100);
}

TEST_CASE(
    "answers of which half come in time are spun for, those of which one in eight does are not") {
  const auto spins_with_every = [](unsigned nth) {
    SpinScore score{50us};
    unsigned count = 0;
    for (unsigned i = 0; i < 1000; ++i) count += spins(score, 1, i % nth == 0);
    return count;
  };
  CHECK(spins_with_every(2) == 1000);
  CHECK(spins_with_every(8) < 100);
}

}  // namespace
}  // namespace rtrs::spin_score_test
