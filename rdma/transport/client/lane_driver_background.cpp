// SPDX-License-Identifier: BSD-3-Clause
// The background thread's requests to a lane: its paths come and go, and are looked after.
#include <algorithm>
#include <utility>

#include "rdma/transport/client/lane_driver.hpp"
#include "rdma/transport/clock.hpp"

namespace rtrs {

void LaneDriver::attach(PathLife life, std::unique_ptr<Connection> connection,
                        const std::function<void(ClientLane&, QueuePair&)>& attach) {
  const Lock lock{mutex_};
  Path& path = paths_[life.path];
  path.connection = std::move(connection);
  path.generation = life.generation;
  path.broken = false;
  path_limit_ = std::max(path_limit_, life.path + 1);
  attach(lane_, *path.connection);
  lane_.flush();
  if (led()) kick();
}

void LaneDriver::detach(unsigned index) {
  const auto lock = take_quiet();
  Path& path = paths_[index];
  if (!path.connection) return;
  if (hang_ups_ > 0) --hang_ups_;  // not before: its last words may take many reads
  // Requests answered before the end need not be sent again.
  if (!path.broken) path.connection->glance(lane_.connection(index));
  path.connection->close();  // before the lane hands memory on that it may still touch
  lane_.detach(index, now());
  path.connection.reset();
  lane_.flush();
  if (led()) kick();
}

std::string LaneDriver::statistics(unsigned index) {
  const Lock lock{mutex_};
  const Path& path = paths_[index];
  return path.connection ? path.connection->statistics() : std::string{};
}

void LaneDriver::with_connections(const std::function<void(Connection&)>& function) {
  const Lock lock{mutex_};
  for (const Path& path : paths_) {
    if (path.connection) function(*path.connection);
  }
}

void LaneDriver::with_lane(const std::function<void(ClientLane&)>& function) {
  const Lock lock{mutex_};
  function(lane_);
  lane_.flush();
  if (led()) kick();
}

/// A thread that leads receives by itself. A loop may be busy with other things for minutes: its
/// paths must not count as dead meanwhile, and its requests end. True: a loop leads.
bool LaneDriver::receive_for_absent() {
  const Lock lock{mutex_, std::try_to_lock};
  if (!lock || leader_ == Leader::thread) return false;
  if (awaiting_ || (!lane_.expects_arrivals() && hang_ups_ == 0)) return looping();
  const std::uint64_t before = received();
  drive();  // once: a server that floods the lane must not keep the thread of the heartbeats
  if (looping() && (more_ != 0 || received() != before)) kick();
  return looping();
}

void LaneDriver::on_hang_up() {
  {
    const Lock lock{mutex_};
    ++hang_ups_;
  }
  service();
}

bool LaneDriver::holds_back_owner() {
  const Lock lock{mutex_};
  return lane_.holds_back_owner();
}

bool LaneDriver::heard(unsigned index) {
  Path& path = paths_[index];
  const auto arrivals = path.arrivals.load(std::memory_order_relaxed);
  return std::exchange(path.arrivals_seen, arrivals) != arrivals;
}

bool LaneDriver::probe(unsigned index, unsigned misses_max) {
  const Lock lock{mutex_};
  posted_ = true;
  return lane_.probe(index, misses_max, now());
}

unsigned LaneDriver::silence(unsigned index) {
  const Lock lock{mutex_};
  return lane_.connection(index).silence();
}

Raced LaneDriver::look_at_race() {
  const Lock lock{mutex_};
  const Instant time = now();  // who is not quiet then is not judged below
  const PathMask quiet = lane_.quiet(time);
  if (quiet != 0 && !receive_in_time(quiet)) {
    return {.silent = silent_};  // nobody is judged by what nobody has read
  }
  const Raced raced = lane_.race(time);
  silent_ = raced.silent;
  posted_ = true;  // questions, or requests
  return raced;
}

/// Receives all that has come. The leader may be asleep, and its own request may end here. False:
/// more may have come on a quiet connection, or the leader is in the receive itself, which it
/// leaves soon. Others may be busy for ever.
bool LaneDriver::receive_in_time(PathMask quiet) {
  if (awaiting_) return false;
  const std::uint64_t before = received();
  drive();
  if (led() && (more_ != 0 || received() != before)) kick();
  return (more_ & quiet) == 0;
}

bool LaneDriver::end_looks() {
  const Lock lock{mutex_};
  unwatched_ = lane_.may_race();
  return !unwatched_ || lane_.at_rest();
}

std::optional<PathMask> LaneDriver::fail_overdue(Instant limit, int error) {
  if (const Lock lock{mutex_}; !lane_.overdue(limit)) return std::nullopt;
  const auto lock = take_quiet();  // nobody receives into memory that callers get back
  const PathMask mute = lane_.fail_overdue(limit, error);
  lane_.flush();
  if (led()) kick();
  return mute;
}

void LaneDriver::shut_down(int error) {
  const auto lock = take_quiet();
  for (Path& path : paths_) {
    if (path.connection) path.connection->close();
    path.broken = true;
  }
  lane_.shut_down(error);
  kick();
}

}  // namespace rtrs
