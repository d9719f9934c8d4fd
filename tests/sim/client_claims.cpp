// SPDX-License-Identifier: BSD-3-Clause
// How a simulated client comes to the right to write to what it has open.
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/sim/client_node.hpp"

namespace sim {

using rnbd::wire::MessageType;

/// Before a change. The shipped client does not ask for one before it has the answer.
bool ClientNode::may_claim(const Device& device, const User& user) {
  const bool asks = device.claim(user.seen) == Device::Claim::ask;
  if (!asks || device.never_claims || finishing_) return false;
  return !user.may_change && rng().chance(400);
}

void ClientNode::send_claim(const DevicePtr& device, const UserPtr& user) {
  device->claiming = true;
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::claim;
  control->slot = device->slot;
  control->device = device;
  control->user = user;
  if (!std::exchange(device->claim_given_up, false)) device->claim_asked = world_.now();
  control->asked = device->claim_asked;
  control->alone = !environment_.checker.anybody_asked(device->slot);
  environment_.checker.asks_to_write(device->slot, driver_->serial());
  rnbd::wire::Claim message;
  message.header = rnbd::wire::header_of(MessageType::claim);
  message.sight = user->seen.sight;
  message.writer_serial = user->seen.writer_serial;
  control->answer = buffers_.take(sizeof(rnbd::wire::DeviceInfoResponse));
  control->operation = std::make_unique<rnbd::ControlOperation>(
      device->handle, message, rtrs::MutableBytes{*control->answer});
  launch(std::move(control));
}

void ClientNode::handle_claim(Control& control, int error) {
  Device& device = *control.device;
  device.claiming = false;
  if (device.closing || device.lost()) return;
  // The answer may be of the session before.
  if (table_.is_past(control.era)) return send_claim(control.device, control.user);
  if (error != 0) return refused_claim(control, error);
  const auto info = rnbd::wire::decode<rnbd::wire::DeviceInfoResponse>(
      *control.answer, MessageType::device_info_response);
  if (!info) return violate("the server's answer to CLAIM makes no sense");
  device.claim_granted(control.user->seen, *info);
  control.user->may_change = true;
  environment_.checker.claimed(device.opening, control.asked, control.user->look);
}

/// A device that looked later may still have it.
void ClientNode::refused_claim(Control& control, int error) {
  Device& device = *control.device;
  const bool others = !control.alone || environment_.checker.may_be_stale(device.opening);
  const bool refused = (error == EPERM || error == ESTALE) && others;
  if (!refused && !(error == EAGAIN && may_hang(true))) {
    violate(std::string{"CLAIM was refused: "} + std::strerror(error));
  }
  leave(device, control.user);
}

/// The last one stays for the table, until the device is closed.
void ClientNode::leave(Device& device, const UserPtr& user) {
  const bool left = std::erase(device.sharers, user) != 0;
  device.unwanted = device.sharers.empty();
  if (left && !device.unwanted) table_.release(device, /*stuck=*/false);
}

/// Another user of the session has claimed it. A user that knows less than that one connects anew.
void ClientNode::share_claim(Device& device, const UserPtr& user) {
  if (!device.shared || !device.claimed || user->may_change) return;
  if (device.claim(user->seen) != Device::Claim::covered) return leave(device, user);
  user->may_change = true;
  environment_.checker.shares_claim(device.opening, user->look);
}

/// One more user, who looks at it before he does anything.
void ClientNode::send_join(const DevicePtr& device, bool counted) {
  auto control = std::make_unique<Control>();
  control->counted = counted;
  control->kind = Control::Kind::join;
  control->slot = device->slot;
  control->device = device;
  rnbd::wire::DeviceInfo question;
  question.header = rnbd::wire::header_of(MessageType::device_info);
  control->answer = buffers_.take(sizeof(rnbd::wire::DeviceInfoResponse));
  control->operation = std::make_unique<rnbd::ControlOperation>(
      device->handle, question, rtrs::MutableBytes{*control->answer});
  launch(std::move(control));
}

void ClientNode::handle_join(Control& control, int error) {
  Device& device = *control.device;
  if (device.closing || device.lost()) return;
  if (error != 0 || table_.is_past(control.era)) return leave_open_question(control);
  const auto info = rnbd::wire::decode<rnbd::wire::DeviceInfoResponse>(
      *control.answer, MessageType::device_info_response);
  if (!info) return violate("the server's answer about an open device makes no sense");
  using Join = rnbd::DeviceTable::Join;
  if (!control.counted && table_.join(device.name, device.options).what != Join::share) {
    return violate("what is open is not shared");
  }
  device.look_again(*info);
  device.sharers.push_back(std::make_shared<User>(
      User{device.geometry.witness, environment_.checker.look(), device.claimed}));
}

}  // namespace sim
