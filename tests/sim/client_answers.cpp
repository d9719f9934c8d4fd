// SPDX-License-Identifier: BSD-3-Clause
// The simulated client's handling of answers to its messages; client_control.cpp sends them.
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

/// Numbered OPENs of exports are carried out in the order of the messages, so that nothing is left
/// of what was given up. Files take their time: one may still be opened behind the CLOSE. So may be
/// anything by a copy without a number that was late.
void ClientNode::now_closed(Mapping& mapping) {
  mapping.device.reset();
  if (mapping.copies && (!numbers_opens() || environment_.knobs.search_path)) return;
  mapping = Mapping{};
}

void ClientNode::handle_answer(Control& control, int error) {
  Mapping& mapping = mappings_[control.slot];
  const bool opens =
      control.kind == Control::Kind::open || control.kind == Control::Kind::device_info;
  const bool by_name = control.kind == Control::Kind::close && control.device->half_closed;
  const bool twice = control.losses != driver_->losses() && !numbers_opens();
  if ((opens || by_name) && twice) mapping.copies = true;
  if (opens && table_.is_past(control.era)) return ask_anew(control);
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
      table_.not_opened(*control.device, /*answered=*/true);
      if (!control.unknown && error == EROFS) {
        mapping = Mapping{};  // the others were refused as well
        return;
      }
      if (!control.unknown) return now_closed(mapping);
      mapping.device.reset();
      return;
    case Control::Kind::device_info: {
      const auto info = rnbd::wire::decode<rnbd::wire::DeviceInfoResponse>(
          *control.answer, MessageType::device_info_response);
      if (error != 0 || !info) return violate("the server does not answer the device info");
      return opened(control, &*info);
    }
    case Control::Kind::close:
      if (!table_.believes_close(*control.device, /*error=*/0)) {
        return leave_open_question(control);
      }
      if (error != 0) violate(std::string{"CLOSE failed: "} + std::strerror(error));
      table_.close_ended(*control.device, error);
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
    case Control::Kind::claim:
      return handle_claim(control, error);
    case Control::Kind::join:
      return handle_join(control, error);
    default:
      return handle_status(control, error);
  }
}

/// To open it takes a file, or the record of the writers.
bool ClientNode::may_hang(bool writes) const {
  const Knobs& knobs = environment_.knobs;
  return knobs.storage.hang_open > 0 && (knobs.search_path || writes);
}

bool ClientNode::may_refuse(const Control& open, int error) const {
  const bool writes = open.mode != AccessMode::read_only && !open.unclaimed;
  if (may_hang(writes) && error == EAGAIN) return true;
  if (open.unknown) return error == ENOENT;
  if (open.mode == AccessMode::read_only) return false;
  if (!writes) return !environment_.disks[open.slot].writable() && error == EROFS;
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
  if (!table_.take_id(*open.device, response->device_id)) return ask_anew(open);
  if ((limits().features & rtrs::wire::kFeatureUserMessages) == 0) {
    return opened(open, nullptr);
  }
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::device_info;
  control->slot = open.slot;
  control->mode = open.mode;
  control->unclaimed = open.unclaimed;
  control->fresh = open.fresh;
  control->asked = open.asked;
  control->opened = *response;
  control->device = open.device;
  rnbd::wire::DeviceInfo question;
  question.header = rnbd::wire::header_of(MessageType::device_info);
  control->answer = buffers_.take(sizeof(rnbd::wire::DeviceInfoResponse));
  control->operation = std::make_unique<ControlOperation>(open.device->handle, question,
                                                          rtrs::MutableBytes{*control->answer});
  launch(std::move(control));
}

/// The session that was asked is over; what was answered may be of either.
void ClientNode::ask_anew(Control& old) {
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::open;
  control->slot = old.slot;
  control->mode = old.mode;
  control->unclaimed = old.unclaimed;
  control->unknown = old.unknown;
  control->device = old.device;
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
  auto geometry = make_geometry(control.opened, info, limits(), options);
  if (!geometry) return violate("the server told " + geometry.error());
  const DevicePtr& device = control.device;
  device->shared = control.unclaimed;
  device->never_claims = control.unclaimed && rng().chance(300);
  device->options.geometry = options;
  device->acts_on = *geometry;
  table_.opened(*device, *geometry);
  device->sharers.push_back(std::make_shared<User>(
      User{geometry->witness, environment_.checker.look(), !control.unclaimed}));
  device->disk = find_disk(*device);
  check_geometry(*device);
  if (control.mode == AccessMode::read_only) {
    // A client that ignores what it was told.
    device->acts_on.max_discard = device->acts_on.max_write_zeroes = 1 << 20;
  }
  if (rng().chance(500)) device->acts_on.can_flush = true;  // likewise
  const AccessMode as = device->writes() ? control.mode : AccessMode::read_only;
  const Checker::Knows knows{.losses = limits().volatile_epoch != 0, .writers = info != nullptr};
  device->opening = environment_.checker.opened(device->disk, driver_->serial(), as, control.asked,
                                                control.fresh, knows);
  device->known = true;
}

void ClientNode::check_geometry(const Device& device) {
  const Disk& disk = environment_.disks[device.disk];
  const DeviceGeometry& geometry = device.geometry;
  if (geometry.padded_size != disk.sectors() * kSector) violate("the number of sectors is wrong");
  if (geometry.own_peer && geometry.size != disk.knobs().size) violate("the size is wrong");
  if (geometry.block != disk.knobs().block) violate("the block size is wrong");
  // A file that is opened read-only has no other side.
  const bool known = !environment_.knobs.search_path || device.mode() != AccessMode::read_only;
  if (geometry.own_peer && known && geometry.read_only != !disk.writable()) {
    violate("the device does not say truly whether it is read-only");
  }
  const bool flushed = disk.knobs().volatile_cache && disk.knobs().can_flush;
  if (geometry.volatile_cache != flushed) violate("the cache mode is wrong");
  if (!geometry.own_peer) return;
  if (geometry.can_flush != disk.knobs().can_flush) violate("the flush is not told as it is");
  if (geometry.can_fua != (disk.knobs().can_flush || disk.knobs().can_fua)) {
    violate("FUA is not told as it is");
  }
}

}  // namespace sim
