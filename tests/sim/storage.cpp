// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/storage.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "tests/sim/sim_backend.hpp"

namespace sim {
namespace {

using rnbd::BackendOperation;
using rnbd::BackendRequest;

/// As the server is allowed to tell it: nine bits of errno.
constexpr int kMaxErrno = 511;

Action action_of(BackendOperation operation) {
  switch (operation) {
    case BackendOperation::write:
      return Action::write;
    case BackendOperation::flush:
      return Action::flush;
    case BackendOperation::discard:
      return Action::discard;
    case BackendOperation::write_zeroes:
      return Action::zero;
    default:
      return Action::read;
  }
}

}  // namespace

Storage::Storage(World& world, const StorageKnobs& knobs, Disks& disks, Checker& checker,
                 NodeId server)
    : world_{world},
      knobs_{knobs},
      disks_{disks},
      checker_{checker},
      hardware_{world, 0},
      server_{world, server} {}

std::unique_ptr<rnbd::Backend> Storage::open(unsigned disk, bool read_only) {
  return make_backend(*this, disks_[disk], read_only);
}

std::uint64_t Storage::open_queue() {
  queues_.push_back({});
  return queues_.size() - 1;
}

void Storage::close_queue(std::uint64_t queue) {
  Queue& state = queues_[queue];
  if (!state.open) world_.violate("a queue of the storage was closed twice");
  if (state.running > 0) {
    world_.violate("a queue of the storage was closed while " + std::to_string(state.running) +
                   " of its requests ran");
  }
  state.open = false;
}

void Storage::check(const Disk& disk, const BackendRequest& request) {
  const auto refuse = [&](const char* what) {
    world_.violate(std::string{"the server asked "} + disk.name() + " for " + what + " (offset " +
                   std::to_string(request.offset) + ", length " + std::to_string(request.length) +
                   ")");
  };
  const DiskKnobs& knobs = disk.knobs();
  const Action action = action_of(request.operation);
  for (const auto& [id, other] : running_) {
    if (other.request == &request) refuse("the same request twice");
  }
  if (is_change(action) && knobs.backend_read_only) refuse("a change, but it is read-only");
  if (request.fua && !knobs.can_fua) refuse("FUA, which it does not have");
  if (action == Action::flush) {
    if (!knobs.can_flush) refuse("a flush, which it does not have");
    return;
  }
  const std::uint64_t end = disk.sectors() * kSector;
  if (request.length == 0 || request.offset > end || request.length > end - request.offset) {
    return refuse("a range that it does not have");
  }
  const bool to_the_end = request.offset + request.length == end;
  if (request.operation == BackendOperation::extents ||
      request.operation == BackendOperation::cache) {
    return;
  }
  if (request.offset % knobs.block != 0 || (request.length % knobs.block != 0 && !to_the_end)) {
    refuse("a part of a block");
  }
  if (action == Action::discard && !knobs.can_discard) refuse("a discard, which it cannot do");
  if (action == Action::zero && !knobs.can_write_zeroes) refuse("zeroing, which it cannot do");
  if (request.fast && !knobs.can_fast_zero) refuse("fast zeroing, which it cannot do");
}

Storage::Running Storage::prepare(std::uint64_t queue, unsigned disk, BackendRequest& request) {
  Running running;
  running.queue = queue;
  running.disk = disk;
  running.request = &request;
  running.action = action_of(request.operation);
  if (running.action == Action::flush) {
    for (std::uint64_t i = 0; i < disks_[disk].sectors(); ++i) {
      running.covers.push_back(disks_[disk].sector(i).completed);
    }
  } else {
    running.first = request.offset / kSector;
    running.count = (request.offset + request.length + kSector - 1) / kSector - running.first;
    running.pieces =
        static_cast<unsigned>(world_.rng().between(1, std::min<std::uint64_t>(3, running.count)));
    if (is_change(running.action)) running.positions.resize(running.count);
  }
  running.to_execute = running.pieces;
  if (queues_[queue].broken) {
    fail(running, EIO, 0);
  } else if (!calm_) {
    plan_failure(running);
  }
  return running;
}

void Storage::plan_failure(Running& running) {
  Rng& rng = world_.rng();
  if (running.request->fast && rng.chance(200)) {
    fail(running, EOPNOTSUPP, 0);
  } else if (rng.chance(knobs_.fail)) {
    fail(running, rng.pick({EIO, EIO, ENOSPC, ENOMEM, ETIMEDOUT, EPERM, 600}),
         static_cast<unsigned>(rng.below(running.pieces + 1)));
  } else if (rng.chance(knobs_.break_queue)) {
    world_.note("disk", running.disk, "queue breaks", running.queue);
    queues_[running.queue].broken = true;
  }
}

/// It will be answered with an error after so many of its pieces.
void Storage::fail(Running& running, int error, unsigned pieces) {
  running.error = error;
  running.to_execute = pieces;
  checker_.fails(running.disk, running.action, running.first, running.count,
                 error > kMaxErrno ? EIO : error);
}

Duration Storage::delay() {
  Rng& rng = world_.rng();
  if (calm_) return rng.delay(1us, 50us);
  if (rng.chance(knobs_.stall)) return rng.delay(1ms, knobs_.stall_max);
  return rng.delay(1us, knobs_.delay_max) * (rng.chance(knobs_.slow) ? 100 : 1);
}

void Storage::submit(std::uint64_t queue, unsigned disk, BackendRequest& request) {
  check(disks_[disk], request);
  if (!queues_[queue].open) world_.violate("a closed queue of the storage was asked");
  if (world_.broken()) return;
  const std::uint64_t id = next_++;
  world_.note("disk", disk, "is asked", id, static_cast<std::uint64_t>(request.operation),
              request.offset);
  Running& running = running_.emplace(id, prepare(queue, disk, request)).first->second;
  ++queues_[queue].running;
  if (!calm_ && world_.rng().chance(knobs_.hang)) {
    world_.note("disk", disk, "hangs", id);
    return hung_.push_back(id);
  }
  if (world_.rng().chance(knobs_.at_once)) {
    while (running.executed < running.to_execute) execute_piece(running);
    return finish(id);
  }
  hardware_.after(delay(), [this, id] { advance(id); });
}

void Storage::calm() {
  calm_ = true;
  for (const std::uint64_t id : hung_) {
    hardware_.after(delay(), [this, id] { advance(id); });
  }
}

/// One piece after the other; then the server is told.
void Storage::advance(std::uint64_t id) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;  // the server died
  Running& running = found->second;
  if (running.executed < running.to_execute) execute_piece(running);
  if (running.executed < running.to_execute) {
    hardware_.after(delay(), [this, id] { advance(id); });
  } else {
    server_.after(world_.rng().delay(0us, 20us), [this, id] { finish(id); });
  }
}

