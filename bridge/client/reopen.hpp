// SPDX-License-Identifier: BSD-3-Clause
// Opens the devices of the last session in a new one, and checks that they are the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/wire/messages.hpp"

namespace rnbd {

/// A device of the last session.
struct ReopenDevice {
  std::string name;
  OpenOptions options;
  DeviceGeometry expected;
  /// It has no user any more. A server that may still have it open is asked for its id, to close
  /// it.
  bool leaving = false;
  wire::OpenOrder order{};  ///< zeros for a server without numbers
  /// True: while the server refuses it, the others wait. False: it is lost if another one can go
  /// on.
  bool patient = true;
};

/// A device in the new session.
struct ReopenedDevice {
  std::uint32_t id = kNoDevice;  ///< valid for a lost device, too, which must be closed
  Witness witness{};             ///< DeviceGeometry::witness, to be compared at the next reopening
  std::string loss{};            ///< for people: why it is lost; "" = it is not
  int refusal = 0;               ///< the server refuses to open it for now
  bool outdated = false;         ///< lost, for the server's record of its writers is an older one
  bool remembered = false;       ///< the server's record of its writers is known and not older

  /// True if its users lose the device. `goes_on`: the session continues with the others. Otherwise
  /// the recovery is tried again, and the server may open the device then. But a new server process
  /// does not know which clients have written.
  bool is_lost(bool in_use, bool goes_on) const {
    return in_use && !loss.empty() && (goes_on || refusal == 0);
  }
};

/// Compares two geometries. "" if requests for a device of the first one are valid for the second
/// one; otherwise the changed value, in words.
std::string change_of_device(const DeviceGeometry& was, const DeviceGeometry& is);

/// True if a server whose record of writers was at `found` when the session came cannot be the one
/// that has told `was`. Its record is an older one, or has another origin.
bool is_outdated(std::uint64_t was, std::uint64_t found);

/// SESSION INFO, then for each device OPEN and, between rnbdkit peers, DEVICE INFO. A device that
/// is gone, or has been replaced, is lost, and the others go on without it. But if the server may
/// still have requests of it in flight, and may reuse its id, all devices are lost.
///
/// A server with an outdated record, and with no good one, is a clone of the right server, or was
/// set back. The devices wait for the right one, unless the user has told to go on there.
///
/// Errors:  ESTALE (all devices are lost for good with this one), EREMCHG (it is another server),
///          EPROTO (nonsense). Others are the server's own. complaint() names the device and the
///          reason.
/// Threads: as rtrs::Operation; pure.
/// Source:  docs/protocol.md, closing; RNBD messages.
class ReopenOperation final : public rtrs::Operation {
 public:
  /// `limits` are those of the new session.
  ReopenOperation(std::vector<ReopenDevice> devices, const rtrs::SessionLimits& limits);

  void start(rtrs::ClientLane& lane) override;
  void cancel(rtrs::ClientLane& lane) override;

  /// The results, in the order of the devices. They are complete if the operation has no error.
  const std::vector<ReopenedDevice>& reopened() const { return reopened_; }
  /// True if some device in use was opened.
  bool could_go_on_with_some() const;
  /// The reason of a failure; "" without one.
  const std::string& complaint() const { return complaint_; }

 private:
  enum class Step : std::uint8_t { session_info, open, device_info };

  const ReopenDevice& device() const { return devices_[reopened_.size()]; }
  bool loses_one_alone() const {
    return own_peer() && (limits_.features & rtrs::wire::kFeatureExactlyOnce) != 0;
  }
  bool own_peer() const { return (limits_.features & rtrs::wire::kFeatureUserMessages) != 0; }
  template <class Message>
  void ask(rtrs::ClientLane& lane, Step step, const Message& message, std::size_t answer);
  void ask_next(rtrs::ClientLane& lane);
  void on_answer(rtrs::ClientLane& lane, int error);
  void on_opened(rtrs::ClientLane& lane);
  void judge(rtrs::ClientLane& lane, const wire::DeviceInfoResponse* info);
  void take(rtrs::ClientLane& lane, ReopenedDevice device);
  void lose(rtrs::ClientLane& lane, ReopenedDevice device);
  void end();
  void fail(int error, std::string complaint);
  void on_refused(rtrs::ClientLane& lane, int error);
  static void on_done(rtrs::ClientLane& lane, rtrs::Request& request);

  std::vector<ReopenDevice> devices_;
  rtrs::SessionLimits limits_;
  Step step_ = Step::session_info;
  std::array<std::byte, rtrs::wire::kMaxUserMessage> message_{};
  std::array<std::byte, sizeof(wire::DeviceInfoResponse)> answer_{};
  rtrs::Request request_;
  wire::OpenResponse opened_;
  std::vector<ReopenedDevice> reopened_;
  std::string complaint_;
};

}  // namespace rnbd
