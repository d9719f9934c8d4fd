// SPDX-License-Identifier: BSD-3-Clause
// The identity of the server that a client's session is with: the proofs that its paths owe.
// Source: docs/protocol.md, which server it is.
#include "rdma/core/client/session.hpp"

namespace rtrs {

/// Somebody has taken the path away that named the server: one that has led there names it now.
void ClientSession::name_another() {
  for (unsigned i = 0; i < path_count(); ++i) {
    if (paths_[i].standing != SessionPath::Standing::stays || !paths_[i].proven) continue;
    if (is_elsewhere(i)) continue;
    paths_[i].options.names_server = true;
    return;
  }
}

/// A path that names the server decides which one it is. Any other has to prove that it leads
/// there: by the identity that both tell, or, where servers tell none, by having been in the
/// session.
bool ClientSession::may_begin(unsigned index) const {
  if (is_elsewhere(index)) return false;
  if (paths_[index].options.names_server || options_.server_id != 0) return true;
  return paths_[index].proven;
}

/// The server is the one that is found there.
bool ClientSession::decides(unsigned index) const {
  return paths_[index].options.names_server && !has_path() && !options_.only_this_server &&
         !is_elsewhere(index);
}

/// None: the path may lead to any server.
std::optional<std::uint64_t> ClientSession::required_id(unsigned index) const {
  if (decides(index)) return std::nullopt;
  return options_.server_id;
}

/// Two servers of one identity are a server and its clone. Only the session itself tells them
/// apart.
bool ClientSession::is_elsewhere(unsigned index) const {
  return paths_[index].other_server.found();
}

bool ClientSession::is_ours(const wire::AcceptParameters& now) const {
  const std::uint64_t epoch = now.extension.session_epoch;
  return was_up_ && epoch != 0 && epoch == accepted_.extension.session_epoch;
}

void ClientSession::note_refusal(unsigned index, const Cause& why) {
  SessionPath& path = paths_[index];
  // One that waits for its turn knows no session either, and may be the next one to have it.
  const bool takes_turns = (accepted_.extension.features & wire::kFeatureSharedIdentity) != 0;
  const bool another = why.kind == Cause::Kind::other_session && path.core->exactly_once() &&
                       !is_ours(path.core->accepted());
  if (has_path() && !takes_turns && (path.foreign || another)) path.other_server.on_refused();
  path.foreign = path.foreign || path.other_server.found() || why.kind == Cause::Kind::older_server;
}

PathMask ClientSession::heard(unsigned index) {
  PathMask found = 0;
  if (paths_[index].state != PathState::connected) return found;
  const PathPulse& pulse = paths_[index].core->pulse();
  for (unsigned i = 0; i < path_count(); ++i) {
    if (i == index || !paths_[i].other_server.on_tick(index, pulse.sent(), pulse.answered()))
      continue;
    paths_[i].foreign = true;
    found = static_cast<PathMask>(found | 1U << i);
  }
  return found;
}

bool ClientSession::leads_elsewhere(unsigned index) const {
  const ClientPath& core = *paths_[index].core;
  if (is_elsewhere(index) && !is_ours(core.accepted())) return true;
  const auto required = required_id(index);
  if (!required) return false;
  return core.accepted().extension.server_id != *required ||
         (core.may_begin() && !may_begin(index));
}

}  // namespace rtrs
