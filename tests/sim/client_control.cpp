// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/sim/client_node.hpp"

namespace sim {
namespace {

using namespace rnbd;
using rnbd::wire::AccessMode;
using rnbd::wire::MessageType;

}  // namespace

template <class Message>
void ClientNode::start_control(std::unique_ptr<Control> control, const Message& message,
                               std::size_t room) {
  control->answer = buffers_.take(room);
  control->operation =
      std::make_unique<ControlOperation>(message, rtrs::MutableBytes{*control->answer});
  launch(std::move(control));
}

void ClientNode::launch(std::unique_ptr<Control> owner) {
  Control& control = *owner;
  control.client = this;
  control.number = next_++;
  control.era = table_.era().number;
  control.losses = driver_->losses();
  control.give_ups = driver_->give_ups();
  control.lane = driver_->control_lane();
  control.operation->on_finish(
      [](void* context) {
        auto& self = *static_cast<Control*>(context);
        self.client->end_control(self);
      },
      &control);
  world_.note("client", driver_->serial(), "sends a message",
              static_cast<std::uint64_t>(control.kind), control.slot,
              static_cast<std::uint64_t>(control.mode));
  controls_.emplace(control.number, std::move(owner));
  driver_->start(*control.operation, control.lane);
}

void ClientNode::end_control(Control& control) {
  if (control.ended) return violate("a control message told its end twice");
  control.ended = true;
  driver_->end_wait(control.lane);
  const int error = control.operation->error();
  const bool failed = error == EIO && driver_->give_ups() != control.give_ups;
  const bool answered = driver_->up() && !driver_->gave_up() && !failed;
  if (control.kind == Control::Kind::open) {
    table_.open_ended(*control.device, /*final=*/!answered);
  }
  const std::uint64_t number = control.number;
  if (answered) {
    handle_answer(control, error);
  } else if (control.id != 0) {
    environment_.checker.abandon(control.id);
  }
  if (driver_->up() && !answered) leave_open_question(control);
  buffers_.give_back(std::move(control.answer));
  controls_.erase(number);
}

/// Nobody will know what became of a message.
void ClientNode::leave_open_question(const Control& control) {
  Mapping& mapping = mappings_[control.slot];
  switch (control.kind) {
    case Control::Kind::open:
    case Control::Kind::device_info:
      mapping.asked = control.mode;
      mapping.asked_unclaimed = control.unclaimed;
      mapping.copies = true;
      leave_half_open(control);
      break;
    case Control::Kind::close:
      mapping.copies = mapping.copies || (control.device->half_closed && !numbers_opens());
      table_.close_ended(*control.device, EINTR);
      break;
    case Control::Kind::info:
      driver_->shut_down(/*orderly=*/false);
      break;
    case Control::Kind::claim:
      control.device->claiming = false;
      control.device->claim_given_up = true;
      break;
    case Control::Kind::join:
      if (control.counted) control.device->unwanted = control.device->sharers.empty();
      break;
    default:
      break;
  }
}

void ClientNode::leave_half_open(const Control& open) {
  Device& device = *open.device;
  if (open.unknown || !table_.not_opened(device, /*answered=*/false)) {
    return mappings_[open.slot].device.reset();
  }
  device.closing = true;
  table_.close_ended(device, EINTR);
}

void ClientNode::cancel(Control& control) {
  if (control.ended || control.kind == Control::Kind::info) return;
  world_.note("client", driver_->serial(), "gives up a message", control.number);
  driver_->cancel(*control.operation, control.lane);
  if (control.id != 0) environment_.checker.abandon(control.id);
  if (control.kind == Control::Kind::open) table_.open_ended(*control.device, /*final=*/true);
  leave_open_question(control);
  buffers_.give_back(std::move(control.answer));
  controls_.erase(control.number);
}

// ---- Questions ----------------------------------------------------------------------------------

void ClientNode::exchange_versions() {
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::info;
  rnbd::wire::SessionInfo question;
  question.header = rnbd::wire::header_of(MessageType::session_info);
  start_control(std::move(control), question, sizeof(rnbd::wire::SessionInfo));
}

/// A device id that is free again must not be met by what is still under way to the old one.
bool ClientNode::may_open() const {
  return std::ranges::none_of(transfers_, [](const auto& entry) {
    const Device& device = *entry.second->device;
    return device.closing && !device.lost();
  });
}

void ClientNode::open_something() {
  const auto disk = static_cast<unsigned>(rng().below(mappings_.size()));
  Mapping& mapping = mappings_[disk];
  if (!may_open()) return;
  if (mapping.state() == Mapping::State::half_closed) {
    const auto joined = table_.join(mapping.device->name, mapping.device->options);
    if (joined.what == DeviceTable::Join::close) return send_close(mapping.device);
    if (mapping.device->half_closed) violate("what is half closed may be used");
    return send_join(mapping.device, /*counted=*/true);
  }
  if (mapping.state() != Mapping::State::closed) return;
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::open;
  control->slot = disk;
  control->mode = rng().pick({AccessMode::read_only, AccessMode::read_write, AccessMode::read_write,
                              AccessMode::migration});
  control->unclaimed = control->mode == AccessMode::read_write && rng().chance(500) &&
                       (limits().features & rnbd::wire::kFeatureClaims) != 0;
  if (mapping.asked) {
    control->mode = *mapping.asked;
    control->unclaimed = mapping.asked_unclaimed;
  }
  control->fresh = !mapping.asked;
  mapping.asked = control->mode;
  mapping.asked_unclaimed = control->unclaimed;
  control->unknown = !finishing_ && rng().chance(20);
  control->device = mapping.device = join(*control);
  send_open(std::move(control));
}

ClientNode::DevicePtr ClientNode::join(const Control& open) {
  const OpenOptions options{.access = open.mode, .unclaimed = open.unclaimed};
  DevicePtr device;
  if (open.unknown) {
    device = std::make_shared<Device>();
    device->name = "no-such-disk";
    device->options = options;
  } else {
    const auto joined = table_.join(environment_.disks[open.slot].name(), options);
    if (joined.what != DeviceTable::Join::open) violate("what is closed is not opened");
    device = std::static_pointer_cast<Device>(joined.device);
  }
  device->slot = open.slot;
  device->unknown = open.unknown;
  return device;
}

void ClientNode::send_open(std::unique_ptr<Control> control) {
  control->asked = world_.now();
  if (control->mode != AccessMode::read_only && !control->unclaimed && !control->unknown) {
    environment_.checker.asks_to_write(control->slot, driver_->serial());
  }
  control->answer = buffers_.take(sizeof(rnbd::wire::OpenResponse));
  control->operation = table_.open(*control->device, rtrs::MutableBytes{*control->answer});
  launch(std::move(control));
}

/// Nobody closes what he still uses, but it is tried where that does no harm. Linux's server gives
/// the id to what an OPEN asks for that waits, or comes late, and what is under way to the one
/// device would reach the other.
bool ClientNode::may_close(const Mapping& mapping) const {
  const auto opens = [](const Mapping& other) {
    const bool by_name = other.state() == Mapping::State::closing && other.device->half_closed;
    return other.state() == Mapping::State::opening || by_name;
  };
  const auto joins = [&](const auto& entry) {
    return entry.second->kind == Control::Kind::join && entry.second->device == mapping.device;
  };
  // The table counts that user already.
  if (std::ranges::any_of(controls_, joins)) return false;
  if (mapping.device->running == 0) return true;
  return environment_.knobs.server_style == ServerStyle::own &&
         std::ranges::none_of(mappings_, opens);
}

/// Its users leave; their requests go on. If there are none but cancelled ones, the device may stay
/// open behind those, for the next user.
void ClientNode::close_device(Mapping& mapping) {
  if (!may_close(mapping)) return;
  const DevicePtr device = mapping.device;
  const bool cancelled = device->running == 0 && device->handle.unresolved->any();
  const bool stuck = cancelled && driver_->up() && rng().chance(500);
  bool closes = false;
  while (device->users > 0) closes = table_.release(*device, stuck);
  device->sharers.clear();
  device->unwanted = false;
  if (!closes) return world_.note("client", driver_->serial(), "leaves a device", device->slot);
  note_closing(*device);
  const DevicePtr left = take_over(*device, table_.leave_behind(device, device->handle.id));
  left->opening = device->opening;
  left->known = device->known;
  left->handle.unresolved = device->handle.unresolved;
  send_close(left);
}

void ClientNode::note_closing(Device& device) {
  if (!std::exchange(device.closing, true)) environment_.checker.closing(device.opening);
}

void ClientNode::send_close(const DevicePtr& device) {
  note_closing(*device);
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::close;
  control->slot = device->slot;
  control->device = device;
  if (device->half_closed && device->writes()) {
    environment_.checker.asks_to_write(device->slot, driver_->serial());
  }
  control->operation = table_.close(*device);
  launch(std::move(control));
}

void ClientNode::close_what_was_left() {
  if (!may_open()) return;
  const auto left = std::static_pointer_cast<Device>(table_.next_left());
  if (left) send_close(left);
}

void ClientNode::ask_something() {
  if ((driver_->limits().features & rtrs::wire::kFeatureUserMessages) == 0) return;
  auto control = std::make_unique<Control>();
  const std::size_t room = driver_->limits().max_io_size;
  if (rng().chance(300)) {
    control->kind = Control::Kind::list;
    rnbd::wire::ListExports question;
    question.header = rnbd::wire::header_of(MessageType::list_exports);
    return start_control(std::move(control), question, room);
  }
  const Mapping& mapping = mappings_[rng().below(mappings_.size())];
  if (mapping.state() != Mapping::State::open) return;
  control->device = mapping.device;
  control->slot = mapping.device->slot;
  OperationPlan plan;
  plan.session = driver_->serial();
  plan.disk = mapping.device->disk;
  plan.opening = mapping.device->opening;
  draw_range(*mapping.device, plan);
  control->id = environment_.checker.begin(plan);
  if (rng().chance(500)) {
    control->kind = Control::Kind::status;
    rnbd::wire::BlockStatus question;
    question.header = rnbd::wire::header_of(MessageType::block_status);
    question.offset = plan.first * kSector;
    question.length = std::uint64_t{plan.count} * kSector;
    control->answer = buffers_.take(room);
    control->operation = std::make_unique<ControlOperation>(mapping.device->handle, question,
                                                            rtrs::MutableBytes{*control->answer});
    return launch(std::move(control));
  }
  control->kind = Control::Kind::cache;
  rnbd::wire::Cache message;
  message.header = rnbd::wire::header_of(MessageType::cache);
  message.offset = plan.first * kSector;
  message.length = std::uint64_t{plan.count} * kSector;
  control->operation = std::make_unique<ControlOperation>(mapping.device->handle, message);
  launch(std::move(control));
}

}  // namespace sim
