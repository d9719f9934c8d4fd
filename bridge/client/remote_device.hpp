// SPDX-License-Identifier: BSD-3-Clause
// A block device of a server, as easy to use as a file descriptor.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bridge/client/disk.hpp"
#include "bridge/client/session.hpp"
#include "bridge/client/transfer.hpp"

namespace rnbd {

/// An open device. No other write of the same session is lost when a partial block is written.
///
/// Errors:  as Disk; EIO also after distrust(). The first write may also give EPERM (another client
///          writes to it) or ESTALE (one has written since the OPEN).
/// Threads: any.
class RemoteDevice final : public Disk {
 public:
  ~RemoteDevice() override;

  const std::string& name() const override { return mapping_->name; }
  /// True if another client may write to it, according to the server's last answer.
  bool in_use() const { return geometry_.in_use; }
  /// A value that changes when that client has written.
  std::uint64_t sight() const { return geometry_.witness.sight; }
  const char* access_in_words() const override;
  void only_observe() override;
  /// Makes this user a reader from now on.
  ///
  /// Threads: the user's, before the first request.
  void refuse_changes() { read_only_ = true; }
  Session& session() { return *session_; }
  /// True if both are the same device, opened once.
  bool shares(const RemoteDevice& other) const { return mapping_ == other.mapping_; }
  /// Counts the sessions with the server. Facts that an earlier one has confirmed may be outdated.
  std::uint64_t era() const override { return session_->era().number; }
  /// True if the server has another device, or writer, in its place: all requests fail for good.
  bool lost() const { return session_->known_of(*mapping_).lost; }
  /// A one-sided write of unknown fate may still land. No user may write until the device is
  /// closed.
  void distrust() { mapping_->in_doubt = true; }
  /// The changes of all users of the device.
  ChangesUnderWay& changes() { return mapping_->changes; }
  std::shared_ptr<LaneSource> lane_source() override { return session_; }

  tl::expected<void, Failure> look_again(const Interrupt& interrupt) override;
  /// For devices of rnbdkit servers that have a UUID.
  std::optional<LeftDisk> leave_behind() const override;
  std::string go_on_from(const LeftDisk& left, const Interrupt& interrupt) override;
  int flush(const Interrupt& interrupt) override;
  int extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
              std::vector<wire::Extent>& extents, const Interrupt& interrupt) override;
  int cache(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt) override;
  DeviceHandle& handle() override { return mapping_->handle; }
  int admit(const Transfer& transfer, Begun& begun) override;
  BegunClaim begin_claim(std::function<void()> again) override;

 private:
  class AsyncClaim;
  bool follows(const LeftDisk& left, const Interrupt& interrupt);

  friend class Session;
  RemoteDevice(std::shared_ptr<Session> session, std::shared_ptr<Session::Mapping> mapping,
               bool read_only);

  int perform(const Transfer& transfer, const Interrupt& interrupt) override;
  int claim(const Interrupt& interrupt) override;
  int ended(const Transfer& transfer, const Begun& begun, int error) override;
  int send(rtrs::Operation& operation, const Interrupt& interrupt);

  std::shared_ptr<Session> session_;
  std::shared_ptr<Session::Mapping> mapping_;
  bool observes_ = false;
  std::atomic<std::uint64_t> losses_told_;  ///< to the user of this one
};

}  // namespace rnbd
