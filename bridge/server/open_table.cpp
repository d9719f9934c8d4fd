// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/open_table.hpp"

#include <algorithm>
#include <utility>

namespace rnbd {

Device* OpenTable::find(std::string_view name) const {
  for (const auto& device : devices_) {
    if (device != nullptr && !device->closing && device->name == name) return device.get();
  }
  return nullptr;
}

Device* OpenTable::find_opened_by(std::uint32_t number) const {
  for (const auto& device : devices_) {
    if (device != nullptr && !device->closing && device->open_number == number) return device.get();
  }
  return nullptr;
}

Device& OpenTable::add(std::unique_ptr<Device> device) {
  auto free = std::find(devices_.begin(), devices_.end(), nullptr);
  const auto place = static_cast<std::uint32_t>(free - devices_.begin());
  if (free == devices_.end()) {
    devices_.emplace_back();
    next_ids_.push_back(place);
  }
  device->id = next_ids_[place];
  if (ids_ != DeviceIds::lowest_free) next_ids_[place] += kMaxDevices;
  devices_[place] = std::move(device);
  ++open_;
  return *devices_[place];
}

std::unique_ptr<Device> OpenTable::take(std::uint32_t id) {
  --open_;
  return std::move(devices_[id % kMaxDevices]);
}

}  // namespace rnbd
