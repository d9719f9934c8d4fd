// SPDX-License-Identifier: BSD-3-Clause
// The interface of a disk of the kernel, for what keeps many of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "rdma/failure.hpp"

namespace rnbd::kernel {

/// The descriptors that a bridge leaves to its successor. The service manager keeps them.
struct Kept {
  int socket = -1;  ///< connected to the kernel
  int state = -1;   ///< a file in memory
};

/// Threads: one at a time, but interrupt() any.
class KernelDisk {
 public:
  /// The state of a disk that is served.
  enum class News : std::uint8_t {
    none,
    grown,     ///< grow() is due
    lost,      ///< the socket has ended: attempt() is due
    unmapped,  ///< another program has disconnected the device
    silent,    ///< the server does not answer
  };

  virtual ~KernelDisk() = default;

  /// Serves the disk, or serves it again. Returns when the device is ready and has its size. If the
  /// kernel has the device already, takes it over.
  ///
  /// Errors:  sentences with the remedy. ESTALE: the kernel has another disk under this name, which
  ///          no waiting changes.
  /// Threads: waits about as long as `patience` for the server, and for the kernel.
  virtual tl::expected<void, rtrs::Failure> attempt(std::chrono::milliseconds patience) = 0;
  /// After a failure: the kernel has the disk, and only its server keeps it from being served.
  virtual bool waits_for_server() const = 0;
  /// Looks at a disk that is served; also at its size if `ask` says so. Waits a second at most.
  virtual News look(bool ask) = 0;
  /// Makes the device as large as its export. May wait for the kernel.
  virtual void grow() = 0;
  /// attempt() and look() return soon from now on.
  virtual void interrupt() = 0;
  /// Disconnects the device. Waiting requests end with EIO.
  virtual void leave() = 0;
  /// Begins to hand the device over to a successor, for which the kernel's requests wait.
  virtual void begin_hand_over() = 0;
  /// None: some requests do not end in time, and the successor must bring a new socket.
  virtual std::optional<Kept> end_hand_over(std::chrono::steady_clock::time_point until) = 0;
  /// `/dev/nbd0`, after attempt().
  virtual std::string device() const = 0;
};

}  // namespace rnbd::kernel
