// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/block_session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/answer.hpp"

namespace rnbd {

BlockSession::BlockSession(SessionFacts facts, ExportCatalogue& catalogue, QueueTable& queues,
                           const Services& services)
    : facts_{std::move(facts)},
      catalogue_{catalogue},
      queues_{queues},
      services_{services},
      log_{facts_, services_},
      devices_{facts_.ids},
      order_{[this](rtrs::ServerRequest& request, wire::MessageType type) {
               if (type == wire::MessageType::claim) return claim_.on_claim(request);
               type == wire::MessageType::open ? open_.on_request(request) : close(request);
             },
             [this](const rtrs::ServerRequest& request, wire::MessageType type) {
               return type == wire::MessageType::claim ? claim_.storage_of(request) : nullptr;
             }},
      parts_{facts_, devices_, numbers_, order_, catalogue_, queues_, services_, log_, io_},
      steps_{parts_},
      open_{parts_, steps_},
      claim_{parts_, steps_},
      io_{facts_,    devices_,
          services_, queues_.reactor(),
          log_,      [this](Device& device) { finish_close(device); }} {
  for (const auto& annex : catalogue_.annexes()) annexes_.push_back(annex->open_session(parts_));
}

BlockSession::~BlockSession() {
  for (const auto& device : devices_.slots()) {
    if (device != nullptr) queues_.release(device->own_queue);
  }
  devices_ = OpenTable{};
  record_leaving();
}

void BlockSession::on_request(rtrs::ServerRequest& request) {
  const auto type = wire::decode_type(request.message);
  if (!type) return finish(request, EINVAL);
  switch (*type) {
    case wire::MessageType::io:
      return io_.io(request);
    case wire::MessageType::session_info:
      return session_info(request);
    case wire::MessageType::open:
    case wire::MessageType::close:
      return order_.take(request, *type);
    default:
      return extension(request, *type);
  }
}

void BlockSession::session_info(rtrs::ServerRequest& request) {
  const auto info =
      wire::decode<wire::SessionInfo>(request.message, wire::MessageType::session_info);
  if (!info) return finish(request, EINVAL);
  wire::SessionInfo answer;
  answer.header = wire::header_of(wire::MessageType::session_info_response);
  answer.version = std::min(info->version, wire::kProtocolMajor);
  finish_with(request, rtrs::wire::bytes_of(answer));
}

void BlockSession::close(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::Close>(request.message, wire::MessageType::close);
  if (!message) return finish(request, EINVAL);
  if (request.is_read) std::fill(request.data.begin(), request.data.end(), std::byte{});
  const wire::OpenOrder order = facts_.order_of(request.message, sizeof(wire::Close));
  numbers_.settle(order.settled);
  Device* device = devices_.find(message->device_id);
  if (message->device_id == wire::kUnknownDevice && order.number != 0) {
    device = devices_.find_opened_by(order.number);
  }
  numbers_.refuse(order.number, ECANCELED);
  if (device == nullptr) return finish(request, 0);
  // A recovery that was cut short may have sent OPENs that arrive late, too.
  numbers_.close(device->name, device->newest_number);
  device->closing = device->watched = true;
  io_.end_waiting(*device);
  device->closers.push_back(&request);
  if (device->running + device->waiting == 0) finish_close(*device);
}

/// Behind the CLOSE others may write, so the annexes end first; the requests that wait for it keep
/// the session. The last answer may end the session, so nothing of it is touched afterwards.
void BlockSession::finish_close(Device& device) {
  const auto again = [this, &device] {
    --device.running;
    finish_close(device);
  };
  for (const auto& annex : device.annexes) {
    ++device.running;
    if (annex->leave(again)) return;
    --device.running;
  }
  const auto closers = std::move(device.closers);
  log_.say(rtrs::LogLevel::info, "device_closed", device.name, "closed " + in_quotes(device.name));
  queues_.release(device.own_queue);
  device.lease.close();
  devices_.take(device.id).reset();
  record_leaving();
  for (rtrs::ServerRequest* request : closers) finish(*request, 0);
}

void BlockSession::record_leaving() {
  rnbd::record_leaving(catalogue_, services_, queues_.reactor());
}

bool BlockSession::writes_to(const WriterCount* storage) const {
  return std::ranges::any_of(devices_.slots(), [&](const std::unique_ptr<Device>& device) {
    return device != nullptr && device->lease.writable() &&
           device->lease.storage()->writers() == storage;
  });
}

/// The rules of annexes that led to this hold from then on.
void BlockSession::drain(const WriterCount* storage, const Device* but,
                         const std::shared_ptr<void>& token) {
  for (const auto& device : devices_.slots()) {
    if (device == nullptr || device.get() == but) continue;
    if (device->lease.storage()->writers() != storage) continue;
    for (const auto& annex : device->lease.storage()->annexes())
      annex->attach(*device, services_, queues_.reactor());
    if (device->running == 0) continue;
    device->watched = true;
    device->drainers.push_back(token);
  }
}

}  // namespace rnbd
