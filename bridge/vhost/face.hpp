// SPDX-License-Identifier: BSD-3-Clause
// A disk for a virtual machine: a socket on which a vhost-user front-end finds it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tl/expected.hpp>

#include "bridge/metrics/meter.hpp"
#include "bridge/nbd/call_pool.hpp"
#include "bridge/nbd/exports.hpp"
#include "bridge/vhost/client.hpp"
#include "rdma/complaint_log.hpp"
#include "rdma/mailbox.hpp"
#include "rdma/one_call.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::vhost {

struct FaceOptions {
  std::string path;  ///< of the socket
  rtrs::Log log;
  rtrs::MakeOneCall make_call = nullptr;  ///< null: none
};

/// Serves one front-end at a time. Another one is refused while the first is there, with a line in
/// the log, as the protocol has no word for it. One that comes while the first is being left waits.
///
/// Threads: one of its own and one per lane in use; the functions any.
class Face {
 public:
  /// Listens already; serves after open_door().
  ///
  /// Errors: a sentence.
  static tl::expected<std::unique_ptr<Face>, std::string> open(nbd::Exports& exports,
                                                               MeterBook& meters,
                                                               FaceOptions options);
  ~Face();
  Face(const Face&) = delete;
  Face& operator=(const Face&) = delete;

  const std::string& path() const { return options_.path; }
  void open_door();
  /// Ends the client after its requests, which are given up at that time.
  void stop(std::chrono::steady_clock::time_point until);

 private:
  Face(nbd::Exports& exports, MeterBook& meters, FaceOptions options, rtrs::OwnedFd listener);
  void run();
  void serve(rtrs::OwnedFd socket);
  void serve(Client& client);
  void leave(Client& client);
  void await_idle(const Client& client, std::chrono::steady_clock::time_point until);
  rtrs::OwnedFd accept();
  void refuse_another();
  void say(rtrs::LogLevel level, const std::string& line);

  nbd::Exports& exports_;
  MeterBook& meters_;
  const FaceOptions options_;
  rtrs::ComplaintLog complaints_;
  const rtrs::OwnedFd listener_;
  rtrs::WakeUp wake_;
  nbd::CallPool calls_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::chrono::steady_clock::time_point> until_{};  ///< when stopping
  std::thread thread_;
};

}  // namespace rnbd::vhost
