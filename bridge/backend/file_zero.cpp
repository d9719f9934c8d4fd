// SPDX-License-Identifier: BSD-3-Clause
// Holes and zeroes in a file.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <cerrno>

#include "bridge/backend/file_queue.hpp"

namespace rnbd {

void FileQueue::discard(FileIo& io) {
  const BackendRequest& request = *io.request;
  io.offset = request.offset;
  io.length = inside(request);
  if (state_.block_device) {
    // Devices discard whole blocks only; the rest may stay, a discard is a hint.
    const std::uint64_t unit = state_.block_size;
    const std::uint64_t end = (request.offset + io.length) / unit * unit;
    io.offset = (request.offset + unit - 1) / unit * unit;
    io.length = end > io.offset ? end - io.offset : 0;
  }
  if (!state_.info.can_discard) return finish(io, EOPNOTSUPP);
  if (io.length == 0) return finish_durably(io);
  const auto done = [](FileOperation& operation, std::int64_t result) {
    FileIo& self = io_of(operation);
    if (result < 0) return self.queue->finish(self, static_cast<int>(-result));
    self.queue->finish_durably(self);
  };
  if (!state_.block_device) return allocate(io, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, done);
  io.fd = state_.fd.get();
  io.done = done;
  call(io, [](FileOperation& operation) -> std::int64_t {
    std::uint64_t range[2] = {operation.offset, operation.length};
    return ioctl(operation.fd, BLKDISCARD, range) == 0 ? 0 : -errno;
  });
}

void FileQueue::allocate(FileIo& io, int mode, void (*done)(FileOperation&, std::int64_t)) {
  io.kind = FileOperation::Kind::allocate;
  io.fd = state_.fd.get();
  io.flags = mode;
  io.done = done;
  engine_->start(io);
}

/// Tries the cheap ways first: a hole (if the caller allows it), then zeroed allocated blocks, then
/// written zeroes.
void FileQueue::zero(FileIo& io) {
  const BackendRequest& request = *io.request;
  io.offset = request.offset;
  io.length = inside(request);
  if (io.length == 0) return finish_durably(io);
  // Block devices zero whole blocks only. And they fall back to writing by themselves in
  // ZERO_RANGE, never in PUNCH_HOLE.
  const bool aligned = !state_.block_device || (io.offset | io.length) % state_.block_size == 0;
  const auto done = [](FileOperation& operation, std::int64_t result) {
    FileIo& self = io_of(operation);
    self.queue->on_zeroed(self, result);
  };
  if (aligned && !request.no_unmap && state_.punch_hole) {
    return allocate(io, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, done);
  }
  const bool quick = !(request.fast && state_.block_device);
  if (aligned && quick && state_.zero_range) {
    return allocate(io, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, done);
  }
  write_zeroes(io);
}

void FileQueue::on_zeroed(FileIo& io, std::int64_t result) {
  // The kernel zeroes the part that exists, and reports no error for the rest.
  if (result >= 0 && is_cut(state_, io.offset + io.length)) {
    return finish(io, EIO);
  }
  if (result >= 0) return finish_durably(io);
  if (result != -EOPNOTSUPP) return finish(io, static_cast<int>(-result));
  const bool was_punch = (io.flags & FALLOC_FL_PUNCH_HOLE) != 0;
  (was_punch ? state_.punch_hole : state_.zero_range) = false;
  zero(io);
}

void FileQueue::write_zeroes(FileIo& io) {
  if (io.request->fast) return finish(io, EOPNOTSUPP);
  transfer(io);
}

}  // namespace rnbd
