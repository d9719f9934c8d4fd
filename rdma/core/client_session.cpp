// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client_session.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/core/plant.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs {
namespace {

constexpr unsigned kDistrusted = 1024;  ///< added to the rank of a path

}  // namespace

ClientSession::ClientSession(ClientSessionOptions options, std::function<std::uint64_t()> random)
    : options_{std::move(options)}, random_{std::move(random)} {
  RTRS_ENSURE(!options_.paths.empty() && options_.paths.size() <= kMaxPaths);
  options_.path.session_uuid = random_uuid();
  for (std::size_t i = 0; i < options_.paths.size(); ++i) {
    paths_.emplace_back();
    paths_.back().uuid = random_uuid();
  }
}

/// Version 4. Source: RFC 4122.
wire::Uuid ClientSession::random_uuid() {
  wire::Uuid uuid;
  for (auto& byte : uuid) byte = static_cast<std::uint8_t>(random_());
  uuid[6] = static_cast<std::uint8_t>((uuid[6] & 0x0F) | 0x40);
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3F) | 0x80);
  return uuid;
}

// ---- Paths -------------------------------------------------------------------------------------

std::optional<unsigned> ClientSession::add(const ClientSessionOptions::Path& options, Instant now) {
  unsigned index = 0;
  while (index < path_count() && paths_[index].exists) ++index;
  if (index == kMaxPaths) return std::nullopt;
  if (index == path_count()) {
    paths_.emplace_back();
    options_.paths.emplace_back();
  }
  options_.paths[index] = options;
  paths_[index] = Path{};
  paths_[index].uuid = random_uuid();  // another path to the server, even if it leads there again
  paths_[index].due = now;
  return index;
}

void ClientSession::leave(unsigned index, Instant now) {
  paths_[index].leaving = true;
  // Or it would never be known.
  if (paths_[index].state == PathState::disconnected) reconnect(index, now);
}

void ClientSession::remove(unsigned index) {
  Path& path = paths_[index];
  RTRS_ENSURE(path.state == PathState::waiting || path.state == PathState::disconnected);
  path = Path{};
  path.exists = false;
  path.state = PathState::disconnected;
  if (std::exchange(options_.paths[index].names_server, false)) name_another();
}

// ---- Attempts ----------------------------------------------------------------------------------

std::optional<unsigned> ClientSession::connect_due(Instant now) const {
  for (unsigned i = 0; i < path_count(); ++i) {
    if (paths_[i].state == PathState::waiting && paths_[i].due <= now && may_try(i)) return i;
  }
  return std::nullopt;
}

ClientPath& ClientSession::begin(unsigned index) {
  Path& path = paths_[index];
  RTRS_ENSURE(path.state == PathState::waiting);
  path.state = PathState::connecting;
  ClientPathOptions options = options_.path;
  options.path_uuid = path.uuid;
  options.reconnect_count = ++path.attempts;
  options.permits = accepted_.queue_depth;
  // A second path that by mistake leads to another server must not make a session there.
  options.first_connection = !has_path() && may_begin(index);
  options.server_id = required_id(index);
  path.may_be_new = was_up_ && options.first_connection;
  options.may_be_linux = options_.paths[index].may_be_linux;
  options.data_rides_with_reply = options_.paths[index].data_rides_with_reply;
  path.core = std::make_unique<ClientPath>(std::move(options));
  return *path.core;
}

ClientPathOptions ClientSession::memory_path() {
  ClientPathOptions options = options_.path;
  options.path_uuid = random_uuid();
  options.kind = wire::PathKind::memory;
  options.first_connection = false;
  options.server_id = accepted_.extension.server_id;
  return options;
}

