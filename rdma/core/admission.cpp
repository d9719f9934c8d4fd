// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/admission.hpp"

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "rdma/core/crowd.hpp"

namespace rtrs {
namespace {

Admission::Considered refuse(int error, const char* why) { return {.error = error, .why = why}; }

constexpr const char* kOvertaken = "an attempt to connect this path that a later one has overtaken";
constexpr const char* kOtherCount = "the number of connections changed";
constexpr const char* kExists = "this connection exists already";
constexpr const char* kUnknown = "unknown session, and not its first connection";
constexpr const char* kOtherUser = "the session belongs to another user";

/// Numbers of attempts wrap.
bool is_older(std::uint16_t attempt, std::uint16_t than) {
  return static_cast<std::int16_t>(attempt - than) < 0;
}

}  // namespace

// ---- Connect requests ---------------------------------------------------------------------------

Admission::Considered Admission::consider(const wire::ConnectParameters& parameters,
                                          std::optional<std::string_view> user,
                                          std::string_view host, unsigned entrance,
                                          bool can_borrow) {
  // Clients that forgot to make one would all share a session: its devices, and the ends of its
  // writes.
  if (parameters.session_uuid == wire::Uuid{} || parameters.path_uuid == wire::Uuid{}) {
    return refuse(EINVAL, "a uuid of zeros");
  }
  const auto known = find(parameters, user);
  // A session's number goes over the wire, and may have been seen there.
  if (known != sessions_.end() && user && known->second.user != user) {
    return refuse(EACCES, kOtherUser);
  }
  Path path{.uuid = parameters.path_uuid,
            .host = std::string{host},
            .entrance = entrance,
            .reconnect_count = parameters.reconnect_count,
            .connected = {},
            .kind = parameters.kind,
            .proves = !user,
            .can_borrow = can_borrow};
  Considered considered = known == sessions_.end() ? consider_new(parameters, user, std::move(path))
                                                   : consider_known(known->first, known->second,
                                                                    parameters, std::move(path));
  if (considered.error != 0) return considered;
  try {
    if (half_open() > limits_.max_half_open) considered.makes_room = turn_away_oldest();
  } catch (...) {
    withdraw(considered, parameters.cid);
    throw;
  }
  return considered;
}

void Admission::withdraw(const Considered& considered, std::uint16_t cid) {
  if (considered.new_session) {
    sessions_.erase(considered.session);
  } else if (const auto session = sessions_.find(considered.session); session != sessions_.end()) {
    std::vector<Path>& paths = session->second.paths;
    const auto path = std::ranges::find(paths, considered.path, &Path::id);
    if (path == paths.end()) return;
    considered.new_path ? void(paths.erase(path)) : void(path->connected[cid] = false);
  }
}

/// The session that is in, or else one that is half open and agrees: a stranger must not be able to
/// keep a session's own client from making it.
std::map<Admission::SessionId, Admission::Session>::iterator Admission::find(
    const wire::ConnectParameters& parameters, std::optional<std::string_view> user) {
  const auto has_uuid = [&](const auto& entry) {
    return entry.second.uuid == parameters.session_uuid;
  };
  const auto in = std::ranges::find_if(
      sessions_, [&](const auto& entry) { return has_uuid(entry) && entry.second.admitted; });
  if (in != sessions_.end()) return in;
  return std::ranges::find_if(sessions_, [&](const auto& entry) {
    return has_uuid(entry) && !entry.second.over && entry.second.user == user &&
           entry.second.agrees(parameters);
  });
}

Admission::Considered Admission::consider_known(SessionId id, Session& session,
                                                const wire::ConnectParameters& parameters,
                                                Path path) {
  if (session.over) return refuse(ECONNRESET, "the session is over and still closing");
  if (!session.agrees(parameters)) return refuse(ECONNRESET, "the session has other features");
  if (parameters.cid != 0) return connect(id, session, parameters, path.proves);
  // Such a path may overtake the one that makes the session, which would be another user's then.
  if (!session.admitted && !parameters.first_connection) return refuse(ENXIO, kUnknown);
  const Path* const older = newest_generation(session, parameters.path_uuid);
  if (older != nullptr && !lingers(session)) {
    // A peer without generations takes its path's return for the proof that all it sent over the
    // older generation has ended; Linux's server keeps that promise in the same way.
    return refuse(ECONNRESET, "the older generation of this path is still closing");
  }
  if (older != nullptr && is_older(parameters.reconnect_count, older->reconnect_count)) {
    return refuse(ECONNRESET, kOvertaken);
  }
  // Nothing could tell to which of the two its other connections belong.
  const bool twice = std::ranges::any_of(session.paths, [&](const Path& other) {
    return other.is_waiting() && other.uuid == parameters.path_uuid &&
           other.reconnect_count == parameters.reconnect_count;
  });
  if (twice) return refuse(ECONNRESET, "this attempt to connect the path is under way already");
  return add_path(id, session, parameters, std::move(path));
}

/// Another connection of a path that is half open.
Admission::Considered Admission::connect(SessionId id, Session& session,
                                         const wire::ConnectParameters& parameters, bool proves) {
  const auto path =
      std::find_if(session.paths.rbegin(), session.paths.rend(), [&](const Path& candidate) {
        return candidate.is_waiting() && candidate.uuid == parameters.path_uuid &&
               candidate.reconnect_count == parameters.reconnect_count;
      });
  if (path == session.paths.rend()) return refuse(ECONNRESET, late(session, parameters));
  if (path->connected.size() != parameters.cid_count) return refuse(ECONNRESET, kOtherCount);
  if (path->connected[parameters.cid]) return refuse(ECONNRESET, kExists);
  if (path->kind != parameters.kind) return refuse(ECONNRESET, "the kind of the path changed");
  if (path->proves != proves) return refuse(EACCES, "the path came by another kind of listener");
  path->connected[parameters.cid] = true;
  return {.session = id, .path = path->id};
}

/// The reason why the path has no use for the connection.
const char* Admission::late(const Session& session, const wire::ConnectParameters& parameters) {
  const Path* const newest = newest_generation(session, parameters.path_uuid);
  if (newest == nullptr) return "connection 0 of this path is missing";
  if (is_older(parameters.reconnect_count, newest->reconnect_count)) return kOvertaken;
  if (newest->reconnect_count != parameters.reconnect_count || newest->closing) {
    return "connection 0 of this attempt is missing";
  }
  return newest->connected.size() != parameters.cid_count ? kOtherCount : kExists;
}

Admission::Considered Admission::consider_new(const wire::ConnectParameters& parameters,
                                              std::optional<std::string_view> user, Path path) {
  // Connections are opened in order. Another one than the first is left over from an attempt that
  // is over. A session made from it would be empty, and later paths would join it.
  if (!parameters.first_connection || parameters.cid != 0 ||
      parameters.kind == wire::PathKind::memory) {
    return refuse(ENXIO, kUnknown);
  }
  Session session;
  session.uuid = parameters.session_uuid;
  if (user) session.user = *user;
  session.extension = parameters.extension.present;
  session.features = parameters.extension.features;
  const SessionId id = next_++;
  Considered considered = add_path(id, session, parameters, std::move(path));
  if (considered.error != 0) return considered;
  considered.new_session = true;
  sessions_.emplace(id, std::move(session));
  return considered;
}

Admission::Considered Admission::add_path(SessionId id, Session& session,
                                          const wire::ConnectParameters& parameters, Path path) {
  if (parameters.cid_count > limits_.max_connections_per_path) {
    return refuse(EINVAL, "more connections per path than allowed (max_connections_per_path)");
  }
  path.id = next_++;
  // Known before the client has spent anything on the rest of its handshake.
  if (const char* why = no_room(session, path)) return refuse(ENOMEM, why);
  if (const char* why = no_room_of_user(session, "")) return refuse(ENOMEM, why);
  if (const char* why = memory_for(session, path).lack) return refuse(ENOMEM, why);
  const char* const alone = path.has_chunks() ? nullptr : no_memory_path(session);
  if (alone != nullptr) return refuse(ENXIO, alone);
  const Considered considered{
      .session = id, .path = path.id, .new_path = true, .memory = memory_of(session, path)};
  path.connected.resize(parameters.cid_count);
  path.connected[0] = true;
  session.paths.push_back(std::move(path));
  return considered;
}

const Admission::Path* Admission::newest_generation(const Session& session,
                                                    const wire::Uuid& path) {
  const auto newest = std::find_if(
      session.paths.rbegin(), session.paths.rend(),
      [&](const Path& candidate) { return !candidate.half_open && candidate.uuid == path; });
  return newest == session.paths.rend() ? nullptr : &*newest;
}

const char* Admission::no_memory_path(const Session& session) const {
  if ((session.features & limits_.features & wire::kFeatureMemoryPaths) == 0) {
    return "the session has no memory paths";
  }
  const bool alone = std::ranges::none_of(
      session.paths, [](const Path& path) { return path.is_open() && path.has_chunks(); });
  return alone ? "a memory path of a session that has no other path" : nullptr;
}

const char* Admission::no_room(const Session& session, const Path& path) const {
  if (!session.admitted && sessions() >= limits_.max_sessions) {
    return limits_.words->many_sessions;
  }
  const auto open = std::ranges::count_if(
      session.paths, [&](const Path& other) { return other.is_open() && other.uuid != path.uuid; });
  const auto all = std::ranges::count(session.paths, false, &Path::half_open);
  // Closed paths stay while requests execute in them. A client that reconnects all the time must
  // not collect them.
  if (open >= limits_.max_paths_per_session ||
      all >= 2 * std::int64_t{limits_.max_paths_per_session}) {
    return "too many paths in the session (max_paths_per_session)";
  }
  // Reads are carried out anew on every path. A session with hanging storage must leave room for
  // the others.
  if (kept_by_storage(session) > std::max(limits_.memory_limit / 4, limits_.path_memory)) {
    return limits_.words->hanging_storage;
  }
  return nullptr;
}

/// One user must leave room for the others. Clients without a proof are no user. An idle session
/// may have to go when another one takes its name; "" = the name is not known yet.
const char* Admission::no_room_of_user(const Session& session, std::string_view name) const {
  const unsigned most = limits_.max_sessions_per_user;
  if (session.admitted || most == 0 || !session.has_user()) return nullptr;
  const auto others = std::ranges::count_if(sessions_, [&](const auto& entry) {
    const Session& other = entry.second;
    const bool goes = other.idle && (name.empty() || other.name == name);
    return other.admitted && other.user == session.user && other.uuid != session.uuid && !goes;
  });
  return others >= most ? limits_.words->many_of_user : nullptr;
}

// ---- Memory, and paths that a session can do without --------------------------------------------

std::uint64_t Admission::memory_of(const Session& session, const Path& path) const {
  if (!path.has_chunks()) return 0;
  const bool borrows = limits_.path_floor != 0 && path.can_borrow && lingers(session);
  return borrows ? std::min(limits_.path_floor, limits_.path_memory) : limits_.path_memory;
}

/// Not null: requests of others have borrowed so much that it must come again. Its older generation
/// and those that are spared leave their memory to it.
const char* Admission::claim_memory(const Session& session, const Path& path,
                                    const std::vector<Place>& spares) {
  if (limits_.account == nullptr) return nullptr;
  std::uint64_t goes = 0;
  std::uint64_t of_user = 0;
  for (const auto& [id, other] : sessions_) {
    for (const Path& each : other.paths) {
      const bool older = &other == &session && each.is_open() && each.uuid == path.uuid;
      if (!older && std::ranges::count(spares, each.id, &Place::path) == 0) continue;
      goes += each.counted();
      if (other.user == session.user) of_user += each.counted();
    }
  }
  const auto beyond = [needed = memory_of(session, path)](std::uint64_t left) {
    return needed - std::min(needed, left);
  };
  const std::string_view user = session.user ? std::string_view{*session.user} : "";
  switch (limits_.account->claim_floor(user, beyond(goes), beyond(of_user))) {
    case MemoryAccount::Claim::granted:
      return nullptr;
    case MemoryAccount::Claim::user_lacks:
      return limits_.words->lent_to_user;
    default:
      return limits_.words->lent_memory;
  }
}

void Admission::tell_account() const {
  if (limits_.account == nullptr) return;
  limits_.account->count_floors([this](const auto& count) {
    for (const auto& [id, session] : sessions_) {
      const std::string_view user = session.user ? std::string_view{*session.user} : "";
      for (const Path& path : session.paths) count(user, path.counted());
    }
  });
}

/// An older generation of the same path goes anyway.
Admission::Lack Admission::lack_of(const Session& session, const Path& path) const {
  std::uint64_t all = memory_of(session, path);
  std::uint64_t of_user = all;
  for (const auto& [id, other] : sessions_) {
    for (const Path& each : other.paths) {
      if (&other == &session && each.uuid == path.uuid && each.is_open()) continue;
      all += each.counted();
      if (other.user == session.user) of_user += each.counted();
    }
  }
  const auto beyond = [](std::uint64_t sum, std::uint64_t limit) {
    return sum - std::min(sum, limit);
  };
  const std::uint64_t users_limit = limits_.memory_limit_per_user;
  const bool limited = session.has_user() && users_limit > 0;
  return {.in_all = beyond(all, limits_.memory_limit),
          .of_user = limited ? beyond(of_user, users_limit) : 0};
}

Admission::Memory Admission::memory_for(const Session& session, const Path& path) const {
  if (!path.has_chunks()) return {};
  const Lack lack = lack_of(session, path);
  if (!lack.any()) return {};
  std::vector<Place> spared = to_spare(session, path, lack);
  if (!spared.empty()) return {.spares = std::move(spared)};
  return {.lack = lack.of_user != 0 ? limits_.words->large_user : limits_.words->large_path};
}

/// A path that is silent is probably dead, and of one that is on its way back its client says so.
Admission::Use Admission::use_of(const Session& session, const Path& path) const {
  const bool comes_back = std::ranges::any_of(session.paths, [&](const Path& other) {
    return other.uuid == path.uuid && other.is_waiting() && other.id > path.id;
  });
  if (path.silent || comes_back) return Use::none;
  const bool learns = (session.features & limits_.features & wire::kFeatureAccessNotice) != 0;
  const auto access = access_.find(path.entrance);
  if (!learns || access == access_.end()) return Use::preferred;
  switch (access->second) {
    case wire::PathAccess::inaccessible:
      return Use::none;
    case wire::PathAccess::non_optimized:
      return Use::second;
    default:
      return Use::preferred;
  }
}

/// True: the session has no other path like it: none that carries requests, or none at all.
bool Admission::is_needed(const Session& session, const Path& path) const {
  const bool carries = use_of(session, path) != Use::none;
  return std::ranges::none_of(session.paths, [&](const Path& other) {
    return other.uuid != path.uuid && other.is_open() && other.has_chunks() &&
           (!carries || use_of(session, other) != Use::none);
  });
}

/// The paths to be closed for one that is needed, until there is enough. First those of the same
/// session or user, then the least useful one, then of the session that has most, then the newest.
/// So what is left of a session's carries requests, if any did. A client without generations learns
/// the ends of its writes by the same path only, so it keeps all. None, if all that may go is too
/// little. None either while closed paths hold so much, by requests that storage has not ended,
/// that closing more might free nothing.
std::vector<Admission::Place> Admission::to_spare(const Session& taker, const Path& path,
                                                  Lack lack) const {
  if (!is_needed(taker, path)) return {};
  std::uint64_t closing = 0;
  for (const auto& [id, session] : sessions_) {
    if (lack.of_user != 0 && session.user != taker.user) continue;
    for (const Path& each : session.paths) closing += each.shrunk || each.spared ? each.memory : 0;
  }
  const std::uint64_t limit =
      lack.of_user != 0 ? limits_.memory_limit_per_user : limits_.memory_limit;
  if (closing > limit / 4) return {};
  std::vector<Place> spared;
  while (lack.any()) {
    const Place next = next_to_spare(taker, path, lack.of_user != 0, spared);
    if (next.path == 0) return {};
    spared.push_back(next);
    const Session& loser = sessions_.at(next.session);
    const auto goes = std::ranges::find(loser.paths, next.path, &Path::id)->counted();
    lack.in_all -= std::min(lack.in_all, goes);
    if (loser.user == taker.user) lack.of_user -= std::min(lack.of_user, goes);
  }
  return spared;
}

/// Beside those that go already.
Admission::Place Admission::next_to_spare(const Session& taker, const Path& path, bool of_user,
                                          const std::vector<Place>& spared) const {
  const bool stranger = taker.user && taker.user->empty();
  std::tuple<bool, bool, Use, std::size_t, PathId> best;
  Place found;
  for (const auto& [id, session] : sessions_) {
    const bool own = &session == &taker;
    const bool same_user = session.user == taker.user;
    if (of_user && !same_user) continue;
    const auto may_go = [&](const Path& each) {
      return each.is_open() && each.has_chunks() && !(own && each.uuid == path.uuid) &&
             std::ranges::count(spared, each.id, &Place::path) == 0;
    };
    const auto open = static_cast<std::size_t>(std::ranges::count_if(session.paths, may_go));
    if (!lingers(session) || (session.has_user() && stranger) || (!own && open < 2)) continue;
    for (const Path& each : session.paths) {
      const std::tuple candidate{own, same_user, use_of(session, each), open, each.id};
      if (!may_go(each) || (found.path != 0 && candidate < best)) continue;
      best = candidate;
      found = {id, each.id};
    }
  }
  return found;
}

Admission::Place Admission::turn_away_oldest(const wire::Uuid& own) {
  std::map<PathId, std::pair<SessionId, std::string_view>> waiting;  // oldest first
  for (const auto& [id, session] : sessions_) {
    for (const Path& path : session.paths) {
      if (path.is_waiting()) waiting.emplace(path.id, std::pair{id, std::string_view{path.host}});
    }
  }
  Crowd<Place> crowd;
  for (const auto& [path, place] : waiting) {
    crowd.add(place.second, {place.first, path});
  }
  const Place goes = crowd.first_of_most().value_or(Place{});
  if (goes.path == 0) return goes;
  const auto& paths = sessions_.at(goes.session).paths;
  // Another one in its place would let whoever has most of them keep all.
  if (std::ranges::find(paths, goes.path, &Path::id)->uuid == own) return {};
  close_path(goes.session, goes.path);
  return goes;
}

// ---- Finished handshakes ------------------------------------------------------------------------

Admission::Admitted Admission::admit(SessionId id, PathId path_id, std::string_view name,
                                     std::optional<std::string_view> user) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return {.why_not = "the session is gone"};
  Session& session = found->second;
  const auto path = std::ranges::find(session.paths, path_id, &Path::id);
  if (path == session.paths.end() || !path->is_waiting()) {
    return {.why_not = "the path was turned away"};
  }
  if (const char* why = overtaken(session, *path)) return {.why_not = why};
  if (const char* why = no_room(session, *path)) {
    return {.why_not = why, .error = ENOMEM};
  }
  if (user && !session.admitted) session.user = *user;
  if (user && session.user != *user) {
    return {.why_not = kOtherUser, .error = EACCES, .other_user = true};
  }
  if (const char* why = no_room_of_user(session, name)) {
    return {.why_not = why, .error = ENOMEM};
  }
  Memory memory = memory_for(session, *path);
  if (memory.lack != nullptr) return {.why_not = memory.lack, .error = ENOMEM};
  if (const char* why = claim_memory(session, *path, memory.spares)) {
    return {.why_not = why, .error = ENOMEM};
  }
  Admitted admitted = claim_name(id, name);
  if (admitted.why_not != nullptr) {
    tell_account();
    return admitted;
  }
  for (const Place spared : memory.spares) {
    if (Path* const goes = find_path(spared)) goes->closing = goes->spared = true;
  }
  for (Path& other : session.paths) {
    if (!other.is_open() || other.uuid != path->uuid) continue;
    // The client starts the path again, so its old generation is over.
    other.closing = other.spared = true;
    admitted.replaces = other.id;
  }
  path->half_open = false;
  path->memory = memory_of(session, *path);
  session.admitted = true;
  session.idle = false;
  tell_account();
  admitted.spares = std::move(memory.spares);
  return admitted;
}

