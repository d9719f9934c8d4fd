#include "rdma/core/admission.hpp"

#include <cerrno>

#include "rdma/core/plant.hpp"

namespace rtrs {

Admission::Decision Admission::admit(const wire::ConnectParameters& parameters) {
  for (auto& [id, entry] : sessions_) {
    if (entry.session_uuid != parameters.session_uuid) continue;
    if (entry.path_uuid != parameters.path_uuid) {
      return {EEXIST, "the session has a path already", id, false};
    }
    if (entry.closing) return {ECONNRESET, "the old life of this path is still closing", id, false};
    if (entry.cid_count != parameters.cid_count) {
      return {ECONNRESET, "the number of connections changed", id, false};
    }
    if (entry.connected[parameters.cid] == '1') {
      return {ECONNRESET, "this connection exists already", id, false};
    }
    entry.connected[parameters.cid] = '1';
    ++entry.accepted;
    return {0, "", id, false};
  }
  return admit_new(parameters);
}

Admission::Decision Admission::admit_new(const wire::ConnectParameters& parameters) {
  if (!parameters.first_connection) {
    return {ENXIO, "unknown session, and not its first connection", 0, false};
  }
  if (parameters.cid_count > limits_.max_connections_per_path) {
    return {EINVAL, "more connections per path than allowed (max_connections_per_path)", 0, false};
  }
  if (sessions_.size() >= limits_.max_sessions) {
    return {ENOMEM, "too many sessions (max_sessions)", 0, false};
  }
  if (memory() + limits_.session_memory > limits_.memory_limit) {
    return {ENOMEM, "no memory left for another session's chunks (memory_limit)", 0, false};
  }
  const SessionId id = next_++;
  Entry& entry = sessions_[id];
  entry.session_uuid = parameters.session_uuid;
  entry.path_uuid = parameters.path_uuid;
  entry.cid_count = parameters.cid_count;
  entry.connected.assign(parameters.cid_count, '0');
  entry.connected[parameters.cid] = '1';
  entry.accepted = 1;
  return {0, "", id, true};
}

bool Admission::complete(SessionId session) const {
  const auto found = sessions_.find(session);
  return found != sessions_.end() && found->second.accepted == found->second.cid_count;
}

bool Admission::claim_name(SessionId session, std::string_view name) {
  const auto self = sessions_.find(session);
  if (self == sessions_.end()) return false;
  for (const auto& [id, entry] : sessions_) {
    if (id != session && entry.name == name) return false;
  }
  self->second.name = name;
  return true;
}

void Admission::close(SessionId session) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) found->second.closing = true;
}

void Admission::remove(SessionId session) {
  if (RTRS_PLANTED(half_open_session_leaks) && !complete(session)) return;
  sessions_.erase(session);
}

}  // namespace rtrs