ClientSession::Welcome ClientSession::judge(unsigned index) {
  const ClientPath& path = *paths_[index].core;
  const wire::AcceptParameters& now = path.accepted();
  if (leads_elsewhere(index)) return Welcome::foreign;
  paths_[index].proven = true;
  if (options_.require_extension && !path.exactly_once()) return Welcome::unfit;
  if (!was_up_) return Welcome::first;
  const bool enough = now.queue_depth >= accepted_.queue_depth &&
                      now.max_io_size >= accepted_.max_io_size &&
                      now.extension.features == accepted_.extension.features;
  // Begun before anybody knew how many permits the lanes share: the next attempt deals as many.
  if (enough && path.permits() != accepted_.queue_depth) return Welcome::stranger;
  const bool same = enough && now.queue_depth == granted_depth_;
  if (path.exactly_once() && now.extension.session_epoch == accepted_.extension.session_epoch) {
    return same ? Welcome::joined : Welcome::stranger;
  }
  // Generations have begun anew since: the old session's record of permits must not be used for the
  // new ones.
  const bool left = std::ranges::find(left_, now.extension.session_epoch) != left_.end();
  if (path.exactly_once() && left) return Welcome::left;
  if (has_path()) {
    // Without epochs: a server that knows the session has this one, unless the other path stands at
    // this end only and the server has made the session anew.
    const bool known = !path.exactly_once() && !paths_[index].may_be_new;
    return known && same ? Welcome::joined : Welcome::stranger;
  }
  return enough ? Welcome::renewed : Welcome::changed;
}

void ClientSession::connected(unsigned index, Instant now) {
  Path& path = paths_[index];
  RTRS_ENSURE(path.state == PathState::connecting);
  path.state = PathState::connected;
  path.since = path.up_since = now;
  path.access = path.core->access();
  path.was_connected = true;
  ++path.connects;
  path.foreign = false;
  path.turned_away = 0;
  path.lost_before = std::exchange(path.lost_at, std::nullopt);
  if (!path.distrusted) path.trouble = {};
  if (connected_++ == 0) {
    const auto known = std::exchange(accepted_, path.core->accepted());
    granted_depth_ = accepted_.queue_depth;
    leave_epoch_of(known);
    options_.server_id = accepted_.extension.server_id;
    if (was_up_) {  // callers and lanes keep the limits that they know
      accepted_.max_io_size = known.max_io_size;
      accepted_.queue_depth = known.queue_depth;
    }
  }
  if (!std::exchange(was_up_, true)) awake_at_ = now;
  look_for_usable(now, /*was_of_use=*/false);
}

/// Servers that are one to their clients take turns, and each remembers a session for a while. More
/// renewals than these take longer than that.
void ClientSession::leave_epoch_of(const wire::AcceptParameters& known) {
  constexpr std::size_t kRemembered = 65'536;
  const std::uint64_t epoch = known.extension.session_epoch;
  if (epoch == 0 || epoch == accepted_.extension.session_epoch) return;
  if (left_.size() == kRemembered) left_.erase(left_.begin());
  left_.push_back(epoch);
}

bool ClientSession::access_changed(unsigned index, Instant now) {
  Path& path = paths_[index];
  if (path.state != PathState::connected) return false;
  const auto before = std::exchange(path.access, path.core->access());
  if (path.access < before) path.since = now;  // a better path has to prove itself
  look_for_usable(now);
  return path.access > before;
}

/// `was_of_use`: the paths that were usable until now.
void ClientSession::look_for_usable(Instant now, bool was_of_use) {
  if (was_of_use && usable_) alone_since_.reset();
  bool usable = false;
  for (unsigned i = 0; i < path_count(); ++i) usable = usable || may_carry(i);
  if (std::exchange(usable_, usable) == usable) return;
  if (usable) without_path_ += now - unusable_since_;
  unusable_since_ = now;
  if (!RTRS_PLANTED(no_path_once)) gave_up_ = false;
  if (!usable && !alone_since_) alone_since_ = now;
}

