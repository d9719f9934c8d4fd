// SPDX-License-Identifier: BSD-3-Clause
// RNBD over RTRS: gives every RTRS session its RNBD session.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "bridge/server/block_session.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/services.hpp"
#include "bridge/server/throttle.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

/// The options that all sessions share with the RTRS server.
struct BlockServerLimits {
  std::uint32_t queue_depth = 256;         ///< requests in flight per session
  std::uint32_t max_io_size = 256 * 1024;  ///< bytes
  DeviceIds ids = DeviceIds::never_twice;
  rtrs::Duration open_timeout = kOpenTimeout;
};

/// The handler to give to rtrs::Server::create().
///
/// Threads: the handler's calls on the session's reactor; the rest on the owner's thread while no
///          reactor runs.
class BlockServer final : public rtrs::ServerHandler, public OtherSessions {
 public:
  BlockServer(ExportCatalogue& catalogue, BlockServerLimits limits, Services& services);
  ~BlockServer();
  BlockServer(const BlockServer&) = delete;
  BlockServer& operator=(const BlockServer&) = delete;

  void* on_session_up(rtrs::ServerSession& session) override;
  void on_request(rtrs::ServerSession& session, rtrs::ServerRequest& request) override;
  void on_memory_path_up(rtrs::ServerSession& session, const rtrs::wire::Uuid& path,
                         rtrs::Regions& regions) override;
  void on_memory_path_down(rtrs::ServerSession& session, const rtrs::wire::Uuid& path) override;
  void on_session_down(rtrs::ServerSession& session) override;
  std::vector<rtrs::SessionItem> items(rtrs::ServerSession& session) override;

  void reclaim(rtrs::Reactor* reactor, const WriterCount* storage, const std::string& reason,
               std::function<void()> then) override;
  void survey(rtrs::Reactor* reactor, const WriterCount* storage,
              std::function<void(bool)> then) override;
  void drain(rtrs::Reactor* reactor, const WriterCount* storage, const Device* but,
             std::function<void()> then) override;
  void visit(rtrs::Reactor* reactor, rtrs::ServerSession* session,
             std::function<void(rtrs::ServerSession&)> work) override;

  /// Sets new limits for the requests of each session.
  ///
  /// Threads: any.
  void limit_sessions(Limits limits) { session_limits_->set(limits); }
  Limits session_limits() const { return session_limits_->get(); }
  /// The number of sessions. A session that remains after the reactors have stopped has requests
  /// that hang in a backend. Then neither this object nor the catalogue may be destroyed.
  std::size_t sessions() const;
  /// Closes the queues of storage that was replaced or removed. The reactors do it soon.
  ///
  /// Threads: any.
  void retire_queues();
  /// Closes all queues of backends. Call it when no session is left, and while the reactors still
  /// run.
  void close_queues();

 private:
  QueueTable& queues_of(rtrs::Reactor* reactor);
  using Look = std::function<bool(rtrs::ServerSession& session)>;
  void ask_writers(rtrs::Reactor* reactor, const WriterCount* storage, const Look& look,
                   std::function<void(bool)> then);
  void drain_on(rtrs::Reactor* reactor, const WriterCount* storage, const Device* but,
                const std::shared_ptr<void>& token);
  bool look_at_writers(rtrs::Reactor* reactor, const WriterCount* storage, const Look& look);
  bool is_known(rtrs::ServerSession* session) const;
  bool end_idle(rtrs::ServerSession& session, const std::string& reason) const;

  ExportCatalogue& catalogue_;
  BlockServerLimits limits_;
  Services& services_;
  const std::shared_ptr<LimitSetting> session_limits_ = std::make_shared<LimitSetting>();
  mutable std::mutex mutex_;  ///< guards the maps; taken when sessions come and go
  std::map<rtrs::Reactor*, std::unique_ptr<QueueTable>> queues_;
  std::map<rtrs::ServerSession*, std::unique_ptr<BlockSession>> sessions_;
};

}  // namespace rnbd
