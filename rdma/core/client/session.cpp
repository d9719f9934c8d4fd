// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/session.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/wire/ensure.hpp"

namespace rtrs {
namespace {

using Random = std::function<std::uint64_t()>;

/// Version 4. Source: RFC 4122.
wire::Uuid random_uuid(const Random& random) {
  wire::Uuid uuid;
  for (auto& byte : uuid) byte = static_cast<std::uint8_t>(random());
  uuid[6] = static_cast<std::uint8_t>((uuid[6] & 0x0F) | 0x40);
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3F) | 0x80);
  return uuid;
}

/// Before the next attempt. Doubles, and is cut at random, so that the clients of a server do not
/// all come back at once.
///
/// At a server with few places for handshakes they would make room for one another for ever, if
/// each were back before the others have shaken hands. So one that is turned away again waits
/// longer.
Duration pause_after(unsigned failures, unsigned turned_away, const ClientSessionOptions& options,
                     const Random& random) {
  constexpr Duration kLongestHandshake =
      std::chrono::seconds{10};  // that a server has patience for
  Duration longest = options.reconnect_min;
  for (unsigned i = 0; i < failures && longest < options.reconnect_max; ++i) longest *= 2;
  longest = std::min(longest, options.reconnect_max);
  for (unsigned i = 0; i < turned_away && longest < kLongestHandshake; ++i) {
    longest = std::min(2 * longest, kLongestHandshake);
  }
  const auto range = static_cast<std::uint64_t>(longest.count()) + 1;
  return Duration{static_cast<Duration::rep>(random() % range)};
}

/// Before the next attempt at a server that may be back any moment. Those that ask a host without
/// the server cost it a packet each, and a host that is gone does not answer so soon.
Duration short_pause(const ClientSessionOptions& options, const Random& random) {
  constexpr Duration kShortest = std::chrono::milliseconds{10};
  constexpr Duration kLongest = std::chrono::milliseconds{50};
  const auto range = static_cast<std::uint64_t>((kLongest - kShortest).count()) + 1;
  return std::min(kShortest + Duration{static_cast<Duration::rep>(random() % range)},
                  options.reconnect_max);
}

}  // namespace

ClientSession::ClientSession(ClientSessionOptions options, std::function<std::uint64_t()> random)
    : options_{std::move(options)}, random_{std::move(random)}, outages_{options_.no_path_timeout} {
  RTRS_ENSURE(!options_.paths.empty() && options_.paths.size() <= kMaxPaths);
  options_.path.session_uuid = random_uuid(random_);
  for (const SessionPathOptions& path : options_.paths) {
    paths_.push_back({.options = path, .uuid = random_uuid(random_)});
  }
}

// ---- Paths -------------------------------------------------------------------------------------

std::optional<unsigned> ClientSession::add(const ClientSessionOptions::Path& options, Instant now) {
  unsigned index = 0;
  while (index < path_count() && paths_[index].exists()) ++index;
  if (index == kMaxPaths) return std::nullopt;
  if (index == path_count()) paths_.emplace_back();
  // An address that comes back is another path, even if it leads to the same server.
  paths_[index] = {.options = options, .uuid = random_uuid(random_), .due = now};
  return index;
}

void ClientSession::leave(unsigned index, Instant now) {
  paths_[index].standing = SessionPath::Standing::leaves;
  // Or it would never be known.
  if (paths_[index].state == PathState::disconnected) paths_[index].reconnect(now);
}

void ClientSession::remove(unsigned index) {
  SessionPath& path = paths_[index];
  RTRS_ENSURE(path.state == PathState::waiting || path.state == PathState::disconnected);
  const bool named_server = path.options.names_server;
  path = {.standing = SessionPath::Standing::free, .state = PathState::disconnected};
  if (named_server) name_another();
}

// ---- Attempts ----------------------------------------------------------------------------------

std::optional<unsigned> ClientSession::connect_due(Instant now) const {
  for (unsigned i = 0; i < path_count(); ++i) {
    if (paths_[i].state == PathState::waiting && paths_[i].due <= now && may_try(i)) return i;
  }
  return std::nullopt;
}

ClientPath& ClientSession::begin(unsigned index) {
  ClientPathOptions options = options_.path;
  options.permits = accepted_.queue_depth;
  // A second path that by mistake leads to another server must not make a session there.
  options.first_connection = !has_path() && may_begin(index);
  options.server_id = required_id(index);
  paths_[index].may_be_new = was_up_ && options.first_connection;
  return paths_[index].begin(std::move(options));
}

ClientPathOptions ClientSession::memory_path() {
  ClientPathOptions options = options_.path;
  options.path_uuid = random_uuid(random_);
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
                      wire::agreed_features(now.extension.features) ==
                          wire::agreed_features(accepted_.extension.features);
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
  SessionPath& path = paths_[index];
  path.connected(now);
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
  SessionPath& path = paths_[index];
  if (path.state != PathState::connected) return false;
  const auto before = std::exchange(path.access, path.core->access());
  if (path.access < before) path.since = now;  // a better path has to prove itself
  look_for_usable(now);
  return path.access > before;
}

/// `was_of_use`: the paths that were usable until now.
void ClientSession::look_for_usable(Instant now, bool was_of_use) {
  outages_.set_usable(std::ranges::any_of(paths_, &SessionPath::may_carry), was_of_use, now);
}

