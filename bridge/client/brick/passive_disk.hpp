// SPDX-License-Identifier: BSD-3-Clause
// One user's access to a brick as a disk. Mapped blocks are read and written one-sided.
#pragma once

#include <memory>
#include <string>

#include "bridge/client/brick/passive_brick.hpp"
#include "bridge/client/disk.hpp"

namespace rnbd {

/// Requests that have no map, or cannot be one-sided, go two-sided. Requests that involve maps need
/// the blocking calls, so event loops get EAGAIN for them.
///
/// Errors:  as Disk.
/// Threads: any.
class PassiveDisk final : public Disk {
 public:
  PassiveDisk(std::unique_ptr<RemoteDevice> device, std::shared_ptr<PassiveBrick> brick);

  const std::string& name() const override { return device_->name(); }
  const char* access_in_words() const override { return device_->access_in_words(); }
  std::shared_ptr<LaneSource> lane_source() override { return device_->lane_source(); }
  tl::expected<void, Failure> look_again(const Interrupt& interrupt) override;
  void only_observe() override { device_->only_observe(); }
  void grow_to(std::uint64_t size) override;

  int flush(const Interrupt& interrupt) override;
  int extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
              std::vector<wire::Extent>& extents, const Interrupt& interrupt) override;
  int cache(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt) override;
  DeviceHandle& handle() override { return device_->handle(); }

 private:
  int perform(const Transfer& transfer, const Interrupt& interrupt) override;
  int admit(const Transfer& transfer, Begun& begun) override;
  int ended(const Transfer& transfer, const Begun& begun, int error) override;
  int two_sided(const Transfer& transfer, const Interrupt& interrupt);
  int write_one_sided(const Transfer& part, const Interrupt& interrupt);
  int write_pinned(const MapCache::Pin& pin, const Transfer& part, bool seen,
                   const Interrupt& interrupt);
  int sync(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt);
  int flush_ranges(const FlushDebt::Debt& debt, const Interrupt& interrupt);
  int changed(int error);

  std::unique_ptr<RemoteDevice> device_;
  std::shared_ptr<PassiveBrick> brick_;  ///< ends before the device: it may distrust it
};

}  // namespace rnbd
