// SPDX-License-Identifier: BSD-3-Clause
// How the devices of a session are opened and closed at its server.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/client.hpp"
#include "rdma/core/client_lane.hpp"

namespace rnbd {

/// A device to be closed.
struct OpenedDevice {
  const std::string& name;
  wire::AccessMode access{};
  std::uint32_t open_number = 0;  ///< of its newest OPEN
  /// Nobody knows whether the server has it open: a CLOSE must be answered before the next OPEN.
  bool half_closed = false;
};

/// The treatment of a device when the server has forgotten the session.
enum class Renewal : std::uint8_t {
  none,           ///< it is not open, and the next user asks anew.
  open,           ///< is opened again.
  open_to_close,  ///< likewise, because the server may have it open still, and then it is closed.
  close_by_name,  ///< the same toward a server that may give its id to a late OPEN of another
                  ///< device: it waits for that like an OPEN, as half closed
  forget,         ///< nobody uses it, and it is certainly not open any more
};

/// Numbers the OPENs of a session between own peers, so that no late copy opens a device that would
/// stay open. Decides with which messages a device is closed.
///
/// Threads: one at a time; pure.
/// Source:  docs/protocol.md, CLOSE.
class OpenOrders {
 public:
  static bool numbered(const rtrs::SessionLimits& limits) {
    return (limits.features & rtrs::wire::kFeatureUserMessages) != 0;
  }
  /// The end of the next OPEN; its number is unanswered until end(). An OPEN that is asked `again`
  /// because the session was renewed keeps its number until then: a CLOSE by that number is meant
  /// for either.
  wire::OpenOrder begin(std::uint32_t again = 0);
  /// It was answered, or nobody waits for its answer any more.
  void end(std::uint32_t number) { unanswered_.erase(number); }

  /// `handle` is the device's, gets the id that it turns out to have, and must outlive the
  /// operation.
  std::unique_ptr<rtrs::Operation> close(const OpenedDevice& device, DeviceHandle& handle,
                                         const rtrs::SessionLimits& limits) const;
  /// Whether the end of a CLOSE says that the device is not open any more. Otherwise it is
  /// half_closed.
  static bool closed(int error);
  /// Whether the answer to a CLOSE can be about its device. `renewed`: the session was recovered
  /// after the CLOSE was sent, and `limits` are the new ones. Without numbers the CLOSE may have
  /// had no id any more, while the server kept the session and its open devices.
  static bool believed(bool renewed, const rtrs::SessionLimits& limits) {
    return !renewed || numbered(limits);
  }
  /// `certain`: the server has nothing open of the session before. `limits` are the new session's.
  static Renewal renewal(bool is_open, bool is_closing, bool in_use, bool certain,
                         const rtrs::SessionLimits& limits);

 private:
  std::uint32_t next_ = 1;
  std::set<std::uint32_t> unanswered_;
};

}  // namespace rnbd
