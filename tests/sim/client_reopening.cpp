// SPDX-License-Identifier: BSD-3-Clause
// How a simulated client brings what it has open into the next session, as rnbd::Session does.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/sim/client_node.hpp"

namespace sim {
namespace {

using rnbd::wire::AccessMode;

}  // namespace

std::unique_ptr<rtrs::Operation> ClientNode::reopen(const rtrs::SessionLimits& new_limits) {
  // A client like Linux's says here that it has the extension, but not to its server.
  const bool forgets = rnbd::OpenOrders::forgets(new_limits) && !knobs_.resends_at_once;
  orders_.begin_recovery(new_limits, forgets);
  reopening_.clear();
  // An attempt that was cut short may have opened something already.
  if (!reopening_since_) reopening_since_ = world_.now();
  std::vector<rnbd::ReopenDevice> devices;
  for (Mapping& mapping : mappings_) {
    const bool in_use = mapping.state == Mapping::State::open;
    const bool is_open = in_use || mapping.state == Mapping::State::half_closed;
    const bool is_closing = mapping.state == Mapping::State::closing;
    const rnbd::Renewal fate = orders_.renewal(is_open, is_closing, in_use);
    if (fate == rnbd::Renewal::forget) mapping = Mapping{};
    if (fate == rnbd::Renewal::close_by_name) mapping.device->half_closed = true;
    if (fate != rnbd::Renewal::open && fate != rnbd::Renewal::open_to_close) continue;
    const bool leaving = fate == rnbd::Renewal::open_to_close;
    Device& device = *mapping.device;
    device.patient = !rng().chance(300);
    rnbd::OpenOptions options;
    options.access = device.mode;
    options.unclaimed = device.unclaimed;
    options.geometry = device.options;
    devices.push_back({environment_.disks[device.slot].name(), options, device.expected, leaving});
    devices.back().patient = device.patient;
    devices.back().order = orders_.begin_again();
    reopening_.push_back(mapping.device);
    if (device.writes()) {
      environment_.checker.asks_to_write(device.slot, driver_->serial());
    }
  }
  return std::make_unique<rnbd::ReopenOperation>(std::move(devices), new_limits);
}

int ClientNode::reopened(rtrs::Operation& operation) {
  const auto& reopen = static_cast<rnbd::ReopenOperation&>(operation);
  if (reopen.error() == 0) {
    adopt(reopen);
  } else {
    lose_for_good(reopen);
    judge_refusal(reopen.error(), reopen.complaint());
  }
  end_reopening(/*success=*/reopen.error() == 0);
  return reopen.error();
}

void ClientNode::reopening_failed(rtrs::Operation& operation) {
  lose_for_good(static_cast<rnbd::ReopenOperation&>(operation));
  for (const DevicePtr& device : reopening_) mappings_[device->slot].copies = true;
  end_reopening(/*success=*/false);
}

void ClientNode::end_reopening(bool success) {
  orders_.end_recovery(success);
  reopening_.clear();
}

void ClientNode::judge_refusal(int error, const std::string& complaint) {
  world_.note("client", driver_->serial(), "cannot open again", static_cast<std::uint64_t>(error));
  if (error == ESTALE) {
    for (const DevicePtr& device : reopening_) {
      const bool replaced = environment_.disk_of(device->slot) != device->disk;
      if (replaced || environment_.checker.may_be_stale(device->opening)) return;
    }
    return violate("a device is said to be another one: " + complaint);
  }
  for (const DevicePtr& device : reopening_) {
    if (error == EPERM && device->writes()) return;
    if (error == EAGAIN && may_hang(device->writes())) return;
  }
  violate("what was open was not opened again: " + complaint);
}

/// The server's answers count, whatever becomes of the attempt.
void ClientNode::lose_for_good(const rnbd::ReopenOperation& reopen) {
  for (std::size_t i = 0; i < reopen.reopened().size(); ++i) {
    const rnbd::ReopenedDevice& reopened = reopen.reopened()[i];
    const DevicePtr& device = reopening_[i];
    if (!reopened.is_lost(!device->closing, /*goes_on=*/false)) continue;
    device->handle.id = rnbd::kNoDevice;
    lose(device, reopened);
  }
}

void ClientNode::lose(const DevicePtr& device, const rnbd::ReopenedDevice& reopened) {
  world_.note("client", driver_->serial(), "loses a device", device->slot);
  const bool replaced = environment_.disk_of(device->slot) != device->disk;
  const bool refused = !device->patient && (device->writes() || may_hang(device->writes()));
  const bool stale = device->writes() && environment_.checker.may_be_stale(device->opening);
  if (!replaced && !refused && !stale) {
    violate("a device is said to be another one: " + reopened.loss);
  }
  device->lost = device->closing = true;
  environment_.checker.closing(device->opening);
  Mapping& mapping = mappings_[device->slot];
  if (reopened.id == rnbd::kNoDevice) return now_closed(mapping);
  mapping.device = std::make_shared<Device>();
  mapping.device->slot = device->slot;
  mapping.device->disk = device->disk;
  mapping.device->mode = device->mode;
  mapping.device->unclaimed = device->unclaimed;
  mapping.device->open_number = device->open_number;
  mapping.device->to_close.id = reopened.id;
  mapping.device->closing = mapping.device->half_closed = true;
  mapping.state = Mapping::State::half_closed;
}

bool ClientNode::is_reopening(unsigned slot) const {
  return std::ranges::any_of(reopening_,
                             [slot](const DevicePtr& device) { return device->slot == slot; });
}

void ClientNode::adopt(const rnbd::ReopenOperation& reopen) {
  const auto forget = [](const DevicePtr& device) {
    if (device) device->handle.id = device->to_close.id = rnbd::kNoDevice;
  };
  for (const auto& [number, transfer] : transfers_) forget(transfer->device);
  for (const auto& [number, control] : controls_) forget(control->device);
  for (unsigned slot = 0; slot < mappings_.size(); ++slot) {
    Mapping& mapping = mappings_[slot];
    forget(mapping.device);
    // A cancelled CLOSE was asked in the session that is over, but one that was cancelled since
    // reopen() has left it open in this one.
    const bool over = orders_.certain() && !is_reopening(slot);
    if (mapping.state == Mapping::State::closed && over) mapping = Mapping{};
  }
  const bool restarted = volatile_epoch_.enter(limits().volatile_epoch);
  for (std::size_t i = 0; i < reopening_.size(); ++i) {
    Device& device = *reopening_[i];
    const rnbd::ReopenedDevice& reopened = reopen.reopened()[i];
    if (device.closing) {
      device.to_close.id = reopened.id;  // nothing but its CLOSE may reach it
      // Refused: the session before may have it, as long as something runs, whatever is closed
      // here.
      if (device.to_close.id == rnbd::kNoDevice) device.known = false;
      continue;
    }
    if (reopened.is_lost(/*in_use=*/true, /*goes_on=*/true)) {
      lose(reopening_[i], reopened);
      continue;
    }
    device.handle.id = reopened.id;
    device.expected.witness = reopened.witness;
    if (restarted) device.handle.unflushed.lose();
    environment_.checker.reopened(device.opening, *reopening_since_);
  }
  reopening_since_.reset();
}

}  // namespace sim
