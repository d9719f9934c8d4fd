// SPDX-License-Identifier: BSD-3-Clause
// One message to the server and its answer, as the users of a lane see it.
#pragma once

#include <cstdint>
#include <memory>

#include "rdma/core/queue_pair.hpp"
#include "rdma/core/time.hpp"
#include "rdma/core/unresolved.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

class ClientLane;
struct PermitOwner;

/// One message to the server and its answer. Owned by the caller: it keeps the request and all
/// memory that it names until done() ran or cancel() returned.
struct Request {
  enum class State : std::uint8_t { idle, waiting, in_flight };

  ConstBytes message;      ///< user message, at most wire::kMaxUserMessage bytes
  ConstBytes write_data;   ///< data for the server (a write), at most max_io_size bytes
  MutableBytes read_data;  ///< where the answer goes (a read), at most max_io_size bytes
  bool is_read = false;    ///< RTRS direction; a read may have no buffer (flush)
  /// Called once with the lane held. May submit further requests, but must not give up or destroy
  /// others: one of those may be in the midst of being submitted, and have led here.
  void (*done)(ClientLane& lane, Request& request) = nullptr;
  /// Called with the lane held before the request goes into a new session. Brings the message up to
  /// date; its length must stay. Null: nothing in it depends on the session.
  void (*renew)(Request& request) = nullptr;
  /// Counts the request when it is cancelled or failed, until its end is known. It also names the
  /// owner, and permits are shared among owners. Null: there is none. Must outlive the request.
  const std::shared_ptr<Unresolved>* scope = nullptr;
  /// Is held back while an unresolved write of its owner counts there: that one could undo it. A
  /// read is held back if its answer must contain what that write leaves.
  bool waits_for_scope = false;
  void* context = nullptr;

  int error = 0;  ///< errno of the answer, 0 = success

  // Used by the lane only.
  State state = State::idle;
  std::uint16_t slot = 0;
  Ticket ticket = 0;
  Instant waits_since = Instant::max();  ///< for a connection that carries it
  Request* next = nullptr;
  Request* previous = nullptr;
  Request* next_of_owner = nullptr;
  Request* previous_of_owner = nullptr;
  PermitOwner* waits_as = nullptr;

  /// Ends the request, whose caller may use it again.
  void end(ClientLane& lane, int with);
  const Unresolved* owner() const { return scope != nullptr ? scope->get() : nullptr; }
  /// `max_io_size` of the lane; 0 = not known yet.
  bool fits(std::uint32_t max_io_size) const {
    const std::size_t extra = is_read ? 0 : sizeof(wire::WriteTrailer);
    if (message.size() + extra > wire::kMaxUserMessage) return false;
    return max_io_size == 0 ||
           (write_data.size() <= max_io_size && read_data.size() <= max_io_size);
  }
};

}  // namespace rtrs
