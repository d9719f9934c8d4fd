// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/lanes.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <string>
#include <utility>

#include "rdma/transport/clock.hpp"

namespace rtrs {
namespace {

/// The same memory, not only the same bytes.
auto is_same_as(ConstBytes memory) {
  return [memory](ConstBytes other) {
    return memory.data() == other.data() && memory.size() == other.size();
  };
}

}  // namespace

ClientLanes::ClientLanes(Reactor& reactor, const ClientOptions& options, ClientNotices& notices,
                         PathDrivers& paths, ClientLanesOwner& owner)
    : reactor_{reactor}, options_{options}, notices_{notices}, paths_{paths}, owner_{owner} {
  for (Unresolved* scope : {&unresolved_, &control_unresolved_}) {
    scope->on_end = [this, scope] {
      boost::asio::post(reactor_.io(), [this, scope] { go_on_after(*scope); });
    };
  }
}

void ClientLanes::go_on_after(Unresolved& scope) {
  if (shut_down_) return;
  if (!scope.writes()) scope.refuse(0);
  for_each([](ClientLane& lane) { lane.resume(); });
  owner_.on_resolved();
}

void ClientLanes::create(const std::vector<std::uint16_t>& slots) {
  control_ = std::make_unique<ClientLane>(0, slots[0], &control_unresolved_);
  control_->keep_order();
  std::uint16_t first = slots[0];
  for (std::size_t cid = 1; cid < slots.size() && slots[cid] > 0; ++cid) {
    lanes_.push_back(std::make_unique<LaneDriver>(first, slots[cid], &unresolved_,
                                                  &control_unresolved_, options_.spin, owner_));
    first = static_cast<std::uint16_t>(first + slots[cid]);
  }
}

void ClientLanes::for_each(const std::function<void(ClientLane&)>& function) {
  for (auto& lane : lanes_) lane->with_lane(function);
  if (!control_) return;
  function(*control_);
  paths_.flush();
}

void ClientLanes::for_each_connection(const std::function<void(Connection&)>& function) {
  for (auto& lane : lanes_) lane->with_connections(function);
}

// ---- Paths -------------------------------------------------------------------------------------

void ClientLanes::attach(PathLife life, PathDriver& driver,
                         const std::function<void(Connection&)>& prepare) {
  const unsigned path = life.path;
  ClientPath& core = driver.core();
  core.set_control_handler(&control_->connection(path));
  core.attach(*control_, path, 0, driver.control());
  for (std::uint16_t cid = 1; cid <= lanes_.size(); ++cid) {
    auto connection = driver.take(cid);
    prepare(*connection);
    // One that is not watched is found dead by the next request. Nor does RDMA tell anything here:
    // its descriptors never give EPOLLRDHUP.
    static_cast<void>(reactor_.hang_ups().add(connection->descriptor(), *lanes_[cid - 1U]));
    lanes_[cid - 1U]->attach(
        life, std::move(connection),
        [&](ClientLane& lane, QueuePair& queue_pair) { core.attach(lane, path, cid, queue_pair); });
  }
  driver.flush();
}

void ClientLanes::detach(unsigned path) {
  for (auto& lane : lanes_) lane->detach(path);
  if (control_) control_->detach(path);
  paths_.flush();
}

void ClientLanes::allow(unsigned path, bool accessible) {
  for_each([&](ClientLane& lane) { lane.allow(path, accessible); });
}

ClientLanes::Signs ClientLanes::look_after(unsigned path, unsigned misses_max) {
  Signs signs;
  for (auto& lane : lanes_) {
    lane->service();
    signs.heard |= lane->heard(path);
    signs.all_live &= lane->probe(path, misses_max);
  }
  return signs;
}

ClientEvent::Traffic ClientLanes::traffic(unsigned path) {
  ClientEvent::Traffic traffic;
  for_each([&](ClientLane& lane) {
    traffic.answered = traffic.answered || lane.connection(path).answered();
    traffic.unanswered = traffic.unanswered || lane.in_flight(path) > 0;
  });
  for (auto& lane : lanes_) traffic.silence = std::max(traffic.silence, lane->silence(path));
  return traffic;
}

std::optional<Raced> ClientLanes::look_at_races() {
  Raced all;
  for (auto& lane : lanes_) all += lane->look_at_race();
  const bool changed = std::exchange(silent_, all.silent) != all.silent || all.moved > 0;
  return changed ? std::optional{all} : std::nullopt;
}

/// All lanes are asked: each of them may have to tell.
bool ClientLanes::end_looks() {
  bool rests = true;
  for (auto& lane : lanes_) rests &= lane->end_looks();
  return rests;
}

bool ClientLanes::bound(unsigned path) {
  bool bound = false;
  for_each([&](ClientLane& lane) { bound |= lane.bound(path); });
  return bound;
}

std::optional<std::uint16_t> ClientLanes::lend_permit(unsigned path) {
  std::optional<std::uint16_t> permit;
  for_each([&](ClientLane& lane) {
    if (!permit) permit = lane.lend_permit(path);
  });
  return permit;
}

// ---- Requests that wait ------------------------------------------------------------------------

void ClientLanes::perform(const ClientAction& action) {
  using Kind = ClientAction::Kind;
  switch (action.kind) {
    case Kind::use:
      return for_each([&](ClientLane& lane) { lane.use(action.paths, options_.policy); });
    case Kind::renew:
      return for_each([](ClientLane& lane) { lane.renew(); });
    case Kind::put_off:
      for (auto& lane : lanes_) lane->with_lane([&](ClientLane& l) { l.note_pause(action.pause); });
      return;
    case Kind::fail_waiting:
      return for_each([this](ClientLane& lane) { lane.fail_pending(error_without_path(lane)); });
    case Kind::forget:
      return for_each([&](ClientLane& lane) { lane.forget(action.path); });
    default:
      return;
  }
}

/// OPEN and CLOSE take EIO for a path that failed.
int ClientLanes::error_without_path(const ClientLane& lane) const {
  return &lane == control_.get() ? EIO : error_without_path();
}

/// The error of I/O, in whose lane devices are opened as well if there is one permit only.
int ClientLanes::error_without_path() const { return has_control() ? options_.no_path_error : EIO; }

void ClientLanes::fail_writes(unsigned path) {
  unresolved_.refuse(options_.no_path_error);
  control_unresolved_.refuse(EIO);
  for_each([&](ClientLane& lane) { lane.fail_stranded(path, error_without_path(lane)); });
  for (Unresolved* scope : {&unresolved_, &control_unresolved_}) {
    if (!scope->writes()) scope->refuse(0);
  }
  for_each([](ClientLane& lane) { lane.resume(); });
  if (unresolved_.writes()) {
    notices_.report({.kind = Notice::Kind::writes_fail, .path = path}, now());
  }
  if (control_unresolved_.writes()) {
    notices_.report({.kind = Notice::Kind::opens_fail, .path = path}, now());
  }
}

std::optional<PathMask> ClientLanes::fail_overdue() {
  if (options_.no_path_timeout == Duration::zero()) return std::nullopt;
  const Instant limit = now() - options_.no_path_timeout;
  std::optional<PathMask> mute;
  for (auto& lane : lanes_) {
    const auto paths = lane->fail_overdue(limit, error_without_path());
    if (paths) mute = static_cast<PathMask>(mute.value_or(0) | *paths);
  }
  return mute;
}

bool ClientLanes::writes_wait() {
  return std::ranges::any_of(lanes_, [](auto& lane) { return lane->holds_back_owner(); });
}

/// Logs the counts of the connections that carry I/O, before they are closed.
void ClientLanes::log_statistics(unsigned path) const {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::string moved = lanes_[i]->statistics(path);
    if (moved.empty()) continue;
    notices_.log(LogLevel::debug, notices_.name_of_session() + ": connection " +
                                      std::to_string(i + 1) + " to " + notices_.name_of_path(path) +
                                      ": " + moved);
  }
}

