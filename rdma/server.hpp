// SPDX-License-Identifier: BSD-3-Clause
// The server's interface to RTRS: listens, admits sessions, hands requests to a ServerHandler.
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
#include "rdma/core/option_words.hpp"
#include "rdma/core/server/request.hpp"
#include "rdma/core/time.hpp"
#include "rdma/failure.hpp"
#include "rdma/log.hpp"
#include "rdma/network.hpp"
#include "rdma/one_call.hpp"
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
  /// The access state of its paths, by which our own clients choose among several.
  wire::PathAccess access = wire::PathAccess::optimized;
  std::optional<TlsMode> tls = {};    ///< none: ServerOptions::tls
  std::optional<AuthMode> auth = {};  ///< none: ServerOptions::auth
  std::vector<Network> from = {};     ///< the networks of clients that may connect; none: all
};

struct ServerOptions {
  std::vector<ListenAddress> listen;
  std::vector<int> listen_fds;             ///< TCP sockets that listen already (socket activation)
  unsigned reactors = 0;                   ///< event-loop threads; 0 = one per CPU, at most 8
  std::uint32_t queue_depth = 256;         ///< requests in flight per session
  std::uint32_t max_io_size = 256 * 1024;  ///< bytes of data per request; multiple of 4096
  /// Bytes of the chunks of all paths; 0 = enough for one path in each of max_sessions, but at most
  /// half of memory_of_machine(). A path over TCP has floor_of_path() of its own, and borrows more
  /// while its requests need it.
  std::uint64_t memory_limit = 0;
  /// The number of times that answered writes may have been lost without a restart of the machine,
  /// because a flush failed. SessionLimits::volatile_epoch changes with it.
  std::uint64_t losses = 0;
  ServerId id = 0;  ///< by it clients recognize the server after a restart; 0 = a random one
  unsigned max_sessions = 1024;
  /// Limits for each user with a proven name; 0 = none but the server's.
  unsigned max_sessions_per_user = 0;
  std::uint64_t memory_limit_per_user = 0;  ///< bytes
  unsigned max_paths_per_session = 8;
  unsigned max_connections = 8192;  ///< of the whole server
  /// Linux's client opens one per possible CPU, one for control, and one per poll queue.
  unsigned max_connections_per_path = 1024;
  /// Two limits of the same size: for connections, and for paths, with an unfinished handshake.
  ///
  /// 0 = a quarter of max_connections, or a sixteenth of the descriptors where that is less, but 64
  /// to 1024: all clients come at once after a restart.
  unsigned max_handshakes = 0;
  Duration handshake_timeout = std::chrono::seconds{10};
  /// The time that a session without paths waits for its client (kFeatureExactlyOnce).
  Duration session_linger = std::chrono::seconds{4};
  Duration heartbeat_interval = std::chrono::milliseconds{500};
  unsigned heartbeat_misses = 4;
  bool header_digest = true;
  bool data_digest = true;
  /// RDMA: closes a chunk to the client while a request executes in it. Each request costs two
  /// binds of a memory window.
  bool always_invalidate = false;
  TlsMode tls = TlsMode::off;      ///< of listeners on TCP without a `tls` of their own
  AuthMode auth = AuthMode::none;  ///< of listeners without an `auth` of their own
  TlsKeys tls_keys;                ///< for TLS and for proofs
  std::uint32_t features = 0;      ///< extension features to offer
  Log log;
  /// For the reactors' threads; null: each system call is to send or to wait.
  MakeOneCall make_call = nullptr;
  const OptionWords* words = &kProgramWords;  ///< how messages name these options
  /// The log for lines that clients cause. The program's other parts may share it. Null = one is
  /// made from `log`.
  std::shared_ptr<ClientLog> client_log;
  /// Called when a waiting listener has its address at last, or waits for another reason than
  /// before. Threads: a reactor's.
  std::function<void()> on_listener;
};

/// The memory that a path over TCP has of its own, with all of its chunks.
///
/// Units: bytes.
std::uint64_t floor_of_path(std::uint32_t queue_depth, std::uint32_t max_io_size);

/// The main memory of this machine, or less if the process' control group or one around it has a
/// limit (`memory.max`). `root`: of the file system.
///
/// Units: bytes; 0 = unknown.
std::uint64_t memory_of_machine(const std::string& root = "/");

/// A listener as it is now.
struct ListenerStatus {
  std::string address;  ///< TRANSPORT:HOST:PORT; while it waits, as in its options
  wire::PathAccess access = wire::PathAccess::optimized;
  TlsMode tls = TlsMode::off;
  AuthMode auth = AuthMode::none;
  std::string trouble = {};  ///< the reason why it waits for its address; "": it listens

  bool waits() const { return !trouble.empty(); }
};

/// A session as it is now.
struct ServerSessionStatus {
  struct Path {
    std::string peer;
    unsigned listener = 0;   ///< index into a later Server::listeners()
    bool connected = false;  ///< its handshake is finished
    wire::PathAccess access = wire::PathAccess::optimized;
    /// The client has learnt `access` and acts on it.
    bool access_known = false;
    unsigned connections = 0;
    unsigned requests = 0;                  ///< that have no answer yet
    std::uint64_t begun = 0;                ///< requests that came over it so far
    std::string security = {};              ///< "tls13/aes128gcm host1", "proof host1", "none"
    std::vector<Identity> identities = {};  ///< proven by its connections; each key once
  };
  std::string name;  ///< "" before its first path has finished the handshake
  wire::Uuid uuid{};
  Identity identity = {};  ///< proven by its first connection
  std::string peer = {};   ///< of the path that made it, also when that is away
  std::uint32_t features = 0;
  std::vector<Path> paths;  ///< those that are not closed; none: it waits for its client
  unsigned requests = 0;    ///< that execute, on all paths
  Repeats repeats = {};
  std::vector<SessionItem> items;
};

