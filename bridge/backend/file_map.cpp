// SPDX-License-Identifier: BSD-3-Clause
// Where a file has data, and read-ahead.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "bridge/backend/file_queue.hpp"

namespace rnbd {

namespace {

/// Appends a run, joined to the one before if that is of the same kind.
void append_extent(FileIo& io, std::uint64_t length, bool hole) {
  std::vector<BackendExtent>& extents = *io.request->extents;
  if (io.progress > 0 && extents.back().hole == hole) {
    extents.back().length += length;
    return;
  }
  extents.push_back({length, hole, hole});
  ++io.progress;
}

/// Asks the file system; runs on a thread of its own, because the map of a fragmented file is read
/// from disk.
std::int64_t find_extents(FileOperation& operation) {
  FileIo& io = io_of(operation);
  const std::size_t max = std::max<std::size_t>(io.request->max_extents, 1);
  const std::uint64_t inside_end = operation.offset + operation.length;
  std::uint64_t at = operation.offset;
  // A part that was cut off looks like a hole to the file system, but cannot be read: a client
  // that takes it for zeroes would never find out.
  const off_t file_end = lseek(operation.fd, 0, SEEK_END);
  if (file_end < 0) return -errno;
  const std::uint64_t end = std::min<std::uint64_t>(inside_end, file_end);
  if (at >= end && at < inside_end) return -EIO;
  while (at < end) {
    const off_t data = lseek(operation.fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno != ENXIO) return -errno;
    const std::uint64_t data_at = data < 0 ? end : std::min<std::uint64_t>(data, end);
    if (data_at > at) {
      if (io.progress == max) break;
      append_extent(io, data_at - at, /*hole=*/true);
      at = data_at;
      continue;
    }
    const off_t hole = lseek(operation.fd, static_cast<off_t>(at), SEEK_HOLE);
    if (hole < 0 && errno != ENXIO) return -errno;
    // The file may change meanwhile, so always move on.
    const std::uint64_t hole_at = hole < 0 ? end : std::min<std::uint64_t>(hole, end);
    if (hole_at <= at) continue;
    if (io.progress == max) break;
    append_extent(io, hole_at - at, /*hole=*/false);
    at = hole_at;
  }
  // The padding behind the end of the file.
  const std::uint64_t padding_end = operation.offset + io.request->length;
  if (at == inside_end && padding_end > at) {
    if (io.progress < max) {
      append_extent(io, padding_end - at, /*hole=*/true);
    } else if (io.request->extents->back().hole) {
      io.request->extents->back().length += padding_end - at;
    }
  }
  return 0;
}

}  // namespace

void FileQueue::extents(FileIo& io) {
  const BackendRequest& request = *io.request;
  if (!state_.info.can_extents) {
    request.extents->push_back({request.length, /*hole=*/false, /*zero=*/false});
    return finish(io, 0);
  }
  io.fd = state_.fd.get();
  io.offset = request.offset;
  io.length = inside(request);
  io.done = [](FileOperation& operation, std::int64_t result) {
    FileIo& self = io_of(operation);
    self.queue->finish(self, static_cast<int>(-result));
  };
  call(io, find_extents);
}

/// Read-ahead is a hint, so its result is ignored.
void FileQueue::cache(FileIo& io) {
  io.offset = io.request->offset;
  io.length = inside(*io.request);
  if (state_.direct || state_.memory_backed || io.length == 0) return finish(io, 0);
  io.kind = FileOperation::Kind::advise;
  io.fd = state_.fd.get();
  io.flags = POSIX_FADV_WILLNEED;
  io.done = [](FileOperation& operation, std::int64_t) {
    FileIo& self = io_of(operation);
    self.queue->finish(self, 0);
  };
  engine_->start(io);
}

}  // namespace rnbd
