// SPDX-License-Identifier: BSD-3-Clause
// A block device of a server, as easy to use as a file descriptor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bridge/client/disk.hpp"
#include "bridge/client/session.hpp"
#include "bridge/client/transfer.hpp"

namespace rnbd {

/// An open device. Offsets and lengths are bytes and need no alignment: partial blocks are read,
/// changed and written back. No other write of the same session is lost by that.
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
  std::uint64_t era() const { return session_->era().number; }
  /// True if the server has another device, or writer, in its place: all requests fail for good.
  bool lost() const { return session_->known_of(*mapping_).lost; }
  /// A one-sided write of unknown fate may still land. No user may write until the device is
  /// closed.
  void distrust() { mapping_->in_doubt = true; }
  std::shared_ptr<LaneSource> lane_source() override { return session_; }

  tl::expected<void, Failure> look_again(const Interrupt& interrupt) override;
  int read(std::uint64_t offset, rtrs::MutableBytes data, const Interrupt& interrupt) override;
  int write(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
            const Interrupt& interrupt) override;
  int flush(const Interrupt& interrupt) override;
  int discard(std::uint64_t offset, std::uint64_t length, bool fua,
              const Interrupt& interrupt) override;
  int write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                   const Interrupt& interrupt) override;
  int extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
              std::vector<wire::Extent>& extents, const Interrupt& interrupt) override;
  int cache(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt) override;
  int begin(Transfer& transfer, Begun& begun) override;
  int end(const Transfer& transfer, const Begun& begun, int error) override;
  DeviceHandle& handle() override { return mapping_->handle; }

 private:
  friend class Session;
  RemoteDevice(std::shared_ptr<Session> session, std::shared_ptr<Session::Mapping> mapping,
               bool read_only);

  int begin_change(Transfer& transfer, Begun& begun);
  int claim(const Interrupt& interrupt);
  int run(const Transfer& transfer, const Interrupt& interrupt);
  int run(rtrs::Operation& operation, const Interrupt& interrupt);
  int run_change(const Transfer& transfer, const Interrupt& interrupt);
  int check_change(std::uint64_t offset, std::uint64_t length) const;
  bool inside(std::uint64_t offset, std::uint64_t length) const;
  int read_partial(std::uint64_t offset, rtrs::MutableBytes data, const Interrupt& interrupt);
  int patch(std::uint64_t offset, std::uint64_t length, const std::byte* from, bool fua,
            const Interrupt& interrupt);
  int write_any(const Transfer& whole, const Interrupt& interrupt);
  int write_parts(const Transfer& whole, const Interrupt& interrupt);
  int zero_blocks(const Transfer& transfer, const Interrupt& interrupt);

  std::shared_ptr<Session> session_;
  std::shared_ptr<Session::Mapping> mapping_;
  bool observes_ = false;
  std::atomic<bool> may_change_;            ///< the writer's reservation covers this user
  std::atomic<std::uint64_t> losses_told_;  ///< to the user of this one
};

}  // namespace rnbd