void ClientLanes::shut_down() {
  shut_down_ = true;
  for (unsigned path = 0; path < kMaxPaths; ++path) log_statistics(path);
  for (auto& lane : lanes_) lane->shut_down(EIO);
  if (control_) control_->shut_down(EIO);
}

// ---- Memory ------------------------------------------------------------------------------------

tl::expected<void, Failure> RegisteredMemory::add(MutableBytes memory) {
  if (std::ranges::any_of(memories_, is_same_as(memory))) {
    return tl::unexpected(Failure{EEXIST, "this memory is registered already"});
  }
  tl::expected<void, Failure> result;
  lanes_.for_each_connection([&](Connection& connection) {
    if (result) result = connection.register_memory(memory);
  });
  if (!result) {
    forget(memory);
    return result;
  }
  memories_.push_back(memory);
  return result;
}

tl::expected<void, Failure> RegisteredMemory::remove(MutableBytes memory) {
  if (std::erase_if(memories_, is_same_as(memory)) == 0) {
    return tl::unexpected(Failure{ENOENT, "this memory is not registered"});
  }
  forget(memory);
  return {};
}

void RegisteredMemory::forget(MutableBytes memory) {
  lanes_.for_each_connection(
      [memory](Connection& connection) { connection.forget_memory(memory); });
}

std::vector<Failure> RegisteredMemory::introduce_to(Connection& connection) const {
  std::vector<Failure> refusals;
  for (const MutableBytes memory : memories_) {
    if (auto known = connection.register_memory(memory); !known) refusals.push_back(known.error());
  }
  return refusals;
}

}  // namespace rtrs
