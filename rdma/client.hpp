// SPDX-License-Identifier: BSD-3-Clause
// The client's interface to RTRS: a session with one server, which reconnects by itself.
//
// Internal, and without a stable ABI: other programs use rdma/library/include/rtrs.h.
#pragma once

#include <poll.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/core/client/operation.hpp"
#include "rdma/core/option_words.hpp"
#include "rdma/core/path.hpp"
#include "rdma/core/time.hpp"
#include "rdma/failure.hpp"
#include "rdma/log.hpp"
#include "rdma/path_address.hpp"
#include "rdma/server_id.hpp"
#include "rdma/tls.hpp"
#include "rdma/wire/endian.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {

class OneCall;
struct SessionLimits;
class MemoryPath;

/// Restores a client's state at the server (open devices, for example) in a new session, after the
/// server has forgotten the old one.
///
/// Threads: the client's background thread; must not block.
class RecoveryHandler {
 public:
  /// Returns the operation that restores the state. It runs on the control connection of the new
  /// session, and no other request runs in that session until it has ended. The client owns it. All
  /// its requests must be reads (Request::is_read), because the generations of writes begin anew
  /// after it.
  virtual std::unique_ptr<Operation> reopen(const SessionLimits& limits) = 0;
  /// The operation ended. 0 lets all requests into the new session. ESTALE ends the client for
  /// good: the server has other storage than before. EREMCHG: it is not the server that was there
  /// before. After that and any other errno the client connects anew and tries again.
  virtual int reopened(Operation& operation) = 0;
  /// The operation's path was lost before it ended: its results do not count.
  virtual void reopening_failed(Operation& /*operation*/) {}
  /// Returns the next job for which no caller waits: to close a device, for example. The client
  /// runs one job at a time, on the control connection, and owns it. It asks when a path has
  /// connected, when an unresolved write has ended, and every kBackgroundPause. Null: there is no
  /// job now.
  virtual std::unique_ptr<Operation> background_job() { return nullptr; }
  /// The job has ended, or the client has cancelled it; then it is not finished(). The client
  /// cancels a job that takes longer than kBackgroundPause, so that the next one can run. It does
  /// so only at servers with kFeatureExactlyOnce, and while another permit is free. It asks for the
  /// next job at once, but after EIO at the next kBackgroundPause.
  virtual void background_job_ended(Operation& /*operation*/) {}
  /// The server wants memory back that it has exposed to the session's memory paths. The user
  /// protocol tells which memory.
  virtual void on_recall() {}

 protected:
  ~RecoveryHandler() = default;
};

/// The number of TCP frames that this process received with a wrong checksum. Threads: any.
std::uint64_t digest_errors();

/// The pause between two questions for background jobs, after which the client may cancel one.
inline constexpr Duration kBackgroundPause = std::chrono::seconds{1};

/// A longer spin gains nothing: to sleep and wake up costs a small part of it.
inline constexpr Duration kMaxSpin = std::chrono::milliseconds{1};

struct ClientOptions {
  std::string session_name;  ///< 1..254 printable bytes without '/' and '.'; unique at the server
  /// 1..8 paths to the same server, in any order. The session uses those with the best access
  /// state, among them the most preferred, and among them RDMA before TCP. `policy` chooses one.
  std::vector<PathAddress> paths;
  /// The path that defines the server; it need not be one of `paths`. None: the first of `paths`.
  /// Other paths must prove that they lead to the same server before they are used.
  std::optional<PathAddress> naming{};
  /// The server's identity in an earlier session. A path that shows it is proven; 0 = unknown.
  ServerId server_id = 0;
  bool only_this_server = false;  ///< also `naming` must lead to `server_id`
  PathPolicy policy = PathPolicy::min_inflight;
  /// How long requests wait while no path works, until they fail; 0 = for ever.
  Duration no_path_timeout = std::chrono::seconds{30};
  /// The errno of requests that fail so. Operations on the control connection get EIO.
  int no_path_error = EIO;
  /// Pauses between attempts to connect a lost path. They double from `min` to `max`, and each is
  /// shortened at random.
  Duration reconnect_min = std::chrono::milliseconds{100};
  Duration reconnect_max = std::chrono::seconds{2};
  /// A better path that has come back must have been steady for so long before it is used again.
  Duration settle_time = std::chrono::seconds{10};
  /// Refuses servers without kFeatureExactlyOnce, which may carry out a repeated write twice.
  bool require_extension = false;
  /// Null: requests that were in flight in a session that the server has forgotten fail with EIO,
  /// and so does everything later. Must outlive the client.
  RecoveryHandler* recovery = nullptr;
  unsigned lanes = 0;  ///< I/O connections per path; 0 = one per CPU, at most 4
  /// How long a caller polls for its answer before it sleeps, while answers come that soon; at most
  /// kMaxSpin, 0 = sleep at once.
  Duration spin{};
  /// Limits the whole of connect(), which tries again until then.
  Duration connect_timeout = std::chrono::seconds{10};
  Duration heartbeat_interval = std::chrono::milliseconds{500};
  unsigned heartbeat_misses = 4;  ///< silent intervals until a path counts as dead
  bool header_digest = true;      ///< TCP: ask for CRC32C of frame headers
  bool data_digest = true;        ///< TCP: ask for CRC32C of payloads
  /// Encrypts all paths, which must run over TCP then, or none. `TlsMode::on` is not for clients.
  TlsMode tls = TlsMode::off;
  TlsKeys tls_keys;
  /// Without TLS: both ends prove that they have the shared key of this file, on all paths; none =
  /// nobody proves anything.
  std::optional<TlsKeys> auth_keys = {};
  std::uint32_t features = 0;  ///< extension features to offer (wire::Feature)
  Log log;
  const OptionWords* words = &kProgramWords;  ///< how messages name these options
  /// Called for each attempt that failed before the session was up, and for each path that is not
  /// tried before that.
  ///
  /// Threads: the background thread.
  std::function<void(const PathAddress& path, const std::string& why)> on_failed_attempt = {};
};

