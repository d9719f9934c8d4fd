// SPDX-License-Identifier: BSD-3-Clause
// The data path of a session: requests that a backend carries out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bridge/server/io_plan.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/services.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/session_log.hpp"
#include "bridge/server/throttle.hpp"
#include "rdma/core/server/request.hpp"
#include "rdma/core/time.hpp"

namespace rnbd {

/// Checks requests, holds them back at the limits of session and export, and gives them to the
/// backend. It allocates no memory, unless more requests run than the queue depth allows. A request
/// under way keeps the session.
///
/// Threads: the reactor of the session.
/// Source:  docs/protocol.md, RNBD I/O.
class IoRequests {
 public:
  /// Answers a request that counts as running at the backend. The session may end with it.
  using Ending = std::function<void(int error)>;

  /// `close` closes a device whose last request has ended, after the answer to that.
  IoRequests(const SessionFacts& facts, const OpenTable& devices, const Services& services,
             rtrs::Reactor* reactor, const SessionLog& log,
             std::function<void(Device& device)> close);
  ~IoRequests();
  IoRequests(const IoRequests&) = delete;
  IoRequests& operator=(const IoRequests&) = delete;

  /// Reads, writes, flushes, discards and zeroing.
  void io(rtrs::ServerRequest& request) { io(request, Turn::not_yet); }
  void block_status(rtrs::ServerRequest& request);
  void cache(rtrs::ServerRequest& request);
  /// Counts a request that others carry out.
  Ending begin(rtrs::ServerRequest& request, Device& device, const IoPlan& plan);

  /// Closes a device of which nothing runs any more.
  void close(Device& device) { close_(device); }
  /// Ends the requests that wait at a limit: their answers are not needed any more.
  void end_waiting(Device& device);
  /// The age of the device's oldest request under way. For an untimed request, it counts from the
  /// first call of this function that found it.
  rtrs::Duration oldest_of(const Device& device);

 private:
  struct IoContext;
  enum class Turn : std::uint8_t { not_yet, come };
  using PacedHandler = void (IoRequests::*)(rtrs::ServerRequest& request, Turn turn);
  static constexpr std::size_t kContextsPerBlock = 64;

  // io_requests.cpp
  void io(rtrs::ServerRequest& request, Turn turn);
  IoContext& take_free_context();
  void give_back(IoContext& io);
  IoContext& take_context(rtrs::ServerRequest& request, Device& device, const IoPlan& plan);
  void submit(IoContext& io);
  static void on_step_done(BackendRequest& backend, int error);
  void complete(IoContext& io, int error);
  void report_unknown_flags(const Device& device, const IoPlan& plan);
  void report(Device& device, const IoPlan& plan, int error);
  void add_contexts();

  // io_blocks.cpp: which blocks hold data, and reading ahead
  void ask_status(rtrs::ServerRequest& request, Turn turn);
  void read_ahead(rtrs::ServerRequest& request, Turn turn);

  // io_limits.cpp: limits of operations and bytes per second
  bool is_limited(const Device& device) const {
    return (throttle_ != nullptr && throttle_->is_limited()) ||
           (device.throttle != nullptr && device.throttle->is_limited());
  }
  bool admit(rtrs::ServerRequest& request, Device& device, std::uint64_t bytes, PacedHandler again);
  bool pass(IoContext& io);
  static void on_turn(ThrottledRequest& request);
  void turn(IoContext& io);

  const SessionFacts& facts_;
  const OpenTable& devices_;
  const Services& services_;
  rtrs::Reactor* const reactor_;
  const SessionLog& log_;
  const std::function<void(Device& device)> close_;
  std::shared_ptr<Throttle> throttle_;  ///< of the session; null: it has none
  ThrottleFlow flow_;                   ///< in throttle_
  std::vector<std::unique_ptr<IoContext[]>> context_blocks_;
  IoContext* free_contexts_ = nullptr;
  bool reported_unknown_flags_ = false;
};

}  // namespace rnbd
