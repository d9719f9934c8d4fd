// The data path: an I/O message becomes one to three operations of a backend and one answer.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/server/io_context.hpp"

namespace rnbd {

void BlockSession::add_contexts() {
  context_blocks_.push_back(std::make_unique<IoContext[]>(kContextsPerBlock));
  for (std::size_t n = kContextsPerBlock; n-- > 0;) {
    IoContext& io = context_blocks_.back()[n];
    io.session = this;
    io.backend.done = &BlockSession::on_step_done;
    io.backend.context = &io;
    io.next = free_contexts_;
    free_contexts_ = &io;
  }
}

void BlockSession::io(rtrs::ServerRequest& request) {
  const auto message = wire::decode_io(request.message);
  if (!message) return finish(request, EINVAL);
  Device* device = usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  const IoPlan plan = plan_io(*message, request.is_read, request.data.size(), device->geometry(),
                              {device->lease.writable(), facts_.extensions});
  if (plan.error != 0) return finish(request, plan.error);
  submit(take_context(request, *device, plan));
}

/// A device that is open and not about to close.
Device* BlockSession::usable(std::uint32_t id) const {
  Device* device = devices_.find(id);
  return device == nullptr || device->closing ? nullptr : device;
}

BlockSession::IoContext& BlockSession::take_context(rtrs::ServerRequest& request, Device& device,
                                                    const IoPlan& plan) {
  if (free_contexts_ == nullptr) add_contexts();  // only if more run than the queue depth allows
  IoContext& io = *free_contexts_;
  free_contexts_ = io.next;
  io.request = &request;
  io.device = &device;
  io.plan = plan;
  io.step = plan.flush_before ? IoContext::Step::flush_before : IoContext::Step::operation;
  ++device.running;
  return io;
}

/// May complete the whole request before it returns.
void BlockSession::submit(IoContext& io) {
  BackendRequest& backend = io.backend;
  if (io.step == IoContext::Step::operation) {
    const IoPlan& plan = io.plan;
    backend.operation = plan.operation;
    backend.fua = plan.fua;
    backend.no_unmap = plan.no_unmap;
    backend.fast = plan.fast;
    backend.offset = plan.offset;
    backend.length = plan.length;
    backend.data = io.request->data.data();
  } else {
    backend.operation = BackendOperation::flush;
    backend.fua = backend.no_unmap = backend.fast = false;
    backend.offset = backend.length = 0;
    backend.data = nullptr;
  }
  io.device->queue.submit(backend);
}

void BlockSession::on_step_done(BackendRequest& backend, int error) {
  IoContext& io = *static_cast<IoContext*>(backend.context);
  if (error == 0 && io.step == IoContext::Step::flush_before) {
    io.step = IoContext::Step::operation;
    return io.session->submit(io);
  }
  if (error == 0 && io.step == IoContext::Step::operation && io.plan.flush_after) {
    io.step = IoContext::Step::flush_after;
    return io.session->submit(io);
  }
  io.session->complete(io, error);
}

/// The answer may end the session, so nothing of it is touched afterwards, except while a CLOSE
/// waits, which keeps it.
void BlockSession::complete(IoContext& io, int error) {
  rtrs::ServerRequest& request = *io.request;
  Device& device = *io.device;
  if (error == 0 && io.plan.operation == BackendOperation::extents)
    encode_extents(io.extents, io.plan.length, request.data);
  io.next = std::exchange(free_contexts_, &io);
  --device.running;
  const bool close_now = device.closing && device.running == 0;
  finish(request, error);
  if (close_now) finish_close(device);
}

}  // namespace rnbd
