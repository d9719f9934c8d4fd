// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_device.hpp"

#include <utility>

namespace rnbd::mirror {

MirrorDevice::MirrorDevice(std::shared_ptr<Mirror> mirror, std::string name, bool read_only)
    : Disk{mirror->geometry(), read_only, mirror->changes(), mirror.get()},
      mirror_{std::move(mirror)},
      name_{std::move(name)} {}

std::shared_ptr<LaneSource> MirrorDevice::lane_source() { return mirror_; }

int MirrorDevice::perform(const Transfer& transfer, const Interrupt& interrupt) {
  return mirror_->run(transfer, interrupt);
}

int MirrorDevice::flush(const Interrupt& interrupt) {
  return mirror_->run({.operation = wire::IoOperation::flush}, interrupt);
}

}  // namespace rnbd::mirror
