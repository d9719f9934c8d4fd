// SPDX-License-Identifier: BSD-3-Clause
// The questions of a session to its server that have one answer each, for callers that wait.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "bridge/client/control.hpp"
#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// Agrees on the protocol; each session begins with that. Returns 0 or a positive errno; EPROTO:
/// the server does not speak RNBD.
///
/// Threads: any, as for all of them.
/// Source:  docs/protocol.md.
int ask_session_info(rtrs::Client& client, const rtrs::Interrupt& interrupt);

struct DeviceAnswer {
  int error = 0;  ///< positive errno
  /// None after an error, or if the answer makes no sense.
  std::optional<wire::DeviceInfoResponse> info;
};

/// The present state of an open device.
DeviceAnswer ask_device_info(rtrs::Client& client, const DeviceHandle& device,
                             const rtrs::Interrupt& interrupt);

/// The question of ask_claim(), for callers that run it themselves. `device` must outlive it.
class ClaimQuestion {
 public:
  ClaimQuestion(const DeviceHandle& device, const Witness& seen);

  rtrs::Operation& operation() { return operation_; }
  /// The answer to an operation that has ended with `error`.
  DeviceAnswer answer(int error) const;

 private:
  std::array<std::byte, sizeof(wire::DeviceInfoResponse)> answer_{};
  ControlOperation operation_;
};

/// Asks for the right to change a device, whose content the user knows as of `seen`. The error says
/// why the server does not grant it, or is EPROTO for an answer that makes no sense.
DeviceAnswer ask_claim(rtrs::Client& client, const DeviceHandle& device, const Witness& seen,
                       const rtrs::Interrupt& interrupt);

}  // namespace rnbd
