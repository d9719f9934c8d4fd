// What needs no RDMA device of the verbs transport.
#include <doctest/doctest.h>

#include <cerrno>

#include "rdma/transport/verbs/domain.hpp"

namespace rtrs::verbs {
namespace {

TEST_CASE("a queue pair that cannot be had: what was asked for, what there is, and what to do") {
  ibv_qp_cap asked{};
  asked.max_send_wr = 4098;
  asked.max_recv_wr = 2049;
  const Failure failure = refused_queue_pair("rxe0", asked, 1024, ENOMEM);
  CHECK(failure.error == ENOMEM);
  for (const char* part : {"rxe0", "4098 sends", "2049 receives", "1024", "--queue-depth"}) {
    CAPTURE(part);
    CHECK(failure.text.find(part) != std::string::npos);
  }
}

}  // namespace
}  // namespace rtrs::verbs