void ClientSession::lost(unsigned index, Instant now, const Cause& why, bool in_vain) {
  Path& path = paths_[index];
  if (path.state != PathState::connecting && path.state != PathState::connected) return;
  // Longer than all but the slowest storage needs for an answer.
  constexpr Duration kSoon = std::chrono::seconds{2};
  bool was_of_use = false;
  bool turned_away = false;
  if (path.state == PathState::connected) {
    // A server that ends a path with its first answer, every time, is not asked again at once.
    if (now >= path.up_since + options_.reconnect_max) path.failures = 0;
    was_of_use = !in_vain || now >= path.up_since + kSoon || RTRS_PLANTED(vain_path_counts);
    if (was_of_use) path.lost_before.reset();
    if (!RTRS_PLANTED(no_path_once)) gave_up_ = false;  // its requests have not failed yet
    if (!path.core->exactly_once()) path.lost_at = path.lost_before.value_or(now);
    --connected_;
  } else {
    turned_away = why.kind == Cause::Kind::transport && why.error != ETIMEDOUT &&
                  path.core->turned_away() && !RTRS_PLANTED(turned_away_hurries);
    const bool unknown = path.core->refusal() == ENXIO && !path.core->may_begin();
    path.foreign = unknown || (path.core->believed() && leads_elsewhere(index));
    // Others may be needed to go on there: all permits may be bound to them.
    if (path.core->believed() && decides(index)) {
      options_.server_id = path.core->accepted().extension.server_id;
    }
  }
  path.core->close();
  path.state = PathState::waiting;
  if (was_up_) look_for_usable(now, was_of_use);
  path.due = now + pause(path.failures++, turned_away ? path.turned_away++ : 0);
  path.trouble = why;
}

/// Doubles, and is cut at random, so that the clients of a server do not all come back at once.
///
/// At a server with few places at its door they would make room for one another for ever, if each
/// were back before the others have shaken hands. So who is turned away again waits longer.
Duration ClientSession::pause(unsigned failures, unsigned turned_away) {
  constexpr Duration kLongestHandshake =
      std::chrono::seconds{10};  // that a server has patience for
  Duration longest = options_.reconnect_min;
  for (unsigned i = 0; i < failures && longest < options_.reconnect_max; ++i) longest *= 2;
  longest = std::min(longest, options_.reconnect_max);
  for (unsigned i = 0; i < turned_away && longest < kLongestHandshake; ++i) {
    longest = std::min(2 * longest, kLongestHandshake);
  }
  const auto range = static_cast<std::uint64_t>(longest.count()) + 1;
  return Duration{static_cast<Duration::rep>(random_() % range)};
}

/// Some other path takes requests.
bool ClientSession::trusted_without(unsigned index) const {
  for (unsigned i = 0; i < path_count(); ++i) {
    if (i != index && may_be_used(i) && !paths_[i].distrusted) return true;
  }
  return false;
}

/// When all die at once, the one that was silent before has been so for two intervals longer at
/// most. That can be told apart only if more than one may be missed.
bool ClientSession::lives_in_part(unsigned index, unsigned silence) const {
  const ClientPath& core = *paths_[index].core;
  const unsigned longest = std::max(silence, core.pulse().control_silence());
  return longest >= core.pulse().silence() + std::clamp(misses_max(index), 2U, 3U);
}

void ClientSession::looks_dead(unsigned index, Instant now) {
  if (!trusted_without(index)) paths_[index].patience.on_dead(now);
}

void ClientSession::distrust(unsigned index, Instant now) {
  constexpr Duration kShortest = std::chrono::seconds{10};
  constexpr Duration kLongest = std::chrono::minutes{10};
  constexpr Duration kLongAgo = std::chrono::minutes{2};
  Path& path = paths_[index];
  const bool long_ago = now >= path.distrusted_until + std::max(path.quarantine, kLongAgo);
  path.quarantine = long_ago ? kShortest : std::clamp(2 * path.quarantine, kShortest, kLongest);
  path.distrusted_until = now + path.quarantine;
  path.distrusted = true;
}

void ClientSession::disconnect(unsigned index, Instant now) {
  lost(index, now, {});
  Path& path = paths_[index];
  path.state = PathState::disconnected;
  path.trouble = Cause{Cause::Kind::disconnected, index};
}

void ClientSession::reconnect(unsigned index, Instant now) {
  Path& path = paths_[index];
  if (path.state != PathState::disconnected && path.state != PathState::waiting) return;
  path.state = PathState::waiting;
  path.due = now;
  path.distrusted = false;  // an order of the operator counts more
  path.quarantine = {};
}

