// SPDX-License-Identifier: BSD-3-Clause
// One client's RNBD session: its open devices, and the handler of each of its messages.
#pragma once

#include <memory>

#include "bridge/protocol/messages.hpp"
#include "bridge/server/annex.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/claim_messages.hpp"
#include "bridge/server/io_requests.hpp"
#include "bridge/server/message_order.hpp"
#include "bridge/server/open_messages.hpp"
#include "bridge/server/open_numbers.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/opening_steps.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/services.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/session_log.hpp"
#include "bridge/server/session_parts.hpp"
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
               const Services& services);
  ~BlockSession();
  BlockSession(const BlockSession&) = delete;
  BlockSession& operator=(const BlockSession&) = delete;

  void on_request(rtrs::ServerRequest& request);
  /// As SessionAnnex::on_memory_path_down().
  void on_memory_path_down(const wire::Uuid& path) {
    for (const auto& annex : annexes_) annex->on_memory_path_down(path);
  }

  const SessionFacts& facts() const { return facts_; }
  const OpenTable& devices() const { return devices_; }
  /// As IoRequests::oldest_of().
  rtrs::Duration oldest_of(const Device& device) { return io_.oldest_of(device); }
  /// True if this session has the right to write to the storage.
  bool writes_to(const WriterCount* storage) const;
  /// Keeps the token until all present requests to this storage have ended, except those of one
  /// device.
  void drain(const WriterCount* storage, const Device* but, const std::shared_ptr<void>& token);

 private:
  void session_info(rtrs::ServerRequest& request);
  void close(rtrs::ServerRequest& request);
  void finish_close(Device& device);
  void record_leaving();

  // block_session_extension.cpp: messages between rnbdkit peers
  void extension(rtrs::ServerRequest& request, wire::MessageType type);
  void list_exports(rtrs::ServerRequest& request);
  void directory(rtrs::ServerRequest& request);
  void who(rtrs::ServerRequest& request);

  SessionFacts facts_;
  ExportCatalogue& catalogue_;
  QueueTable& queues_;
  const Services& services_;
  SessionLog log_;
  OpenTable devices_;
  OpenNumbers numbers_;
  MessageOrder order_;
  const SessionParts parts_;
  OpeningSteps steps_;
  OpenMessages open_;
  ClaimMessages claim_;
  IoRequests io_;
  std::vector<std::unique_ptr<SessionAnnex>> annexes_;
};

}  // namespace rnbd
