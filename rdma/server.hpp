// SPDX-License-Identifier: BSD-3-Clause
// The server's door to RTRS: listens, admits sessions, hands requests to a ServerHandler.
//
// Internal, and without a stable ABI: other programs use rdma/library/include/rtrs.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/core/identity.hpp"
#include "rdma/core/server/request.hpp"
#include "rdma/core/time.hpp"
#include "rdma/failure.hpp"
#include "rdma/log.hpp"
#include "rdma/network.hpp"
#include "rdma/path_address.hpp"
#include "rdma/server_id.hpp"
#include "rdma/tls.hpp"

namespace rtrs {

class ClientLog;
class Reactor;

struct ListenAddress {
  TransportKind transport = TransportKind::tcp;
  std::string host;                         ///< address or name to bind; "" or "*" = all
  std::uint16_t port = wire::kDefaultPort;  ///< 0 = any free one
  /// Tells our own clients which of several paths to use.
  wire::PathAccess access = wire::PathAccess::optimized;
  std::optional<TlsMode> tls = {};    ///< none: ServerOptions::tls
  std::optional<AuthMode> auth = {};  ///< none: ServerOptions::auth
  std::vector<Network> from = {};     ///< from where clients may come; none: from everywhere
};

struct ServerOptions {
  std::vector<ListenAddress> listen;
  std::vector<int> listen_fds;             ///< TCP sockets that listen already (socket activation)
  unsigned reactors = 0;                   ///< event-loop threads; 0 = one per CPU, at most 8
  std::uint32_t queue_depth = 256;         ///< requests in flight per session
  std::uint32_t max_io_size = 256 * 1024;  ///< bytes of data per request; multiple of 4096
  /// Bytes of chunks over all paths; 0 = one path for each of max_sessions, at most half of
  /// memory_of_machine().
  std::uint64_t memory_limit = 0;
  /// A number that changes when answered writes may be lost, as after a restart of the machine:
  /// part of SessionLimits::volatile_epoch.
  std::uint64_t losses = 0;
  ServerId id = 0;  ///< by which clients know the server again; 0 = a random one
  unsigned max_sessions = 256;
  /// For each user with a proven name; 0 = only the limits of all.
  unsigned max_sessions_per_user = 0;
  std::uint64_t memory_limit_per_user = 0;  ///< bytes
  unsigned max_paths_per_session = 8;
  unsigned max_connections = 1024;  ///< in all
  /// Linux takes one per possible CPU, one more, and its poll queues.
  unsigned max_connections_per_path = 1024;
  /// Connections that have not finished their handshake, and paths that have not.
  unsigned max_handshakes = 64;
  Duration handshake_timeout = std::chrono::seconds{10};
  /// How long a session without paths waits for its client (kFeatureExactlyOnce).
  Duration session_linger = std::chrono::seconds{4};
  Duration heartbeat_interval = std::chrono::milliseconds{500};
  unsigned heartbeat_misses = 4;
  bool header_digest = true;
  bool data_digest = true;
  /// RDMA: a chunk is closed to its client while a request executes in it. Costs every request two
  /// binds of a memory window.
  bool always_invalidate = false;
  TlsMode tls = TlsMode::off;      ///< of listeners on TCP that say nothing themselves
  AuthMode auth = AuthMode::none;  ///< of listeners that say nothing themselves
  TlsKeys tls_keys;                ///< of TLS and of proofs
  std::uint32_t features = 0;      ///< extension features to offer
  Log log;
  /// For lines that clients cause; to be shared with other parts of the program. Null = made of
  /// `log`.
  std::shared_ptr<ClientLog> client_log;
  /// Called when a listener that waited listens, or waits for another reason. Threads: a reactor's.
  std::function<void()> on_listener;
};

/// Units: bytes; 0 = unknown.
std::uint64_t memory_of_machine();

/// A listener as it is now.
struct ListenerStatus {
  std::string address;  ///< TRANSPORT:HOST:PORT, with the real port, or as it was asked for
  wire::PathAccess access = wire::PathAccess::optimized;
  TlsMode tls = TlsMode::off;
  AuthMode auth = AuthMode::none;
  std::string trouble = {};  ///< why it waits for its address; "": it listens

  bool waits() const { return !trouble.empty(); }
};

/// A session as it is now.
struct ServerSessionStatus {
  struct Path {
    std::string peer;
    unsigned listener = 0;   ///< index into a later Server::listeners()
    bool connected = false;  ///< the handshake is through
    wire::PathAccess access = wire::PathAccess::optimized;
    /// The client knows of it and has acted on it.
    bool access_known = false;
    unsigned connections = 0;
    unsigned requests = 0;                  ///< under way
    std::uint64_t begun = 0;                ///< requests that came over it so far
    std::string security = {};              ///< "tls13/aes128gcm host1", "proof host1", "none"
    std::vector<Identity> identities = {};  ///< that its connections have proven, each key once
  };
  std::string name;  ///< "" before the handshake is through
  wire::Uuid uuid{};
  Identity identity = {};  ///< that its first connection has proven
  std::uint32_t features = 0;
  std::vector<Path> paths;  ///< those that are not closed; none: it waits for its client
  unsigned requests = 0;    ///< that execute
  Repeats repeats = {};
  std::vector<SessionItem> items;
};

/// Listens and serves from its own threads between start() and stop().
///
/// Threads: start(), stop() and the destructor on the owner's thread; listeners(), set_access(),
///          sessions(), end_session(), end_path(), memory() and past_repeats() on any thread
///          between start() and stop().
class Server {
 public:
  /// reactor_of() tells on which reactor a session of the handler runs.
  static std::unique_ptr<Server> create(ServerOptions options, ServerHandler& handler);
  virtual ~Server() = default;

