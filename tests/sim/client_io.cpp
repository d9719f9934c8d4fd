// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/sim/client_node.hpp"

namespace sim {
namespace {

using rnbd::wire::AccessMode;
using rnbd::wire::IoOperation;

IoOperation operation_for(Action action) {
  switch (action) {
    case Action::write:
    case Action::zero_data:
      return IoOperation::write;
    case Action::flush:
      return IoOperation::flush;
    case Action::discard:
      return IoOperation::discard;
    case Action::zero:
      return IoOperation::write_zeroes;
    default:
      return IoOperation::read;
  }
}

Action draw_action(Rng& rng) {
  const std::uint64_t n = rng.below(100);
  if (n < 38) return Action::read;
  if (n < 75) return Action::write;
  if (n < 79) return Action::zero_data;
  if (n < 86) return Action::flush;
  return n < 92 ? Action::discard : Action::zero;
}

}  // namespace

void ClientNode::start_transfer() {
  std::vector<DevicePtr> devices;
  for (Mapping& mapping : mappings_) {
    if (mapping.state() != Mapping::State::open) continue;
    if (mapping.device->unwanted && may_close(mapping)) return close_device(mapping);
    if (!mapping.device->unwanted && !mapping.device->sharers.empty()) {
      devices.push_back(mapping.device);
    }
  }
  if (devices.empty()) return open_something();
  auto owner = std::make_unique<Transfer>();
  Transfer& transfer = *owner;
  transfer.client = this;
  transfer.number = next_++;
  transfer.device = devices[rng().below(devices.size())];
  if (transfer.device->may_be_joined() && rng().chance(knobs_.join))
    return send_join(transfer.device, /*counted=*/false);
  const auto& users = transfer.device->sharers;
  const UserPtr user = users[rng().below(users.size())];
  if (may_claim(*transfer.device, *user)) return send_claim(transfer.device, user);
  share_claim(*transfer.device, user);
  transfer.begun = world_.now();
  OperationPlan plan = draw_plan(*transfer.device, *user);
  transfer.id = environment_.checker.begin(plan);
  ++transfer.device->running;
  transfer.lane = 1 + rng().below(driver_->lanes() - 1);
  transfer.give_ups = driver_->give_ups() - (driver_->gave_up() ? 1 : 0);
  transfer.writes = plan.action == Action::write;
  if (plan.action == Action::flush) {
    transfer.flush = transfer.device->handle.unflushed.begin_flush();
  }
  transfer.operation.emplace(transfer.device->acts_on, transfer.device->handle,
                             make_transfer(transfer, plan));
  transfer.operation->on_finish(
      [](void* context) {
        auto& self = *static_cast<Transfer*>(context);
        self.client->end_transfer(self);
      },
      &transfer);
  transfers_.emplace(transfer.number, std::move(owner));
  driver_->start(*transfer.operation, transfer.lane);
}

/// Draws a possible request, except that a read-only opening may be written to, and
/// that storage without flush may be flushed.
OperationPlan ClientNode::draw_plan(const Device& device, const User& user) {
  const rnbd::DeviceGeometry& geometry = device.acts_on;
  OperationPlan plan;
  plan.session = driver_->serial();
  plan.disk = device.disk;
  plan.opening = device.opening;
  plan.may_repeat = driver_->may_repeat();
  plan.action = draw_action(rng());
  const bool writable = device.writes() && user.may_change;
  const bool waits = device.shared && !device.never_claims;
  if (!writable && is_change(plan.action) && (finishing_ || waits || rng().chance(700))) {
    plan.action = Action::read;
  }
  if (plan.action == Action::discard && geometry.max_discard == 0) plan.action = Action::write;
  if (plan.action == Action::zero && geometry.max_write_zeroes == 0) plan.action = Action::write;
  if (!writable && plan.action == Action::write && finishing_) plan.action = Action::read;
  plan.allowed = writable || !is_change(plan.action);
  const bool can_flush = environment_.disks[device.disk].knobs().can_flush;
  plan.offered = plan.action != Action::flush || can_flush;
  // Without the extension nobody hears of FUA where there is no flush.
  const bool can_force = geometry.own_peer ? geometry.can_fua : can_flush;
  plan.fua = is_change(plan.action) && can_force && rng().chance(250);
  if (plan.action == Action::zero) {
    plan.no_unmap = geometry.own_peer && rng().chance(300);
    plan.fast = geometry.fast_zero && rng().chance(300);
  }
  if (plan.action != Action::flush) draw_range(device, plan);
  return plan;
}

void ClientNode::draw_range(const Device& device, OperationPlan& plan) {
  const std::uint64_t block = device.acts_on.block;
  const std::uint64_t end = device.acts_on.padded_size;
  std::uint64_t blocks = (end + block - 1) / block;
  if (environment_.knobs.hot_spot) blocks = std::min<std::uint64_t>(blocks, 3);
  const std::uint64_t first = rng().chance(200) ? blocks - 1 : rng().below(blocks);
  const std::uint64_t most = std::min(blocks - first, rng().pick({1UL, 2UL, 9UL, 40UL, 200UL}));
  const std::uint64_t offset = first * block;
  const std::uint64_t length = std::min(rng().between(1, most) * block, end - offset);
  plan.first = offset / kSector;
  plan.count = static_cast<std::uint32_t>(length / kSector);
}

rnbd::Transfer ClientNode::make_transfer(Transfer& transfer, const OperationPlan& plan) {
  rnbd::Transfer what;
  what.operation = operation_for(plan.action);
  what.offset = plan.first * kSector;
  what.length = std::uint64_t{plan.count} * kSector;
  what.fua = plan.fua;
  what.no_unmap = plan.no_unmap;
  what.fast = plan.fast;
  if (plan.action != Action::read && plan.action != Action::write) return what;
  transfer.buffer = buffers_.take(what.length);
  what.into = transfer.buffer->data();
  what.from = transfer.buffer->data();
  if (plan.action == Action::write) {
    for (std::uint32_t i = 0; i < plan.count; ++i) {
      write_pattern(transfer.buffer->data() + i * kSector, make_stamp(transfer.id, i));
    }
  }
  return what;
}

void ClientNode::end_transfer(Transfer& transfer) {
  if (transfer.ended) return violate("an operation told its end twice");
  int error = transfer.operation->error();
  // Of a long transfer perhaps only one piece, some time ago, or after another was refused.
  const bool failed = error != 0 && driver_->give_ups() != transfer.give_ups;
  // A device that is being closed is not open in the next session, in which the shipped client has
  // nobody any more who would ask.
  const Device& asked = *transfer.device;
  if (error == EIO && asked.closing && asked.handle.id == rnbd::kNoDevice) error = ENOTCONN;
  // The server's success is one, whatever the client makes of it.
  Device& device = *transfer.device;
  const bool unknown =
      failed || (error != 0 && (device.lost() || !driver_->up() || driver_->gave_up()));
  if (transfer.flush) {
    error = device.handle.unflushed.end_flush(*transfer.flush, error, device.losses_told);
  }
  transfer.ended = true;
  --transfer.device->running;
  driver_->end_wait(transfer.lane);
  if (unknown) {
    environment_.checker.abandon(transfer.id, driver_->up());
  } else {
    std::span<const std::byte> data;
    if (transfer.buffer) data = *transfer.buffer;
    environment_.checker.finish(transfer.id, error, data);
    if (finishing_ && error == 0 && final_left_ > 0) --final_left_;
  }
  buffers_.give_back(std::move(transfer.buffer));
  // The server's opening may be broken for good.
  Mapping& mapping = mappings_[device.slot];
  if (error == EIO && driver_->up() && !driver_->gave_up() && mapping.device == transfer.device &&
      !transfer.device->closing && (finishing_ || rng().chance(200))) {
    transfer.device->unwanted = true;
    close_device(mapping);
  }
  const std::uint64_t number = transfer.number;
  // The caller may let go of the operation at once, or a little later.
  if (rng().chance(500)) {
    transfers_.erase(number);
  } else {
    scope_.soon([this, number] { transfers_.erase(number); });
  }
  // Callbacks may submit further requests, but give up others only later.
  if (!finishing_ && rng().chance(knobs_.cancel / 2)) {
    scope_.soon([this] {
      if (!finishing_) cancel_something();
    });
  }
  if (!leaving_ && driver_->up() && !driver_->gave_up() && informed_ && rng().chance(200) &&
      transfers_.size() < knobs_.concurrency) {
    start_transfer();
  }
}

void ClientNode::cancel(Transfer& transfer) {
  if (transfer.ended) return;
  world_.note("client", driver_->serial(), "gives up", transfer.id);
  driver_->cancel(*transfer.operation, transfer.lane);
  Device& device = *transfer.device;
  --device.running;
  if (transfer.flush) {
    device.handle.unflushed.end_flush(*transfer.flush, EINTR, device.losses_told);
  }
  // A caller that gives up may send it again, and something newer behind that.
  environment_.checker.abandon(transfer.id, /*failed=*/true);
  buffers_.give_back(std::move(transfer.buffer));
  const std::uint64_t number = transfer.number;
  transfers_.erase(number);
}

}  // namespace sim
