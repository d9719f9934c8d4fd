// SPDX-License-Identifier: BSD-3-Clause
// One user's access to a mirror, as a disk.
#pragma once

#include <memory>
#include <string>

#include "bridge/client/disk.hpp"
#include "bridge/client/mirror/mirror.hpp"

namespace rnbd::mirror {

/// Partial blocks are read, changed and written back, without other writes in between.
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
  tl::expected<void, Failure> look_again(const Interrupt& /*interrupt*/) override { return {}; }

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
  DeviceHandle& handle() override { return handle_; }

 private:
  bool inside(std::uint64_t offset, std::uint64_t length) const;
  int change(const Transfer& whole, const Interrupt& interrupt);
  int change_blocks(const Transfer& transfer, const Interrupt& interrupt);
  int patch(const Transfer& part, const Interrupt& interrupt);

  const std::shared_ptr<Mirror> mirror_;
  const std::string name_;
  DeviceHandle handle_;  ///< unused, because each member has its own
};

}  // namespace rnbd::mirror
