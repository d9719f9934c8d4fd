// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
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
  control.era = orders_.era().number;
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
  const bool asks_again = orders_.is_past(control.era) && answered;
  if (!asks_again) orders_.end(control.open_number);
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

/// Nobody will know what became of a message. As rnbd::Session does it, an OPEN without a number is
/// asked for again, and what else may be open is closed before the next one.
void ClientNode::leave_open_question(const Control& control) {
  Mapping& mapping = mappings_[control.slot];
  switch (control.kind) {
    case Control::Kind::open:
    case Control::Kind::device_info:
      mapping.asked = control.mode;
      mapping.asked_unclaimed = control.unclaimed;
      mapping.copies = true;
      mapping.device = control.device;
      mapping.state = Mapping::State::closed;
      if (numbers_opens() && !control.unknown) leave_half_open(control);
      break;
    case Control::Kind::close:
      mapping.copies = mapping.copies || (control.device->half_closed && !numbers_opens());
      mapping.device->half_closed = true;
      mapping.state = Mapping::State::half_closed;
      break;
    case Control::Kind::info:
      driver_->shut_down(/*orderly=*/false);
      break;
    case Control::Kind::claim:
      control.device->claiming = false;
      control.device->claim_given_up = true;
      break;
    default:
      break;
  }
}

void ClientNode::leave_half_open(const Control& open) {
  Mapping& mapping = mappings_[open.slot];
  if (!mapping.device) mapping.device = std::make_shared<Device>();
  Device& device = *mapping.device;
  device.slot = open.slot;
  device.mode = open.mode;
  device.unclaimed = open.unclaimed;
  device.open_number = open.open_number != 0 ? open.open_number : device.open_number;
  device.to_close.id = device.handle.id.load();
  device.closing = device.half_closed = true;
  mapping.state = Mapping::State::half_closed;
}

void ClientNode::cancel(Control& control) {
  if (control.ended || control.kind == Control::Kind::info) return;
  world_.note("client", driver_->serial(), "gives up a message", control.number);
  driver_->cancel(*control.operation, control.lane);
  if (control.id != 0) environment_.checker.abandon(control.id);
  orders_.end(control.open_number);
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
    return device.closing && !device.lost;
  });
}

void ClientNode::open_something() {
  const auto disk = static_cast<unsigned>(rng().below(mappings_.size()));
  Mapping& mapping = mappings_[disk];
  if (!may_open()) return;
  if (mapping.state == Mapping::State::half_closed) return send_close(mapping);
  if (mapping.state != Mapping::State::closed) return;
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
  mapping.state = Mapping::State::opening;
  control->unknown = !finishing_ && rng().chance(20);
  send_open(std::move(control));
}

bool ClientNode::numbers_opens() const { return rnbd::OpenOrders::numbered(limits()); }

void ClientNode::send_open(std::unique_ptr<Control> control) {
  control->asked = world_.now();
  if (control->mode != AccessMode::read_only && !control->unclaimed && !control->unknown) {
    environment_.checker.asks_to_write(control->slot, driver_->serial());
  }
  const std::string name =
      control->unknown ? "no-such-disk" : environment_.disks[control->slot].name();
  auto message = rnbd::wire::encode_open(name, control->mode);
  if (control->unclaimed) message.flags = rnbd::wire::kOpenUnclaimed;
  if (!numbers_opens()) {
    return start_control(std::move(control), message, sizeof(rnbd::wire::OpenResponse));
  }
  const rnbd::wire::NumberedOpen numbered{message, orders_.begin(control->open_number)};
  control->open_number = numbered.order.number;
  start_control(std::move(control), numbered, sizeof(rnbd::wire::OpenResponse));
}

/// Nobody closes what he still uses, but it is tried where that does no harm. Linux's server gives
/// the id to what an OPEN asks for that waits, or comes late, and what is under way to the one
/// device would reach the other.
bool ClientNode::may_close(const Mapping& mapping) const {
  const auto opens = [](const Mapping& other) {
    const bool by_name = other.state == Mapping::State::closing && other.device->half_closed;
    return other.state == Mapping::State::opening || by_name;
  };
  if (mapping.device->running == 0) return true;
  return environment_.knobs.server_style == ServerStyle::own &&
         std::ranges::none_of(mappings_, opens);
}

void ClientNode::close_device(Mapping& mapping) {
  if (!may_close(mapping)) return;
  Device& device = *mapping.device;
  device.closing = true;
  environment_.checker.closing(device.opening);
  device.to_close.id = device.handle.id.load();
  send_close(mapping);
}

void ClientNode::send_close(Mapping& mapping) {
  Device& device = *mapping.device;
  mapping.state = Mapping::State::closing;
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::close;
  control->slot = device.slot;
  control->device = mapping.device;
  if (device.half_closed && device.writes()) {
    environment_.checker.asks_to_write(device.slot, driver_->serial());
  }
  const std::string name = environment_.disks[device.slot].name();
  const rnbd::OpenedDevice what{name, device.mode, device.open_number, device.half_closed};
  control->operation = orders_.close(what, device.to_close);
  launch(std::move(control));
}

/// The shipped client has an errand for that, and waits as well for the end of what was given up.
void ClientNode::close_what_was_left() {
  if (!may_open()) return;
  for (Mapping& mapping : mappings_) {
    const bool left = mapping.state == Mapping::State::half_closed;
    if (left && !mapping.device->has_given_up()) return send_close(mapping);
  }
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
  if (mapping.state != Mapping::State::open) return;
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
