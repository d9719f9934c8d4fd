// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/message_order.hpp"

#include <algorithm>

namespace rnbd {

void MessageOrder::take(rtrs::ServerRequest& request, wire::MessageType type) {
  const Held message{&request, type};
  const bool behind = !under_way_.empty() && !held_.empty();
  if (behind || must_wait(message)) return held_.push_back(message);
  handle_(request, type);
}

bool MessageOrder::must_wait(const Held& message) const {
  if (under_way_.empty()) return false;
  const Storage claimed = claim_of_ ? claim_of_(*message.request, message.type) : nullptr;
  return claimed == nullptr || std::ranges::any_of(under_way_, [claimed](Storage each) {
           return each == nullptr || each == claimed;
         });
}

void MessageOrder::end_reservation(Storage claimed, const std::function<void()>& answer) {
  under_way_.erase(std::ranges::find(under_way_, claimed));
  const bool more = !held_.empty();
  answer();
  if (more) go_on();
}

/// Touches nothing of the session after the last answer, unless more messages wait. One that is
/// refused at once comes here, too.
void MessageOrder::go_on() {
  bool more = !held_.empty() && !going_on_;
  while (more && !must_wait(held_.front())) {
    const Held next = held_.front();
    held_.pop_front();
    more = going_on_ = !held_.empty();
    handle_(*next.request, next.type);
  }
  if (more) going_on_ = false;
}

}  // namespace rnbd
