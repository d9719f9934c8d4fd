// SPDX-License-Identifier: BSD-3-Clause
// Messages that only rnbdkit peers send, and only when both said that they know them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bridge/protocol/brick_messages.hpp"
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

void BlockSession::extension(rtrs::ServerRequest& request, wire::MessageType type) {
  if (!facts_.extensions) return finish(request, EINVAL);
  switch (type) {
    case wire::MessageType::device_info:
      return claim_.on_device_info(request);
    case wire::MessageType::claim:
      return order_.take(request, type);
    case wire::MessageType::list_exports:
      return list_exports(request);
    case wire::MessageType::directory:
      return directory(request);
    case wire::MessageType::who:
      return who(request);
    case wire::MessageType::block_status:
      return block_status(request, Turn::not_yet);
    case wire::MessageType::cache:
      return cache(request, Turn::not_yet);
    default:
      if (type >= wire::kBrickInfo && type <= wire::kBrickRevokePath)
        return brick_.on_request(request, type);
      return member_.on_request(request, type);
  }
}

void BlockSession::list_exports(rtrs::ServerRequest& request) {
  const auto message =
      wire::decode<wire::ListExports>(request.message, wire::MessageType::list_exports);
  if (!message || !request.is_read || request.data.size() < sizeof(wire::ListExportsResponse))
    return finish(request, EINVAL);
  const User asking = facts_.user();
  finish_with(request, wire::encode_export_page(catalogue_.list(&asking), message->first,
                                                request.data.size()));
}

void BlockSession::directory(rtrs::ServerRequest& request) {
  const auto message = wire::decode_directory(request.message);
  if (!message || !request.is_read || request.data.size() < sizeof(wire::DirectoryResponse))
    return finish(request, EINVAL);
  const User asking = facts_.user();
  finish_with(request, wire::encode_directory_page(catalogue_.directory(&asking, message->kinds),
                                                   message->first, request.data.size()));
}

/// Answers users with a right on the export. For others the export does not exist.
void BlockSession::who(rtrs::ServerRequest& request) {
  const auto name = wire::decode_who(request.message);
  if (!name || !request.is_read || request.data.size() < sizeof(wire::WhoResponse) + wire::kMaxWho)
    return finish(request, EINVAL);
  const auto text = catalogue_.who_has(*name);
  if (catalogue_.permission(*name, facts_.user()) == Permission::none || !text)
    return finish(request, ENOENT);
  finish_with(request, wire::encode_who_response(*text));
}

void BlockSession::block_status(rtrs::ServerRequest& request, Turn turn) {
  const auto message =
      wire::decode<wire::BlockStatus>(request.message, wire::MessageType::block_status);
  constexpr std::size_t kLeast = sizeof(wire::BlockStatusResponse) + sizeof(wire::Extent);
  if (!message || !request.is_read || request.data.size() < kLeast) return finish(request, EINVAL);
  Device* device = devices_.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  if (device->seat != nullptr && !device->is_served()) return finish(request, ESTALE);
  if (!device->geometry().can_extents) return finish(request, EOPNOTSUPP);
  IoPlan plan;
  plan.operation = BackendOperation::extents;
  plan.offset = message->offset;
  plan.length = message->length;
  if (!fit_range(device->geometry(), plan.offset, plan.length)) return finish(request, EINVAL);
  const bool waits = turn == Turn::not_yet && is_limited(*device) &&
                     !admit(request, *device, 0, &BlockSession::block_status);
  if (waits) return;
  IoContext& io = take_context(request, *device, plan);
  io.extents.clear();
  io.backend.extents = &io.extents;
  io.backend.max_extents =
      std::min((request.data.size() - sizeof(wire::BlockStatusResponse)) / sizeof(wire::Extent),
               kMaxExtents);
  submit(io);
}

void BlockSession::cache(rtrs::ServerRequest& request, Turn turn) {
  const auto message = wire::decode<wire::Cache>(request.message, wire::MessageType::cache);
  if (!message) return finish(request, EINVAL);
  Device* device = devices_.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  if (device->seat != nullptr && !device->is_served()) return finish(request, ESTALE);
  if (!device->geometry().can_cache) return finish(request, EOPNOTSUPP);
  IoPlan plan;
  plan.operation = BackendOperation::cache;
  plan.offset = message->offset;
  plan.length = message->length;
  if (!fit_range(device->geometry(), plan.offset, plan.length)) return finish(request, EINVAL);
  const bool waits = turn == Turn::not_yet && is_limited(*device) &&
                     !admit(request, *device, plan.length, &BlockSession::cache);
  if (waits) return;
  if (request.is_read) std::fill(request.data.begin(), request.data.end(), std::byte{});
  submit(take_context(request, *device, plan));
}

}  // namespace rnbd
