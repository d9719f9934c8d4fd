#include <algorithm>
#include <cerrno>
#include <cstring>
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
  control.era = era_;
  control.losses = driver_->losses();
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
  const bool asks_again = control.era != era_ && driver_->up() && !driver_->gave_up();
  if (!asks_again) orders_.end(control.open_number);
  const std::uint64_t number = control.number;
  if (driver_->up() && !driver_->gave_up()) {
    handle_answer(control, control.operation->error());
  } else if (control.id != 0) {
    environment_.checker.abandon(control.id);
  }
  if (driver_->up() && driver_->gave_up()) leave_open_question(control);
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
  device.open_number = open.open_number != 0 ? open.open_number : device.open_number;
  device.id_to_close = device.handle.id.load();
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
  return std::ranges::none_of(transfers_,
                              [](const auto& entry) { return entry.second->device->closing; });
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
  if (mapping.asked) control->mode = *mapping.asked;
  control->fresh = !mapping.asked;
  mapping.asked = control->mode;
  mapping.state = Mapping::State::opening;
  control->unknown = !finishing_ && rng().chance(20);
  send_open(std::move(control));
}

bool ClientNode::numbers_opens() const { return rnbd::OpenOrders::numbered(limits_); }

void ClientNode::send_open(std::unique_ptr<Control> control) {
  control->asked = world_.now();
  if (control->mode == AccessMode::read_write && !control->unknown) {
    environment_.checker.asks_to_write(control->slot, driver_->serial());
  }
  const std::string name =
      control->unknown ? "no-such-disk" : environment_.disks[control->slot].name();
  const auto message = rnbd::wire::encode_open(name, control->mode);
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
  device.id_to_close = device.handle.id.load();
  send_close(mapping);
}

void ClientNode::send_close(Mapping& mapping) {
  Device& device = *mapping.device;
  mapping.state = Mapping::State::closing;
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::close;
  control->slot = device.slot;
  control->device = mapping.device;
  if (device.half_closed && device.mode == AccessMode::read_write) {
    environment_.checker.asks_to_write(device.slot, driver_->serial());
  }
  const std::string name = environment_.disks[device.slot].name();
  const rnbd::OpenedDevice what{name, device.mode, device.open_number, device.half_closed};
  control->operation = orders_.close(what, device.id_to_close, limits_);
  launch(std::move(control));
}

/// The shipped client has an errand for that when a path is back.
void ClientNode::close_what_was_left() {
  if (!may_open()) return;
  for (Mapping& mapping : mappings_) {
    if (mapping.state == Mapping::State::half_closed) return send_close(mapping);
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
    control->operation = std::make_unique<ControlOperation>(mapping.device->handle.id, question,
                                                            rtrs::MutableBytes{*control->answer});
    return launch(std::move(control));
  }
  control->kind = Control::Kind::cache;
  rnbd::wire::Cache message;
  message.header = rnbd::wire::header_of(MessageType::cache);
  message.offset = plan.first * kSector;
  message.length = std::uint64_t{plan.count} * kSector;
  control->operation = std::make_unique<ControlOperation>(mapping.device->handle.id, message);
  launch(std::move(control));
}

/// Numbered OPENs of exports are carried out in the order of the messages, so that nothing is left
/// of what was given up. Files take their time: one may still be opened behind the CLOSE. So may be
/// anything by a copy without a number that was late.
void ClientNode::now_closed(Mapping& mapping) {
  mapping.state = Mapping::State::closed;
  mapping.device.reset();
  if (mapping.copies && (!numbers_opens() || environment_.knobs.search_path)) return;
  mapping = Mapping{};
}

// ---- Answers ------------------------------------------------------------------------------------

void ClientNode::handle_answer(Control& control, int error) {
  Mapping& mapping = mappings_[control.slot];
  const bool opens =
      control.kind == Control::Kind::open || control.kind == Control::Kind::device_info;
  const bool by_name = control.kind == Control::Kind::close && control.device->half_closed;
  const bool twice = control.losses != driver_->losses() && !numbers_opens();
  if ((opens || by_name) && twice) mapping.copies = true;
  if (opens && control.era != era_) return ask_anew(control);
  switch (control.kind) {
    case Control::Kind::info: {
      const auto info = rnbd::wire::decode<rnbd::wire::SessionInfo>(
          *control.answer, MessageType::session_info_response);
      if (error != 0 || !info || info->version != rnbd::wire::kProtocolMajor) {
        violate("the server does not answer the session info as it should");
      }
      informed_ = true;
      return;
    }
    case Control::Kind::open:
      if (control.unknown && error == 0) return violate("a disk that does not exist was opened");
      if (error == 0) return ask_device_info(control);
      if (!may_refuse(control, error)) {
        violate(std::string{"OPEN was refused: "} + std::strerror(error));
      }
      if (!control.unknown && error == EROFS) {
        mapping = Mapping{};  // the others were refused as well
        return;
      }
      if (!control.unknown) return now_closed(mapping);
      mapping.state = Mapping::State::closed;
      return;
    case Control::Kind::device_info: {
      const auto info = rnbd::wire::decode<rnbd::wire::DeviceInfoResponse>(
          *control.answer, MessageType::device_info_response);
      if (error != 0 || !info) return violate("the server does not answer the device info");
      return opened(control, &*info);
    }
    case Control::Kind::close:
      if (!OpenOrders::believed(control.era != era_, limits_)) return leave_open_question(control);
      if (error != 0) violate(std::string{"CLOSE failed: "} + std::strerror(error));
      if (control.device->known) environment_.checker.closed(control.device->opening);
      return now_closed(mapping);
    case Control::Kind::list: {
      const auto page = rnbd::wire::decode_export_page(*control.answer);
      const std::size_t exports = environment_.knobs.search_path ? 0 : mappings_.size();
      if (error != 0 || !page || page->total != exports ||
          page->exports.empty() != (exports == 0)) {
        violate("the server does not list its exports as it should");
      }
      return;
    }
    default:
      return handle_status(control, error);
  }
}

