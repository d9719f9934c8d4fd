// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/brick/brick_messages.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/protocol/brick_messages.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/io_requests.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/session_facts.hpp"
#include "rdma/server.hpp"

namespace rnbd {
namespace {

using brick::Block;
using brick::Brick;
using wire::kBrickBlockShift;

constexpr std::uint32_t kRights = wire::kMapRead | wire::kMapWrite;
static_assert(static_cast<std::uint32_t>(wire::kMapRead) == brick::kRead &&
              static_cast<std::uint32_t>(wire::kMapWrite) == brick::kWrite &&
              static_cast<std::uint32_t>(wire::kMapOthersRead) == brick::kOthersRead &&
              static_cast<std::uint32_t>(wire::kMapOthersWrite) == brick::kOthersWrite &&
              static_cast<std::uint32_t>(wire::kMapNoWait) == brick::kNoWait);
static_assert(wire::kBrickBlock == brick::kBlockSize);

/// Neighbours of one kind in one extent.
std::vector<wire::BrickExtent> extents_of(const std::vector<brick::Listed>& blocks) {
  std::vector<wire::BrickExtent> extents;
  Block next = 0;
  for (const brick::Listed& block : blocks) {
    std::uint32_t flags = block.in_memory ? wire::kBrickInMemory : wire::kBrickSlow;
    if ((block.mapped & brick::kRead) != 0) flags |= wire::kBrickMappedRead;
    if ((block.mapped & brick::kWrite) != 0) flags |= wire::kBrickMappedWrite;
    const bool joins = !extents.empty() && block.block == next && extents.back().flags == flags;
    if (joins)
      extents.back().blocks = extents.back().blocks + 1;
    else
      extents.push_back({block.block << kBrickBlockShift, 1, flags, 0});
    next = block.block + 1;
  }
  return extents;
}

/// Ranges of bytes, cut at the ends of blocks.
std::vector<brick::Span> spans_of(const std::vector<wire::SyncRange>& ranges) {
  std::vector<brick::Span> spans;
  for (const wire::SyncRange& range : ranges) {
    std::uint64_t at = range.address;
    for (std::uint64_t left = range.length; left > 0;) {
      const std::uint64_t inside = at % brick::kBlockSize;
      const std::uint64_t part = std::min(left, brick::kBlockSize - inside);
      spans.push_back({at >> kBrickBlockShift, static_cast<std::uint32_t>(inside),
                       static_cast<std::uint32_t>(part)});
      at += part;
      left -= part;
    }
  }
  return spans;
}

std::vector<std::byte> encode_maps(const std::vector<brick::MapView>& maps) {
  std::vector<wire::MapEntry> entries;
  entries.reserve(maps.size());
  for (const brick::MapView& map : maps) {
    entries.push_back({map.block << kBrickBlockShift, map.address, map.generation, map.key,
                       map.rights & kRights});
  }
  return wire::encode_brick_maps(entries);
}

std::vector<std::byte> encode_info(const Brick& brick, const brick::BrickService& service,
                                   std::uint32_t device) {
  wire::BrickInfoResponse info;
  info.header = wire::header_of(wire::kBrickInfoResponse);
  info.device_id = device;
  info.blocks = service.options().places;
  info.free = brick.free_places();
  info.in_memory = service.options().slots;
  info.sync_epoch = service.epoch();
  info.brick = service.uuid();
  info.max_maps = service.options().max_maps;
  info.lease = static_cast<std::uint32_t>(service.options().lease);
  info.durability = static_cast<std::uint8_t>(service.has_tier() ? wire::Durability::sync
                                                                 : wire::Durability::none);
  const auto bytes = rtrs::wire::bytes_of(info);
  return {bytes.begin(), bytes.end()};
}

/// The most that one SYNC may cover: as much as a brick can hold would keep its disk for hours.
constexpr std::uint64_t kMaxSyncBytes = std::uint64_t{1} << 34;

bool is_short(const std::vector<wire::SyncRange>& ranges) {
  std::uint64_t left = kMaxSyncBytes;
  for (const wire::SyncRange& range : ranges) {
    if (range.length > left) return false;
    left -= range.length;
  }
  return true;
}

}  // namespace

BrickDevice::~BrickDevice() {
  if (client_ != nullptr) client_->leave([] {});
}

bool BrickDevice::leave(const std::function<void()>& then) {
  const auto leaving = std::exchange(client_, nullptr);
  if (leaving == nullptr) return false;
  leaving->leave([&around = services_, reactor = reactor_, then] { around.later(reactor, then); });
  return true;
}

rtrs::Reactor* BrickMessages::reactor() const { return session_.queues.reactor(); }

/// The device's part in its brick; null when it has none.
std::shared_ptr<BrickClient> BrickMessages::client_of(Device& device,
                                                      rtrs::ServerSession* session) {
  brick::BrickService* const service = brick::service_of(device.lease.storage()->backend());
  if (service == nullptr) return nullptr;
  if (const auto* const known = part_of<BrickDevice>(device.annexes)) return known->client();
  const auto client = std::make_shared<BrickClient>(*service, session_.facts.name);
  device.annexes.push_back(std::make_unique<BrickDevice>(client, session_.services, reactor()));
  service->run([client, reactor = reactor(), &around = session_.services, session](Brick&) {
    client->join([reactor, &around, session] {
      if (around.sessions != nullptr)
        around.sessions->visit(reactor, session,
                               [](rtrs::ServerSession& core) { rtrs::recall_memory(core); });
    });
  });
  return client;
}

/// Runs `order` on the brick's thread; the request ends when the brick answers it, which keeps the
/// device and the session.
void BrickMessages::order(rtrs::ServerRequest& request, Device& device, Order order) {
  const auto client = client_of(device, request.session);
  if (client == nullptr) return finish(request, EOPNOTSUPP);
  ++device.running;
  brick::BrickService& service = client->service();
  const auto then = [this, &request, &device](const brick::Reply& reply) {
    session_.services.later(reactor(), [this, &request, &device, error = reply.error,
                                        bytes = reply.maps.empty() ? std::vector<std::byte>{}
                                                                   : encode_maps(reply.maps)] {
      ordered(request, device, error, bytes);
    });
  };
  service.run([&service, then, order = std::move(order), keep = client](Brick& brick) {
    order(brick, service.ask(then), *keep);
  });
}

/// The same for questions that the brick can answer at once.
void BrickMessages::ask(rtrs::ServerRequest& request, Device& device, Question question) {
  const auto client = client_of(device, request.session);
  if (client == nullptr) return finish(request, EOPNOTSUPP);
  ++device.running;
  client->service().run([this, &request, &device, question = std::move(question),
                         keep = client](Brick& brick) {
    session_.services.later(reactor(), [this, &request, &device, bytes = question(brick, *keep)] {
      ordered(request, device, 0, bytes);
    });
  });
}

/// The answer may end the session, so nothing of it is touched afterwards, except while a
/// CLOSE waits, which keeps it.
void BrickMessages::ordered(rtrs::ServerRequest& request, Device& device, int error,
                            const std::vector<std::byte>& answer) {
  --device.running;
  const bool close_now = device.closing && device.running == 0;
  if (error == 0 && request.is_read)
    finish_with(request, answer);
  else
    finish(request, error);
  if (close_now) session_.io.close(device);
}

void BrickMessages::on_memory_path_down(const wire::Uuid& path) {
  for (const auto& device : session_.devices.slots()) {
    const auto* const part = device ? part_of<BrickDevice>(device->annexes) : nullptr;
    if (part == nullptr || part->client() == nullptr) continue;
    part->client()->service().run(
        [client = part->client(), path](Brick&) { client->path_gone(path); });
  }
}

bool BrickMessages::on_request(rtrs::ServerRequest& request, wire::MessageType type) {
  if (type < wire::kBrickInfo || type > wire::kBrickRevokePath) return false;
  handle(request, type);
  return true;
}

void BrickMessages::handle(rtrs::ServerRequest& request, wire::MessageType type) {
  const bool may = (session_.facts.features & wire::kFeaturePassive) != 0;
  if (!may) return finish(request, EINVAL);
  const bool asks = type == wire::kBrickInfo || type == wire::kBrickMap || type == wire::kBrickList;
  if (request.is_read != asks) return finish(request, EINVAL);
  // All of these begin alike.
  const auto message = wire::decode<wire::BrickInfo>(request.message, type);
  if (!message) return finish(request, EINVAL);
  Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  using Handler = void (BrickMessages::*)(rtrs::ServerRequest&, Device&);
  static constexpr std::pair<wire::MessageType, Handler> kHandlers[] = {
      {wire::kBrickInfo, &BrickMessages::info},   {wire::kBrickAlloc, &BrickMessages::alloc},
      {wire::kBrickFree, &BrickMessages::free},   {wire::kBrickMap, &BrickMessages::map},
      {wire::kBrickUnmap, &BrickMessages::unmap}, {wire::kBrickList, &BrickMessages::list},
      {wire::kBrickSync, &BrickMessages::sync},   {wire::kBrickRevokePath, &BrickMessages::revoke},
  };
  for (const auto& [known, handler] : kHandlers)
    if (known == type) return (this->*handler)(request, *device);
  finish(request, EINVAL);
}

void BrickMessages::alloc(rtrs::ServerRequest& request, Device& device) {
  range(request, device, wire::kBrickAlloc);
}

void BrickMessages::free(rtrs::ServerRequest& request, Device& device) {
  range(request, device, wire::kBrickFree);
}

void BrickMessages::info(rtrs::ServerRequest& request, Device& device) {
  ask(request, device, [id = device.id](Brick& brick, BrickClient& client) {
    return encode_info(brick, client.service(), id);
  });
}

void BrickMessages::range(rtrs::ServerRequest& request, Device& device, wire::MessageType type) {
  const auto message = wire::decode_brick_range(request.message, type);
  if (!message) return finish(request, EINVAL);
  if (!device.lease.writable()) return finish(request, EROFS);
  const Block first = message->id >> kBrickBlockShift;
  const std::uint32_t count = message->count;
  const bool all = (message->flags & wire::kAllocAll) != 0;
  const bool allocates = type == wire::kBrickAlloc;
  order(request, device, [=](Brick& brick, brick::Ticket ticket, BrickClient&) {
    allocates ? brick.alloc(ticket, first, count, all) : brick.free(ticket, first, count, all);
  });
}

void BrickMessages::list(rtrs::ServerRequest& request, Device& device) {
  const auto message = wire::decode_brick_list(request.message);
  const std::size_t capacity = request.data.size();
  if (!message || capacity < sizeof(wire::BrickListResponse) + sizeof(wire::BrickExtent))
    return finish(request, EINVAL);
  const std::uint64_t from = message->first;
  const Block first = (from >> kBrickBlockShift) + (from % wire::kBrickBlock != 0 ? 1 : 0);
  const auto what = static_cast<brick::Listing>(message->what.value());
  ask(request, device, [=](Brick& brick, BrickClient& client) {
    const auto blocks =
        brick.list(what, client.session(), first, capacity / sizeof(wire::BrickExtent));
    return wire::encode_brick_extents(extents_of(blocks), brick.count(what, client.session()),
                                      capacity);
  });
}

void BrickMessages::map(rtrs::ServerRequest& request, Device& device) {
  const auto message = wire::decode_brick_map(request.message);
  if (!message) return finish(request, EINVAL);
  const std::size_t needs =
      sizeof(wire::BrickMapResponse) + message->count * sizeof(wire::MapEntry);
  if (request.data.size() < needs) return finish(request, EINVAL);
  if ((message->flags & wire::kMapWrite) != 0 && !device.lease.writable())
    return finish(request, EROFS);
  const auto exposure = paths_.find(request.session, message->path);
  Brick::MapOrder wanted;
  wanted.first = message->id >> kBrickBlockShift;
  wanted.count = message->count;
  wanted.rights = message->flags;
  wanted.number = message->number;
  wanted.settled = message->settled;
  order(request, device,
        [wanted, exposure, uuid = message->path](Brick& brick, brick::Ticket ticket,
                                                 BrickClient& client) mutable {
          wanted.session = client.session();
          wanted.path = client.path(uuid, exposure);
          brick.map(ticket, wanted);
        });
}

void BrickMessages::unmap(rtrs::ServerRequest& request, Device& device) {
  const auto message = wire::decode_brick_unmap(request.message);
  if (!message) return finish(request, EINVAL);
  order(request, device,
        [unmap = *message](Brick& brick, brick::Ticket ticket, BrickClient& client) {
          brick.unmap(ticket, client.session(), unmap.id >> kBrickBlockShift, unmap.count,
                      unmap.generation);
        });
}

void BrickMessages::sync(rtrs::ServerRequest& request, Device& device) {
  const auto message = wire::decode<wire::BrickSync>(request.message, wire::kBrickSync);
  if (!message) return finish(request, EINVAL);
  const auto ranges = wire::decode_sync_ranges(request.data, message->count);
  if (!ranges || !is_short(*ranges)) return finish(request, EINVAL);
  order(request, device,
        [spans = spans_of(*ranges)](Brick& brick, brick::Ticket ticket, BrickClient& client) {
          if (!client.service().has_tier())
            return client.service().answer(ticket, brick::Reply{.error = EOPNOTSUPP});
          spans.empty() ? brick.sync_maps(ticket, client.session()) : brick.sync(ticket, spans);
        });
}

void BrickMessages::revoke(rtrs::ServerRequest& request, Device& device) {
  const auto message = wire::decode<wire::BrickRevokePath>(request.message, wire::kBrickRevokePath);
  if (!message) return finish(request, EINVAL);
  order(request, device,
        [uuid = message->path](Brick& brick, brick::Ticket ticket, BrickClient& client) {
          brick.revoke(ticket, client.known_path(uuid));
        });
}

}  // namespace rnbd