/// Much may have happened since the path was considered.
const char* Admission::overtaken(const Session& session, const Path& path) const {
  if (session.over) return "the session is over and still closing";
  const bool made_meanwhile = std::ranges::any_of(sessions_, [&](const auto& entry) {
    return entry.second.admitted && entry.second.uuid == session.uuid;
  });
  if (!session.admitted && made_meanwhile) return "the session was made by another path meanwhile";
  if (const Path* const older = newest_generation(session, path.uuid); older != nullptr) {
    if (!lingers(session)) return "the older generation of this path is still closing";
    if (is_older(path.reconnect_count, older->reconnect_count)) return kOvertaken;
  }
  return path.has_chunks() ? nullptr : no_memory_path(session);
}

Admission::Admitted Admission::claim_name(SessionId session, std::string_view name) {
  Admitted claim;
  Session& self = sessions_.at(session);
  std::string taken{name};  // before anything is changed
  for (auto& [id, other] : sessions_) {
    // A user has names of his own, or others could end his sessions by theirs.
    if (id == session || other.name != name || other.user != self.user) continue;
    if (!other.idle) return {.why_not = "the session name is in use by another client"};
    claim.ends = id;
  }
  if (const auto idle = sessions_.find(claim.ends); idle != sessions_.end()) {
    idle->second.over = true;
    idle->second.name.clear();
  }
  self.name = std::move(taken);
  return claim;
}

