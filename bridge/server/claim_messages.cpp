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
  const auto opening = std::make_shared<Opening>(
      request, 0, std::move(wanted), OpenKind::anew, session_,
      [this, claim = *message](const OpeningPtr& it, Opening::Result result) {
        answer(it, claim, std::move(result));
      });
  claim(opening, *message);
}

/// Again and again, while another writer leaves.
void ClaimMessages::claim(const OpeningPtr& opening, const wire::Claim& message) {
  Device* const device = session_.devices.usable(message.device_id);
  if (device == nullptr) {
    opening->end();
    return finish(opening->request, ENOTCONN);
  }
  const std::string& name = opening->name();
  ExportCatalogue& catalogue = session_.catalogue;
  const auto refuse = [&](Failure failure) {
    answer(opening, message, tl::unexpected(std::move(failure)));
  };
  if (device->writes()) {
    // The client may have given the CLAIM of another user up, who had looked later.
    if (device->claim && !catalogue.reservations().saw_as_much(message, *device->claim))
      return refuse(refusal_of(name, ESTALE));
    opening->end();
    return describe(opening->request, *device, false);
  }
  if (!device->lease.unclaimed()) return refuse(refusal_of(name, EROFS));
  auto lease =
      catalogue.reservations().claim(device->lease, message, session_.facts.uuid, device->name);
  if (lease) return steps_.reserve(opening, std::move(*lease));
  const WriterCount* const writers = device->lease.storage()->writers();
  const bool retry =
      lease.error() == EPERM &&
      steps_.make_room(opening, writers, [this, opening, message] { claim(opening, message); });
  if (retry) return;
  Failure refusal = refusal_of(name, lease.error());
  if (refusal.error == EPERM)
    refusal.text = in_quotes(name) + ": " + catalogue.reservations().who_writes(writers);
  refuse(std::move(refusal));
}

/// The answer may end the session, unless somebody else waits, so nothing of it is touched
/// afterwards.
void ClaimMessages::answer(const OpeningPtr& opening, const wire::Claim& message,
                           Opening::Result result) {
  opening->end();
  rtrs::ServerRequest& request = opening->request;
  if (opening->is_late()) {
    session_.log.refusal(opening->name(), "refused to open " + result.error().text);
    const auto& meters = session_.surroundings.meters;
    if (meters != nullptr) meters->refused(result.error().error);
    return finish(request, result.error().error);
  }
  Device* const device = session_.devices.usable(message.device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  if (!result) {
    const Failure failure = steps_.may_be_its_own(result.error().error)
                                ? directory_hangs(opening->name())
                                : std::move(result.error());
    session_.log.refusal(opening->name(), "refused to let it write to " + failure.text);
    return finish(request, failure.error);
  }
  device->claim = message;
  if (result->granted()->by_record) device->claim->writer_serial = result->granted()->serial;
  device->lease.take_over(std::move(*result));
  device->writer_serial = session_.catalogue.reservations().writer_serial(device->lease);
  session_.catalogue.reservations().name_writer(device->lease, session_.facts.in_words());
  session_.log.say(rtrs::LogLevel::info, "device_claimed", device->name,
                   "claimed " + in_quotes(device->name));
  describe(request, *device, false);
}

void ClaimMessages::on_device_info(rtrs::ServerRequest& request) {
  const auto message =
      wire::decode<wire::DeviceInfo>(request.message, wire::MessageType::device_info);
  if (!message) return finish(request, EINVAL);
  Device* device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  const auto& survey = session_.surroundings.survey;
  const bool asks = session_.facts.claims && !device->lease.writable() && survey;
  if (!asks) return describe(request, *device, false);
  survey(session_.queues.reactor(), device->lease.storage()->writers(),
         [this, &request, id = device->id](bool in_use) {
           Device* const still = session_.devices.usable(id);
           if (still == nullptr) return finish(request, ENOTCONN);
           describe(request, *still, in_use);
         });
}

void ClaimMessages::describe(rtrs::ServerRequest& request, Device& device, bool in_use) {
  const ExportCatalogue& catalogue = session_.catalogue;
  device.lease.look_again();
  auto response = device_info_response(device.geometry(), device.id);
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
