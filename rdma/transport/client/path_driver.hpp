// SPDX-License-Identifier: BSD-3-Clause
// One generation of a client's path in operation: its connections are made, connection 0 is served,
// the heart beats.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
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
#include "rdma/transport/resolve.hpp"

namespace rtrs {

/// The session's functions for a path. Called on the background thread; `ready` and `lost` once
/// each at most, and nothing after close().
struct ClientPathHooks {
  std::function<void()> ready;        ///< the infos have been exchanged
  std::function<void(Failure)> lost;  ///< the attempt failed, or the path died
  std::function<bool()> traffic;      ///< something arrived on an I/O connection since last asked
  std::function<void(Duration)> latency;
  std::function<void()> access;  ///< the server thinks otherwise of the path now
  std::function<void()> recall;  ///< the server wants memory back
  /// Requests that waited for these arrivals may go over connection 0 of any path.
  std::function<void()> flush_all;
};

/// Held by a shared pointer: a connection attempt that is under way outlasts close().
///
/// Threads: the session's background thread.
class PathDriver : public std::enable_shared_from_this<PathDriver> {
 public:
  /// `core` must live until close(). An attempt has failed when it makes no progress for
  /// `options.patience`, which begins when the host's address is known.
  PathDriver(boost::asio::io_context& io, ClientPath& core, ConnectOptions options,
             std::shared_ptr<HostLookup> lookup, std::string session_name, Duration lookup_patience,
             ClientPathHooks hooks);

  void start();
  /// The connection of a lane, which belongs to the lane from then on.
  std::unique_ptr<Connection> take(std::uint16_t cid) { return std::move(connections_[cid]); }
  Connection& control() { return *control_; }
  ClientPath& core() { return core_; }
  /// How the connections are protected, "" before there are any.
  std::string security() const;
  /// Sends the queue of connection 0.
  void flush();
  /// True: all data sent on connection 0 have arrived (Connection::finish()).
  bool finish(Instant until) { return control_ && control_->finish(until); }
  /// Ends everything, an attempt that is under way as well; afterwards the transport touches no
  /// memory.
  void close();

 private:
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
  void wait_for_control();
  void progress();
  void is_ready();
  void schedule_tick();
  void tick();
  void fail(Failure failure);

  boost::asio::io_context& io_;
  boost::asio::cancellation_signal attempt_;
  ClientPath& core_;
  ConnectOptions options_;
  std::shared_ptr<HostLookup> lookup_;
  std::string server_;  ///< for messages
  std::string session_name_;
  Duration lookup_patience_;
  ClientPathHooks hooks_;

  Alarm deadline_;
  boost::asio::steady_timer heartbeat_timer_;
  boost::asio::posix::stream_descriptor control_descriptor_;
  bool control_writing_ = false;
  std::shared_ptr<PathContext> context_;  ///< the transport's state for the path
  std::unique_ptr<Connection> control_;
  std::vector<std::unique_ptr<Connection>> connections_;  ///< until they are taken
  std::string proven_as_;                                 ///< the user of our key
  bool ready_ = false;
  bool closed_ = false;
};

}  // namespace rtrs
