// SPDX-License-Identifier: BSD-3-Clause
// Devices that their users have open still, and that the server has no more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bridge/client/device_table.hpp"

namespace rnbd {

/// Remembers lost devices until their last user has left; the device table has their names free
/// again.
///
/// Threads: one at a time.
class LostDevices {
 public:
  /// Returns sentences for the users.
  std::vector<std::string> note(const std::vector<DeviceTable::Device>& lost) {
    std::vector<std::string> complaints;
    std::erase_if(devices_, [](const auto& earlier) { return earlier.expired(); });
    for (const DeviceTable::Device& device : lost) {
      devices_.push_back(device);
      complaints.push_back(device->loss +
                           "; those who have it open get EIO until they open it anew");
    }
    return complaints;
  }

  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& device : devices_) {
      if (const auto held = device.lock()) visit(*held);
    }
  }

 private:
  std::vector<std::weak_ptr<ClientDevice>> devices_;
};

}  // namespace rnbd
