// SPDX-License-Identifier: BSD-3-Clause
// Threads for calls that may block: opening and closing files that clients name.
#pragma once

#include <memory>

#include "bridge/server/services.hpp"
#include "rdma/client_log.hpp"

namespace rnbd {

/// The services of the program: threads of its own, and the event loops of the reactors.
///
/// Threads: any; finish() one.
class BlockingPool final : public Services {
 public:
  explicit BlockingPool(std::shared_ptr<rtrs::ClientLog> log);
  ~BlockingPool() override;
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  /// Waits for all its work. There may be none afterwards.
  void finish();

  bool has_event_loop() const override { return true; }
  void later(rtrs::Reactor* reactor, Work work) const override;
  std::shared_ptr<void> after(rtrs::Reactor* reactor, rtrs::Duration time,
                              Work work) const override;
  void offload(rtrs::Reactor* reactor, Work work, Work then) const override;
  void record(rtrs::Reactor* reactor, Work work, Work then) const override;
  void say(rtrs::LogLevel level, const std::string& peer, const std::string& line) const override;

 private:
  struct Impl;
  const std::shared_ptr<rtrs::ClientLog> log_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rnbd
