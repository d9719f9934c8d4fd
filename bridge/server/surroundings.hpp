// SPDX-License-Identifier: BSD-3-Clause
// The services that the request logic may ask of the program around it. All may be empty: the
// simulator and the unit tests have no threads and no event loop.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bridge/metrics/meter.hpp"
#include "bridge/server/mirror/pull_source.hpp"
#include "rdma/client.hpp"
#include "rdma/core/time.hpp"
#include "rdma/log.hpp"

namespace rtrs {
class Reactor;
class ServerSession;
}  // namespace rtrs

namespace rnbd {

namespace brick {
class BrickExposure;
}

class WriterCount;
struct Device;

struct Surroundings {
  /// Runs `work` on the reactor soon, from its event loop and not from inside the caller.
  std::function<void(rtrs::Reactor* reactor, std::function<void()> work)> later;
  /// Runs `work` on the reactor when the time is over, unless the result is dropped before, on the
  /// reactor. Empty: time never ends.
  std::function<std::shared_ptr<void>(rtrs::Reactor* reactor, rtrs::Duration time,
                                      std::function<void()> work)>
      after;
  /// Runs `work`, which may block, on another thread, and then `then` on the reactor. Either may be
  /// empty.
  std::function<void(rtrs::Reactor* reactor, std::function<void()> work,
                     std::function<void()> then)>
      offload;
  /// As offload, for work that waits for nothing but the server's own state directory.
  std::function<void(rtrs::Reactor* reactor, std::function<void()> work,
                     std::function<void()> then)>
      record;
  /// Ends sessions without paths and requests that may write to this storage, then runs `then` on
  /// the reactor. `reason` is for the log: the client that wants their device.
  std::function<void(rtrs::Reactor* reactor, const WriterCount* storage, const std::string& reason,
                     std::function<void()> then)>
      reclaim;
  /// Tells `then` on the reactor whether a session may write to this storage that has a path, or
  /// requests.
  std::function<void(rtrs::Reactor* reactor, const WriterCount* storage,
                     std::function<void(bool)> then)>
      survey;
  /// The keys of a session's memory path; null: it has no such path. Empty: there are no memory
  /// paths.
  std::function<std::shared_ptr<brick::BrickExposure>(rtrs::ServerSession* session,
                                                      const std::array<std::uint8_t, 16>& path)>
      exposure = {};
  /// Tells a session of the reactor that a brick wants blocks back, if it is still there.
  /// Threads: any.
  std::function<void(rtrs::Reactor* reactor, rtrs::ServerSession* session)> recall = {};
  /// Runs `then` on the reactor when all requests to this storage have ended that are under way,
  /// over all devices but one.
  std::function<void(rtrs::Reactor* reactor, const WriterCount* storage, const Device* but,
                     std::function<void()> then)>
      drain = {};
  /// Reads from another member of a mirror group, and runs `then` on the reactor with an errno.
  /// Empty: this server reads from none.
  std::function<void(rtrs::Reactor* reactor, const mirror::PullSource& source,
                     rtrs::MutableBytes into, std::function<void(int error)> then)>
      pull = {};
  /// A line about the client at an address.
  std::function<void(rtrs::LogLevel level, const std::string& peer, const std::string& line)> log;

  /// Counts the devices' requests; null: each device counts for itself.
  std::shared_ptr<MeterBook> meters = {};
  /// A steady clock. Null: nothing is timed.
  ///
  /// Units: nanoseconds, never 0.
  std::uint64_t (*clock)() = nullptr;

  /// As offload, at once when there is none.
  void run_blocking(rtrs::Reactor* reactor, std::function<void()> work,
                    std::function<void()> then) const;
  /// As record, at once when there is none.
  void run_recording(rtrs::Reactor* reactor, std::function<void()> work,
                     std::function<void()> then) const;
  std::shared_ptr<Meter> meter(const std::string& device, const rtrs::Reactor* reactor) const;
  std::uint64_t now() const { return clock != nullptr ? clock() : 0; }
  void say(rtrs::LogLevel level, const std::string& peer, const std::string& line) const;
};

}  // namespace rnbd