void Storage::execute_piece(Running& running) {
  const unsigned piece = running.executed++;
  const std::uint64_t begin = running.count * piece / running.pieces;
  const std::uint64_t end = running.count * (piece + 1) / running.pieces;
  switch (running.request->operation) {
    case BackendOperation::flush:
    case BackendOperation::cache:
    case BackendOperation::extents:
      return;
    default:
      for (std::uint64_t i = begin; i < end && !world_.broken(); ++i) execute_sector(running, i);
  }
}

void Storage::execute_sector(Running& running, std::uint64_t index) {
  Disk& disk = disks_[running.disk];
  const std::uint64_t number = running.first + index;
  const std::size_t valid = disk.valid_bytes(number);
  const BackendRequest& request = *running.request;
  std::byte* data = request.data == nullptr ? nullptr : request.data + index * kSector;
  switch (running.action) {
    case Action::read:
      return write_pattern(data, disk.value(number), valid);
    case Action::write:
      checker_.executes(running.disk, number, Action::write, read_pattern(data, valid, false),
                        false);
      break;
    default:
      checker_.executes(running.disk, number, running.action, 0, request.no_unmap);
      break;
  }
  running.positions[index] = disk.sector(number).last();
}

void Storage::finish(std::uint64_t id) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  Running running = std::move(found->second);
  running_.erase(found);
  if (world_.broken()) return;
  Queue& queue = queues_[running.queue];
  --queue.running;
  if (queue.broken && running.error == 0) fail(running, EIO, 0);
  if (running.error == 0) make_durable(running);
  if (running.request->operation == BackendOperation::extents) answer_extents(running);
  world_.note("disk", running.disk, "answers", id, static_cast<std::uint64_t>(running.error));
  running.request->done(*running.request, running.error);
}

void Storage::make_durable(const Running& running) {
  Disk& disk = disks_[running.disk];
  for (std::uint64_t i = 0; i < running.covers.size(); ++i) {
    Disk::Sector& sector = disk.sector(i);
    sector.durable = std::max(sector.durable, running.covers[i]);
  }
  const bool now = running.request->fua || !disk.knobs().volatile_cache;
  for (std::uint64_t i = 0; i < running.positions.size(); ++i) {
    Disk::Sector& sector = disk.sector(running.first + i);
    sector.completed = std::max(sector.completed, running.positions[i]);
    if (now) sector.durable = std::max(sector.durable, running.positions[i]);
  }
}

void Storage::answer_extents(const Running& running) {
  const Disk& disk = disks_[running.disk];
  std::uint64_t left = running.request->length;
  for (std::uint64_t i = 0; left > 0; ++i) {
    if (running.request->extents->size() >= running.request->max_extents) return;
    const std::uint64_t length = std::min<std::uint64_t>(left, kSector);
    const bool zero = disk.value(running.first + i) == 0;
    running.request->extents->push_back({length, zero, zero});
    left -= length;
  }
}

void Storage::kill() {
  while (!running_.empty() && !world_.broken()) {
    Running& running = running_.begin()->second;
    while (running.executed < running.to_execute && world_.rng().chance(500)) {
      execute_piece(running);
    }
    running.error = EIO;
    finish(running_.begin()->first);
  }
}

}  // namespace sim
