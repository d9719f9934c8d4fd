// The one session that all NBD connections of this nbdkit share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "bridge/client/config.hpp"
#include "bridge/client/session.hpp"

namespace rnbd {

/// Connects when the session is first asked for, and anew when it has died.
///
/// Threads: any.
class SharedSession {
 public:
  SharedSession(const ClientConfig& config, rtrs::Log log);

  /// Those who ask while somebody else connects share that attempt and its failure.
  tl::expected<std::shared_ptr<Session>, Failure> get(const Interrupt& interrupt);

  /// True for a while after a new session took the place of a dead one, in which the server may
  /// still hold what the dead one had open.
  bool replaced_lately();

  /// Ends the session. Nobody may ask for it any more.
  void leave();

  /// Connects once, for a look: nothing is kept.
  tl::expected<std::shared_ptr<Session>, Failure> connect_for_probe();

 private:
  rtrs::ClientOptions options(const std::string& name_suffix) const;
  tl::expected<std::shared_ptr<Session>, Failure> connect(const Interrupt& interrupt);

  const ClientConfig& config_;
  rtrs::Log log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Session> session_;                     ///< guarded by mutex_
  bool connecting_ = false;                              ///< guarded by mutex_
  std::uint64_t attempts_ = 0;                           ///< ended ones; guarded by mutex_
  Failure last_failure_;                                 ///< of the last attempt; guarded by mutex_
  std::chrono::steady_clock::time_point replaced_at_{};  ///< guarded by mutex_
  bool replaced_ = false;                                ///< guarded by mutex_
};

}  // namespace rnbd
