// SPDX-License-Identifier: BSD-3-Clause
// The server logic's questions about a session, as rdma/transport/ answers them for sockets. Each
// simulator has a recall_memory() of its own.
#include "rdma/core/server/session.hpp"
#include "rdma/server.hpp"

namespace rtrs {
Reactor* reactor_of(const ServerSession&) { return nullptr; }
const std::string& name_of(const ServerSession& session) { return session.name; }
const std::string& peer_of(const ServerSession& session) { return session.peer; }
std::uint32_t features_of(const ServerSession& session) { return session.options().features; }
const wire::Uuid& uuid_of(const ServerSession& session) { return session.options().uuid; }
const Identity& identity_of(const ServerSession& session) { return session.identity; }
void* context_of(const ServerSession& session) { return session.context; }
bool end_if_idle(ServerSession& session) { return session.end_if_idle(); }
bool is_idle(const ServerSession& session) { return session.idle(); }
bool revoke_memory_path(ServerSession& session, const wire::Uuid& path) {
  return session.revoke(path);
}
}  // namespace rtrs
