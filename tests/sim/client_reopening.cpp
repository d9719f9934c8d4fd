// SPDX-License-Identifier: BSD-3-Clause
// Tells the next session from the last one for a simulated client, and judges what is lost.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/sim/client_node.hpp"

namespace sim {
namespace {

rnbd::RefusalPatience::TimePoint for_patience(Instant now) {
  return rnbd::RefusalPatience::TimePoint{now.time_since_epoch()};
}

}  // namespace

/// True if no session of this client may go on at the clone, which has the disks of the beginning:
/// the clone's record is older for each device in use that tells of a writer, and there is one.
/// Readers of the others may find what they like.
bool ClientNode::knows_clone() const {
  bool knows = false;
  for (const auto& [name, each] : table_.devices()) {
    if (each->state != rnbd::ClientDevice::State::open || each->users == 0) continue;
    const auto& device = static_cast<const Device&>(*each);
    const std::uint64_t seen = device.witness.generation;
    const bool knows_writer = seen >> 32 != 0;
    if (device.disk != device.slot || (device.writes() && !knows_writer)) return false;
    if (!knows_writer) continue;
    const std::uint64_t told = environment_.clone_generation(device.slot, device.writes());
    if (told >> 32 == seen >> 32 && told >= seen) return false;
    knows = true;
  }
  return knows;
}

std::unique_ptr<rtrs::Operation> ClientNode::reopen(const rtrs::SessionLimits& new_limits) {
  // A client like Linux's says here that it has the extension, but not to its server.
  const bool forgets = rnbd::OpenOrders::forgets(new_limits) && !knobs_.resends_at_once;
  auto devices = table_.begin_recovery(new_limits, forgets, for_patience(world_.now()));
  for (Mapping& mapping : mappings_) {
    if (!mapping.device || mapping.device->unknown) continue;
    if (mapping.device->half_closed) note_closing(*mapping.device);
  }
  // An attempt that was cut short may have opened something already.
  if (!reopening_since_ && !driver_->renews_elsewhere()) reopening_since_ = world_.now();
  const std::vector<DevicePtr> again = reopening();
  for (std::size_t i = 0; i < again.size(); ++i) {
    const bool impatient = rng().chance(300);
    devices[i].patient = again[i]->patient = devices[i].patient && !impatient;
    if (again[i]->writes()) environment_.checker.asks_to_write(again[i]->slot, driver_->serial());
  }
  return std::make_unique<rnbd::ReopenOperation>(std::move(devices), new_limits);
}

std::vector<ClientNode::DevicePtr> ClientNode::reopening() const {
  std::vector<DevicePtr> devices;
  for (const auto& device : table_.reopening()) {
    devices.push_back(std::static_pointer_cast<Device>(device));
  }
  return devices;
}

int ClientNode::reopened(rtrs::Operation& operation) {
  const auto& reopen = static_cast<rnbd::ReopenOperation&>(operation);
  if (reopen.error() == 0 && driver_->renews_elsewhere()) {
    violate("it goes on at a clone of its server, with an older record of the writers");
  } else if (reopen.error() == 0) {
    note_recovery(reopen);
  } else {
    const std::vector<DevicePtr> asked = reopening();
    lose(table_.refused(reopen.reopened(), reopen.could_go_on_with_some(),
                        for_patience(world_.now())));
    judge_refusal(asked, reopen);
  }
  return reopen.error();
}

void ClientNode::reopening_failed(rtrs::Operation& operation) {
  const std::vector<DevicePtr> asked = reopening();
  lose(table_.cut_short(static_cast<rnbd::ReopenOperation&>(operation).reopened()));
  for (const DevicePtr& device : asked) mappings_[device->slot].copies = true;
}

void ClientNode::judge_refusal(const std::vector<DevicePtr>& asked,
                               const rnbd::ReopenOperation& reopen) {
  const int error = reopen.error();
  world_.note("client", driver_->serial(), "cannot open again", static_cast<std::uint64_t>(error));
  if (error == EREMCHG) {
    if (!driver_->renews_elsewhere()) violate("it takes its server for a clone of it");
    return;
  }
  if (error == ESTALE && !driver_->renews_elsewhere()) {
    for (const DevicePtr& device : asked) {
      const bool replaced = environment_.disk_of(device->slot) != device->disk;
      if (replaced || environment_.checker.may_be_stale(device->opening)) return;
    }
    return violate("a device is said to be another one: " + reopen.complaint());
  }
  for (const DevicePtr& device : asked) {
    if (error == EPERM && device->writes()) return;
    if (error == EAGAIN && may_hang(device->writes())) return;
  }
  violate("what was open was not opened again: " + reopen.complaint());
}

void ClientNode::lose(const std::vector<rnbd::DeviceTable::Device>& lost) {
  for (const auto& device : lost) lose(std::static_pointer_cast<Device>(device));
}

void ClientNode::lose(const DevicePtr& device) {
  world_.note("client", driver_->serial(), "loses a device", device->slot);
  if (driver_->renews_elsewhere()) violate("it loses a device at a clone of its server");
  const bool replaced = environment_.disk_of(device->slot) != device->disk;
  const bool refused = !device->patient && (device->writes() || may_hang(device->writes()));
  const bool stale = device->writes() && environment_.checker.may_be_stale(device->opening);
  if (!replaced && !refused && !stale) {
    violate("a device is said to be another one: " + device->loss);
  }
  device->closing = true;
  environment_.checker.closing(device->opening);
  const auto left = table_.find(device->name);
  if (!left) return now_closed(mappings_[device->slot]);
  take_over(*device, left);
}

/// Nothing but a CLOSE reaches what is left of a device.
ClientNode::DevicePtr ClientNode::take_over(const Device& device,
                                            const rnbd::DeviceTable::Device& left) {
  DevicePtr remains = std::static_pointer_cast<Device>(left);
  remains->slot = device.slot;
  remains->disk = device.disk;
  remains->closing = true;
  mappings_[device.slot].device = remains;
  return remains;
}

void ClientNode::note_recovery(const rnbd::ReopenOperation& reopen) {
  const auto forget = [](const DevicePtr& device) {
    if (device) device->handle.id = rnbd::kNoDevice;
  };
  for (const auto& [number, transfer] : transfers_) forget(transfer->device);
  for (const auto& [number, control] : controls_) forget(control->device);
  const std::vector<DevicePtr> asked = reopening();
  for (unsigned slot = 0; slot < mappings_.size(); ++slot) {
    Mapping& mapping = mappings_[slot];
    const bool reopens = std::ranges::any_of(
        asked, [slot](const DevicePtr& device) { return device->slot == slot; });
    // A cancelled CLOSE was asked in the session that is over, but one that was cancelled since
    // reopen() has left it open in this one.
    const bool over = table_.certain() && !reopens;
    if (mapping.state() == Mapping::State::closed && over) mapping = Mapping{};
  }
  lose(table_.recovered(reopen.reopened()).lost);
  for (Mapping& mapping : mappings_) {
    const bool known = mapping.device && !mapping.device->unknown;
    if (known && table_.find(mapping.device->name) == nullptr) mapping = Mapping{};
  }
  for (const DevicePtr& device : asked) {
    if (device->lost()) continue;
    if (!device->closing) {
      environment_.checker.reopened(device->opening, *reopening_since_);
    } else if (device->handle.id == rnbd::kNoDevice) {
      // Refused: the session before may have it, as long as something runs, whatever is closed
      // here.
      device->known = false;
    }
  }
  reopening_since_.reset();
}

}  // namespace sim
