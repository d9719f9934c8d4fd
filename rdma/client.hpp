// The client's door to RTRS: a session with a server, as easy as a socket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/core/client_lane.hpp"
#include "rdma/core/time.hpp"
#include "rdma/log.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {

enum class TransportKind : std::uint8_t { tcp, rdma };

/// One pair of addresses. `source` may be empty (the system chooses).
struct PathAddress {
  TransportKind transport = TransportKind::tcp;
  std::string source;
  std::string host;
  std::uint16_t port = wire::kDefaultPort;
  friend bool operator==(const PathAddress&, const PathAddress&) = default;
};

struct ClientOptions {
  std::string session_name;  ///< 1..254 printable bytes without '/' and '.'; unique at the server
  std::vector<PathAddress> paths;  ///< exactly one for now
  unsigned lanes = 0;              ///< I/O connections per path; 0 = one per CPU, at most 4
  Duration connect_timeout = std::chrono::seconds{10};  ///< for the whole of connect()
  Duration heartbeat_interval = std::chrono::milliseconds{500};
  unsigned heartbeat_misses = 5;  ///< silent intervals until a path counts as dead
  bool header_digest = true;      ///< TCP: ask for CRC32C of frame headers
  bool data_digest = true;        ///< TCP: ask for CRC32C of payloads
  std::uint32_t features = 0;     ///< extension features to offer (wire::Feature)
  Log log;
};

/// Says whether a waiting caller should give up (program ends, its own client hung up). Called
/// about four times a second while waiting, from the waiting thread. Null = never.
struct Interrupt {
  bool (*asked)(void* context) = nullptr;
  void* context = nullptr;
  bool operator()() const { return asked != nullptr && asked(context); }
};

/// Why something failed: an errno for programs, a sentence for people that says what to do.
struct Failure {
  int error = 0;
  std::string text;
};

/// What the server granted.
struct SessionLimits {
  std::uint32_t max_io_size = 0;  ///< bytes per request
  std::uint32_t queue_depth = 0;  ///< requests in flight
  std::uint32_t features = 0;     ///< extension features both sides have
};

/// A session with one server. The thread that waits for an answer drives the connection itself; one
/// background thread keeps what must not wait for I/O (connecting, heartbeats, the control
/// connection).
///
/// A session whose path died stays dead: every call answers EIO at once, and the owner makes a new
/// one.
///
/// Threads: every function may be called from any thread, except the destructor (nobody may be
/// inside).
class Client {
 public:
  /// Connects all connections and exchanges the infos. No thread exists before this call.
  ///
  /// Errors: ETIMEDOUT, ECONNREFUSED, EHOSTUNREACH, EPROTO, EINTR (interrupted), or the server's
  /// refusal.
  static tl::expected<std::unique_ptr<Client>, Failure> connect(ClientOptions options,
                                                                const Interrupt& interrupt);
  virtual ~Client() = default;

  virtual const SessionLimits& limits() const = 0;
  virtual bool alive() const = 0;
  virtual std::string failure() const = 0;  ///< why it is not alive; "" while it is

  /// Runs an operation on one of the I/O lanes and waits for its end.
  /// Returns operation.error(), or EINTR when interrupted (the operation is cancelled then), or EIO
  /// (path died).
  virtual int run(Operation& operation, const Interrupt& interrupt) = 0;
  /// The same on the control connection (connection 0): for messages that open and close things.
  virtual int run_control(Operation& operation, const Interrupt& interrupt) = 0;
};

}  // namespace rtrs