bool ClientNode::may_refuse(const Control& open, int error) const {
  if (open.unknown) return error == ENOENT;
  if (open.mode == AccessMode::read_only) return false;
  return error == (environment_.disks[open.slot].writable() ? EPERM : EROFS);
}

void ClientNode::handle_status(Control& control, int error) {
  std::vector<rnbd::wire::Extent> extents;
  if (control.kind == Control::Kind::status && error == 0) {
    auto decoded = rnbd::wire::decode_block_status_response(
        *control.answer, environment_.disks[control.device->disk].knobs().size);
    if (!decoded) return violate("the server's answer about holes makes no sense");
    extents = std::move(*decoded);
  }
  environment_.checker.finish_status(control.id, error, extents);
}

void ClientNode::ask_device_info(Control& open) {
  const auto response =
      rnbd::wire::decode<rnbd::wire::OpenResponse>(*open.answer, MessageType::open_response);
  if (!response) return violate("the server's answer to OPEN makes no sense");
  open.opened = *response;
  open.device = std::make_shared<Device>();
  open.device->handle.id = response->device_id;
  open.device->open_number = open.open_number;
  mappings_[open.slot].device = open.device;
  if ((limits_.features & rtrs::wire::kFeatureUserMessages) == 0) {
    return opened(open, nullptr);
  }
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::device_info;
  control->slot = open.slot;
  control->mode = open.mode;
  control->fresh = open.fresh;
  control->asked = open.asked;
  control->opened = *response;
  control->device = open.device;
  rnbd::wire::DeviceInfo question;
  question.header = rnbd::wire::header_of(MessageType::device_info);
  control->answer = buffers_.take(sizeof(rnbd::wire::DeviceInfoResponse));
  control->operation = std::make_unique<ControlOperation>(open.device->handle.id, question,
                                                          rtrs::MutableBytes{*control->answer});
  launch(std::move(control));
}

/// The session that was asked is over; what was answered may be of either.
void ClientNode::ask_anew(Control& old) {
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::open;
  control->slot = old.slot;
  control->mode = old.mode;
  control->unknown = old.unknown;
  control->open_number = old.open_number;
  control->fresh = false;  // it may be open already
  send_open(std::move(control));
}

/// Sizes and names tell which disk an export shows.
unsigned ClientNode::find_disk(const Device& device) const {
  for (auto disk = environment_.disks.rbegin(); disk != environment_.disks.rend(); ++disk) {
    const rnbd::DeviceGeometry& geometry = device.geometry;
    if (disk->slot() != device.slot || geometry.padded_size != disk->sectors() * kSector) continue;
    if (!geometry.own_peer || geometry.export_uuid == disk->knobs().uuid) return disk->number();
  }
  return device.slot;
}

void ClientNode::opened(Control& control, const rnbd::wire::DeviceInfoResponse* info) {
  GeometryOptions options;
  if (rng().chance(500)) options = {Use::always, Use::always};
  auto geometry = make_geometry(control.opened, info, limits_, options);
  if (!geometry) return violate("the server told " + geometry.error());
  const DevicePtr& device = control.device;
  device->slot = control.slot;
  device->mode = control.mode;
  device->options = options;
  device->geometry = device->expected = *geometry;
  device->disk = find_disk(*device);
  check_geometry(*device);
  if (control.mode == AccessMode::read_only) {
    // A client that ignores what it was told.
    device->geometry.max_discard = device->geometry.max_write_zeroes = 1 << 20;
  }
  const Checker::Knows knows{.losses = limits_.volatile_epoch != 0,
                             .writers = info != nullptr && !environment_.knobs.search_path};
  device->opening = environment_.checker.opened(device->disk, driver_->serial(), control.mode,
                                                control.asked, control.fresh, knows);
  device->known = true;
  mappings_[control.slot].state = Mapping::State::open;
}

void ClientNode::check_geometry(const Device& device) {
  const Disk& disk = environment_.disks[device.disk];
  const DeviceGeometry& geometry = device.geometry;
  if (geometry.padded_size != disk.sectors() * kSector) violate("the number of sectors is wrong");
  if (geometry.own_peer && geometry.size != disk.knobs().size) violate("the size is wrong");
  if (geometry.block != disk.knobs().block) violate("the block size is wrong");
  // A file that is opened read-only has no other side.
  const bool known = !environment_.knobs.search_path || device.mode != AccessMode::read_only;
  if (geometry.own_peer && known && geometry.read_only != !disk.writable()) {
    violate("the device does not say truly whether it is read-only");
  }
  if (geometry.volatile_cache != disk.knobs().volatile_cache) violate("the cache mode is wrong");
}

}  // namespace sim
