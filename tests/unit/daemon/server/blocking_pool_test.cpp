// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/blocking_pool.hpp"

#include <doctest/doctest.h>

#include "rdma/transport/reactor.hpp"
#include "tests/unit/allocations.hpp"

namespace rnbd::test::blocking_pool_test {
namespace {

TEST_CASE("wherever memory runs out before work of the state directory, the work is done") {
  rtrs::Reactor reactor{0};
  for (unsigned left = 0; left < 8; ++left) {
    CAPTURE(left);
    bool done = false;
    BlockingPool pool{nullptr};
    // It is the next on the thread.
    pool.record(&reactor, [left] { rtrs::test::set_lack({left, 1}); }, {});
    pool.record(&reactor,
                [&done] {
                  rtrs::test::set_lack({});
                  done = true;
                },
                {});
    pool.finish();  // it ends when all is done
    CHECK(done);
  }
}

}  // namespace
}  // namespace rnbd::test::blocking_pool_test