/// Says whether a waiting caller should give up: the program ends, or its own client hung up.
/// Called about four times a second while waiting, from the waiting thread. Null = never.
struct Interrupt {
  bool (*asked)(void* context) = nullptr;
  void* context = nullptr;
  bool operator()() const { return asked != nullptr && asked(context); }
};

/// The grant of a server.
struct SessionLimits {
  std::uint32_t max_io_size = 0;     ///< bytes per request
  std::uint32_t queue_depth = 0;     ///< requests in flight
  std::uint32_t features = 0;        ///< extension features both sides have
  std::uint64_t volatile_epoch = 0;  ///< changes when unflushed writes may be lost; 0 = unknown
  /// For RecoveryHandler::reopen(): the user has told to go on at the path's server, whichever.
  bool any_server = false;
};

/// A path as it is now.
struct PathStatus {
  PathAddress address;
  PathState state = PathState::connecting;
  bool in_use = false;   ///< takes new requests
  bool leaving = false;  ///< removed, but the server may still carry out requests sent over it
  bool foreign = false;  ///< its last attempt found another server
  /// The server's preference, or that of the last connection; none = it never was connected.
  std::optional<wire::PathAccess> access;
  std::string trouble;         ///< why it is not connected, or not trusted; "" if it is both
  std::uint64_t requests = 0;  ///< sent over it so far
  unsigned in_flight = 0;
  std::uint64_t connects = 0;  ///< how often it was connected in this session
  Duration latency{};          ///< of the last heartbeat
  /// For how long the path has been silent while another one answered; 0 = it is not.
  Duration silent{};
  std::uint64_t silences = 0;  ///< how often that began in this session
  std::uint64_t left = 0;      ///< requests that have left it for another path then
  /// "tls13/aes128gcm host1", "proof host1", "none"; "" while it is not connected.
  std::string security = {};
};

/// One I/O lane of a client in the hands of an event loop, which polls other descriptors beside the
/// lane's and never waits for a single operation. Callers of Client::run() may use the lane
/// meanwhile; the loop receives for them, too.
///
/// Threads: one at a time. Must end before the client does, with nothing under way.
class LaneLoop {
 public:
  /// An operation on its way. Belongs to the caller, with the operation, until collect() or
  /// cancel() has given it back.
  struct Job {
    Operation* operation = nullptr;
    void* context = nullptr;  ///< the caller's own
    /// Called on any thread as soon as the operation has finished, and before collect() gives the
    /// job back. It must not use the loop. Not after cancel(). null = nothing.
    void (*on_finish)(Job& job) = nullptr;

    // For the loop alone, except `next` of the jobs that collect() returns.
    Job* next = nullptr;
    LaneLoop* loop = nullptr;
  };

  virtual ~LaneLoop() = default;

  /// Submits the operation's first requests; flush() sends them.
  virtual void start(Job& job) = 0;
  virtual void flush() = 0;
  /// Appends the descriptors to poll. Returns the number of jobs under way.
  virtual std::size_t watch(std::vector<pollfd>& descriptors) = 0;
  /// Receives all that has arrived. `polled`: the descriptors that watch() appended last, after
  /// poll(2). True: there is more, call again before sleeping.
  virtual bool progress(std::span<const pollfd> polled) = 0;
  /// Replaces watch(), poll(2) and progress() while one job is under way on one path. Waits a few
  /// milliseconds at most, and receives the answer if it comes. Other descriptors wait meanwhile.
  /// False: it is not possible now, or nothing came. With `call`, what waits for flush() may leave
  /// with it, but need not.
  virtual bool await(OneCall* call = nullptr) = 0;
  /// The jobs whose operations have finished since the last call, linked by `next`; null = none.
  /// Operations end in start() and progress(), and when paths come and go, which makes a descriptor
  /// readable.
  virtual Job* collect() = 0;
  /// Cancels an operation, which will not be collected. False: it has finished or is about to, and
  /// will be collected.
  virtual bool cancel(Job& job) = 0;
  /// Requests of the lane that may be on their way at a time.
  virtual unsigned permits() const = 0;
};

