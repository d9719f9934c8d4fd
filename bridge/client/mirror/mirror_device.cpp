// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_device.hpp"

#include <cerrno>
#include <utility>

#include "bridge/client/whole_extents.hpp"

namespace rnbd::mirror {

MirrorDevice::MirrorDevice(std::shared_ptr<Mirror> mirror, std::string name, bool read_only)
    : Disk{mirror->geometry(), read_only, mirror->changes(), mirror.get()},
      mirror_{std::move(mirror)},
      name_{std::move(name)} {}

tl::expected<void, Failure> MirrorDevice::look_again(const Interrupt& /*interrupt*/) {
  grow_to(mirror_->geometry().size);
  return {};
}

std::shared_ptr<LaneSource> MirrorDevice::lane_source() { return mirror_; }

int MirrorDevice::perform(const Transfer& transfer, const Interrupt& interrupt) {
  return mirror_->run(transfer, interrupt);
}

int MirrorDevice::flush(const Interrupt& interrupt) {
  return mirror_->run({.operation = wire::IoOperation::flush}, interrupt);
}

int MirrorDevice::extents(std::uint64_t offset, std::uint64_t length, std::size_t max_extents,
                          std::vector<wire::Extent>& extents, const Interrupt& interrupt) {
  if (!inside(offset, length) || length == 0 || max_extents == 0) return EINVAL;
  if (!geometry().extents) return EOPNOTSUPP;
  std::vector<wire::Extent> told;
  if (const int error = mirror_->extents(offset, length, told, interrupt)) return error;
  auto whole = whole_extents(told, offset, length, geometry().user_block());
  if (whole.size() > max_extents) whole.resize(max_extents);
  extents.insert(extents.end(), whole.begin(), whole.end());
  return 0;
}

}  // namespace rnbd::mirror
