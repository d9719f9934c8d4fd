// SPDX-License-Identifier: BSD-3-Clause
// How a simulated client comes to the right to write to what it has open, as rnbd::Session does it.
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/sim/client_node.hpp"

namespace sim {

using rnbd::wire::MessageType;

/// Before a change. The shipped client does not ask for one before it has the answer.
bool ClientNode::may_claim(const Device& device) {
  if (!device.unclaimed || device.never_claims || device.claiming || finishing_) return false;
  return rng().chance(400);
}

void ClientNode::send_claim(const DevicePtr& device) {
  device->claiming = true;
  auto control = std::make_unique<Control>();
  control->kind = Control::Kind::claim;
  control->slot = device->slot;
  control->device = device;
  if (!std::exchange(device->claim_given_up, false)) device->claim_asked = world_.now();
  control->asked = device->claim_asked;
  control->alone = !environment_.checker.anybody_asked(device->slot);
  environment_.checker.asks_to_write(device->slot, driver_->serial());
  rnbd::wire::Claim message;
  message.header = rnbd::wire::header_of(MessageType::claim);
  message.sight = device->seen.sight;
  message.writer_serial = device->seen.writer_serial;
  control->answer = buffers_.take(sizeof(rnbd::wire::DeviceInfoResponse));
  control->operation = std::make_unique<rnbd::ControlOperation>(
      device->handle, message, rtrs::MutableBytes{*control->answer});
  launch(std::move(control));
}

void ClientNode::handle_claim(Control& control, int error) {
  Device& device = *control.device;
  device.claiming = false;
  if (device.closing || device.lost) return;
  // What was answered may be of the session before.
  if (control.era != era_) return send_claim(control.device);
  if (error == 0) {
    const auto info = rnbd::wire::decode<rnbd::wire::DeviceInfoResponse>(
        *control.answer, MessageType::device_info_response);
    if (!info) return violate("the server's answer to CLAIM makes no sense");
    device.unclaimed = false;
    device.expected.witness = {info->writer_serial, info->server_life, info->storage_life, 0};
    return environment_.checker.claimed(device.opening, control.asked);
  }
  const bool others = !control.alone || environment_.checker.may_be_stale(device.opening);
  const bool refused = (error == EPERM || error == ESTALE) && others;
  if (!refused && !(error == EAGAIN && may_hang(true))) {
    violate(std::string{"CLAIM was refused: "} + std::strerror(error));
  }
  device.unwanted = true;
}

}  // namespace sim
