// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/session_path.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "rdma/wire/ensure.hpp"

namespace rtrs {

ClientPath& SessionPath::begin(ClientPathOptions common) {
  RTRS_ENSURE(state == PathState::waiting);
  state = PathState::connecting;
  common.path_uuid = uuid;
  common.reconnect_count = ++attempts;
  common.may_be_linux = options.may_be_linux;
  common.data_rides_with_reply = options.data_rides_with_reply;
  core = std::make_unique<ClientPath>(std::move(common));
  return *core;
}

void SessionPath::connected(Instant now) {
  RTRS_ENSURE(state == PathState::connecting);
  state = PathState::connected;
  silences.end();
  since = up_since = now;
  access = core->access();
  ++connects;
  foreign = false;
  other_server = {};
  by_order = false;
  turned_away = 0;
  lost_before = std::exchange(lost_at, std::nullopt);
  if (!distrust.active()) trouble = {};
}

bool SessionPath::generation_ended(Instant now, bool in_vain, Duration pause) {
  // Longer than all but the slowest storage needs for an answer.
  constexpr Duration kSoon = std::chrono::seconds{2};
  // A server that is started again takes less.
  constexpr Duration kRestart = std::chrono::seconds{10};
  // A server that ends a path with its first answer, every time, is not asked again at once.
  if (now >= up_since + pause) failures = 0;
  silences.end();
  back_soon_until = now >= up_since + kSoon ? now + kRestart : Instant{};
  const bool was_of_use = !in_vain || now >= up_since + kSoon;
  if (was_of_use) lost_before.reset();
  if (!core->exactly_once()) lost_at = lost_before.value_or(now);
  return was_of_use;
}

bool SessionPath::was_turned_away(const Cause& why) const {
  return why.kind == Cause::Kind::transport && why.error != ETIMEDOUT && core->turned_away();
}

void SessionPath::disconnect(unsigned number) {
  state = PathState::disconnected;
  trouble = Cause{Cause::Kind::disconnected, number};
}

void SessionPath::reconnect(Instant now) {
  if (state != PathState::disconnected && state != PathState::waiting) return;
  state = PathState::waiting;
  due = now;
  distrust.forgive();
  other_server = {};
  by_order = trouble.kind == Cause::Kind::older_server;
}

void SessionPath::distrust_ends_by(Instant now) {
  if (distrust.ends(now) && state == PathState::connected) trouble = {};
}

void SessionPath::put_off(Duration stall, Instant now) {
  for (auto* loss : {&lost_at, &lost_before}) {
    if (*loss) *loss = std::min(**loss + stall, now);  // some began when this process went on
  }
}

}  // namespace rtrs