// ---- The end of paths and sessions
// ----------------------------------------------------------------

template <class Visit>
void Admission::for_each_path(Visit visit) const {
  for (const auto& [id, session] : sessions_) std::ranges::for_each(session.paths, visit);
}

std::size_t Admission::sessions() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(sessions_, [](const auto& entry) { return entry.second.admitted; }));
}

std::size_t Admission::half_open() const {
  std::size_t count = 0;
  for_each_path([&](const Path& path) { count += path.is_waiting() ? 1U : 0U; });
  return count;
}

std::uint64_t Admission::memory() const {
  std::uint64_t sum = 0;
  for_each_path([&](const Path& path) { sum += path.counted(); });
  return sum;
}

std::uint64_t Admission::kept_by_storage(const Session& session) const {
  std::uint64_t sum = 0;
  for (const Path& path : session.paths) sum += path.shrunk ? path.memory : 0;
  return sum;
}

void Admission::set_idle(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  // A path may have been let in meanwhile.
  found->second.idle = std::ranges::none_of(found->second.paths, &Path::is_open);
}

Admission::Path* Admission::find_path(Place place) {
  const auto found = sessions_.find(place.session);
  if (found == sessions_.end()) return nullptr;
  const auto path = std::ranges::find(found->second.paths, place.path, &Path::id);
  return path == found->second.paths.end() ? nullptr : &*path;
}

void Admission::close_path(SessionId session, PathId path) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  if (Path* const known = find_path({session, path})) known->closing = true;
  const bool alone = std::ranges::all_of(found->second.paths, &Path::closing);
  const bool waits = found->second.admitted && lingers(found->second);
  if (alone && !waits) found->second.over = true;
}

void Admission::set_silent(SessionId session, PathId path, bool silent) {
  if (Path* const known = find_path({session, path})) known->silent = silent;
}

void Admission::shrink_path(SessionId session, PathId path, std::uint64_t memory) {
  Path* const known = find_path({session, path});
  if (known == nullptr) return;
  known->shrunk = true;
  known->spared = false;
  known->memory = memory;
  tell_account();
}

void Admission::remove_path(SessionId session, PathId path) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  std::erase_if(found->second.paths, [&](const Path& p) { return p.id == path; });
  tell_account();
}

void Admission::close(SessionId session) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second.over = true;
}

void Admission::remove(SessionId session) {
  sessions_.erase(session);
  tell_account();
}

}  // namespace rtrs
