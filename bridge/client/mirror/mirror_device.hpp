// SPDX-License-Identifier: BSD-3-Clause
// One user's access to a mirror, as a disk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bridge/client/disk.hpp"
#include "bridge/client/mirror/mirror.hpp"

namespace rnbd::mirror {

/// A discard writes zeroes that may unmap, so that all members show the same bytes there.
///
/// Errors:  as Disk.
/// Threads: any.
class MirrorDevice final : public Disk {
 public:
  /// `mirror` is attached.
  MirrorDevice(std::shared_ptr<Mirror> mirror, std::string name, bool read_only);

  const std::string& name() const override { return name_; }
  const char* access_in_words() const override { return read_only() ? "ro" : "rw"; }
  std::shared_ptr<LaneSource> lane_source() override;
  /// No server is asked: the mirror knows when it has grown.
  tl::expected<void, Failure> look_again(const Interrupt& interrupt) override;

  int flush(const Interrupt& interrupt) override;
  int extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
              std::vector<wire::Extent>& extents, const Interrupt& interrupt) override;
  DeviceHandle& handle() override { return handle_; }

 private:
  int perform(const Transfer& transfer, const Interrupt& interrupt) override;

  const std::shared_ptr<Mirror> mirror_;
  const std::string name_;
  DeviceHandle handle_;  ///< unused, because each member has its own
};

}  // namespace rnbd::mirror
