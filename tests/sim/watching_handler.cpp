// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/watching_handler.hpp"

#include <string>
#include <utility>

namespace sim {
namespace {

std::uint64_t serial_of(const rtrs::ServerSession& session) { return std::stoull(session.peer); }

}  // namespace

void* WatchingHandler::on_session_up(rtrs::ServerSession& session) {
  if (foreign_) world_.violate("a session came up at a server that its client does not mean");
  // A client that comes back too late gets another session, and leaves.
  if (std::exchange(up_[serial_of(session)], 1U) == 1) world_.violate("a session came up twice");
  checker_.session_up(serial_of(session));
  return next_.on_session_up(session);
}

void WatchingHandler::on_request(rtrs::ServerSession& session, rtrs::ServerRequest& request) {
  world_.note("server", serial_of(session), "request", request.buffer_id, request.data.size(),
              request.is_read ? 1 : 0);
  if (up_[serial_of(session)] != 1) world_.violate("a request came for a session that is down");
  // Without generations several are judged before the first of them is carried out, and the path of
  // one may be closed by a later one: it counts as executing by then.
  const bool may_be_closed = !session.options().exactly_once();
  if (request.path->state() != rtrs::ServerPathState::connected && !may_be_closed) {
    world_.violate("a request came for a path that is not connected");
  }
  // Nobody else waits for it: all of a request's data, or the room for its answer, starts its
  // chunk.
  if (open_chunks_.contains(request.data.data())) {
    world_.violate("a request is carried out while its client may still write to its chunk");
  }
  if (request.message.empty()) world_.violate("a request was carried out that says nothing");
  check_copies(session);
  next_.on_request(session, request);
}

void WatchingHandler::on_session_down(rtrs::ServerSession& session) {
  const std::uint64_t serial = serial_of(session);
  world_.note("server", serial, "session is down");
  if (session.executing() != 0) {
    return world_.violate("session " + std::to_string(serial) + " went down while " +
                          std::to_string(session.executing()) + " of its requests executed");
  }
  check_copies(session);
  up_[serial] = 2;
  next_.on_session_down(session);
  checker_.session_gone(serial);
}

/// Linux's server carries out every copy of a write, out of the same chunk, so a client must not
/// send one while another may still execute.
void WatchingHandler::check_copies(const rtrs::ServerSession& session) {
  if (session.options().exactly_once() || session.repeats().attached == 0) return;
  if (checker_.may_resend(serial_of(session))) return;
  world_.violate("a write was sent again while the server still executed it");
}

}  // namespace sim
