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

Device& OpenTable::add(std::unique_ptr<Device> device) {
  auto slot = std::find(devices_.begin(), devices_.end(), nullptr);
  if (slot == devices_.end()) slot = devices_.emplace(slot);
  device->id = static_cast<std::uint32_t>(slot - devices_.begin());
  *slot = std::move(device);
  ++open_;
  return **slot;
}

std::unique_ptr<Device> OpenTable::take(std::uint32_t id) {
  --open_;
  return std::move(devices_[id]);
}

}  // namespace rnbd
