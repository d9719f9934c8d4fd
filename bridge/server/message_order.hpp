// SPDX-License-Identifier: BSD-3-Clause
// The order of a client's OPENs, CLAIMs and CLOSEs while a reservation is recorded.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

/// Handles messages in the order in which they came: clients that do not number their OPENs rely on
/// it. While a reservation is under way, the messages behind it wait. CLAIMs of several storages
/// have nothing to do with each other: their reservations are recorded together.
///
/// Threads: the reactor of the session.
class MessageOrder {
 public:
  /// May begin or end a reservation.
  using Handler = std::function<void(rtrs::ServerRequest& request, wire::MessageType type)>;

  /// The storage that a message claims; only compared. Null: it is no CLAIM, or one of nothing.
  using Storage = const void*;
  using ClaimOf = std::function<Storage(const rtrs::ServerRequest& request, wire::MessageType)>;

  explicit MessageOrder(Handler handle, ClaimOf claim_of = {})
      : handle_{std::move(handle)}, claim_of_{std::move(claim_of)} {}

  /// Handles the message now, or behind the reservations under way.
  void take(rtrs::ServerRequest& request, wire::MessageType type);
  /// A reservation begins: of a CLAIM of this storage, or of an OPEN (null).
  void begin_reservation(Storage claimed) { under_way_.push_back(claimed); }
  /// A reservation has ended. `answer` answers the client. Then the messages that waited are
  /// handled. The last answer may end the session and this object.
  void end_reservation(Storage claimed, const std::function<void()>& answer);

 private:
  struct Held {
    rtrs::ServerRequest* request;
    wire::MessageType type;
  };

  bool must_wait(const Held& message) const;
  void go_on();

  const Handler handle_;
  const ClaimOf claim_of_;
  std::vector<Storage> under_way_;  ///< reservations
  std::deque<Held> held_;           ///< behind them
  bool going_on_ = false;           ///< one of the held messages is handled, and more wait
};

}  // namespace rnbd
