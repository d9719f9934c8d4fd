// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/request.hpp"

#include "rdma/wire/probe.hpp"

namespace rtrs {

void Request::end(ClientLane& lane, int with) {
  state = State::idle;
  next = nullptr;
  error = with;
  RTRS_PROBE(rtrs, request_done, this, error);
  if (done != nullptr) done(lane, *this);
}

}  // namespace rtrs
