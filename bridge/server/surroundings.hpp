// SPDX-License-Identifier: BSD-3-Clause
// The services that the program offers to the request logic. Each may be empty, because the
// simulator and the unit tests have no threads and no event loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bridge/metrics/meter.hpp"
#include "rdma/client.hpp"
#include "rdma/core/time.hpp"
#include "rdma/log.hpp"

namespace rtrs {
class Reactor;
class ServerSession;
}  // namespace rtrs

namespace rnbd {

class WriterCount;
struct Device;

struct Surroundings {
  /// Runs `work` on the reactor soon, from its event loop and not inside this call.
  std::function<void(rtrs::Reactor* reactor, std::function<void()> work)> later;
  /// Runs `work` on the reactor after a time. To cancel it, the reactor drops the result. Empty:
  /// the time never ends.
  std::function<std::shared_ptr<void>(rtrs::Reactor* reactor, rtrs::Duration time,
                                      std::function<void()> work)>
      after;
  /// Runs `work`, which may block, on another thread, and then `then` on the reactor. Either may be
  /// empty.
  std::function<void(rtrs::Reactor* reactor, std::function<void()> work,
                     std::function<void()> then)>
      offload;
  /// The same as offload, for work that waits only for the server's own state directory.
  std::function<void(rtrs::Reactor* reactor, std::function<void()> work,
                     std::function<void()> then)>
      record;
  /// Ends the sessions that may write to this storage and have neither paths nor requests. Then
  /// runs `then` on the reactor. `reason` names the client that wants the device, for the log.
  std::function<void(rtrs::Reactor* reactor, const WriterCount* storage, const std::string& reason,
                     std::function<void()> then)>
      reclaim;
  /// Finds out whether some session that may write to this storage has a path or requests. Calls
  /// `then` with the result, on the reactor.
  std::function<void(rtrs::Reactor* reactor, const WriterCount* storage,
                     std::function<void(bool)> then)>
      survey;
  /// Runs `work` on the reactor with a session of it, if that still exists.
  ///
  /// Threads: any.
  std::function<void(rtrs::Reactor* reactor, rtrs::ServerSession* session,
                     std::function<void(rtrs::ServerSession&)> work)>
      visit = {};
  /// Runs `then` on the reactor when all present requests to this storage have ended, except those
  /// of one device.
  std::function<void(rtrs::Reactor* reactor, const WriterCount* storage, const Device* but,
                     std::function<void()> then)>
      drain = {};
  /// Writes a line about the client at an address.
  std::function<void(rtrs::LogLevel level, const std::string& peer, const std::string& line)> log;

  /// Counts the devices' requests; null: each device counts for itself.
  std::shared_ptr<MeterBook> meters = {};
  /// A steady clock. Null: nothing is timed.
  ///
  /// Units: nanoseconds, never 0.
  std::uint64_t (*clock)() = nullptr;

  /// Calls offload, or runs the work at once if offload is empty.
  void run_blocking(rtrs::Reactor* reactor, std::function<void()> work,
                    std::function<void()> then) const;
  /// Calls record, or runs the work at once if record is empty.
  void run_recording(rtrs::Reactor* reactor, std::function<void()> work,
                     std::function<void()> then) const;
  /// Calls later, or runs the work at once if later is empty.
  void run_later(rtrs::Reactor* reactor, std::function<void()> work) const;
  std::shared_ptr<Meter> meter(const std::string& device, const rtrs::Reactor* reactor) const;
  std::uint64_t now() const { return clock != nullptr ? clock() : 0; }
  void say(rtrs::LogLevel level, const std::string& peer, const std::string& line) const;
};

}  // namespace rnbd
