// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/brick_queue.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <new>

#include "rdma/transport/reactor.hpp"

namespace rnbd {

using brick::Brick;
using brick::BrickService;
using brick::kBlockSize;
using brick::kNone;
using brick::Reply;
using brick::Slot;
using brick::Ticket;

BrickQueue::Progress& BrickQueue::progress_of(BackendRequest& request) {
  static_assert(sizeof(Progress) <= sizeof(request.scratch));
  return *std::launder(reinterpret_cast<Progress*>(request.scratch));
}

BrickQueue::Part BrickQueue::part_of(const BackendRequest& request, std::uint64_t done) {
  const std::uint64_t at = request.offset + done;
  const std::uint64_t inside = at % kBlockSize;
  return {at / kBlockSize, inside, std::min(request.length - done, kBlockSize - inside)};
}

void BrickQueue::copy(BrickService& service, BackendRequest& request, const Part& part,
                      std::uint64_t done, Slot slot) {
  std::byte* const data = request.data + done;
  if (slot == kNone) {
    std::memset(data, 0, part.length);
  } else if (request.operation == BackendOperation::read) {
    std::memcpy(data, service.memory().at(slot) + part.offset, part.length);
  } else {
    std::memcpy(service.memory().at(slot) + part.offset, data, part.length);
    service.memory().mark(slot, part.offset, part.length);
  }
}

/// False: the rest needs the brick's thread.
bool BrickQueue::move_at_once(BackendRequest& request, std::uint64_t& done) {
  brick::BrickMemory& memory = service_.memory();
  while (done < request.length) {
    const Part part = part_of(request, done);
    const Slot slot = memory.enter(part.block);
    if (slot == kNone) {
      const bool reads = request.operation == BackendOperation::read;
      if (!reads || !memory.absent(part.block)) return false;
      copy(service_, request, part, done, kNone);
    } else {
      copy(service_, request, part, done, slot);
      if (memory.leave(part.block)) service_.left(part.block);
    }
    done += part.length;
  }
  return true;
}

void BrickQueue::hand_over(BackendRequest& request, std::uint64_t done) {
  new (request.scratch) Progress{&reactor_, &service_, done};
  service_.run([&request](Brick&) { go_on(request); });
}

void BrickQueue::submit(BackendRequest& request) {
  std::uint64_t done = 0;
  switch (request.operation) {
    case BackendOperation::write:
    case BackendOperation::discard:
    case BackendOperation::write_zeroes:
      if (read_only_) return request.done(request, EROFS);
      break;
    case BackendOperation::cache:
      return request.done(request, 0);
    case BackendOperation::flush:
      if (!service_.has_tier()) return request.done(request, 0);
      break;
    case BackendOperation::read:
    case BackendOperation::extents:
      break;
  }
  const bool moves =
      request.operation == BackendOperation::read || request.operation == BackendOperation::write;
  if (moves && move_at_once(request, done)) return request.done(request, 0);
  hand_over(request, done);
}

void BrickQueue::finish(BackendRequest& request, int error) {
  boost::asio::post(progress_of(request).reactor->io(),
                    [&request, error] { request.done(request, error); });
}

void BrickQueue::go_on(BackendRequest& request) {
  progress_of(request).service->run([&request](Brick& brick) {
    const std::uint64_t done = progress_of(request).done;
    switch (request.operation) {
      case BackendOperation::flush:
        return flush(brick, request);
      case BackendOperation::extents:
        return tell_extents(brick, request);
      case BackendOperation::read:
      case BackendOperation::write:
        if (done == request.length) return finish(request, 0);
        return move(brick, request, part_of(request, done));
      case BackendOperation::discard:
      case BackendOperation::write_zeroes:
        if (done == request.length) return finish(request, 0);
        return zero(brick, request, part_of(request, done));
      case BackendOperation::cache:
        return finish(request, 0);
    }
  });
}

void BrickQueue::advance(BackendRequest& request, std::uint64_t length) {
  progress_of(request).done += length;
  go_on(request);
}

void BrickQueue::move(Brick& brick, BackendRequest& request, const Part& part) {
  BrickService& service = *progress_of(request).service;
  const Ticket ticket = service.ask([&request, &service, part](const Reply& reply) {
    if (reply.error != 0) return finish(request, reply.error);
    if (reply.slot == kNone) service.memory().set_absent(part.block);
    copy(service, request, part, progress_of(request).done, reply.slot);
    advance(request, part.length);
  });
  brick.fetch(ticket, part.block, request.operation == BackendOperation::write);
}

/// A whole block is given back, unless somebody has it mapped or it shall stay allocated.
void BrickQueue::zero(Brick& brick, BackendRequest& request, const Part& part) {
  const bool zeroes = request.operation == BackendOperation::write_zeroes;
  if (part.length < kBlockSize || (zeroes && request.no_unmap)) return clear(brick, request, part);
  BrickService& service = *progress_of(request).service;
  const Ticket ticket = service.ask([&request, &service, part](const Reply& reply) {
    if (reply.error == 0 || reply.error == ENOENT) return advance(request, part.length);
    if (reply.error != EBUSY) return finish(request, reply.error);
    service.run([&request, part](Brick& again) { clear(again, request, part); });
  });
  brick.free(ticket, part.block, 1, false);
}

void BrickQueue::clear(Brick& brick, BackendRequest& request, const Part& part) {
  BrickService& service = *progress_of(request).service;
  const Ticket ticket = service.ask([&request, &service, part](const Reply& reply) {
    if (reply.error != 0) return finish(request, reply.error);
    if (reply.slot != kNone) {
      std::memset(service.memory().at(reply.slot) + part.offset, 0, part.length);
      service.memory().mark(reply.slot, part.offset, part.length);
    }
    advance(request, part.length);
  });
  const bool zeroes = request.operation == BackendOperation::write_zeroes;
  brick.fetch(ticket, part.block, zeroes && request.no_unmap);
}

void BrickQueue::flush(Brick& brick, BackendRequest& request) {
  const Ticket ticket = progress_of(request).service->ask(
      [&request](const Reply& reply) { finish(request, reply.error); });
  brick.flush(ticket);
}

/// As many runs as there is room for, from the begin on.
void BrickQueue::tell_extents(Brick& brick, BackendRequest& request) {
  const std::uint64_t end = request.offset + request.length;
  const std::size_t room = std::max<std::size_t>(request.max_extents, 1);
  const std::size_t before = request.extents->size();
  std::uint64_t at = request.offset;
  const auto blocks =
      brick.list(brick::Listing::allocated, 0, at / kBlockSize, request.length / kBlockSize + 2);
  auto next = blocks.begin();
  while (at < end) {
    const bool data = next != blocks.end() && next->block == at / kBlockSize;
    const std::uint64_t to = data ? (at / kBlockSize + 1) * kBlockSize
                                  : (next == blocks.end() ? end : next->block * kBlockSize);
    if (data) ++next;
    const std::uint64_t length = std::min(to, end) - at;
    const bool joins = request.extents->size() > before && request.extents->back().hole == !data;
    if (joins)
      request.extents->back().length += length;
    else if (request.extents->size() - before == room)
      break;
    else
      request.extents->push_back({length, !data, !data});
    at += length;
  }
  finish(request, 0);
}

}  // namespace rnbd
