// SPDX-License-Identifier: BSD-3-Clause
// The messages that open and close the devices of a session at its server.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/client.hpp"
#include "rdma/core/client/lane.hpp"

namespace rnbd {

/// A device to be closed.
struct OpenedDevice {
  const std::string& name;
  wire::AccessMode access{};
  std::uint32_t open_number = 0;  ///< of its newest OPEN
  /// It is unknown whether the server has it open. A CLOSE must be answered before the next OPEN.
  bool half_closed = false;
};

/// The treatment of a device when the server has forgotten the session.
enum class Renewal : std::uint8_t {
  none,           ///< it is not open, and the next user opens it
  open,           ///< it is opened again
  open_to_close,  ///< likewise, because the server may still have it open, and then it is closed
  close_by_name,  ///< the same toward a server that may give its id to a late OPEN of another
                  ///< device: it waits for that like an OPEN, as half closed
  forget,         ///< It has no user, and the new session does not have it open. Until the recovery
                  ///< has succeeded, it counts as half closed.
};

/// One session with the server. A client's session may have several, one after another, and an
/// answer in one says nothing about the next.
struct Era {
  std::uint64_t number = 0;
  rtrs::SessionLimits limits;
};

/// Numbers the OPENs of a session between own peers, so that no late copy of an OPEN leaves a
/// device open. Chooses the messages that close a device. When the server has forgotten the
/// session, it chooses the devices to open again.
///
/// Threads: one at a time; pure.
/// Source:  docs/protocol.md, CLOSE.
class OpenOrders {
 public:
  const Era& era() const { return era_; }
  bool is_past(std::uint64_t era) const { return era != era_.number; }
  /// The first session is up. False: it has been recovered already.
  bool enter(const rtrs::SessionLimits& limits);

  /// The server has made a new session with these limits. Ids of the old one are not valid any
  /// more. A new attempt to open the devices again begins, and ends an earlier attempt. `forgets`:
  /// a server with a new session has no device open from the old one.
  void begin_recovery(const rtrs::SessionLimits& limits, bool forgets);
  /// False for Linux's server, which may still have the old session.
  static bool forgets(const rtrs::SessionLimits& limits) {
    return (limits.features & rtrs::wire::kFeatureExactlyOnce) != 0;
  }
  /// True if the server has no device open from the old session, or from an earlier attempt.
  bool certain() const { return certain_; }
  /// The number at the end of an OPEN of the attempt; zeros for a server without numbers.
  wire::OpenOrder begin_again();
  /// The attempt is over. Its OPENs in flight are refused as soon as the server has received the
  /// next OPEN or CLOSE. The server may keep the devices of a failed attempt open.
  void end_recovery(bool success);

  static bool numbered(const rtrs::SessionLimits& limits) {
    return (limits.features & rtrs::wire::kFeatureUserMessages) != 0;
  }
  /// The number at the end of the next OPEN, which is unanswered until end(). An OPEN that is sent
  /// `again` after a renewal of the session keeps its number. A CLOSE by that number closes either
  /// one.
  wire::OpenOrder begin(std::uint32_t again = 0);
  /// The OPEN was answered, or its caller has left.
  void end(std::uint32_t number) { unanswered_.erase(number); }

  /// `handle` belongs to the device. It gets the id that the server reports, and must outlive the
  /// operation.
  std::unique_ptr<rtrs::Operation> close(const OpenedDevice& device, DeviceHandle& handle) const;
  /// True if the answer to a CLOSE proves that the device is closed. Otherwise it is half_closed.
  static bool closed(int error);
  /// True if the answer to a CLOSE of that era can be about its device. Without numbers, the CLOSE
  /// may have had no valid id any more, while the server kept the session and its open devices.
  bool believed(std::uint64_t era) const { return !is_past(era) || numbered(era_.limits); }
  /// `certain`: the server has no device open from the old session. `limits` belong to the new one.
  static Renewal renewal(bool is_open, bool is_closing, bool in_use, bool certain,
                         const rtrs::SessionLimits& limits);

 private:
  void end_attempt();

  Era era_;
  std::uint32_t next_ = 1;
  std::set<std::uint32_t> unanswered_;
  std::vector<std::uint32_t> attempt_;  ///< numbers of OPENs
  bool certain_ = false;
  bool cut_short_ = false;  ///< an attempt was made since the last success
};

}  // namespace rnbd
