// SPDX-License-Identifier: BSD-3-Clause
// The services that the program offers to the request logic. The simulator and the unit tests have
// fewer, because they have no threads and no event loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "bridge/metrics/meter.hpp"
#include "rdma/core/time.hpp"
#include "rdma/log.hpp"

namespace rtrs {
class Reactor;
class ServerSession;
}  // namespace rtrs

namespace rnbd {

class WriterCount;
struct Device;

/// All sessions of the server, with those of other reactors.
///
/// Threads: any.
class OtherSessions {
 public:
  virtual ~OtherSessions() = default;
  /// Ends those that may write to this storage and have neither paths nor requests. Then runs
  /// `then` on the reactor. `reason` names the client that wants the device, for the log.
  virtual void reclaim(rtrs::Reactor* reactor, const WriterCount* storage,
                       const std::string& reason, std::function<void()> then) = 0;
  /// Finds out whether one that may write to this storage has a path or requests. Calls `then` with
  /// the result, on the reactor.
  virtual void survey(rtrs::Reactor* reactor, const WriterCount* storage,
                      std::function<void(bool)> then) = 0;
  /// Runs `then` on the reactor when all present requests to this storage have ended, except those
  /// of one device.
  virtual void drain(rtrs::Reactor* reactor, const WriterCount* storage, const Device* but,
                     std::function<void()> then) = 0;
  /// Runs `work` on the reactor with a session of it, if that still exists.
  virtual void visit(rtrs::Reactor* reactor, rtrs::ServerSession* session,
                     std::function<void(rtrs::ServerSession&)> work) = 0;
};

/// Threads: any.
class Services {
 public:
  using Work = std::function<void()>;

  virtual ~Services() = default;
  /// False: work is done at once, inside the call.
  virtual bool has_event_loop() const { return false; }
  /// Runs `work` on the reactor soon, from its event loop and not inside this call.
  virtual void later(rtrs::Reactor*, Work work) const { work(); }
  /// Runs `work` on the reactor after a time. To cancel it, the reactor drops the result. Null: the
  /// time never ends.
  virtual std::shared_ptr<void> after(rtrs::Reactor*, rtrs::Duration, Work) const { return {}; }
  /// Runs `work`, which may block, on another thread, and then `then` on the reactor. Either may be
  /// empty.
  virtual void offload(rtrs::Reactor*, Work work, Work then) const {
    if (work) work();
    if (then) then();
  }
  /// The same for work that waits only for the server's own state directory.
  virtual void record(rtrs::Reactor* reactor, Work work, Work then) const {
    offload(reactor, std::move(work), std::move(then));
  }
  /// Writes a line about the client at an address.
  virtual void say(rtrs::LogLevel, const std::string&, const std::string&) const {}

  std::shared_ptr<Meter> meter(const std::string& device, const rtrs::Reactor* reactor) const {
    return meters != nullptr ? meters->meter(device, reactor) : std::make_shared<Meter>();
  }
  std::uint64_t now() const { return clock != nullptr ? clock() : 0; }

  OtherSessions* sessions = nullptr;  ///< null: there is one only
  /// Counts the devices' requests; null: each device counts for itself.
  std::shared_ptr<MeterBook> meters = {};
  /// A steady clock, with after(). Null: nothing is timed.
  ///
  /// Units: nanoseconds, never 0.
  std::uint64_t (*clock)() = nullptr;
};

}  // namespace rnbd
