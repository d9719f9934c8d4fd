// SPDX-License-Identifier: BSD-3-Clause
// The states of a permit at the client. slot_table.hpp has the transitions.
#pragma once

#include <cstdint>

namespace rtrs {

enum class SlotState : std::uint8_t {
  free,
  in_flight,    ///< on a path
  retry,        ///< its path was lost or is silent, and any other path may carry it again
  quarantined,  ///< its path was lost, and a copy may still arrive until that path is back
};

enum class SlotEvent : std::uint8_t {
  submitted,  ///< a request takes the permit
  answered,
  path_lost,    ///< its connection is quiet: nothing is received from there any more
  beaten,       ///< its connection is silent, and another one has answered meanwhile
  path_back,    ///< the server has ended all that came over the path before
  swept,        ///< lost requests are sent again, as far as paths may carry them
  caller_left,  ///< it was cancelled
  failed,       ///< its caller was told an error, the server may still carry it out
  recovered,    ///< the server had forgotten the session, and a new one begins
  lent,         ///< for messages that come before the first request over a path
};

enum class Direction : std::uint8_t { read, write };  ///< of RTRS
enum class Caller : std::uint8_t { waiting, gone };
/// Own servers carry each request out once; the kernel's do not know a copy.
enum class Peer : std::uint8_t { own, kernel };

/// The newer requests that have to wait until the slot is free.
enum class Hold : std::uint8_t {
  nothing,
  opens_if_close,  ///< OPENs, if it is of the lane that keeps order: a CLOSE, then
  opens,           ///< OPENs: they could get the device id that it names
  scope,           ///< writes of its scope: its owner's, or the session's
  everything       ///< writes of the session, and OPENs
};

enum class SlotAction : std::uint8_t {
  none,
  send,
  settle,   ///< ask for its end: the caller has left
  requeue,  ///< its request waits for another permit
  renew,    ///< bring its message up to date (Request::renew)
};

struct SlotStep {
  SlotState next = SlotState::free;
  SlotAction action = SlotAction::none;
  Hold hold = Hold::nothing;

  friend constexpr bool operator==(const SlotStep&, const SlotStep&) = default;
};

}  // namespace rtrs
