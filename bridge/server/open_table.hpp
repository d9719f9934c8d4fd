// SPDX-License-Identifier: BSD-3-Clause
// The devices that one session has open, by id.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/metrics/meter.hpp"
#include "bridge/server/annex.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/throttle.hpp"

namespace rtrs {
struct ServerRequest;
}

namespace rnbd {

/// One mapping of an export into a session.
struct Device {
  Device(std::string device_name, Lease device_lease, BackendQueue& device_queue,
         std::shared_ptr<Meter> device_meter, ThrottleFlow device_flow)
      : name{std::move(device_name)},
        lease{std::move(device_lease)},
        own_queue{device_queue},
        queue{&device_queue},
        meter{std::move(device_meter)},
        flow{device_flow} {}

  const Geometry& geometry() const { return lease.geometry(); }
  /// The same, of the part that requests reach.
  Geometry reach() const {
    std::uint64_t size = geometry().size;
    for (const auto& annex : annexes) size = annex->reach(size);
    return size < geometry().size ? cut(geometry(), size) : geometry();
  }
  /// The errno for a request that is refused with `error`: that of an annex comes first.
  int refusal(int error) const {
    for (const auto& annex : annexes)
      if (const int first = annex->refuses()) return first;
    return error;
  }
  bool writes() const {
    return lease.writable() ||
           std::ranges::any_of(annexes, [](const auto& annex) { return annex->writes(); });
  }

  std::uint32_t id = 0;
  std::uint32_t open_number = 0;    ///< of the OPEN that opened it; 0: the client does not count
  std::uint32_t newest_number = 0;  ///< of all OPENs for this device
  std::string name;                 ///< exactly as the client spelled it
  Lease lease;
  BackendQueue& own_queue;             ///< of the session's reactor, which gets it back
  BackendQueue* queue;                 ///< own_queue, or one that an annex has put around it
  bool guarded = false;                ///< `queue` judges who may write, and knows copies
  std::shared_ptr<Meter> meter;        ///< of its name and its reactor
  std::uint64_t writer_serial = 0;     ///< ExportCatalogue::writer_serial() when it was opened
  std::optional<wire::Claim> claim{};  ///< was granted; none: it was opened for writing
  std::shared_ptr<Throttle> throttle;  ///< of its export; null: it has none
  ThrottleFlow flow;                   ///< in `throttle`
  unsigned waiting = 0;                ///< requests that the limits hold back
  unsigned running = 0;                ///< requests at the backend
  std::uint64_t ended = 0;             ///< requests that have left the backend
  std::uint64_t failures = 0;          ///< of its storage
  bool watched = false;                ///< a drainer or closer waits until nothing runs
  bool closing = false;  ///< no longer found; its id is taken until the last request has ended
  std::vector<rtrs::ServerRequest*> closers;          ///< answered when nothing runs
  std::vector<std::shared_ptr<void>> drainers;        ///< dropped when nothing runs
  std::vector<std::unique_ptr<DeviceAnnex>> annexes;  // last: goes first
};

/// The rule for new ids of devices.
enum class DeviceIds : std::uint8_t {
  never_twice,  ///< the lowest free place, plus kMaxDevices for each time it has been free
  lowest_free,  ///< as Linux's server does; to try clients with
};

/// Hands out ids from 0 on, as Linux servers do, but none twice. A cancelled request may still be
/// under way on another connection after its device was closed. It must not reach a device that was
/// opened later.
class OpenTable {
 public:
  /// Enough for any client, and few enough that one client cannot exhaust the server.
  static constexpr std::uint32_t kMaxDevices = 1024;

  explicit OpenTable(DeviceIds ids = DeviceIds::never_twice) : ids_{ids} {}

  bool full() const { return open_ >= kMaxDevices; }
  std::size_t size() const { return open_; }
  /// Null when the id is not open; a closing device is found.
  Device* find(std::uint32_t id) const {
    const std::size_t place = id % kMaxDevices;
    if (place >= devices_.size() || devices_[place] == nullptr) return nullptr;
    return devices_[place]->id == id ? devices_[place].get() : nullptr;
  }
  /// A device that is open and not about to close.
  Device* usable(std::uint32_t id) const {
    Device* const device = find(id);
    return device == nullptr || device->closing ? nullptr : device;
  }
  /// By the identical name; not those that are closing.
  Device* find(std::string_view name) const;
  /// By the number of the OPEN, which is not 0; not those that are closing.
  Device* find_opened_by(std::uint32_t number) const;
  Device& add(std::unique_ptr<Device> device);
  std::unique_ptr<Device> take(std::uint32_t id);

  const std::vector<std::unique_ptr<Device>>& slots() const { return devices_; }

 private:
  DeviceIds ids_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::uint32_t> next_ids_;  ///< per place
  std::size_t open_ = 0;
};

}  // namespace rnbd
