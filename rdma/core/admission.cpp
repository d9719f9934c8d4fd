#include "rdma/core/admission.hpp"

#include <algorithm>
#include <cerrno>

#include "rdma/core/plant.hpp"

namespace rtrs {
namespace {

Admission::Decision refuse(int error, const char* why) { return {.error = error, .why = why}; }

}  // namespace

Admission::Decision Admission::admit(const wire::ConnectParameters& parameters) {
  // Everybody who forgot to make one would share a session: its devices, and the ends of its
  // writes.
  if (parameters.session_uuid == wire::Uuid{} || parameters.path_uuid == wire::Uuid{}) {
    return refuse(EINVAL, "a uuid of zeros");
  }
  for (auto& [id, session] : sessions_) {
    if (session.uuid == parameters.session_uuid) return admit_known(id, session, parameters);
  }
  return admit_new(parameters);
}

Admission::Decision Admission::admit_known(SessionId id, Session& session,
                                           const wire::ConnectParameters& parameters) {
  if (session.over) return refuse(ECONNRESET, "the session is over and still closing");
  if (parameters.extension.present != session.extension ||
      parameters.extension.features != session.features) {
    return refuse(ECONNRESET, "the session has other features");
  }
  const auto newest =
      std::find_if(session.paths.rbegin(), session.paths.rend(),
                   [&](const Path& path) { return path.uuid == parameters.path_uuid; });
  if (newest == session.paths.rend()) return add_path(id, session, parameters);
  const bool starts_again = parameters.cid == 0 && (newest->closing || newest->connected[0]);
  if (starts_again && !lingers(session)) {
    // A peer without generations takes its path's return for the proof that all it sent over the
    // old life has ended; Linux's server keeps that promise in the same way.
    return refuse(ECONNRESET, "the old life of this path is still closing");
  }
  if (static_cast<std::int16_t>(parameters.reconnect_count - newest->reconnect_count) < 0) {
    return refuse(ECONNRESET, "an attempt to connect this path that a later one has overtaken");
  }
  if (starts_again) {
    // Whoever starts again knows better than we that the path's old life is over.
    const PathId replaced = newest->closing ? 0 : newest->id;
    const bool was_closing = std::exchange(newest->closing, true);
    const auto position = session.paths.rend() - newest - 1;
    Decision decision = add_path(id, session, parameters);
    if (decision.error != 0)
      session.paths[static_cast<std::size_t>(position)].closing = was_closing;
    decision.replaces = decision.error == 0 ? replaced : 0;
    return decision;
  }
  if (newest->closing) return refuse(ECONNRESET, "this path is closing");
  if (newest->connected.size() != parameters.cid_count) {
    return refuse(ECONNRESET, "the number of connections changed");
  }
  if (newest->connected[parameters.cid]) {
    return refuse(ECONNRESET, "this connection exists already");
  }
  connect(session, *newest, parameters.cid);
  return {.session = id, .path = newest->id};
}

Admission::Decision Admission::admit_new(const wire::ConnectParameters& parameters) {
  // Connections are opened in order: another one than the first is left over from an attempt that
  // is over, and whoever takes it for a session would let later paths join an empty one.
  if (!parameters.first_connection || parameters.cid != 0) {
    return refuse(ENXIO, "unknown session, and not its first connection");
  }
  if (sessions_.size() >= limits_.max_sessions) {
    return refuse(ENOMEM, "too many sessions (--max-sessions)");
  }
  if (const Decision full = no_room(parameters); full.error != 0) return full;
  const SessionId id = next_++;
  Session& session = sessions_[id];
  session.uuid = parameters.session_uuid;
  session.extension = parameters.extension.present;
  session.features = parameters.extension.features;
  Decision decision = add_path(id, session, parameters);
  decision.new_session = true;
  return decision;
}

Admission::Decision Admission::no_room(const wire::ConnectParameters& parameters) const {
  if (parameters.cid_count > limits_.max_connections_per_path) {
    return refuse(EINVAL, "more connections per path than allowed (max_connections_per_path)");
  }
  if (memory() + limits_.path_memory > limits_.memory_limit) {
    return refuse(ENOMEM, "no memory left for another path's chunks (--memory-limit)");
  }
  return {};
}

std::uint64_t Admission::memory() const {
  std::uint64_t sum = 0;
  for (const auto& [id, session] : sessions_) {
    for (const Path& path : session.paths) sum += path.memory;
  }
  return sum;
}

std::uint64_t Admission::kept_by_storage(const Session& session) const {
  std::uint64_t sum = 0;
  for (const Path& path : session.paths) sum += path.shrunk ? path.memory : 0;
  return sum;
}

Admission::Decision Admission::add_path(SessionId id, Session& session,
                                        const wire::ConnectParameters& parameters) {
  if (const Decision full = no_room(parameters); full.error != 0) return full;
  const auto open = std::ranges::count(session.paths, false, &Path::closing);
  // Those that have closed stay while requests execute in them; somebody who comes back all the
  // time must not collect them.
  if (open >= limits_.max_paths_per_session ||
      session.paths.size() >= 2 * std::size_t{limits_.max_paths_per_session}) {
    return refuse(ENOMEM, "too many paths in the session (max_paths_per_session)");
  }
  // Reads are carried out anew on every path: a session whose storage hangs must leave room for
  // the others.
  if (kept_by_storage(session) > std::max(limits_.memory_limit / 4, limits_.path_memory)) {
    return refuse(
        ENOMEM,
        "storage hangs: what it has not ended of the session's lost paths holds more than "
        "a quarter of the memory (--memory-limit)");
  }
  session.paths.push_back({.id = next_++,
                           .uuid = parameters.path_uuid,
                           .reconnect_count = parameters.reconnect_count,
                           .connected = std::vector<bool>(parameters.cid_count),
                           .closing = false,
                           .memory = limits_.path_memory});
  session.idle = false;
  connect(session, session.paths.back(), parameters.cid);
  return {.session = id, .path = session.paths.back().id, .new_path = true};
}

void Admission::connect(Session& session, Path& path, std::uint16_t cid) {
  path.connected[cid] = true;
  if (std::ranges::find(path.connected, false) == path.connected.end()) session.completed = true;
}

Admission::Claim Admission::claim_name(SessionId session, std::string_view name) {
  const auto self = sessions_.find(session);
  if (self == sessions_.end()) return {};
  Claim claim{.granted = true};
  for (auto& [id, other] : sessions_) {
    if (id == session || other.name != name) continue;
    if (!other.idle) return {};
    other.over = true;
    other.name.clear();
    claim.ends = id;
  }
  self->second.name = name;
  return claim;
}

void Admission::set_idle(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  // A path may have been let in meanwhile.
  found->second.idle = std::ranges::all_of(found->second.paths, &Path::closing);
}

void Admission::close_path(SessionId session, PathId path) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  auto& paths = found->second.paths;
  if (const auto known = std::ranges::find(paths, path, &Path::id); known != paths.end()) {
    known->closing = true;
  }
  const bool alone = std::ranges::all_of(paths, &Path::closing);
  if (alone && !lingers(found->second)) found->second.over = true;
}

void Admission::shrink_path(SessionId session, PathId path, std::uint64_t memory) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  auto& paths = found->second.paths;
  const auto known = std::ranges::find(paths, path, &Path::id);
  if (known == paths.end()) return;
  known->shrunk = true;
  known->memory = memory;
}

void Admission::remove_path(SessionId session, PathId path) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  std::erase_if(found->second.paths, [&](const Path& p) { return p.id == path; });
}

void Admission::close(SessionId session) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second.over = true;
}

void Admission::remove(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  if (RTRS_PLANTED(half_open_session_leaks) && !found->second.completed) return;
  sessions_.erase(found);
}

}  // namespace rtrs