  /// Binds, listens and starts the threads. An address, RDMA device or name that this machine does
  /// not have now may come later: it is tried every second.
  ///
  /// Errors: EADDRINUSE, EACCES, EINVAL, ENOTSUP: those that time does not mend. The text has the
  ///         remedy.
  virtual tl::expected<void, Failure> start() = 0;
  /// Where it listens, as TRANSPORT:HOST:PORT, with the real ports.
  virtual std::vector<std::string> addresses() const = 0;
  virtual ServerId id() const = 0;
  /// First the listeners that listen, in an order that stays; behind them those that wait.
  virtual std::vector<ListenerStatus> listeners() const = 0;
  /// A sentence about certificates that have ended or end within 30 days; "" = there are none.
  virtual std::string ending_certificates() const = 0;
  /// Changes the access state of a listener, and of all its paths, present and future. Clients with
  /// wire::kFeatureAccessNotice get a notice. False: there is no such listener, or it waits. Does
  /// not block.
  ///
  /// Source: docs/protocol.md, access notices.
  virtual bool set_access(unsigned listener, wire::PathAccess access) = 0;
  /// Waits for the reactors, so call it on none of them. Reactors that do not answer for long are
  /// left out.
  virtual std::vector<ServerSessionStatus> sessions() = 0;
  /// Ends a session, soon: its client may come back only as a new one. `why` is for the log.
  virtual void end_session(const wire::Uuid& uuid, const std::string& user,
                           const std::string& why) = 0;
  /// Closes the path of a client that has this address, soon: the client may connect it again.
  /// `why` is for the log.
  virtual void end_path(const std::string& peer, const std::string& why) = 0;
  /// Bytes of chunks that the paths take.
  virtual std::uint64_t memory() const = 0;
  virtual std::uint64_t memory_limit() const = 0;  ///< bytes
  /// The repeats of all sessions that are gone.
  virtual Repeats past_repeats() const = 0;
  /// Stops accepting, waits up to `drain` for running requests, closes everything, joins the
  /// threads. False: requests still run somewhere (a backend hangs); then neither the server nor
  /// its handler may be destroyed, and the program should leave by _exit().
  virtual bool stop(Duration drain) = 0;
  /// The event loops, for the handler's own resources. Stable from create() on.
  virtual std::vector<Reactor*> reactors() = 0;
};

/// The volatile epoch that a server with these ServerOptions::losses tells its clients.
std::uint64_t volatile_epoch_of_this_machine(std::uint64_t losses);

/// The event loop that owns a session (null in the simulator).
Reactor* reactor_of(const ServerSession& session);
/// The name under which the client announced itself.
const std::string& name_of(const ServerSession& session);
/// Where the client is, for logs ("127.0.0.1:40000").
const std::string& peer_of(const ServerSession& session);
/// The identity that the client has proven on each of its connections.
const Identity& identity_of(const ServerSession& session);
/// The extension features both sides have.
std::uint32_t features_of(const ServerSession& session);
/// The client's own number of its session. It stays the same when a server forgets the session.
const wire::Uuid& uuid_of(const ServerSession& session);
/// Its paths that serve requests now.
unsigned paths_of(const ServerSession& session);
/// Ends a memory path. False: the session has none of this number. Otherwise
/// ServerHandler::on_memory_path_down() tells when nothing uses its regions any more, perhaps
/// before this returns.
///
/// Threads: the session's reactor.
bool revoke_memory_path(ServerSession& session, const wire::Uuid& path);
/// Asks the client to give back memory that its memory paths use (RecoveryHandler::on_recall()),
/// now or when it has a path again. False: it has no memory paths.
///
/// Threads: the session's reactor.
bool recall_memory(ServerSession& session);
/// Takes back memory that ServerRequest::source or expect_next() named: nothing uses it any more.
///
/// Threads: the session's reactor.
void let_go(ServerSession& session, wire::ConstBytes memory);
/// The value that ServerHandler::on_session_up returned.
void* context_of(const ServerSession& session);
/// Ends a session without paths and requests. False: it has some.
///
/// Threads: the session's reactor. Calls on_session_down().
bool end_if_idle(ServerSession& session);
/// Whether end_if_idle() would end it. Threads: the session's reactor.
bool is_idle(const ServerSession& session);

}  // namespace rtrs
