// SPDX-License-Identifier: BSD-3-Clause
// The state of a mirror that its users read and wait for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "bridge/client/geometry.hpp"
#include "bridge/client/mirror/mirror_status.hpp"
#include "rdma/client.hpp"

namespace rnbd::mirror {

/// Tells the users whether the mirror is attached, and how its disk and its members are.
///
/// Threads: those that change it are for the mirror's, the others for any.
class MirrorState {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Wait : std::uint8_t { live, dead, late, interrupted };

  /// Waits until the mirror is attached, or dead.
  Wait wait(Clock::time_point until, const rtrs::Interrupt& interrupt);
  /// Of the disk, once the mirror has been attached.
  DeviceGeometry geometry() const;
  /// The reason why the mirror is dead; "" = it is not.
  std::string dead() const;
  /// The newest report. Its trouble is dead().
  MirrorStatus status() const;

  /// It stays as it is set first.
  void set_geometry(const DeviceGeometry& geometry);
  void set_live(bool live);
  /// It can never be attached again. False: it was dead before.
  bool die(const std::string& reason);
  void publish(MirrorStatus status);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool live_ = false;  ///< guarded by mutex_, as all below
  std::string dead_;
  DeviceGeometry geometry_;
  MirrorStatus status_;
};

}  // namespace rnbd::mirror
