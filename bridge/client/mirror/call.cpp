// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/call.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rnbd::mirror {

void Call::take_over() {
  const bool has_data = transfer.into != nullptr || transfer.from != nullptr;
  if (!has_data || !own.empty()) return;
  own.resize(transfer.length);
  if (transfer.from != nullptr) {
    std::memcpy(own.data(), transfer.from, transfer.length);
    transfer.from = own.data();
  } else {
    transfer.into = own.data();
  }
}

void CallAnswers::end(Call& call, int error) {
  const std::lock_guard lock{mutex_};
  if (call.ended) return;
  call.ended = true;
  call.error = error;
  if (call.lane == nullptr) return call.answered.notify_all();
  call.lane->end(*std::exchange(call.job, nullptr), error);
  if (std::ranges::find(lanes_, call.lane) == lanes_.end()) lanes_.push_back(call.lane);
}

void CallAnswers::publish() {
  for (MirrorLane* lane : lanes_) lane->publish();
  lanes_.clear();
}

}  // namespace rnbd::mirror
