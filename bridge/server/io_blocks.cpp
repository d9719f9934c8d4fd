// SPDX-License-Identifier: BSD-3-Clause
// Requests about the blocks of a device that change nothing: which ones hold data, and which ones
// will be read.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bridge/server/answer.hpp"
#include "bridge/server/io_context.hpp"

namespace rnbd {
namespace {

/// One answer tells about this many runs of blocks at most; the client asks again for the rest.
constexpr std::size_t kMaxExtents = 4096;

/// Neighbours of one kind become one, nothing reaches beyond `length`.
template <class Emit>
void for_each_extent(const std::vector<BackendExtent>& extents, std::uint64_t length, Emit emit) {
  BackendExtent run;
  for (const BackendExtent& extent : extents) {
    const std::uint64_t part = std::min(extent.length, length);
    length -= part;
    if (part == 0) continue;
    if (run.length > 0 && (run.hole != extent.hole || run.zero != extent.zero)) {
      emit(run);
      run.length = 0;
    }
    run = {run.length + part, extent.hole, extent.zero};
  }
  // A backend that cannot say anything leaves it at "data".
  if (run.length == 0) run = {length, false, false};
  emit(run);
}

}  // namespace

void encode_extents(const std::vector<BackendExtent>& extents, std::uint64_t length,
                    rtrs::wire::MutableBytes room) {
  std::memset(room.data(), 0, room.size());
  std::uint32_t count = 0;
  const std::size_t capacity =
      (room.size() - sizeof(wire::BlockStatusResponse)) / sizeof(wire::Extent);
  std::byte* place = room.data() + sizeof(wire::BlockStatusResponse);
  for_each_extent(extents, length, [&](const BackendExtent& run) {
    if (count == capacity) return;
    wire::Extent extent;
    extent.length = run.length;
    extent.flags = (run.hole ? wire::kExtentHole : 0U) | (run.zero ? wire::kExtentZero : 0U);
    std::memcpy(place + count * sizeof(extent), &extent, sizeof(extent));
    ++count;
  });
  wire::BlockStatusResponse response;
  response.header = wire::header_of(wire::MessageType::block_status_response);
  response.count = count;
  std::memcpy(room.data(), &response, sizeof(response));
}

void IoRequests::block_status(rtrs::ServerRequest& request) { ask_status(request, Turn::not_yet); }

void IoRequests::ask_status(rtrs::ServerRequest& request, Turn turn) {
  const auto message =
      wire::decode<wire::BlockStatus>(request.message, wire::MessageType::block_status);
  constexpr std::size_t kLeast = sizeof(wire::BlockStatusResponse) + sizeof(wire::Extent);
  if (!message || !request.is_read || request.data.size() < kLeast) return finish(request, EINVAL);
  Device* device = devices_.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  if (!device->geometry().can_extents) return finish(request, device->refusal(EOPNOTSUPP));
  IoPlan plan;
  plan.operation = BackendOperation::extents;
  plan.offset = message->offset;
  plan.length = message->length;
  if (!fit_range(device->geometry(), plan.offset, plan.length))
    return finish(request, device->refusal(EINVAL));
  const bool waits = turn == Turn::not_yet && is_limited(*device) &&
                     !admit(request, *device, 0, &IoRequests::ask_status);
  if (waits) return;
  IoContext& io = take_context(request, *device, plan);
  io.extents.clear();
  io.backend.extents = &io.extents;
  io.backend.max_extents =
      std::min((request.data.size() - sizeof(wire::BlockStatusResponse)) / sizeof(wire::Extent),
               kMaxExtents);
  submit(io);
}

void IoRequests::cache(rtrs::ServerRequest& request) { read_ahead(request, Turn::not_yet); }

void IoRequests::read_ahead(rtrs::ServerRequest& request, Turn turn) {
  const auto message = wire::decode<wire::Cache>(request.message, wire::MessageType::cache);
  if (!message) return finish(request, EINVAL);
  Device* device = devices_.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  if (!device->geometry().can_cache) return finish(request, device->refusal(EOPNOTSUPP));
  IoPlan plan;
  plan.operation = BackendOperation::cache;
  plan.offset = message->offset;
  plan.length = message->length;
  if (!fit_range(device->geometry(), plan.offset, plan.length))
    return finish(request, device->refusal(EINVAL));
  const bool waits = turn == Turn::not_yet && is_limited(*device) &&
                     !admit(request, *device, plan.length, &IoRequests::read_ahead);
  if (waits) return;
  if (request.is_read) std::fill(request.data.begin(), request.data.end(), std::byte{});
  submit(take_context(request, *device, plan));
}

}  // namespace rnbd
