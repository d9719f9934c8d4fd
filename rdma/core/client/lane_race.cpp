// SPDX-License-Identifier: BSD-3-Clause
// The race of a lane's connections: requests leave one that is silent for one that answers.
// Source: docs/protocol.md, races.
#include <algorithm>
#include <utility>

#include "rdma/core/client/lane.hpp"

namespace rtrs {
namespace {

/// The data that are sent again at a time. A path that has to carry those of another one must not
/// be taken for a silent one itself.
constexpr std::size_t kMovedAtOnce = std::size_t{4} << 20;  // bytes

constexpr bool has(unsigned paths, unsigned path) { return (paths >> path & 1) != 0; }

}  // namespace

PathMask ClientLane::quiet(Instant now) const {
  unsigned paths = 0;
  for (const Connection& connection : connections_) {
    const bool is = connection.link_.races && connection.race_.quiet(now, connection.received_);
    paths |= unsigned{is} << connection.path_;
  }
  return static_cast<PathMask>(paths);
}

bool ClientLane::at_rest() const {
  return std::ranges::all_of(connections_, [&](const Connection& connection) {
    const bool due = in_flight(connection.path_) > 0 || !connection.race_.is_calm();
    return !connection.link_.races || !due;
  });
}

bool ClientLane::may_race() const {
  return std::ranges::count_if(
             connections_, [](const Connection& connection) { return connection.link_.races; }) > 1;
}

void ClientLane::note_answer(unsigned path, Instant now) {
  Connection& connection = connections_[path];
  if (std::exchange(connection.answer_came_, false)) connection.race_.on_answered(now);
}

Raced ClientLane::race(Instant now) {
  Raced raced;
  for (Connection& connection : connections_) {
    if (!connection.link_.races) continue;
    note_answer(connection.path_, now);
    look_at(connection, now);
    choice_.suspect(connection.path_, connection.race_.silent());
  }
  ask_witnesses(now);
  judge(now, raced);
  for (const Connection& connection : connections_) {
    const bool silent = connection.link_.races && connection.race_.silent();
    raced.silent = static_cast<PathMask>(raced.silent | unsigned{silent} << connection.path_);
  }
  if (moving_ != 0) move_on();
  raced.moved = std::exchange(moved_, 0);
  if (raced.moved > 0) resume();
  return raced;
}

void ClientLane::look_at(Connection& connection, Instant now) {
  const bool owes = in_flight(connection.path_) > 0;
  if (!connection.race_.look(now, connection.received_, owes)) return;
  const std::uint64_t bytes = connection.link_.queue_pair->carried();
  connection.race_.on_carried(now, bytes);
}

/// Another connection could testify against this one.
bool ClientLane::has_witness(unsigned path) const {
  return std::ranges::any_of(connections_, [&](const Connection& other) {
    return other.path_ != path && other.link_.races && has(open(), other.path_);
  });
}

/// Asks those that are quiet, and again and again all that could testify against one of them. A
/// request of the quiet one may move to any of these, so each has to prove that it lives.
void ClientLane::ask_witnesses(Instant now) {
  unsigned quiet = 0;
  for (Connection& connection : connections_) {
    if (!connection.link_.races || !connection.race_.quiet(now, connection.received_)) continue;
    if (!has_witness(connection.path_)) continue;  // its answer would be of no use
    quiet |= 1U << connection.path_;
    if (connection.race_.is_calm()) connection.ask(now);
  }
  for (Connection& witness : connections_) {
    if (quiet == 0 || !has(open(), witness.path_) || !witness.link_.races) continue;
    const bool wanted = (quiet & ~(1U << witness.path_)) != 0;
    if (wanted && witness.race_.is_calm()) witness.ask(now);
  }
}

/// All are judged before any request moves, so that none goes over another silent path.
void ClientLane::judge(Instant now, Raced& raced) {
  moving_ = 0;
  for (Connection& connection : connections_) {
    Race& race = connection.race_;
    if (!connection.link_.races) continue;
    const unsigned ahead = race.is_calm() ? 0 : outrun(connection);
    choice_.doubt(connection.path_, race.is_outrun());
    if (ahead == 0 || !race.is_due(now) || !race.quiet(now, connection.received_)) continue;
    if (!race.silent()) race.on_beaten();
    raced.answers = static_cast<PathMask>(raced.answers | ahead);
    choice_.suspect(connection.path_, true);
    raced.since = std::min(raced.since, race.heard_at());
    moving_ = static_cast<PathMask>(moving_ | 1U << connection.path_);
  }
}

/// Tells a connection of all that have outrun it. Returns their paths.
unsigned ClientLane::outrun(Connection& connection) {
  unsigned ahead = 0;
  for (const Connection& witness : connections_) {
    if (&witness == &connection || !has(open(), witness.path_) || !witness.link_.races) continue;
    if (witness.race_.silent() || !witness.race_.outruns(connection.race_)) continue;
    connection.race_.on_outrun(witness.race_);
    ahead |= 1U << witness.path_;
  }
  return ahead;
}

/// As many as may go at a time. The others follow when some of these are answered.
void ClientLane::move_on() {
  const unsigned before = moved_;
  for (unsigned path = 0; path < kMaxPaths; ++path) {
    if (has(moving_, path)) move_from(path);
  }
  if (moved_ != before) resend_stranded();
}

/// Takes requests of a silent path, the oldest first. One whose memory the device works in has to
/// wait for the end of the connection. None goes to a path that it has been on: paths that are slow
/// would send requests to and fro for ever.
void ClientLane::move_from(unsigned path) {
  std::vector<std::uint16_t> leaving;
  const unsigned others = ways() & ~(1U << path);
  for (std::uint16_t i = 0; i < slots_.count(); ++i) {
    if (!slots_[i].is_on(path)) continue;
    const unsigned been = unsigned{slots_.owes(i)} | slots_[i].been_on;
    // The transport may remember the memory of an older request for one without data.
    const bool in_place =
        slots_[i].bytes() > 0 && connections_[path].link_.queue_pair->works_in_place(i);
    if ((others & ~been) != 0 && !in_place) leaving.push_back(i);
  }
  // Until the next look nothing changes that, and each answer would look at all slots again.
  if (leaving.empty()) moving_ = static_cast<PathMask>(moving_ & ~(1U << path));
  std::ranges::sort(leaving, {}, [this](std::uint16_t i) { return slots_[i].order; });
  std::size_t bytes = slots_.bytes_moved();
  for (const std::uint16_t i : leaving) {
    LaneSlot& slot = slots_[i];
    bytes += slot.bytes();
    if (bytes > kMovedAtOnce && bytes > slot.bytes()) break;
    if (slot.request != nullptr) withdraw(*slot.request);
    slots_.owe(i, path);
    order_.step(slot, SlotEvent::beaten);
    ++moved_;
    ++connections_[path].left_;
  }
}

/// A path on which something comes is not left any more.
void ClientLane::Connection::on_arrival() {
  ++received_;
  lane_->moving_ = static_cast<PathMask>(lane_->moving_ & ~(1U << path_));
}

/// An answer over a path that the request has left.
bool ClientLane::is_late(const Connection& connection, std::uint32_t index) const {
  return (slots_.owes(index) >> connection.path_ & 1) != 0;
}

void ClientLane::take_late(Connection& connection, std::uint16_t index) {
  slots_.settle(index, connection.path_);
  choice_.answered(connection.path_);
  connection.answered_ = true;
  resend_stranded();
  resume();
}

}  // namespace rtrs