/// Serves clients on its own threads between start() and stop().
///
/// Threads: start(), stop() and the destructor on the owner's thread; listeners(), set_access(),
///          sessions(), end_session(), end_path(), memory...() and past_repeats() on any thread
///          between start() and stop().
class Server {
 public:
  /// The handler must outlive the server. It finds the reactor of a session by reactor_of().
  static std::unique_ptr<Server> create(ServerOptions options, ServerHandler& handler);
  virtual ~Server() = default;

  /// Binds, listens and starts the threads. If this machine does not have an address, RDMA device
  /// or name yet, its listener waits and tries again every second.
  ///
  /// Errors: EADDRINUSE, EACCES, EINVAL, ENOTSUP, which would stay if it waited. The text has the
  ///         remedy.
  virtual tl::expected<void, Failure> start() = 0;
  /// The addresses on which it listens, as TRANSPORT:HOST:PORT, with the real ports.
  virtual std::vector<std::string> addresses() const = 0;
  virtual ServerId id() const = 0;
  /// First the listeners that listen, in a constant order; then those that wait.
  virtual std::vector<ListenerStatus> listeners() const = 0;
  /// A sentence about certificates that have expired or will within 30 days; "" = there are none.
  virtual std::string ending_certificates() const = 0;
  /// Changes the access state of a listener, and of all its paths, present and future. Clients with
  /// wire::kFeatureAccessNotice get a notice. `listener`: an index into listeners(). Does not
  /// block. False: there is no such listener, or it waits.
  ///
  /// Source: docs/protocol.md, access notices.
  virtual bool set_access(unsigned listener, wire::PathAccess access) = 0;
  /// The sessions of all reactors. Blocks until they have answered, so no reactor may call it.
  /// Leaves out the sessions of a reactor that does not answer for 2 s.
  virtual std::vector<ServerSessionStatus> sessions() = 0;
  /// Ends the session with this UUID of this user (Identity::name), and does not wait for that. Its
  /// client may come back only with a new session. `why` is for the log.
  virtual void end_session(const wire::Uuid& uuid, const std::string& user,
                           const std::string& why) = 0;
  /// Closes the path from this address of a client, and does not wait for that. The client may
  /// connect it again. `why` is for the log.
  virtual void end_path(const std::string& peer, const std::string& why) = 0;
  /// Bytes that paths have for their chunks: their own and lent ones.
  virtual std::uint64_t memory() const = 0;
  virtual std::uint64_t memory_lent() const = 0;  ///< bytes of these
  /// The number of times that requests of a path had to wait for memory.
  virtual std::uint64_t memory_waits() const = 0;
  virtual std::uint64_t memory_limit() const = 0;  ///< bytes
  /// That are there now, half-open ones included.
  virtual unsigned connections() const = 0;
  /// The repeats in all sessions that have ended.
  virtual Repeats past_repeats() const = 0;
  /// Stops accepting, waits up to `drain` for running requests, closes everything and joins the
  /// threads. False: some request still runs, because a backend hangs. Then neither the server nor
  /// its handler may be destroyed, and the program should leave by _exit().
  virtual bool stop(Duration drain) = 0;
  /// The event loops, for the handler's own work. Constant from create() on.
  virtual std::vector<Reactor*> reactors() = 0;
};

/// The volatile epoch that a server sends to its clients. `losses`: as ServerOptions::losses.
std::uint64_t volatile_epoch_of_this_machine(std::uint64_t losses);

/// The event loop that owns a session; null in the simulator.
Reactor* reactor_of(const ServerSession& session);
/// The name that the client gave its session.
const std::string& name_of(const ServerSession& session);
/// The client's address, for logs ("127.0.0.1:40000").
const std::string& peer_of(const ServerSession& session);
/// The identity that the client has proven on its first connection.
const Identity& identity_of(const ServerSession& session);
/// The extension features that both sides have.
std::uint32_t features_of(const ServerSession& session);
/// The number that the client gave its session. It keeps this number when the server forgets the
/// session and the client begins it anew.
const wire::Uuid& uuid_of(const ServerSession& session);
/// The number of paths that serve requests now.
unsigned paths_of(const ServerSession& session);
/// Ends a memory path. False: the session has none with this UUID. Otherwise
/// ServerHandler::on_memory_path_down() follows when nothing uses its regions any more, perhaps
/// before this returns.
///
/// Threads: the session's reactor.
bool revoke_memory_path(ServerSession& session, const wire::Uuid& path);
/// Asks the client to give back memory that its memory paths use (RecoveryHandler::on_recall()). If
/// it has no path now, it is asked when it has one. False: the session cannot have memory paths.
///
/// Threads: the session's reactor.
bool recall_memory(ServerSession& session);
/// Takes back memory that the handler gave by ServerRequest::source or expect_next(). Nothing uses
/// it when this returns.
///
/// Threads: the session's reactor.
void let_go(ServerSession& session, wire::ConstBytes memory);
/// The value that ServerHandler::on_session_up returned.
void* context_of(const ServerSession& session);
/// Ends a session that has neither paths nor running requests. False: it has some.
///
/// Threads: the session's reactor. Calls on_session_down().
bool end_if_idle(ServerSession& session);
/// Whether end_if_idle() would end it. Threads: the session's reactor.
bool is_idle(const ServerSession& session);

}  // namespace rtrs