void ClientSession::lost(unsigned index, Instant now, const Cause& why, bool in_vain) {
  SessionPath& path = paths_[index];
  if (path.state != PathState::connecting && path.state != PathState::connected) return;
  bool was_of_use = false;
  bool turned_away = false;
  const bool was_connected = path.state == PathState::connected;
  if (was_connected) {
    was_of_use = path.generation_ended(now, in_vain, options_.reconnect_max);
    outages_.on_lost();
    --connected_;
    for (SessionPath& other : paths_) {
      connected_ > 0 ? other.other_server.on_lost(index) : other.other_server.on_outage();
    }
  } else {
    turned_away = path.was_turned_away(why);
    const bool unknown = path.core->refusal() == ENXIO && !path.core->may_begin();
    path.foreign = unknown || (path.core->believed() && leads_elsewhere(index));
    note_refusal(index, why);
    // Other paths may be needed to go on there: all permits may be bound to them.
    if (path.core->believed() && decides(index)) {
      options_.server_id = path.core->accepted().extension.server_id;
    }
  }
  path.core->close();
  path.state = PathState::waiting;
  if (was_up_) look_for_usable(now, was_of_use);
  const int refusal = path.core->refusal();
  const bool may_change = refusal == 0 || refusal == ECONNRESET || refusal == ENXIO;
  if (turned_away || !may_change || now >= path.back_soon_until) {
    path.due =
        now + pause_after(path.failures++, turned_away ? path.turned_away++ : 0, options_, random_);
  } else {
    path.due = now + (was_connected ? Duration::zero() : short_pause(options_, random_));
  }
  path.trouble = why;
}

bool ClientSession::fell_silent(unsigned index, Instant since, Instant now) {
  SessionPath& path = paths_[index];
  if (!path.silences.begin(now, since) || path.distrust.active()) return false;
  path.distrust.begin(now);
  return true;
}

/// Some other path takes requests.
bool ClientSession::trusted_without(unsigned index) const {
  for (unsigned i = 0; i < path_count(); ++i) {
    if (i != index && paths_[i].may_be_used() && !paths_[i].distrust.active()) return true;
  }
  return false;
}

/// All may die at once. The one that was silent before has been so for two intervals longer at
/// most. That can be told apart only if more than one may be missed.
bool ClientSession::lives_in_part(unsigned index, unsigned silence) const {
  const ClientPath& core = *paths_[index].core;
  const unsigned longest = std::max(silence, core.pulse().control_silence());
  return longest >= core.pulse().silence() + std::clamp(misses_max(index), 2U, 3U);
}

void ClientSession::looks_dead(unsigned index, Instant now) {
  if (!trusted_without(index)) paths_[index].patience.on_dead(now);
}

void ClientSession::disconnect(unsigned index, Instant now) {
  lost(index, now, {});
  paths_[index].disconnect(index);
}

std::optional<Duration> ClientSession::own_pause(Instant now) {
  if (!awake_at_) return std::nullopt;
  const Duration pause = now - std::exchange(*awake_at_, now);
  if (pause <= 2 * options_.path.heartbeat_interval) return std::nullopt;
  outages_.put_off(pause, now);
  for (SessionPath& path : paths_) path.put_off(pause, now);
  return pause;
}

// ---- Time --------------------------------------------------------------------------------------

std::optional<unsigned> ClientSession::overdue(Instant now) {
  if (options_.no_path_timeout == Duration::zero()) return std::nullopt;
  for (unsigned i = 0; i < path_count(); ++i) {
    if (!paths_[i].lost_at || now < *paths_[i].lost_at + options_.no_path_timeout) continue;
    paths_[i].lost_at.reset();
    return i;
  }
  return std::nullopt;
}

PathMask ClientSession::in_use(Instant now) {
  for (SessionPath& path : paths_) path.distrust_ends_by(now);
  unsigned best = ~0U;     // of all that may carry requests
  unsigned settled = ~0U;  // of those that are better than now, and have been for long enough
  bool still_there = false;
  for (const SessionPath& path : paths_) {
    if (!path.may_be_used()) continue;
    best = std::min(best, path.rank());
    still_there = still_there || path.rank() == rank_;
    if (now >= path.since + options_.settle_time) settled = std::min(settled, path.rank());
  }
  const bool better_than_none =
      rank_ >= SessionPath::kDistrusted && best < SessionPath::kDistrusted;
  if (!still_there || better_than_none) {
    rank_ = best;
  } else {
    rank_ = std::min(rank_, settled);
  }
  PathMask mask = 0;
  for (unsigned i = 0; i < path_count(); ++i) {
    if (paths_[i].may_be_used() && paths_[i].rank() == rank_) {
      mask = static_cast<PathMask>(mask | 1U << i);
    }
  }
  return mask;
}

Instant ClientSession::next_event() const {
  Instant next = Instant::max();
  for (unsigned i = 0; i < path_count(); ++i) {
    const SessionPath& path = paths_[i];
    if (path.state == PathState::waiting && may_try(i)) next = std::min(next, path.due);
    if (path.distrust.active()) next = std::min(next, path.distrust.until());
    if (path.may_be_used() && path.rank() < rank_) {
      next = std::min(next, path.since + options_.settle_time);
    }
    if (path.lost_at && options_.no_path_timeout > Duration::zero()) {
      next = std::min(next, *path.lost_at + options_.no_path_timeout);
    }
  }
  if (!outages_.limited()) return next;
  if (const auto deadline = outages_.deadline()) next = std::min(next, *deadline);
  // No heartbeat tells whether this process stands still.
  if (!has_path()) next = std::min(next, *awake_at_ + options_.path.heartbeat_interval);
  return next;
}

}  // namespace rtrs
