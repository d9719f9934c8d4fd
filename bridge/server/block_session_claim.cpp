// SPDX-License-Identifier: BSD-3-Clause
// CLAIM: a device that was opened without the right to write gets it, before its first write. Other
// writers may be in the way of a CLAIM or an OPEN; this file deals with them, too.
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/opening.hpp"

namespace rnbd {

void BlockSession::claim(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::Claim>(request.message, wire::MessageType::claim);
  // The room for the answer is checked first, so that the client learns of its right.
  if (!message || !facts_.claims || !request.is_read ||
      request.data.size() < sizeof(wire::DeviceInfoResponse)) {
    return finish(request, EINVAL);
  }
  const Device* const device = devices_.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  wire::OpenRequest wanted{device->lease.mode(), 0, device->name};
  const auto opening = std::make_shared<Opening>(request, std::move(wanted), OpenKind::anew, *this);
  opening->claim = *message;
  try_claim(opening);
}

/// Again and again, while another writer leaves.
void BlockSession::try_claim(const OpeningPtr& opening) {
  Device* const device = devices_.usable(opening->claim->device_id);
  if (device == nullptr) {
    opening->state = Opening::State::over;
    return finish(opening->request, ENOTCONN);
  }
  const std::string& name = opening->name();
  if (device->lease.writable() || device->is_served()) {
    // The client may have given the CLAIM of another user up, who had looked later.
    if (device->claim && !catalogue_.saw_as_much(*opening->claim, *device->claim)) {
      return claimed(opening, tl::unexpected(refusal_of(name, ESTALE)));
    }
    opening->state = Opening::State::over;
    return tell_device(opening->request, *device, false);
  }
  if (!device->lease.unclaimed()) return claimed(opening, tl::unexpected(refusal_of(name, EROFS)));
  auto lease = catalogue_.claim(device->lease, *opening->claim);
  if (lease) return reserve(opening, std::move(*lease));
  const WriterCount* const writers = device->lease.storage()->writers();
  const bool retry =
      lease.error() == EPERM && reclaim(opening, writers, [this, opening] { try_claim(opening); });
  if (retry) return;
  Failure refusal = refusal_of(name, lease.error());
  if (refusal.error == EPERM)
    refusal.text = in_quotes(name) + ": " + catalogue_.who_writes(writers);
  claimed(opening, tl::unexpected(std::move(refusal)));
}

/// The answer may end the session, unless somebody else waits, so nothing of it is touched
/// afterwards.
void BlockSession::claimed(const OpeningPtr& opening, tl::expected<Lease, Failure> lease) {
  opening->state = Opening::State::over;
  opening->timer.reset();
  rtrs::ServerRequest& request = opening->request;
  Device* const device = devices_.usable(opening->claim->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  if (!lease) {
    const Failure failure = may_be_its_own(lease.error().error) ? directory_hangs(opening->name())
                                                                : std::move(lease.error());
    log_.refusal(opening->name(), "refused to let it write to " + failure.text);
    return finish(request, failure.error);
  }
  device->lease.take_over(std::move(*lease));
  device->claim = opening->claim;
  device->writer_serial = catalogue_.writer_serial(device->lease);
  catalogue_.name_writer(device->lease, in_quotes(facts_.name) + " (" + facts_.peer + ")");
  log_.say(rtrs::LogLevel::info, "device_claimed", device->name,
           "claimed " + in_quotes(device->name));
  tell_device(request, *device, false);
}

/// Another session may write to the storage. Its client may be gone and return later. Ends such
/// sessions, then calls `again`. False: there is no other session to ask. A returning client takes
/// no right from others, and may find that it must not write.
bool BlockSession::reclaim(const OpeningPtr& opening, const WriterCount* storage,
                           std::function<void()> again) {
  if (opening->open_kind == OpenKind::again) return false;
  if (!surroundings_.reclaim || std::exchange(opening->reclaimed, true)) {
    return wait_for_leaver(opening, std::move(again));
  }
  const std::string reason = in_quotes(facts_.name) + " (" + facts_.peer + ") wants to write to " +
                             in_quotes(opening->name()) + ", which it has open";
  surroundings_.reclaim(queues_.reactor(), storage, reason, [opening, again = std::move(again)] {
    opening->state == Opening::State::late ? opening->let_go() : again();
  });
  return true;
}

/// Waits a moment, because a writer may be about to leave: its machine has closed the disk, and the
/// CLOSE is under way.
bool BlockSession::wait_for_leaver(const OpeningPtr& opening, std::function<void()> again) {
  constexpr unsigned kMostWaits = 20;
  constexpr auto kWait = std::chrono::milliseconds{50};
  if (!surroundings_.after || opening->waits == kMostWaits || may_be_its_own(EPERM)) return false;
  ++opening->waits;
  opening->wait =
      surroundings_.after(queues_.reactor(), kWait, [opening, again = std::move(again)] {
        if (opening->state == Opening::State::late) return opening->let_go();
        opening->reclaimed = false;
        again();
      });
  return true;
}

void BlockSession::tell_device(rtrs::ServerRequest& request, Device& device, bool in_use) {
  device.lease.look_again();
  auto response = device_info_response(device.geometry(), device.id);
  response.writer_serial = device.writer_serial;
  response.server_life = catalogue_.life_of(device.lease);
  response.storage_life = device.lease.storage()->backend().life();
  if (device.lease.storage()->backend().shrunk_to()) {
    response.flags = response.flags | wire::kDeviceShrunk;
  }
  if (in_use) response.flags = response.flags | wire::kDeviceInUse;
  if (catalogue_.was_expelled(device.lease)) {
    response.flags = response.flags | wire::kDeviceEvicted;
  }
  if (device.lease.unclaimed()) {
    response.sight = catalogue_.look(device.lease);
    response.writer_serial = catalogue_.writer_serial(device.lease);
  }
  finish_with(request, rtrs::wire::bytes_of(response));
}

}  // namespace rnbd
