// SPDX-License-Identifier: BSD-3-Clause
// The data path: an I/O message becomes one to three operations of a backend and one answer.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/io_context.hpp"
#include "rdma/wire/probe.hpp"

namespace rnbd {
namespace {

const char* name_of(BackendOperation operation) {
  switch (operation) {
    case BackendOperation::read:
      return "read";
    case BackendOperation::write:
      return "write";
    case BackendOperation::flush:
      return "flush";
    case BackendOperation::discard:
      return "discard";
    case BackendOperation::write_zeroes:
      return "write zeroes";
    case BackendOperation::extents:
      return "block status";
    case BackendOperation::cache:
      return "cache";
  }
  return "request";
}

MeteredOperation metered(BackendOperation operation) {
  switch (operation) {
    case BackendOperation::read:
      return MeteredOperation::read;
    case BackendOperation::write:
      return MeteredOperation::write;
    case BackendOperation::flush:
      return MeteredOperation::flush;
    case BackendOperation::discard:
      return MeteredOperation::discard;
    case BackendOperation::write_zeroes:
      return MeteredOperation::write_zeroes;
    case BackendOperation::extents:
    case BackendOperation::cache:
      break;
  }
  return MeteredOperation::other;
}

/// An annex that guards the device judges one without a reservation.
bool may_write(const Device& device) {
  const Lease& lease = device.lease;
  return lease.writable() || (lease.unclaimed() && device.guarded);
}

}  // namespace

IoRequests::IoRequests(const SessionFacts& facts, const OpenTable& devices,
                       const Services& services, rtrs::Reactor* reactor, const SessionLog& log,
                       std::function<void(Device& device)> close)
    : facts_{facts},
      devices_{devices},
      services_{services},
      reactor_{reactor},
      log_{log},
      close_{std::move(close)},
      throttle_{in_force(facts_.throttle, services_)},
      flow_{reactor_} {
  // All of them now, so that no I/O pays for it.
  for (std::size_t n = 0; n < facts_.queue_depth; n += kContextsPerBlock) add_contexts();
}

IoRequests::~IoRequests() = default;

IoRequests::Ending IoRequests::begin(rtrs::ServerRequest& request, Device& device,
                                     const IoPlan& plan) {
  IoContext& io = take_context(request, device, plan);
  return [this, &io](int error) { complete(io, error); };
}

void IoRequests::add_contexts() {
  context_blocks_.push_back(std::make_unique<IoContext[]>(kContextsPerBlock));
  for (std::size_t n = kContextsPerBlock; n-- > 0;) {
    IoContext& io = context_blocks_.back()[n];
    io.owner = this;
    io.backend.done = &IoRequests::on_step_done;
    io.backend.context = &io;
    io.go_on = &IoRequests::on_turn;
    give_back(io);
  }
}

void IoRequests::give_back(IoContext& io) {
  io.device = nullptr;
  io.next = std::exchange(free_contexts_, &io);
}

void IoRequests::io(rtrs::ServerRequest& request, Turn turn) {
  const auto message = wire::decode_io(request.message);
  if (!message) return finish(request, EINVAL);
  Device* device = devices_.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  const bool waits = turn == Turn::not_yet && is_limited(*device) &&
                     !admit(request, *device, request.data.size(), &IoRequests::io);
  if (waits) return;
  const IoPlan plan = plan_io(*message, request.is_read, request.data.size(), device->reach(),
                              {may_write(*device), facts_.extensions, device->guarded});
  if (plan.unknown_flags != 0) report_unknown_flags(*device, plan);
  if (plan.error != 0) return finish(request, device->refusal(plan.error));
  submit(take_context(request, *device, plan));
}

/// Newer clients send such flags with request after request, so only the first is logged.
void IoRequests::report_unknown_flags(const Device& device, const IoPlan& plan) {
  if (std::exchange(reported_unknown_flags_, true)) return;
  std::ostringstream flags;
  flags << std::hex << std::showbase << plan.unknown_flags;
  log_.say(rtrs::LogLevel::info, "flags_unknown", device.name,
           "sends request flags that this server does not know (" + flags.str() +
               "): they are ignored, but a WRITE ZEROES with them is refused");
}

IoRequests::IoContext& IoRequests::take_free_context() {
  if (free_contexts_ == nullptr) add_contexts();  // only if more run than the queue depth allows
  IoContext& io = *free_contexts_;
  free_contexts_ = static_cast<IoContext*>(io.next);
  return io;
}

IoRequests::IoContext& IoRequests::take_context(rtrs::ServerRequest& request, Device& device,
                                                const IoPlan& plan) {
  IoContext& io = take_free_context();
  io.request = &request;
  io.device = &device;
  io.plan = plan;
  io.backend.refused = false;
  io.step = plan.flush_before ? IoContext::Step::flush_before : IoContext::Step::operation;
  io.timed = device.meter->begin(metered(plan.operation));
  io.began = io.timed ? services_.now() : 0;
  ++device.running;
  RTRS_PROBE(rnbd, request_start, &io, device.name.c_str(), static_cast<int>(plan.operation),
             plan.offset, plan.length);
  return io;
}

/// May complete the whole request before it returns.
void IoRequests::submit(IoContext& io) {
  BackendRequest& backend = io.backend;
  if (io.step == IoContext::Step::operation) {
    const IoPlan& plan = io.plan;
    backend.operation = plan.operation;
    backend.fua = plan.fua;
    backend.no_unmap = plan.no_unmap;
    backend.fast = plan.fast;
    backend.copy = plan.copy;
    backend.offset = plan.offset;
    backend.length = plan.length;
    backend.data = io.request->data.data();
  } else {
    backend.operation = BackendOperation::flush;
    backend.fua = backend.no_unmap = backend.fast = backend.copy = false;
    backend.offset = backend.length = 0;
    backend.data = nullptr;
  }
  RTRS_PROBE(rnbd, request_backend, &io, static_cast<int>(backend.operation));
  io.device->queue->submit(backend);
}

void IoRequests::on_step_done(BackendRequest& backend, int error) {
  IoContext& io = *static_cast<IoContext*>(backend.context);
  if (error == 0 && io.step == IoContext::Step::flush_before) {
    io.step = IoContext::Step::operation;
    return io.owner->submit(io);
  }
  if (error == 0 && io.step == IoContext::Step::operation && io.plan.flush_after) {
    io.step = IoContext::Step::flush_after;
    return io.owner->submit(io);
  }
  io.owner->complete(io, error);
}

/// Storage that fails, fails often: the first failure of a device is logged, the 10th, the 100th
/// and so on. It is no LineLimit, because the lines shall show how it grows, and not come for ever.
void IoRequests::report(Device& device, const IoPlan& plan, int error) {
  std::uint64_t told = 1;
  for (++device.failures; told < device.failures;) told *= 10;
  if (told != device.failures) return;
  const std::string which = plan.operation == BackendOperation::flush
                                ? std::string{"flush"}
                                : std::string{name_of(plan.operation)} + " of " +
                                      std::to_string(plan.length) + " bytes at " +
                                      std::to_string(plan.offset);
  const std::string count = told == 1 ? "" : " (failure " + std::to_string(told) + ")";
  log_.tell(rtrs::LogLevel::warning, "storage_fails", device.name,
            facts_.name + " (" + facts_.peer + "): the storage of " + in_quotes(device.name) +
                " fails: " + which + ": " + std::strerror(error) + count,
            error);
}

/// The answer may end the session, so nothing of it is touched afterwards, except while a CLOSE
/// waits, which keeps it.
void IoRequests::complete(IoContext& io, int error) {
  rtrs::ServerRequest& request = *io.request;
  Device& device = *io.device;
  if (error == 0 && io.plan.operation == BackendOperation::extents)
    encode_extents(io.extents, io.plan.length, request.data);
  // Refused in front of the storage, perhaps behind its last step.
  const bool refused = io.backend.refused;
  const bool untouched = refused && io.step <= IoContext::Step::operation;
  if (io.plan.changes() && !untouched) device.lease.storage()->changed();
  if (error != 0 && error != EOPNOTSUPP && !refused) report(device, io.plan, error);
  const std::uint64_t took = io.timed && io.began != 0 ? services_.now() - io.began : 0;
  if (refused)
    device.meter->end(metered(io.plan.operation), 0, 0, 0);
  else
    device.meter->end(metered(io.plan.operation), io.plan.length, error, took);
  RTRS_PROBE(rnbd, request_done, &io, error);
  give_back(io);
  --device.running;
  ++device.ended;
  const bool at_rest = device.watched && device.running == 0;
  const bool close_now = at_rest && device.closing && device.waiting == 0;
  std::vector<std::shared_ptr<void>> drained;
  if (at_rest) drained.swap(device.drainers);
  finish(request, error);
  if (close_now) close_(device);
}

/// Few are timed, so that the others count from the first look.
rtrs::Duration IoRequests::oldest_of(const Device& device) {
  const std::uint64_t now = services_.now();
  std::uint64_t first = now;
  for (const auto& block : context_blocks_) {
    for (std::size_t n = 0; n < kContextsPerBlock; ++n) {
      IoContext& io = block[n];
      if (io.device != &device || io.step < IoContext::Step::flush_before) continue;
      if (io.began == 0) io.began = now;
      first = std::min(first, io.began);
    }
  }
  return std::chrono::nanoseconds{now - first};
}

}  // namespace rnbd
