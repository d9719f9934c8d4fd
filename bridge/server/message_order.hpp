// SPDX-License-Identifier: BSD-3-Clause
// The order of a client's OPENs, CLAIMs and CLOSEs while a reservation is recorded.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "bridge/protocol/messages.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

/// Handles messages in the order in which they came: clients that do not number their OPENs rely on
/// it. While a reservation is under way, the messages behind it wait.
///
/// Threads: the reactor of the session.
class MessageOrder {
 public:
  /// May begin or end a reservation.
  using Handler = std::function<void(rtrs::ServerRequest& request, wire::MessageType type)>;

  explicit MessageOrder(Handler handle) : handle_{std::move(handle)} {}

  /// Handles the message now, or behind the reservations under way.
  void take(rtrs::ServerRequest& request, wire::MessageType type);
  /// A reservation begins.
  void begin_reservation() { ++reservations_; }
  /// A reservation has ended. `answer` answers the client. Then the messages that waited are
  /// handled. The last answer may end the session and this object.
  void end_reservation(const std::function<void()>& answer);

 private:
  struct Held {
    rtrs::ServerRequest* request;
    wire::MessageType type;
  };

  void go_on();

  const Handler handle_;
  unsigned reservations_ = 0;  ///< under way
  std::deque<Held> held_;      ///< behind them
  bool going_on_ = false;      ///< one of the held messages is handled, and more wait
};

}  // namespace rnbd