/// A session with one server. The thread that waits for an answer drives the connection itself; one
/// background thread does the work that must not wait for I/O (connecting, heartbeats, the control
/// connection).
///
/// A session outlives its paths: requests in flight on a path that dies go over another one, and
/// wait for one when there is none (ClientOptions::no_path_timeout). It dies when its server has
/// other storage than before (RecoveryHandler), and stays dead: every call answers EIO at once.
///
/// Threads: every function may be called from any thread, except the destructor (nobody may be
/// inside).
class Client {
 public:
  /// Connects all connections and exchanges the infos. A server that is not there yet is tried
  /// again until `connect_timeout` has passed. No thread exists before this call.
  ///
  /// Errors: ETIMEDOUT, ECONNREFUSED, EHOSTUNREACH, EPROTO, EINTR (interrupted), or the server's
  /// refusal.
  static tl::expected<std::unique_ptr<Client>, Failure> connect(ClientOptions options,
                                                                const Interrupt& interrupt);
  virtual ~Client() = default;

  virtual const SessionLimits& limits() const = 0;
  virtual bool alive() const = 0;
  virtual std::string failure() const = 0;  ///< why it is not alive; "" while it is
  virtual std::vector<PathStatus> paths() { return {}; }
  /// The total time without a path that could carry requests, from the first such path on.
  virtual Duration time_without_path() { return {}; }
  /// The server's identity in the newest session.
  virtual ServerId server_id() { return 0; }
  /// Adds a path, which connects in the background; paths() shows how far it is. A path that was
  /// leaving stays after all.
  ///
  /// Errors: EEXIST, EINVAL (its preference), ENOSPC (kMaxPaths, or removed paths still leave),
  ///         EPROTONOSUPPORT (RDMA in a session with TLS), EIO (the session is over).
  virtual tl::expected<void, Failure> add_path(const PathAddress& path) { return no_such(path); }
  /// Removes a path. Its requests in flight go elsewhere, as when a path dies. Without
  /// kFeatureExactlyOnce the path is leaving until the server has certainly ended its requests.
  /// That is when all are answered or, if the path does not work, when it has connected once more.
  ///
  /// Errors: ENOENT, EBUSY (the last one, or the last that has led to the server), EIO.
  virtual tl::expected<void, Failure> remove_path(const PathAddress& path) { return no_such(path); }
  /// Takes a path out of service until reconnect(), which does not wait for the next attempt of a
  /// path that failed either. Errors: ENOENT, EIO.
  virtual tl::expected<void, Failure> disconnect(const PathAddress& path) { return no_such(path); }
  virtual tl::expected<void, Failure> reconnect(const PathAddress& path) { return no_such(path); }
  virtual void set_policy(PathPolicy /*policy*/) {}

  /// Lets requests on the I/O lanes send from this memory and receive into it without a copy, over
  /// RDMA paths. The server can write all of it until it is forgotten. The caller owns it, and must
  /// keep it until then. A path that comes and cannot register it (a warning says so) copies.
  ///
  /// Errors: EINVAL (it is empty), EEXIST, ENOMEM (it cannot be locked), EIO (the session is over).
  virtual tl::expected<void, Failure> register_memory(wire::MutableBytes /*memory*/) { return {}; }
  /// No request that names it may be under way. Errors: ENOENT.
  virtual tl::expected<void, Failure> forget_memory(wire::MutableBytes /*memory*/) { return {}; }

  /// A path beside those of the session, to an address of the same server, for one-sided reads and
  /// writes. It ends when the session does.
  ///
  /// Errors: ENOTSUP (the server has no memory paths), EIO (the session is over), those of
  ///         connect().
  virtual tl::expected<std::unique_ptr<MemoryPath>, Failure> open_memory_path(
      const PathAddress& address, const Interrupt& interrupt);

  /// Runs an operation on one of the I/O lanes and waits for its end.
  /// Returns operation.error(): 0, the server's errno, `no_path_error` when no path worked for
  /// `no_path_timeout`, or EIO when the session is over. EINTR: the caller was interrupted, and the
  /// operation is cancelled.
  virtual int run(Operation& operation, const Interrupt& interrupt) = 0;
  /// The same on the control connection (connection 0): for messages that open and close things.
  virtual int run_control(Operation& operation, const Interrupt& interrupt) = 0;
  /// Starts an operation there, behind those before it, and does not wait: Operation::on_finish()
  /// tells its end, on the background thread. False: there are no permits for such operations, and
  /// it was not started.
  virtual bool start_control(Operation& /*operation*/) { return false; }
  /// Cancels an operation that start_control() has taken. False: it has finished.
  virtual bool cancel_control(Operation& /*operation*/) { return false; }

  /// The I/O lanes; the number is constant.
  virtual unsigned lanes() const { return 0; }
  /// Hands a lane (0 .. lanes() - 1) to an event loop; at most one at a time per lane.
  virtual std::unique_ptr<LaneLoop> take_lane(unsigned /*lane*/) { return nullptr; }

 private:
  static tl::expected<void, Failure> no_such(const PathAddress& path);
};

}  // namespace rtrs
