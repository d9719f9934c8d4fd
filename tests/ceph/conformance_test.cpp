// SPDX-License-Identifier: BSD-3-Clause
// The suite that every backend passes, for an image of 4 MiB. RNBD_STORAGE names it as rnbd-server
// does.
#include <cstdlib>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::ceph_test {

TEST_CASE("rbd: behaves like a disk") {
  const char* const storage = std::getenv("RNBD_STORAGE");
  REQUIRE(storage != nullptr);
  {  // of an earlier check
    Bench bench{storage};
    REQUIRE(bench.zero(0, bench.info().size, {}) == 0);
  }
  // Extents tell of whole objects, and less than 64 KiB is not discarded.
  check_conformance({.backend = must_open(storage), .discard_zeroes = false, .shows_holes = false});
}

}  // namespace rnbd::test::ceph_test
