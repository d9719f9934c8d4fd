// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/claim_messages.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/session_log.hpp"

namespace rnbd {

void ClaimMessages::on_claim(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::Claim>(request.message, wire::MessageType::claim);
  // The room for the answer is checked first, so that the client learns of its right.
  if (!message || !session_.facts.claims || !request.is_read ||
      request.data.size() < wire::kMinDeviceInfoResponse) {
    return finish(request, EINVAL);
  }
  const Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  wire::OpenRequest wanted{device->lease.mode(), 0, device->name};
  const auto opening =
      std::make_shared<Opening>(request, 0, std::move(wanted), OpenKind::anew, session_);
  opening->claimed = device->lease.storage()->writers();
  opening->routine = claim(*opening, *message);
}

const WriterCount* ClaimMessages::storage_of(const rtrs::ServerRequest& request) const {
  const auto message = wire::decode<wire::Claim>(request.message, wire::MessageType::claim);
  const Device* const device = message ? session_.devices.usable(message->device_id) : nullptr;
  return device == nullptr ? nullptr : device->lease.storage()->writers();
}

/// The answer may end the session, so nothing of it is touched afterwards.
Routine ClaimMessages::claim(Opening& opening, wire::Claim message) {
  auto granted = co_await grant(opening, message);
  steps_.end(opening, [&] { answer(opening, message, std::move(granted)); });
}

Task<ClaimMessages::Granted> ClaimMessages::grant(Opening& opening, const wire::Claim& message) {
  const std::string& name = opening.name();
  ReservationBook& book = session_.catalogue.reservations();
  for (;;) {  // while other writers leave
    const Device* const device = session_.devices.usable(message.device_id);
    if (device == nullptr) co_return tl::unexpected(Failure{ENOTCONN, ""});
    // The client may have given the CLAIM of another user up, who had looked later.
    if (device->writes() && device->claim && !book.saw_as_much(message, *device->claim))
      co_return tl::unexpected(refusal_of(name, ESTALE));
    if (device->writes()) co_return Granted{std::nullopt};
    if (!device->lease.unclaimed()) co_return tl::unexpected(refusal_of(name, EROFS));
    auto lease = book.claim(device->lease, message, session_.facts.uuid, device->name);
    if (lease) {
      auto reserved = co_await steps_.reserve(opening, std::move(*lease));
      if (!reserved) co_return tl::unexpected(std::move(reserved.error()));
      co_return Granted{std::move(*reserved)};
    }
    const WriterCount* const writers = device->lease.storage()->writers();
    Failure refusal = refusal_of(name, lease.error());
    if (refusal.error == EPERM) {
      const auto room = co_await steps_.make_room(opening, writers);
      if (room == OpeningSteps::Room::made) continue;
      if (room == OpeningSteps::Room::late)
        co_return tl::unexpected(OpeningSteps::too_late(opening));
      refusal.text = in_quotes(name) + ": " + book.who_writes(writers);
    }
    co_return tl::unexpected(std::move(refusal));
  }
}

void ClaimMessages::answer(const Opening& opening, const wire::Claim& message, Granted granted) {
  rtrs::ServerRequest& request = opening.request;
  if (opening.is_late()) {
    session_.log.refusal(opening.name(), "refused to open " + granted.error().text);
    const auto& meters = session_.services.meters;
    if (meters != nullptr) meters->refused(granted.error().error);
    return finish(request, granted.error().error);
  }
  Device* const device = session_.devices.usable(message.device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  if (!granted) {
    const Failure failure = steps_.may_be_its_own(granted.error().error)
                                ? directory_hangs(opening.name())
                                : std::move(granted.error());
    session_.log.refusal(opening.name(), "refused to let it write to " + failure.text);
    return finish(request, failure.error);
  }
  if (*granted) take_over(*device, message, std::move(**granted));
  describe(request, *device, false);
}

void ClaimMessages::take_over(Device& device, const wire::Claim& message, Lease lease) {
  device.claim = message;
  if (lease.granted()->by_record) device.claim->writer_serial = lease.granted()->serial;
  device.lease.take_over(std::move(lease));
  device.writer_serial = session_.catalogue.reservations().writer_serial(device.lease);
  session_.catalogue.reservations().name_writer(device.lease, session_.facts.in_words());
  session_.log.say(rtrs::LogLevel::info, "device_claimed", device.name,
                   "claimed " + in_quotes(device.name));
}

void ClaimMessages::on_device_info(rtrs::ServerRequest& request) {
  const auto message =
      wire::decode<wire::DeviceInfo>(request.message, wire::MessageType::device_info);
  if (!message) return finish(request, EINVAL);
  Device* device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  const bool asks =
      session_.facts.claims && !device->lease.writable() && session_.services.sessions != nullptr;
  if (!asks) return describe(request, *device, false);
  session_.services.sessions->survey(session_.queues.reactor(), device->lease.storage()->writers(),
                                     [this, &request, id = device->id](bool in_use) {
                                       Device* const still = session_.devices.usable(id);
                                       if (still == nullptr) return finish(request, ENOTCONN);
                                       describe(request, *still, in_use);
                                     });
}

void ClaimMessages::describe(rtrs::ServerRequest& request, Device& device, bool in_use) {
  const ExportCatalogue& catalogue = session_.catalogue;
  device.lease.look_again();
  auto response = device_info_response(device.lease.told_geometry(), device.id);
  response.writer_serial = device.writer_serial;
  response.server_life = catalogue.reservations().life_of(device.lease);
  response.storage_life = device.lease.storage()->backend().life();
  if (device.lease.storage()->backend().shrunk_to()) {
    response.flags = response.flags | wire::kDeviceShrunk;
  }
  if (in_use) response.flags = response.flags | wire::kDeviceInUse;
  if (catalogue.reservations().was_expelled(device.lease)) {
    response.flags = response.flags | wire::kDeviceEvicted;
  }
  if (device.lease.unclaimed()) {
    response.sight = catalogue.reservations().look(device.lease);
    response.writer_serial = catalogue.reservations().writer_serial(device.lease);
  }
  response.generation = catalogue.reservations().generation(device.lease);
  response.found_generation = catalogue.reservations().found_generation(device.lease);
  // An older client has room for the older part of it.
  const std::size_t room = std::max(request.data.size(), wire::kMinDeviceInfoResponse);
  finish_with(request, rtrs::wire::bytes_of(response).first(std::min(room, sizeof(response))));
}

}  // namespace rnbd
