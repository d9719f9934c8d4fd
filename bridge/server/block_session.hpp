// SPDX-License-Identifier: BSD-3-Clause
// One client's RNBD session: its open devices, and the handler of each of its messages.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/brick_messages.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/claim_messages.hpp"
#include "bridge/server/io_plan.hpp"
#include "bridge/server/member_messages.hpp"
#include "bridge/server/message_order.hpp"
#include "bridge/server/open_messages.hpp"
#include "bridge/server/open_numbers.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/opening_steps.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/session_log.hpp"
#include "bridge/server/session_parts.hpp"
#include "bridge/server/surroundings.hpp"
#include "bridge/server/throttle.hpp"
#include "rdma/core/server/request.hpp"
#include "rdma/core/time.hpp"

namespace rnbd {

/// Answers every request exactly once. The data path allocates no memory.
///
/// It is destroyed when no request runs any more. That closes its devices, and others may write.
///
/// Threads: the reactor that owns the RTRS session.
/// Source:  docs/protocol.md, RNBD messages.
class BlockSession {
 public:
  BlockSession(SessionFacts facts, ExportCatalogue& catalogue, QueueTable& queues,
               const Surroundings& surroundings);
  ~BlockSession();
  BlockSession(const BlockSession&) = delete;
  BlockSession& operator=(const BlockSession&) = delete;

  void on_request(rtrs::ServerRequest& request);
  /// No access over this path to the memory of bricks is possible any more.
  void on_memory_path_down(const wire::Uuid& path) { brick_.on_memory_path_down(path); }

  const SessionFacts& facts() const { return facts_; }
  const OpenTable& devices() const { return devices_; }
  /// The age of the device's oldest request under way. For an untimed request, it counts from the
  /// first call of this function that found it.
  rtrs::Duration oldest_of(const Device& device);
  /// True if this session has the right to write to the storage.
  bool writes_to(const WriterCount* storage) const;
  /// Keeps the token until all present requests to this storage have ended, except those of one
  /// device.
  void drain(const WriterCount* storage, const Device* but, const std::shared_ptr<void>& token);

 private:
  struct IoContext;
  static constexpr std::size_t kContextsPerBlock = 64;

  // block_session.cpp: rare messages
  void session_info(rtrs::ServerRequest& request);
  void close(rtrs::ServerRequest& request);
  void finish_close(Device& device);
  void record_leaving();
  void release(Device& device);

  // block_session_limits.cpp: limits of operations and bytes per second
  enum class Turn : std::uint8_t { not_yet, come };
  using PacedHandler = void (BlockSession::*)(rtrs::ServerRequest& request, Turn turn);
  bool is_limited(const Device& device) const {
    return (throttle_ != nullptr && throttle_->is_limited()) ||
           (device.throttle != nullptr && device.throttle->is_limited());
  }
  bool admit(rtrs::ServerRequest& request, Device& device, std::uint64_t bytes, PacedHandler again);
  bool pass(IoContext& io);
  static void on_turn(ThrottledRequest& request);
  void turn(IoContext& io);
  void end_waiting(Device& device);

  // block_session_io.cpp: the data path
  void io(rtrs::ServerRequest& request, Turn turn);
  IoContext& take_free_context();
  void give_back(IoContext& io);
  void member_io(rtrs::ServerRequest& request, Device& device, const IoPlan& plan);
  IoContext& take_context(rtrs::ServerRequest& request, Device& device, const IoPlan& plan);
  void submit(IoContext& io);
  static void on_step_done(BackendRequest& backend, int error);
  void complete(IoContext& io, int error);
  void report(Device& device, const IoPlan& plan, int error);
  void add_contexts();

  // block_session_extension.cpp: messages between rnbdkit peers
  void extension(rtrs::ServerRequest& request, wire::MessageType type);
  void list_exports(rtrs::ServerRequest& request);
  void directory(rtrs::ServerRequest& request);
  void who(rtrs::ServerRequest& request);
  void block_status(rtrs::ServerRequest& request, Turn turn);
  void cache(rtrs::ServerRequest& request, Turn turn);

  SessionFacts facts_;
  ExportCatalogue& catalogue_;
  QueueTable& queues_;
  const Surroundings& surroundings_;
  SessionLog log_;
  OpenTable devices_;
  OpenNumbers numbers_;
  MessageOrder order_;
  const SessionParts parts_;
  OpeningSteps steps_;
  OpenMessages open_;
  ClaimMessages claim_;
  BrickMessages brick_;
  MemberMessages member_;
  std::shared_ptr<Throttle> throttle_;  ///< of the session; null: it has none
  ThrottleFlow flow_;                   ///< in throttle_
  std::vector<std::unique_ptr<IoContext[]>> context_blocks_;
  IoContext* free_contexts_ = nullptr;
};

}  // namespace rnbd
