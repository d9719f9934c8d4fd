// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/message_order.hpp"

namespace rnbd {

void MessageOrder::take(rtrs::ServerRequest& request, wire::MessageType type) {
  if (reservations_ > 0) return held_.push_back({&request, type});
  handle_(request, type);
}

void MessageOrder::end_reservation(const std::function<void()>& answer) {
  --reservations_;
  const bool more = !held_.empty();
  answer();
  if (more) go_on();
}

/// Touches nothing of the session after the last answer, unless more messages wait. One that is
/// refused at once comes here, too.
void MessageOrder::go_on() {
  bool more = !held_.empty() && !going_on_;
  while (more && reservations_ == 0) {
    const Held next = held_.front();
    held_.pop_front();
    more = going_on_ = !held_.empty();
    handle_(*next.request, next.type);
  }
  if (more) going_on_ = false;
}

}  // namespace rnbd
