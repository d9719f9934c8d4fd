// SPDX-License-Identifier: BSD-3-Clause
// The server behind the handle of the C interface.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rdma/library/birthplace.hpp"
#include "rdma/library/gathered_data.hpp"
#include "rdma/library/include/rtrs.h"
#include "rdma/library/server_session.hpp"
#include "rdma/library/workers.hpp"
#include "rdma/server.hpp"

/// A server that takes its requests as calls.
///
/// Threads: start(), stop() and the destructor on the owner's thread; the rest on event loops.
struct rtrs_server final : private rtrs::ServerHandler {
 public:
  rtrs_server(rtrs::ServerOptions settings, const rtrs_server_options& options,
              const rtrs_server_ops& ops, void* context);
  rtrs_server(const rtrs_server&) = delete;
  rtrs_server& operator=(const rtrs_server&) = delete;

  /// In a child of fork() only addresses() may be called, and this must not be destroyed.
  bool left_behind() const { return birthplace_.left(); }
  tl::expected<void, rtrs::Failure> start();
  /// False: some requests have not been finished, and nothing may be destroyed.
  bool stop(rtrs::Duration drain) { return server_->stop(drain); }
  const std::vector<std::string>& addresses() const { return addresses_; }

  rtrs::library::MemoryBudget& budget() { return budget_; }
  std::uint64_t max_request_size() const { return max_request_size_; }
  std::uint32_t queue_depth() const { return queue_depth_; }
  /// Gives a call to the handler.
  void execute(rtrs_request& call);

 private:
  void* on_session_up(rtrs::ServerSession& session) override;
  void on_request(rtrs::ServerSession& session, rtrs::ServerRequest& request) override;
  void on_paths_changed(rtrs::ServerSession& session) override;
  void on_session_down(rtrs::ServerSession& session) override;
  void call_handler(rtrs_request& call) const;

  const rtrs::library::Birthplace birthplace_{};
  std::vector<std::string> addresses_;  ///< since start()
  rtrs_server_ops ops_;
  void* context_;
  std::uint64_t max_request_size_;  ///< bytes
  std::uint32_t queue_depth_;
  rtrs::Log log_;  ///< may be empty
  rtrs::library::MemoryBudget budget_;
  std::unique_ptr<rtrs::library::Workers> workers_;  ///< null: the event loops run the handler
  std::unique_ptr<rtrs::Server> server_;
};
