// SPDX-License-Identifier: BSD-3-Clause
// The identity of the server that a client's session is with: the proofs that its paths owe.
// Source: docs/protocol.md, which server it is.
#include "rdma/core/client/session.hpp"
#include "rdma/core/plant.hpp"

namespace rtrs {

/// Somebody has taken the path away that named the server: one that has led there names it now.
void ClientSession::name_another() {
  for (unsigned i = 0; i < path_count(); ++i) {
    if (paths_[i].standing != SessionPath::Standing::stays || !paths_[i].proven) continue;
    paths_[i].options.names_server = true;
    return;
  }
}

/// A path that names the server decides which one it is. Any other has to prove that it leads
/// there: by the identity that both tell, or, where servers tell none, by having been in the
/// session.
bool ClientSession::may_begin(unsigned index) const {
  if (paths_[index].options.names_server || options_.server_id != 0) return true;
  return paths_[index].proven || RTRS_PLANTED(unproven_path_begins);
}

/// The server is the one that is found there.
bool ClientSession::decides(unsigned index) const {
  return paths_[index].options.names_server && !has_path() && !options_.only_this_server;
}

/// None: the path may lead to any server.
std::optional<std::uint64_t> ClientSession::required_id(unsigned index) const {
  if (decides(index)) return std::nullopt;
  if (!was_up_ && RTRS_PLANTED(foreign_path_begins)) return std::nullopt;
  if (was_up_ && RTRS_PLANTED(foreign_path_renews)) return std::nullopt;
  return options_.server_id;
}

bool ClientSession::leads_elsewhere(unsigned index) const {
  const ClientPath& core = *paths_[index].core;
  const auto required = required_id(index);
  if (!required) return false;
  return core.accepted().extension.server_id != *required ||
         (core.may_begin() && !may_begin(index));
}

}  // namespace rtrs
