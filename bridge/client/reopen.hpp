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
#include "rdma/core/client_lane.hpp"

namespace rnbd {

/// A device as it was.
struct ReopenDevice {
  std::string name;
  OpenOptions options;
  DeviceGeometry expected;
  /// Nobody uses it any more. A server that may still have it open is asked for its id, with which
  /// it can be closed.
  bool leaving = false;
  wire::OpenOrder order{};  ///< zeros: toward a server that knows no numbers
  /// While the server refuses it, the others wait. Otherwise it is lost, if another one can go on.
  bool patient = true;
};

/// A device in the new session.
struct ReopenedDevice {
  std::uint32_t id = kNoDevice;  ///< also of one that is lost, which is to be closed then
  Witness witness{};             ///< DeviceGeometry::witness, with which the next is compared
  std::string loss{};            ///< for people: why it is lost; "" = it is not
  int refusal = 0;               ///< the server does not open it for now

  /// Whether its users lose it. `goes_on`: the session does, with the others. Otherwise it is tried
  /// again, and the server may open it then; but it may be another process, which does not know
  /// any more which clients have written.
  bool is_lost(bool in_use, bool goes_on) const {
    return in_use && !loss.empty() && (goes_on || refusal == 0);
  }
};

/// Empty when requests that were made for a device of the one geometry may go to one of the other;
/// otherwise which of its values changed, in words.
std::string change_of_device(const DeviceGeometry& was, const DeviceGeometry& is);

/// SESSION INFO, then for each device OPEN and, between rnbdkit peers, DEVICE INFO. A device that
/// is gone, or is another one now, is lost, and the others go on without it. Not so toward a server
/// that may still have requests of it in flight, and give its id to another one.
///
/// Errors:  ESTALE (a device is lost, and with it all: for good), EPROTO (nonsense from the
///          server), or the server's own; complaint() names the device and the reason.
/// Threads: as rtrs::Operation; pure.
/// Source:  docs/protocol.md, closing; RNBD messages.
class ReopenOperation final : public rtrs::Operation {
 public:
  /// `limits` are those of the new session.
  ReopenOperation(std::vector<ReopenDevice> devices, const rtrs::SessionLimits& limits);

  void start(rtrs::ClientLane& lane) override;
  void cancel(rtrs::ClientLane& lane) override;

  /// In the order of the devices; all of them when it has finished without an error.
  const std::vector<ReopenedDevice>& reopened() const { return reopened_; }
  /// Some device that is in use was opened.
  bool could_go_on_with_some() const;
  /// Why it failed; "" if it did not.
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
  void lose(rtrs::ClientLane& lane, std::uint32_t id, std::string why);
  void end();
  void fail(int error, std::string complaint);
  void on_refused(rtrs::ClientLane& lane, int error);
  static void on_done(rtrs::ClientLane& lane, rtrs::Request& request);

  std::vector<ReopenDevice> devices_;
  rtrs::SessionLimits limits_;
  Step step_ = Step::session_info;
  std::array<std::byte, rtrs::kMaxUserMessage> message_{};
  std::array<std::byte, sizeof(wire::DeviceInfoResponse)> answer_{};
  rtrs::Request request_;
  wire::OpenResponse opened_;
  std::vector<ReopenedDevice> reopened_;
  std::string complaint_;
};

}  // namespace rnbd
