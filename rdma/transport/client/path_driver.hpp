// SPDX-License-Identifier: BSD-3-Clause
// One generation of a client's path in operation: its connections are made, connection 0 is served,
// the heart beats.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/core/client/path.hpp"
#include "rdma/core/time.hpp"
#include "rdma/failure.hpp"
#include "rdma/transport/alarm.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/factory.hpp"
#include "rdma/transport/reactor.hpp"
#include "rdma/transport/resolve.hpp"

namespace rtrs {

/// The owner of paths, for their drivers. Called on the background thread; on_ready() and on_lost()
/// once each at most in a life, and nothing after close().
class PathDriverOwner {
 public:
  virtual void on_ready(PathLife life) = 0;  ///< the infos have been exchanged
  /// The attempt failed, or the path died.
  virtual void on_lost(PathLife life, const Failure& failure) = 0;
  /// At each heartbeat. True: something arrived on an I/O connection since last asked.
  virtual bool on_heartbeat(PathLife life) = 0;
  virtual void on_latency(PathLife life, Duration latency) = 0;
  virtual void on_access(PathLife life) = 0;  ///< the server thinks otherwise of the path now
  virtual void on_recall() = 0;               ///< the server wants memory back
  /// Requests that waited for arrivals may go over connection 0 of any path.
  virtual void flush_all() = 0;

 protected:
  ~PathDriverOwner() = default;
};

/// The windows of each connection of a memory path that carries its transfers.
inline constexpr unsigned kMemoryWindows = QueuePair::kMaxUnconfirmed;
inline constexpr std::uint32_t kMemoryWindow = 128 * 1024;  ///< bytes of one

/// Held by a shared pointer: a connection attempt that is under way outlasts close().
///
/// Threads: the session's background thread.
class PathDriver final : public std::enable_shared_from_this<PathDriver>, public ReadinessHandler {
 public:
  /// `reactor`, `core` and `owner` must live until close(). An attempt has failed when it makes no
  /// progress for `options.patience`, which begins when the host's address is known.
  PathDriver(Reactor& reactor, ClientPath& core, ConnectOptions options,
             std::shared_ptr<HostLookup> lookup, std::string session_name, Duration lookup_patience,
             PathDriverOwner& owner, PathLife life);

  void start();
  /// The connection of a lane, which belongs to the lane from then on.
  std::unique_ptr<Connection> take(std::uint16_t cid) { return std::move(connections_[cid]); }
  Connection& control() { return *control_; }
  ClientPath& core() { return core_; }
  /// The protection of the connections, "" before there are any.
  std::string security() const;
  /// Sends the queue of connection 0.
  void flush();
  /// True: all data sent on connection 0 have arrived (Connection::finish()).
  bool finish(Instant until) { return control_ && control_->finish(until); }
  /// Ends everything, an attempt that is under way as well; afterwards the transport touches no
  /// memory.
  void close();

 private:
  void spawn();
  boost::asio::awaitable<tl::expected<void, Failure>> connect_all();
  tl::expected<void, Failure> load_keys();
  void start_proof(std::uint16_t cid, const std::shared_ptr<const tls::Credentials>& keys);
  boost::asio::awaitable<tl::expected<void, Failure>> prove_all();
  boost::asio::awaitable<tl::expected<void, Failure>> prove(Connection& connection,
                                                            std::uint16_t cid);
  tl::expected<void, Failure> reserve_windows();
  tl::expected<void, Failure> reserve_memory_windows();
  Failure refusal(Complaint complaint) const;
  Failure proof_failure(const Connection& connection, const auth::ClientProof& proof) const;
  void restart_deadline();
  void exchange_infos();
  void on_readable() override;
  void on_writable() override;
  void progress();
  void progress_later();
  void is_ready();
  void schedule_tick();
  void tick();
  void fail(const Failure& failure);

  Reactor& reactor_;
  boost::asio::cancellation_signal attempt_;
  ClientPath& core_;
  ConnectOptions options_;
  std::shared_ptr<HostLookup> lookup_;
  std::string server_;  ///< for messages
  std::string session_name_;
  Duration lookup_patience_;
  PathDriverOwner& owner_;
  const PathLife life_;

  Alarm deadline_;
  Alarm heartbeat_;
  std::shared_ptr<PathContext> context_;  ///< the transport's state for the path
  std::unique_ptr<Connection> control_;
  std::unique_ptr<Readiness> control_readiness_;          ///< ends before control_
  std::vector<std::unique_ptr<Connection>> connections_;  ///< until they are taken
  std::string proven_as_;                                 ///< the user of our key
  bool ready_ = false;
  bool closed_ = false;
};

}  // namespace rtrs