std::optional<Duration> ClientSession::own_pause(Instant now) {
  if (!awake_at_) return std::nullopt;
  const Duration pause = now - std::exchange(*awake_at_, now);
  if (pause <= 2 * options_.path.heartbeat_interval) return std::nullopt;
  if (RTRS_PLANTED(own_pause_counts)) return std::nullopt;
  const auto put_off = [&](std::optional<Instant>& since) {
    if (since) since = std::min(*since + pause, now);  // some began when this process went on
  };
  put_off(alone_since_);
  for (Path& path : paths_) {
    put_off(path.lost_at);
    put_off(path.lost_before);
  }
  return pause;
}

// ---- Time --------------------------------------------------------------------------------------

bool ClientSession::give_up_waiting(Instant now) {
  if (usable_ || gave_up_ || options_.no_path_timeout == Duration::zero()) return false;
  gave_up_ = now >= *alone_since_ + options_.no_path_timeout || RTRS_PLANTED(no_path_at_once);
  return gave_up_;
}

std::optional<unsigned> ClientSession::overdue(Instant now) {
  if (options_.no_path_timeout == Duration::zero()) return std::nullopt;
  for (unsigned i = 0; i < path_count(); ++i) {
    if (!paths_[i].lost_at || now < *paths_[i].lost_at + options_.no_path_timeout) continue;
    paths_[i].lost_at.reset();
    return i;
  }
  return std::nullopt;
}

bool ClientSession::may_carry(unsigned index) const {
  const Path& path = paths_[index];
  return path.state == PathState::connected && path.core->accessible();
}

/// Lower is better. First counts that the path carries its requests, then the server's access
/// state, then the kind of transport.
unsigned ClientSession::rank(unsigned index) const {
  constexpr unsigned kClasses = 64;
  const auto access = static_cast<unsigned>(paths_[index].access);
  const unsigned trust = paths_[index].distrusted ? kDistrusted : 0;
  return trust + access * kClasses + options_.paths[index].rank;
}

PathMask ClientSession::in_use(Instant now) {
  for (Path& path : paths_) {
    if (!path.distrusted || now < path.distrusted_until) continue;
    path.distrusted = false;
    if (path.state == PathState::connected) path.trouble = {};
  }
  unsigned best = ~0U;     // of all that may carry requests
  unsigned settled = ~0U;  // of those that are better than now, and have been for long enough
  bool still_there = false;
  for (unsigned i = 0; i < path_count(); ++i) {
    if (!may_be_used(i)) continue;
    best = std::min(best, rank(i));
    still_there = still_there || rank(i) == rank_;
    const bool is_settled = now >= paths_[i].since + options_.settle_time;
    if (is_settled || RTRS_PLANTED(settle_time_ignored)) settled = std::min(settled, rank(i));
  }
  const bool better_than_none = rank_ >= kDistrusted && best < kDistrusted;
  if (!still_there || better_than_none) {
    rank_ = best;
  } else {
    rank_ = std::min(rank_, settled);
  }
  PathMask mask = 0;
  for (unsigned i = 0; i < path_count(); ++i) {
    if (may_be_used(i) && rank(i) == rank_) {
      mask = static_cast<PathMask>(mask | 1U << i);
    }
  }
  return mask;
}

Instant ClientSession::next_event() const {
  Instant next = Instant::max();
  for (unsigned i = 0; i < path_count(); ++i) {
    const Path& path = paths_[i];
    if (path.state == PathState::waiting && may_try(i)) next = std::min(next, path.due);
    if (path.distrusted) next = std::min(next, path.distrusted_until);
    if (may_be_used(i) && rank(i) < rank_ && !RTRS_PLANTED(better_path_unused)) {
      next = std::min(next, path.since + options_.settle_time);
    }
    if (path.lost_at && options_.no_path_timeout > Duration::zero()) {
      next = std::min(next, *path.lost_at + options_.no_path_timeout);
    }
  }
  if (usable_ || options_.no_path_timeout == Duration::zero()) return next;
  if (!gave_up_) next = std::min(next, *alone_since_ + options_.no_path_timeout);
  // No heartbeat tells whether this process stands still.
  if (!has_path()) next = std::min(next, *awake_at_ + options_.path.heartbeat_interval);
  return next;
}

}  // namespace rtrs
