// SPDX-License-Identifier: BSD-3-Clause
// How the devices of a session are opened and closed at its server.
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

/// A session with the server, of the several that a client's session may see. An answer of one must
/// not be believed in the next.
struct Era {
  std::uint64_t number = 0;
  rtrs::SessionLimits limits;
};

/// Numbers the OPENs of a session between own peers, so that no late copy opens a device that would
/// stay open. Decides with which messages a device is closed, and which devices are opened again
/// when the server has forgotten the session.
///
/// Threads: one at a time; pure.
/// Source:  docs/protocol.md, CLOSE.
class OpenOrders {
 public:
  const Era& era() const { return era_; }
  bool is_past(std::uint64_t era) const { return era != era_.number; }
  /// The first session is up. False: it has been recovered already.
  bool enter(const rtrs::SessionLimits& limits);

  /// The server has made another session, of these limits: from here on nobody believes an id of
  /// the one before. An attempt to open the devices again begins, and an earlier one ends.
  /// `forgets`: a server that made another session has nothing open of the one before.
  void begin_recovery(const rtrs::SessionLimits& limits, bool forgets);
  /// Linux's server may in truth still have the session.
  static bool forgets(const rtrs::SessionLimits& limits) {
    return (limits.features & rtrs::wire::kFeatureExactlyOnce) != 0;
  }
  /// The server has nothing open of the session before: neither that, nor did an earlier attempt
  /// open anything.
  bool certain() const { return certain_; }
  Renewal renewal(bool is_open, bool is_closing, bool in_use) const {
    return renewal(is_open, is_closing, in_use, certain_, era_.limits);
  }
  /// The end of an OPEN of the attempt; zeros toward a server that knows no numbers.
  wire::OpenOrder begin_again();
  /// The attempt is over. Its OPENs that are still in flight open nothing any more once the server
  /// hears of the next OPEN or CLOSE. The server may keep what a failed one has opened.
  void end_recovery(bool success);

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
  std::unique_ptr<rtrs::Operation> close(const OpenedDevice& device, DeviceHandle& handle) const;
  /// Whether the end of a CLOSE says that the device is not open any more. Otherwise it is
  /// half_closed.
  static bool closed(int error);
  /// Whether the answer to a CLOSE of that era can be about its device. Without numbers the CLOSE
  /// may have had no id any more, while the server kept the session and its open devices.
  bool believed(std::uint64_t era) const { return !is_past(era) || numbered(era_.limits); }
  /// `certain`: the server has nothing open of the session before. `limits` are the new session's.
  static Renewal renewal(bool is_open, bool is_closing, bool in_use, bool certain,
                         const rtrs::SessionLimits& limits);

 private:
  void end_attempt();

  Era era_;
  std::uint32_t next_ = 1;
  std::set<std::uint32_t> unanswered_;
  std::vector<std::uint32_t> attempt_;  ///< numbers of OPENs
  bool certain_ = false;
  bool cut_short_ = false;  ///< an attempt was, since the last success
};

}  // namespace rnbd
